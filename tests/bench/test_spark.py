"""Comparison with Spark's connector: how goals are judged, and the message if one side is missing."""

import io
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from bench import spark, spark_official
from bench.clients import Goal
from bench.spark import CONNECTOR, LEAST_ONCE, OTTLA, TUNED
from tests.bench.test_table import line


def test_less_is_better_where_a_goal_says_so() -> None:
    found = {OTTLA: {"batch_ms": [100.0, 300.0]}, CONNECTOR: {"batch_ms": [120.0, 310.0]}}
    assert Goal(than=CONNECTOR, lower=True).met(found, "batch_ms") is True
    assert Goal(than=CONNECTOR, times=0.5, lower=True).met(found, "batch_ms") is False
    assert Goal(than=CONNECTOR, lower=True).met({OTTLA: found[OTTLA]}, "batch_ms") is None
    assert Goal(than=CONNECTOR, lower=True).text() == f"≤ {CONNECTOR}"


def test_the_table_has_a_column_a_side() -> None:
    found = {
        CONNECTOR: {"write_rows_s": [400_000.0]},
        OTTLA: {"write_rows_s": [500_000.0]},
        LEAST_ONCE: {"write_rows_s": [700_000.0]},
    }
    label = "write, rows/s"
    assert line(spark.render(found), label) == [
        label,
        "400,000",
        "500,000",
        "700,000",
        f"≥ {CONNECTOR}",
        "pass",
    ]
    assert [verdict.met for verdict in spark.verdicts(found) if verdict.met is not None] == [True]


def test_reading_is_compared_with_both_settings_of_the_connector() -> None:
    found = {
        CONNECTOR: {"read_plain_rows_s": [500.0]},
        TUNED: {"read_plain_rows_s": [900.0]},
        OTTLA: {"read_plain_rows_s": [1200.0]},
    }
    missed = [verdict.label for verdict in spark.verdicts(found) if verdict.met is False]
    assert missed == [f"read, plain, rows/s ≥ 1.5 × {TUNED}"]


def test_without_maven_the_connector_is_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_official, "find_java", lambda: "java")
    monkeypatch.setattr(spark_official.shutil, "which", lambda name: None)
    with (
        redirect_stderr(io.StringIO()),
        pytest.raises(spark_official.SparkUnavailable, match="install Apache Maven"),
    ):
        spark_official.fetch(cache=tmp_path)
    # Nothing is left that a later run would take for the whole.
    assert not (tmp_path / "spark-4.0.0" / "jars").exists()
