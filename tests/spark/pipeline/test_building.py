from typing import Any

import pytest

from ottla.spark.pipeline import Pipeline, building
from ottla.spark.pipeline.model import Sink, Source


def test_dead_letters_have_a_producers_settings_and_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline("p", brokers="b:1", checkpoint="/c")
    settings = {"fetch.max.bytes": 1000, "security.protocol": "SSL", "group.id": "told"}
    pipeline.source(
        "rows", topic="t", value="string", dead_letters="dead", group="told", kafka=settings, options={"groupId": "told"}
    )  # fmt: skip
    pipeline.sink("out", from_="rows", format="noop")
    plan = pipeline.plan("p.py")
    read: list[Source] = []
    started: dict[str, Sink] = {}

    def start(_plan: object, name: str, sink: Sink, *_: object) -> str:
        started[name] = sink
        return name

    def reading(_spark: object, source: Source) -> str:
        read.append(source)
        return "frame"

    monkeypatch.setattr(building, "_start", start)
    monkeypatch.setattr(building, "topic_frame", reading)
    monkeypatch.setattr(building, "decoded", lambda frame, _: frame)
    monkeypatch.setattr(building, "unreadable", lambda frame: frame)
    nothing: Any = None
    queries = building.start_queries(nothing, plan, {"rows": nothing}, once=False)
    assert list(queries) == ["out", "rows.dead-letters"]
    assert dict(started["rows.dead-letters"].kafka) == {"security.protocol": "SSL"}
    assert building.source_options(read[0]) == {
        "kafka.bootstrap.servers": "b:1",
        "kafka.fetch.max.bytes": "1000",
        "kafka.security.protocol": "SSL",
        "subscribe": "t",
        "startingOffsets": "earliest",
    }


def test_settings_for_all_go_to_those_who_have_them() -> None:
    both = {"fetch.max.bytes": 1, "compression.type": "zstd", "security.protocol": "SSL", "no.setting": "x"}
    pipeline = Pipeline("p", brokers="b:1", checkpoint="/c", kafka=both)
    pipeline.source("rows", topic="t", kafka={"linger.ms": 3})
    pipeline.sink("out", from_="rows", topic="o", kafka={"acks": "1"})
    plan = pipeline.plan("p.py")
    # What no client has is still there to be refused, and so is what is written for the wrong one itself.
    assert set(plan.sources["rows"].kafka) == {
        "fetch.max.bytes", "security.protocol", "no.setting", "linger.ms"
    }  # fmt: skip
    assert set(plan.sinks["out"].kafka) == {"compression.type", "security.protocol", "no.setting", "acks"}
