"""Closed objects leave no reference cycles, because a broker freezes long-lived objects
(`runtime/garbage.py`).
"""

import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.runtime import garbage
from ottla.runtime.garbage import Collector
from ottla.server.embedded import Broker
from tests.peer import DELETE_TOPICS, Peer

TIMES = 20


@pytest.fixture
def cycles() -> Iterator[Counter[str]]:
    """After the test: the types of all objects that only the garbage collector would have freed."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


def until_no_folder_is_left(data_dir: Path) -> None:
    for _ in range(3_000):
        # Not `glob`: it opens folders that are renamed meanwhile.
        if not [name for name in os.listdir(data_dir) if name[0] == "t" and not name.endswith("-delete")]:
            return
        time.sleep(0.01)
    raise AssertionError("the logs of deleted topics are still there")


def look(found: Counter[str]) -> None:
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        found.update(type(each).__name__ for each in gc.garbage)
    finally:
        gc.garbage.clear()
        gc.set_debug(0)


def test_closed_connections_and_deleted_logs_are_freed_at_once(cycles: Counter[str]) -> None:
    with Broker() as broker:
        for number in range(TIMES):
            with Peer(broker.address) as peer:
                peer.create(f"t{number}", 2)
                peer.produce(f"t{number}", b"x")
        with Peer(broker.address) as peer:
            rows = [{"name": f"t{number}", "topic_id": None} for number in range(TIMES)]
            peer.ask(DELETE_TOPICS, 6, timeout=9_000, topics=rows)
            until_no_folder_is_left(Path(broker.data_dir))
        look(cycles)
    # Some may be in use in the other thread.
    assert cycles["Transport"] + cycles["Connection"] < TIMES
    assert cycles["Replica"] + cycles["PartitionLog"] < TIMES


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector(lambda: 0, lambda text: None)
    loop = asyncio.new_event_loop()
    made.start(loop)
    yield made
    made.stop()
    loop.close()
    gc.unfreeze()


def test_a_full_collection_visits_only_new_objects(collector: Collector) -> None:
    kept = [[number] for number in range(50_000)]
    gc.collect()
    assert collector.frozen >= len(kept)
    # Frozen: the next collection has nothing to visit.
    assert len(gc.get_objects(2)) < len(kept) // 10


def test_a_thorough_collection_is_due_after_many_were_frozen(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "_FROZEN_MAX", 10_000)
    first: list[object] = []
    first.append(first)
    kept = [first, *([number] for number in range(20_000))]
    gc.collect()
    assert collector.is_due
    del kept, first
    collector.collect_all()
    assert not collector.is_due
