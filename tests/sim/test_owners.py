"""Owners of a topic (coordinators) on real cores in a cluster: role changes arrive in turns, the outcome of
each record once.
"""

from typing import Any

import pytest

from ottla.broker.coordinators.internal_appends import append_as_leader
from ottla.model.errors import ErrorCode, Refusal
from ottla.records.record import Record, encode_batch
from ottla.replication.replica import Replica
from testkit.sim.quiet import Quiet


class Ledger:
    """Owns a topic on one broker and records its notifications."""

    def __init__(self, quiet: Quiet, node_id: int) -> None:
        self.node_id = node_id
        self.broker = quiet.members[node_id].broker
        self.heard: list[tuple[Any, ...]] = []
        self.watermarks: list[int] = []
        self.replica: Replica | None = None
        self.broker.replica_roles.owners["t"] = self

    def on_election(self, replica: Replica, now_ms: int) -> None:
        self.heard.append(("lead", replica.leader_epoch, replica.log.next_offset))
        self.replica = replica
        replica.watchers[self] = None

    def on_resignation(self, replica: Replica, now_ms: int) -> None:
        self.heard.append(("rest",))
        assert self.replica is replica
        replica.watchers.pop(self, None)
        self.replica = None

    def moved(self) -> None:
        assert self.replica is not None
        self.watermarks.append(self.replica.high_watermark)

    def append(self, value: bytes) -> int:
        assert self.replica is not None
        batch = encode_batch([Record(0, self.broker.now_ms, None, value)])
        return append_as_leader(
            self.broker, self.replica, batch, lambda code: self.heard.append((value, code))
        )


def owned(count: int = 3, min_isr: int = 2) -> tuple[Quiet, dict[int, Ledger]]:
    quiet = Quiet(count)
    ledgers = {node: Ledger(quiet, node) for node in quiet.members}
    quiet.create("t", tuple(range(1, count + 1)), min_insync_replicas=str(min_isr))
    quiet.until(lambda: ledgers[1].replica is not None)
    # Records appended outside a turn are sent with the next one.
    return quiet, ledgers


def turn(quiet: Quiet, node: int) -> None:
    quiet.members[node]._turn()


def test_an_owner_hears_of_each_role_once_and_in_turns() -> None:
    quiet, ledgers = owned()
    assert ledgers[1].heard == [("lead", 0, 0)]
    assert ledgers[2].heard == ledgers[3].heard == []
    quiet.write("t", b"a")
    # An ISR change is not a role change, not even in another epoch.
    quiet.kill(3)
    quiet.until(lambda: quiet.replica(1, "t").leader_epoch == 1)
    quiet.start(3)
    quiet.until(lambda: quiet.all_in_sync("t"))
    quiet.run(1000)
    assert ledgers[1].heard == [("lead", 0, 0)]
    quiet.members[quiet.members[1].broker.lifecycle.controller_id].suspect(1)
    quiet.until(lambda: ledgers[1].replica is None and ledgers[2].replica is not None)
    assert ledgers[1].heard[1:] == [("rest",)]
    assert ledgers[2].heard == [("lead", quiet.partition("t").leader_epoch, 1)]


def test_records_that_wait_survive_an_epoch_in_which_the_same_broker_leads() -> None:
    """If they failed, a client without idempotence would write them twice."""
    quiet, ledgers = owned()
    quiet.cut(1, 3)
    quiet.run(700)
    rows = quiet.produce(1, "t", b"client", timeout_ms=2900)
    quiet.run(50)
    ledgers[1].append(b"own")
    turn(quiet, 1)
    assert not rows
    quiet.kill(3)
    quiet.until(lambda: bool(rows) and len(ledgers[1].heard) == 2)
    assert quiet.replica(1, "t").leader_epoch == 1
    assert rows[0].error_code == 0 and rows[0].base_offset == 0
    assert ledgers[1].heard[1] == (b"own", ErrorCode.NONE)


