"""What one piece of work raises does not reach another: timers, answers, waiting requests, coordinator partitions."""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.api.shared import api_table
from ottla.model.timer_wheel import Later, Periodic, TimerWheel
from ottla.ports.disk import DiskError
from testkit.injected import Injected

METADATA, FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, FETCH = 3, 10, 8, 9, 11, 1


def fail(*_arguments: Any) -> Any:
    raise Injected("on purpose")


# --- timers -----------------------------------------------------------------------------------------------------------


def test_a_timer_that_raises_takes_no_other_with_it() -> None:
    failed: list[str] = []
    timers = TimerWheel(lambda what, _error: failed.append(what))
    rang: list[int] = []
    timers.add(Later(lambda: rang.append(1)), 1000)
    timers.add(Later(fail), 1000)
    timers.add(Later(lambda: rang.append(2)), 1000)
    timers.add(Later(lambda: rang.append(3)), 1100)
    timers.expire(1200)
    assert rang == [1, 2, 3] and failed == ["a timer (Later fail)"]


def test_something_for_later_that_raises_is_done_again() -> None:
    timers = TimerWheel(lambda _what, _error: None)
    attempts: list[int] = []

    def action() -> None:
        attempts.append(len(attempts))
        if len(attempts) < 3:
            fail()

    timers.add(Later(action), 1000)
    for now_ms in range(1000, 10_000, 10):
        timers.expire(now_ms)
    assert attempts == [0, 1, 2] and timers.next_ms is None


@pytest.mark.parametrize("broken", ["action", "interval_ms"])
def test_periodic_work_that_raises_comes_again(broken: str) -> None:
    timers = TimerWheel(lambda _what, _error: None)
    done: list[int] = []
    periodic = Periodic(timers, lambda: 100, done.append)
    timers.add(periodic, 1000)
    timers.expire(1010)
    whole = getattr(periodic, broken)
    setattr(periodic, broken, fail)
    for now_ms in range(1020, 1500, 10):
        timers.expire(now_ms)
    setattr(periodic, broken, whole)
    before = len(done)
    for now_ms in range(1500, 2000, 10):
        timers.expire(now_ms)
    assert len(done) >= before + 4


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def grouped(drive: Callable[..., Any]) -> Any:
    driver = drive(
        offsets_topic_num_partitions="1", group_initial_rebalance_delay_ms="0", log_flush_policy="durable"
    )
    client = driver.connect()
    client.create("t")
    client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
    driver.advance(100)
    return driver


def commit(client: Any, offset: int) -> None:
    rows = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
    client.send(
        OFFSET_COMMIT, 7, group_id="g", generation_id_or_member_epoch=-1, member_id="",
        topics=[{"name": "t", "partitions": rows}],
    )  # fmt: skip


def test_one_answer_that_fails_drops_no_other_of_its_batch(
    grouped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug 12: the answers that wait for one batch of a coordinator."""
    grouped.are_syncs_held = True
    one, two = grouped.connect(), grouped.connect()
    commit(one, 1)
    commit(two, 2)
    reply = grouped.broker.reply

    def broken(call: Any, parts: Any) -> None:
        if call.connection is one.connection:
            fail()
        reply(call, parts)

    monkeypatch.setattr(grouped.broker, "reply", broken)
    grouped.sync()
    grouped.turn()
    assert two.answers and two.closed_because is None
    assert one.closed_because is not None, "its client would wait for ever"
    monkeypatch.undo()
    grouped.are_syncs_held = False
    commit(two, 3)
    grouped.advance(100)
    assert two.answers[-1].topics[0].partitions[0].error_code.value == 0


def test_an_answer_that_cannot_be_encoded_leaves_its_group_whole(
    grouped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug 1: two members of one group, one of which cannot be told what became of the rebalance."""
    one, two = grouped.connect(), grouped.connect()
    encoder_of = api_table.response_encoder

    def response_encoder(key: int, version: int) -> Any:
        return fail if (key, version) == (JOIN_GROUP, 5) else encoder_of(key, version)

    monkeypatch.setattr(api_table, "response_encoder", response_encoder)
    fields = {
        "group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 1000, "member_id": "", "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    one.send(JOIN_GROUP, 3, **fields)
    grouped.advance(500)
    two.send(JOIN_GROUP, 5, **fields, group_instance_id="two")
    # The first does not join again, and is waited for.
    grouped.advance(2000)
    assert two.closed_because is not None
    one.answers.clear()
    one.send(METADATA, 9, topics=None)
    grouped.advance(20_000)
    assert one.closed_because is None and one.answers


def test_a_fetch_that_fails_when_it_is_woken_wakes_the_others(
    driver: Any, batch: Any, fetching: Any, monkeypatch: Any
) -> None:
    from ottla.broker.requests import fetch_session as module

    readers = [driver.connect() for _ in range(3)]
    writer = driver.connect()
    writer.create("t")
    for reader in readers:
        reader.send(FETCH, 12, **fetching({("t", 0): 0}, max_wait=5000))
    collect = module.FetchSession.collect

    def broken(self: Any) -> Any:
        return (
            fail()
            if self.call is not None and self.call.connection is readers[0].connection
            else collect(self)
        )

    monkeypatch.setattr(module.FetchSession, "collect", broken)
    writer.produce("t", batch(b"v"))
    assert readers[0].closed_because is not None
    assert all(reader.answers for reader in readers[1:])


# --- coordinator partitions -------------------------------------------------------------------------------------------


def test_a_decision_that_raises_half_way_is_forgotten(grouped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard is loaded again from its log: what was committed before is there, what failed is not."""
    client, other = grouped.connect(), grouped.connect()
    commit(client, 7)
    grouped.advance(100)
    assert client.answers.pop().topics[0].partitions[0].error_code.value == 0
    tenure = grouped.broker.groups.partitions[0]
    monkeypatch.setattr(tenure.shard, "replay", fail)
    commit(client, 8)
    grouped.advance(100)
    assert client.answers.pop().topics[0].partitions[0].error_code.value != 0
    assert grouped.broker.groups.partitions[0] is not tenure
    grouped.advance(2000)
    answer = other.ask(OFFSET_FETCH, 7, group_id="g", topics=[{"name": "t", "partition_indexes": [0]}])
    assert answer.topics[0].partitions[0].committed_offset == 7


def test_errors_of_one_kind_are_logged_once_a_minute(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may provoke one with every request: its log must not fill the disk."""
    monkeypatch.setitem(api_table.APIS, METADATA, api_table.APIS[METADATA]._replace(handler=fail))
    for _ in range(100):
        driver.connect().send(METADATA, 9, topics=None)
    assert sum("internal error" in text for text in driver.said) == 1
    assert "Traceback" in driver.said[-1]
    driver.advance(61_000)
    driver.connect().send(METADATA, 9, topics=None)
    assert "99 more like it" in driver.said[-1]


def test_the_look_for_room_that_raises_stays_one_timer(
    driver: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was set again by itself and by the timers: twice as many of them after each attempt."""
    looks: list[str] = []

    def open_file(path: str, *, create: bool = False) -> Any:
        looks.append(path)
        raise Injected("on purpose")

    directory = driver.broker.directories.all[0]
    driver.broker.disk_space.missing(directory, DiskError("full", full=True))
    monkeypatch.setattr(driver.broker.disk, "open", open_file)
    driver.advance(30_000)
    assert 5 <= len(looks) <= 40
