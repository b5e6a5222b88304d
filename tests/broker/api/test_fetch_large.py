"""Fetches of very many partitions: looked at in slices, and answered like any other."""

from collections.abc import Iterable
from typing import Any

import pytest

from ottla.broker.api import fetch as api
from ottla.broker.requests import delayed_fetch
from ottla.broker.requests import fetch_session as module

FETCH = 1
PARTITIONS, STEP = 25, 7


@pytest.fixture
def looks(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions each look of a fetch was at; more than 10 are too many for one."""
    client.create("t", PARTITIONS)
    monkeypatch.setattr(api, "_ROWS_AT_ONCE_MAX", 10)
    monkeypatch.setattr(delayed_fetch, "_READS_AT_ONCE_MAX", 10)
    for where in (api, module):
        monkeypatch.setattr(where, "STEP_COST", STEP)
    found: list[int] = []
    collect = module.FetchSession.collect

    def counted(self: Any, some: Iterable[Any] | None = None, total: int = 0) -> Any:
        chosen = list(self.dirty if some is None else some)
        found.append(len(chosen))
        return collect(self, some, total)

    monkeypatch.setattr(module.FetchSession, "collect", counted)
    return found


def read(answer: Any, values: Any) -> dict[int, list[bytes]]:
    return {row.partition_index: found for row in answer.responses[0].partitions if (found := values(row))}


@pytest.mark.parametrize("session_epoch", [-1, 0], ids=["without-session", "with-session"])
def test_all_of_it_is_answered(
    client: Any, batch: Any, values: Any, fetching: Any, looks: list[int], session_epoch: int
) -> None:
    for number in (0, 10, PARTITIONS - 1):
        client.produce("t", batch(b"%d" % number), partition=number)
    wanted = {("t", number): 0 for number in range(PARTITIONS)}
    answer = client.ask(FETCH, 12, **fetching(wanted, session_epoch=session_epoch))
    assert read(answer, values) == {0: [b"0"], 10: [b"10"], PARTITIONS - 1: [b"%d" % (PARTITIONS - 1)]}
    assert len(answer.responses[0].partitions) == PARTITIONS
    assert bool(answer.session_id) == (session_epoch == 0)
    assert max(looks) <= STEP


def test_one_that_waits_is_woken(
    driver: Any, client: Any, batch: Any, values: Any, fetching: Any, looks: list[int]
) -> None:
    wanted = {("t", number): 0 for number in range(PARTITIONS)}
    waiting = driver.connect()
    waiting.send(FETCH, 12, **fetching(wanted, max_wait=60_000, session_epoch=-1))
    driver.advance(100)
    assert not waiting.answers
    client.produce("t", batch(b"x"), partition=20)
    driver.advance(0)
    [answer] = waiting.answers
    assert read(answer, values) == {20: [b"x"]}
    assert max(looks) <= STEP


def test_one_whose_wait_is_over_is_answered(
    driver: Any, client: Any, fetching: Any, looks: list[int]
) -> None:
    wanted = {("t", number): 0 for number in range(PARTITIONS)}
    waiting = driver.connect()
    waiting.send(FETCH, 12, **fetching(wanted, max_wait=500, session_epoch=-1))
    driver.advance(600)
    assert len(waiting.answers) == 1
    assert max(looks) <= STEP
    assert not driver.replica("t").watchers


def test_records_that_come_while_it_looks_wake_it(
    driver: Any, client: Any, batch: Any, values: Any, fetching: Any, looks: list[int], monkeypatch: Any
) -> None:
    """They come for a partition that was looked at already, before the fetch watches it."""
    collect = module.FetchSession.collect

    def late(self: Any, some: Any = None, total: int = 0) -> Any:
        result = collect(self, some, total)
        if len(looks) == 2:
            client.produce("t", batch(b"late"), partition=0)
        return result

    monkeypatch.setattr(module.FetchSession, "collect", late)
    wanted = {("t", number): 0 for number in range(PARTITIONS)}
    waiting = driver.connect()
    waiting.send(FETCH, 12, **fetching(wanted, max_wait=60_000, session_epoch=-1))
    driver.advance(100)
    [answer] = waiting.answers
    assert read(answer, values) == {0: [b"late"]}
