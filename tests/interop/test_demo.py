"""`ottla demo --examples`, which `make run` runs: all four pipelines in one Spark, on live data, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bench.process import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"
#: What it says when something has come out of each.
SIGNS = ("the pipeline runs", "sessions.yaml runs", "orders.yaml runs", "wordcount.py runs")
WAIT_S_MAX = 240


def of(folder: str) -> list[str]:
    """The processes that have this in their command or environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            said = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
        except OSError:
            continue
        if folder.encode() in said:
            found.append(said.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked for in /proc")
def test_every_pipeline_brings_something_out_and_the_demos_own_everything_exactly_once(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable,
        "-m",
        "ottla.cli",
        "demo",
        "--port",
        str(free_port()),
        "--rate",
        "500",
        "--json",
    ]
    process = subprocess.Popen(
        [*command, "--seconds", "600", "--examples", str(EXAMPLES)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Its folder, and a mark by which all that it starts is known.
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stderr is not None
    impatience = threading.Timer(WAIT_S_MAX, process.kill)
    impatience.start()
    try:
        said, left = "", set(SIGNS)
        for line in process.stderr:
            said += line
            left -= {sign for sign in left if line.startswith(sign)}
            if not left or "ended" in line:
                break
        assert not left, said + process.stderr.read()
        # As Ctrl-C at a terminal.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S_MAX)
    finally:
        impatience.cancel()
        process.kill()
    assert process.returncode == 0, said + err
    assert "Traceback" not in said + err
    summary = json.loads(out)
    assert summary["ok"] and summary["produced"] == summary["consumed"] > 0
    assert summary["pipeline"] == {"state": "ran", "rows": summary["produced"], "exactly_once": True}
    assert {name for name, example in summary["examples"].items() if example["out"] > 0} == {
        "sessions",
        "orders",
        "wordcount",
    }
    # Spark's workers hear of the end of its Java, which is a moment later.
    deadline_s = time.monotonic() + 20
    while (left_behind := of(str(tmp_path))) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert left_behind == []
