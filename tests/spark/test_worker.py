"""Workers: loaded modules are frozen, the garbage of tasks is collected."""

import gc
import sys
import types
import weakref
from collections.abc import Iterator

import pytest

from ottla.spark import worker


class Node:
    """Something that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_modules_seen", 0)
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_is_loaded_is_spared_once() -> None:
    worker.freeze_loaded_modules()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    kept = [Node() for _ in range(1000)]
    worker.freeze_loaded_modules()
    assert gc.get_freeze_count() <= frozen
    del kept


def test_a_task_that_loads_much_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    worker.freeze_loaded_modules()
    kept = [Node() for _ in range(1000)]
    assert tracked(kept) == len(kept)
    for number in range(worker._MODULES_NEW):
        monkeypatch.setitem(sys.modules, f"loaded_{number}", types.ModuleType(f"loaded_{number}"))
    worker.freeze_loaded_modules()
    assert tracked(kept) == 0


def tracked(objects: list[Node]) -> int:
    """How many of these the collector still walks over; frozen ones are not among its objects."""
    walked = set(map(id, gc.get_objects()))
    return sum(id(each) in walked for each in objects)


def test_garbage_is_collected_before_and_after() -> None:
    before = weakref.ref(Node())
    worker.freeze_loaded_modules()
    assert before() is None
    after = weakref.ref(Node())
    gc.collect()
    assert after() is None