def test_a_topic_that_goes_ends_the_role() -> None:
    quiet, ledgers = owned()
    quiet.call(1, 20, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout": 1000})
    quiet.until(lambda: ledgers[1].replica is None)
    assert ledgers[1].heard == [("lead", 0, 0), ("rest",)]


def test_a_watcher_hears_of_every_commit_and_not_before_it() -> None:
    quiet, ledgers = owned()
    for at in range(3):
        quiet.write("t", b"%d" % at)
    assert ledgers[1].watermarks[-1] == 3
    quiet.cut(1, 3)
    seen = len(ledgers[1].watermarks)
    rows = quiet.produce(1, "t", b"late", timeout_ms=20_000)
    quiet.until(lambda: quiet.replica(2, "t").log.next_offset == 4)
    quiet.run(200)
    assert ledgers[1].watermarks[seen:] == [] and not rows
    # The ISR shrinks, and the record is committed.
    quiet.until(lambda: bool(rows))
    assert ledgers[1].watermarks[seen:] == [4]


def test_own_records_are_told_of_when_they_count() -> None:
    quiet, ledgers = owned()
    ledger = ledgers[1]
    del ledger.heard[:]
    assert ledger.append(b"one") == 0
    assert ledger.append(b"two") == 1
    assert ledger.heard == []
    turn(quiet, 1)
    quiet.until(lambda: len(ledger.heard) == 2)
    assert ledger.heard == [(b"one", ErrorCode.NONE), (b"two", ErrorCode.NONE)]
    assert quiet.replica(1, "t").high_watermark == 2
    assert quiet.values(quiet.fetch(1, "t", 0)) == [b"one", b"two"]


def test_alone_they_count_at_once() -> None:
    _quiet, ledgers = owned(1, 1)
    ledgers[1].append(b"one")
    assert ledgers[1].heard[1:] == [(b"one", ErrorCode.NONE)]


def test_a_role_that_ends_first_is_told_before_it_ends() -> None:
    quiet, ledgers = owned()
    ledger = ledgers[1]
    controller = quiet.members[1].broker.lifecycle.controller_id
    assert controller != 1
    del ledger.heard[:]
    # No follower fetches from broker 1 any more, and the controller learns that its port refuses connections.
    quiet.cut(1, 2)
    quiet.cut(1, 3)
    quiet.run(700)
    ledger.append(b"never")
    turn(quiet, 1)
    quiet.members[controller].suspect(1)
    quiet.until(lambda: len(ledger.heard) > 1)
    assert ledger.heard[:2] == [(b"never", ErrorCode.NOT_LEADER_OR_FOLLOWER), ("rest",)]
    with pytest.raises(Refusal):
        append_as_leader(ledger.broker, quiet.replica(1, "t"), b"", lambda _code: None)


def test_too_small_an_isr_refuses_new_records_and_keeps_those_there_are_waiting() -> None:
    quiet, ledgers = owned(2, 2)
    ledger = ledgers[1]
    del ledger.heard[:]
    controller = quiet.members[1].broker.lifecycle.controller_id
    assert controller == 2
    quiet.disks[2].heal()
    quiet.network.cut("b2", "b1")
    quiet.network.cut("b1", "b2")
    quiet.run(700)
    quiet.mend()
    quiet.until(lambda: quiet.all_in_sync("t"))
    leading = quiet.replica(1, "t").leading
    assert leading is not None
    offset = ledger.append(b"waits")
    # As in the image once the other one has left the ISR in this leader's epoch.
    partition = quiet.partition("t")
    quiet.members[1].broker.replica_roles.assign(
        quiet.replica(1, "t"),
        partition.topic_id,
        partition._replace(isr=(1,), partition_epoch=partition.partition_epoch + 1),
    )
    assert ledger.heard == []
    with pytest.raises(Refusal) as refused:
        ledger.append(b"too late")
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    quiet.members[1].broker.replica_roles.assign(
        quiet.replica(1, "t"),
        partition.topic_id,
        partition._replace(partition_epoch=partition.partition_epoch + 2),
    )
    turn(quiet, 1)
    quiet.until(lambda: bool(ledger.heard))
    assert ledger.heard == [(b"waits", ErrorCode.NONE)] and offset == 0


def test_a_produce_that_waited_hears_who_leads_now() -> None:
    """KIP-951"""
    quiet = Quiet(3)
    quiet.create("t", (1, 2, 3), min_insync_replicas="2")
    quiet.write("t", b"a")
    controller = quiet.members[1].broker.lifecycle.controller_id
    quiet.cut(1, 2)
    quiet.cut(1, 3)
    quiet.run(700)
    rows = quiet.produce(1, "t", b"b", timeout_ms=2900)
    quiet.run(50)
    quiet.members[controller].suspect(1)
    quiet.until(lambda: bool(rows))
    assert rows[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert rows[0].current_leader.leader_id == quiet.leader("t") != 1
    assert rows[0].current_leader.leader_epoch == quiet.partition("t").leader_epoch
