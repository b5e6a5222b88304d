"""The longest turn of the event loop: its CPU time, its requests, and the log line of a slow turn."""

import time
from collections.abc import Callable
from typing import Any

import pytest

import ottla
from ottla.broker.api.shared import api_table
from tests import turns
from tests.peer import Peer

METADATA, API_VERSIONS = 3, 18
#: Well above 20 ms: every turn beyond that is measured.
BUSY_S = 0.1


def with_handler(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
    """Run a function before each Metadata request."""
    api = api_table.APIS[METADATA]

    def handle(*arguments: Any) -> Any:
        before()
        return api.handler(*arguments)

    monkeypatch.setitem(api_table.APIS, METADATA, api._replace(handler=handle))


def burn() -> None:
    end = time.thread_time() + BUSY_S
    while time.thread_time() < end:
        pass


@pytest.mark.long_turns("it uses CPU time on purpose")
def test_a_busy_turn_is_measured_named_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    with_handler(monkeypatch, burn)
    said: list[str] = []
    with ottla.Broker(config={"slow.turn.log.ms": "90"}, say=said.append) as broker:
        with Peer(broker.address) as peer:
            peer.ask(METADATA, 9, topics=None)
            # The turn ends after its response has left, and before the next request is read.
            peer.ask(API_VERSIONS, 0)
        longest = broker.longest_turn
        # Not much more than it used: other processes are not counted.
        assert 1000 * BUSY_S * 0.9 <= longest.cpu_ms < 1000 * BUSY_S + 100
        assert "metadata v9 from 127.0.0.1:" in longest.what
    assert broker.longest_turn.cpu_ms >= longest.cpu_ms, "known after the end too"
    assert any("a slow turn of the event loop" in line and "metadata v9" in line for line in said)
    assert not any("the longest turn" in line for line in said), "only `ottla up` logs it when it stops"


def test_a_turn_that_only_waits_uses_no_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a thread that gets no core: a loaded machine does not count."""
    with_handler(monkeypatch, lambda: time.sleep(4 * BUSY_S))
    said: list[str] = []
    with ottla.Broker(config={"slow.turn.log.ms": "200"}, say=said.append) as broker:
        with Peer(broker.address) as peer:
            peer.ask(METADATA, 9, topics=None)
        assert broker.longest_turn.cpu_ms < 1000 * 3 * BUSY_S
    # Other requests have waited, so the turn is logged.
    assert any("a slow turn of the event loop" in line for line in said)


def test_a_test_fails_whose_broker_had_a_turn_beyond_the_bound() -> None:
    """`tests/conftest.py` checks it after each test."""
    line = (
        "the longest turn of the event loop: {} ms of CPU time, 700 ms in all: metadata v9 from 127.0.0.1:1"
    )
    turns.look_at([line.format(turns.BOUND_MS)])
    assert not turns.exceeded
    turns.look_at(["something else", line.format(turns.BOUND_MS + 1)])
    assert turns.exceeded.pop() and not turns.exceeded
