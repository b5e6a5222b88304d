"""A stop of `ottla pipeline run` ends, whatever the pipeline's own Python is at."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ottla.spark.session import DEFAULTS

FILE = """\
import threading
from pathlib import Path

from ottla.spark.pipeline import Pipeline

pipeline = Pipeline("stuck", checkpoint="./kept", limits={"stop": "1 s"})
pipeline.source("ticks", format="rate", options={"rowsPerSecond": 10})


def wait(frame, batch_id):
    Path(__file__).with_suffix(".began").touch()
    threading.Event().wait()


pipeline.sink("out", from_="ticks", python=wait)
pipeline.sink("another", from_="ticks", python=wait)
"""


@pytest.mark.timeout(300)
def test_a_function_that_never_ends_does_not_hold_up_the_end(tmp_path: Path) -> None:
    path = tmp_path / "stuck.py"
    path.write_text(FILE)
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli", "pipeline", "run", str(path), "--master", "local[2]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline_s = time.monotonic() + 120
        while not path.with_suffix(".began").exists():
            assert process.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.1)
        asked_s = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=120)
        took_s = time.monotonic() - asked_s
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "out: given up in the middle of a batch" in err and "another: given up" in err
    # The limit, Spark's own for each query, and what it takes to end.
    each_s = float(DEFAULTS["spark.sql.streaming.stopTimeout"].removesuffix("s"))
    assert took_s < 1 + 2 * each_s + 30, took_s
