"""The example pipelines and their expected output, computed without Spark."""

import importlib.util
import itertools
import sys
import time
from pathlib import Path
from typing import Any

from ottla.spark.pipeline.runner import Run

PATIENCE_S = 100
FOLDER = Path(__file__).resolve().parents[3] / "examples" / "pipelines"


def generator() -> Any:
    """examples/pipelines/generate.py, as a module."""
    name = "pipeline_examples_generate"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FOLDER / "generate.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def take_all(running: Run) -> None:
    """Run a pipeline on all that is there, to its end."""
    running.start(once=True)
    deadline_s = time.monotonic() + PATIENCE_S
    while running.running and time.monotonic() < deadline_s:
        running.look()
        time.sleep(0.05)
    running.stop(0)


def records(kind: str, count: int) -> list[Any]:
    return list(itertools.islice(generator().KINDS[kind](), count))
