"""Modules in a pipeline's folder are found, even if only functions import them, and sent to workers."""

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla.spark.pipeline.loader import load
from ottla.spark.pipeline.runner import ship


def write(folder: Path, text: str, name: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


IN_FUNCTIONS = """\
import json

from lazy_lib.inner import half
from ottla.spark.pipeline import Pipeline

pipeline = Pipeline("words", checkpoint="./c")
pipeline.source("ticks", format="rate")


def thrice(number):
    from lazy_helpers import three

    return three(number)


@pipeline.step
def changed(ticks):
    from pyspark.sql.functions import udf

    from lazy_helpers import named

    return ticks.select(udf(thrice, "bigint")("id").alias(named()), udf(lambda n: half(n), "bigint")("id").alias("half"))


pipeline.sink("out", from_="changed", format="noop")
"""


@pytest.fixture
def imports_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that imports from its folder, some of it only inside functions."""
    # Spark's own folder is on the path, and may have been given these files by a test before.
    monkeypatch.setattr(
        sys, "path", [each for each in sys.path if not Path(each, "lazy_helpers.py").exists()]
    )
    for name in ("lazy_helpers", "lazy_lib", "lazy_lib.inner", "lazy_lib.deep", "lazy_more"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "lazy_lib").mkdir()
    # Python's own come first, also where one lies beside.
    for name in ("json.py", "queue.py", "unused.py"):
        write(tmp_path, "1 / 0\n", name)
    write(
        tmp_path,
        "import queue\nimport lazy_more\n\ndef three(n):\n    return 3 * n\n\ndef named():\n    return 'x'\n",
        "lazy_helpers.py",
    )
    write(tmp_path, "", "lazy_more.py")
    write(
        tmp_path / "lazy_lib",
        "from lazy_lib.deep import HALF\n\ndef half(n):\n    return n // HALF\n",
        "inner.py",
    )
    write(tmp_path / "lazy_lib", "HALF = 2\n", "deep.py")
    return write(tmp_path, IN_FUNCTIONS, "flow.py")


def test_what_is_imported_inside_functions_and_from_packages_is_known(imports_inside: Path) -> None:
    loaded = load(imports_inside)
    assert {path.name for path in loaded.modules} == {"lazy_helpers.py", "lazy_lib", "lazy_more.py"}
    assert {module.__name__ for module in loaded.beside} == {"lazy_lib.inner", "lazy_lib.deep"}
    own: Any = loaded.own[0]
    assert own.thrice(2) == 6


def test_it_reaches_the_workers(imports_inside: Path, spark: SparkSession) -> None:
    loaded = load(imports_inside)
    ship(spark, loaded, (), remote=False)
    function = loaded.plan.steps["changed"].function
    assert function is not None and function.call is not None
    assert function.call(spark.range(4)).collect() == [(0, 0), (3, 0), (6, 1), (9, 1)]
