"""Several pipelines in one Spark application: conflicts, and how they run, stop and fail together."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla.spark.pipeline import PipelineError
from ottla.spark.pipeline.loader import load, load_together
from ottla.spark.pipeline.model import Plan
from ottla.spark.pipeline.progress import Progress, brief
from ottla.spark.pipeline.shared_spark import STATIC_SQL, at_start, clashes, is_static, session_for
from tests.spark.pipeline.command import Call

PATIENCE_S = 60
FILE = """\
name: {name}
checkpoint: {checkpoint}
trigger: 100 ms
spark: {spark}
sources:
  ticks: {{format: rate-micro-batch, options: {{rowsPerBatch: 10}}}}
steps:
  rows: {step}
sinks:
  out: {{from: rows, format: noop}}
"""


def write(folder: Path, name: str, /, **fields: Any) -> Path:
    path = folder / f"{name}.yaml"
    given = {
        "name": name,
        "checkpoint": f"./kept/{name}",
        "spark": {},
        "step": "SELECT * FROM ticks",
    } | fields
    path.write_text(FILE.format(**{**given, "spark": json.dumps(given["spark"])}))
    return path


def plan(folder: Path, name: str, /, **fields: Any) -> Plan:
    return load(write(folder, name, **fields)).plan


@pytest.fixture
def on_this_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.pipeline.spark_for", lambda *_: contextlib.nullcontext(spark.newSession()))


def test_what_cannot_run_together_is_refused_before_spark_starts(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.cli.pipeline.spark_for", lambda *_: pytest.fail("Spark was started"))
    memory = "spark.driver.memory"
    one = write(tmp_path, "one", spark={memory: "1g"})
    other = write(tmp_path, "other", name="one", spark={memory: "2g"}, checkpoint="./kept/there/../one")
    code, out, err = call("run", one, other)
    assert code == 2 and out == ""
    assert f"{one} and {other} are both named one: rename one" in err
    assert f"{one} and {other} have the same checkpoint, {tmp_path}/kept/one" in err
    assert f"{one} sets {memory}=1g, {other} sets 2g: it applies to the whole application" in err
    code, _, err = call("run", one, tmp_path / "nothing.yaml")
    assert code == 4 and "nothing.yaml" in err


def test_settings_of_a_session_may_differ_and_those_of_spark_are_joined(tmp_path: Path) -> None:
    parts, memory, debug = "spark.sql.shuffle.partitions", "spark.driver.memory", "spark.sql.debug"
    plans = [
        plan(tmp_path, "one", spark={parts: "1", memory: "1g"}),
        plan(tmp_path, "two", spark={parts: "7", memory: "1g", debug: "false"}),
        plan(tmp_path, "three"),
    ]
    assert clashes(plans) == []
    assert at_start(plans) == {memory: "1g", debug: "false"}


def test_each_has_a_session_with_its_own_settings_and_tables(spark: SparkSession, tmp_path: Path) -> None:
    parts = "spark.sql.shuffle.partitions"
    one, other = (
        session_for(spark, plan(tmp_path, name, spark={parts: value, "spark.driver.memory": "9g"}))
        for name, value in (("one", "3"), ("other", "5"))
    )
    assert (one.conf.get(parts), other.conf.get(parts)) == ("3", "5")
    one.range(1).createOrReplaceTempView("rows")
    assert one.catalog.tableExists("rows") and not other.catalog.tableExists("rows")


def test_the_static_settings_are_those_of_spark(spark: SparkSession) -> None:
    java: Any = spark._jvm
    documented = {
        entry._1() for entry in java.org.apache.spark.sql.api.python.PythonSQLUtils.listStaticSQLConfigs()
    }
    assert documented and [name for name in sorted(documented) if not is_static(name)] == []
    assert [name for name in sorted(STATIC_SQL) if spark.conf.isModifiable(name)] == []


def test_modules_beside_the_files_are_each_files_own(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    for folder, module in zip(folders, ("helping", "other_help", "helping"), strict=True):
        folder.mkdir()
        (folder / f"{module}.py").write_text(f"def step(rows):\n    return {folder.name!r}\n")
        (folder / f"{folder.name}.py").write_text(f"from {module} import step\n")
        path = write(folder, folder.name, step=f"{{python: {folder.name}.py:step, inputs: [ticks]}}")
        assert path.is_file()
    files = [folder / f"{folder.name}.yaml" for folder in folders]
    called = [each.plan.steps["rows"].function for each in load_together(files[:2])]
    assert [step.call("rows") for step in called if step and step.call] == ["one", "two"]
    # Once more, and with one whose module bears the name of another's.
    with pytest.raises(PipelineError, match=r"helping\.py and .*helping\.py have the same name"):
        load_together(files)


def test_modules_that_only_functions_import_must_not_share_a_name_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = list(sys.path)
    monkeypatch.setattr(sys, "path", list(path))
    files = []
    for name in ("first", "second", "third"):
        folder = tmp_path / name
        folder.mkdir()
        used = "its_own" if name == "third" else "late_help"
        (folder / f"{used}.py").write_text(f"def told():\n    return {name!r}\n")
        (folder / f"{name}.py").write_text(
            f"def step(rows):\n    from {used} import told\n    return told()\n"
        )
        files.append(write(folder, name, step=f"{{python: {name}.py:step, inputs: [ticks]}}"))
    loaded = load_together([files[0], files[2]])
    assert [[place.name for place in each.modules] for each in loaded] == [["late_help.py"], ["its_own.py"]]
    steps = [each.plan.steps["rows"].function for each in loaded]
    assert [step.call("rows") for step in steps if step and step.call] == ["first", "third"]
    sys.modules.pop("late_help")
    monkeypatch.setattr(sys, "path", path.copy())
    with pytest.raises(PipelineError, match=r"late_help\.py and .*late_help\.py have the same name"):
        load_together(files)


def test_many_queries_fit_on_a_line() -> None:
    last = Progress(batch=3, at="", rows=5, rows_per_s_in=1234.0, rows_per_s=0, batch_ms=9, lag={"t-0": 7})
    assert brief({"one/out": last, "two/out": None}) == "one/out: 1,234/s  lag 7  |  two/out: starting"


@pytest.mark.usefixtures("on_this_spark")
def test_one_signal_stops_all_and_each_has_a_status_of_its_own(call: Call, tmp_path: Path) -> None:
    files = [write(tmp_path, name) for name in ("one", "two")]
    places = [tmp_path / "kept" / name / "status.json" for name in ("one", "two")]

    def rows(place: Path) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(json.loads(place.read_text())["queries"]["out"]["rows"])
        return 0

    def interrupt() -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(map(rows, places)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    code, out, err = call("run", *files, "--json")
    waiting.join()
    assert code == 0, err
    assert (
        "one, two: one/out, two/out running" in err
        and "one/out: stopped" in err
        and "two/out: stopped" in err
    )
    told = json.loads(out)["pipelines"]
    assert [each["pipeline"] for each in told] == ["one", "two"]
    assert all(
        each["queries"]["out"]["state"] == "stopped" and each["queries"]["out"]["rows"] for each in told
    )
    assert [json.loads(place.read_text())["state"] for place in places] == ["stopped", "stopped"]


@pytest.mark.usefixtures("on_this_spark")
def test_when_one_fails_all_are_stopped_and_it_is_said_which(call: Call, tmp_path: Path) -> None:
    good = write(tmp_path, "good")
    bad = write(tmp_path, "bad", step="SELECT raise_error('it was bad') AS never FROM ticks")
    code, out, err = call("run", good, bad)
    assert code == 1
    assert "bad/out failed:" in err and "it was bad" in err and "good/out failed" not in err
    assert "good/out: stopped" in out and "bad/out: failed" in out
    # One that cannot even be started.
    write(tmp_path, "bad", step="SELECT nothing FROM ticks")
    code, _, err = call("run", good, bad)
    assert code == 2 and f"{bad}: steps.rows: A column" in err
    assert json.loads((tmp_path / "kept" / "good" / "status.json").read_text())["state"] == "stopped"
    told = json.loads((tmp_path / "kept" / "bad" / "status.json").read_text())
    assert told["state"] == "failed" and told["cause"].startswith("steps.rows: A column")
    # Something that is down is no fault of the file's, here too.
    (tmp_path / "asking.py").write_text("def ask(ticks):\n    raise ConnectionError('it is down')\n")
    write(tmp_path, "bad", step="{python: asking.py:ask, inputs: ticks}")
    code, _, err = call("run", good, bad)
    assert code == 1 and f"{bad}: steps.rows: it is down" in err


def test_static_is_all_that_is_not_of_sql() -> None:
    assert is_static("spark.executor.memory") and is_static("spark.sql.extensions")
    assert not is_static("spark.sql.streaming.stateStore.providerClass")
