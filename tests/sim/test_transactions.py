"""Transactions over three brokers: coordinators that die at every step of an end, group coordinators that
move, leaders that verify.
"""

import pytest

from ottla.model.errors import ErrorCode
from ottla.ports.coordination import partition_of
from tests.sim.transaction_cluster import OFFSETS, Cluster, Tx


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_over_all_brokers_is_committed_or_aborted_as_a_whole(version: int) -> None:
    cluster = Cluster()
    tx = Tx(cluster, version)
    tx.init()
    assert tx.send(b"one", 0, 1, 2) == [0, 0, 0]
    assert [cluster.committed(number) for number in range(3)] == [[], [], []]
    assert tx.end(commit=True) == 0
    assert tx.send(b"two", 0, 1, 2) == [0, 0, 0]
    assert tx.end(commit=False) == 0
    assert tx.send(b"three", 2) == [0]
    assert tx.end(commit=True) == 0
    cluster.heal()
    assert [cluster.committed(number) for number in range(3)] == [[b"one"], [b"one"], [b"one", b"three"]]


def test_no_replica_remembers_what_has_ended_for_ever() -> None:
    """A follower has no readers that would make it forget."""
    cluster = Cluster()
    tx = Tx(cluster, 2)
    tx.init()
    for _ in range(10):
        assert tx.send(b"x", 0) == [0]
        assert tx.end(commit=True) == 0
    cluster.heal()
    replicas = [each.broker.partitions.by_name["t"].replicas[0] for each in cluster.members.values()]
    assert len(replicas) == 3
    assert all(len(each.log.producers.transactions._ended) <= 2 for each in replicas)


def test_a_partition_that_was_not_added_is_refused_by_every_leader() -> None:
    cluster = Cluster()
    tx = Tx(cluster, 1)
    tx.init()
    tx.add(0)
    assert [tx.write_one(b"x", number) for number in range(3)] == [
        0,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_TXN_STATE,
    ]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_the_next_coordinator_goes_on_with_an_end_that_was_decided(version: int, commit: bool) -> None:
    """The leader of a partition is unreachable for the coordinator: its marker is pending when the
    coordinator dies.
    """
    cluster = Cluster()
    tx = Tx(cluster, version)
    tx.init()
    assert tx.send(b"one", 0, 1, 2) == [0, 0, 0]
    first = tx.coordinator()
    far = next(node for node in (1, 2, 3) if node != first)
    cluster.cut(first, far)
    assert tx.end(commit=commit) == 0
    assert tx.state() == ("PrepareCommit" if commit else "PrepareAbort")
    cluster.kill(first)
    cluster.mend()
    cluster.until(lambda: tx.coordinator() != first)
    cluster.heal()
    expected = [b"one"] if commit else []
    assert [cluster.committed(number) for number in range(3)] == [expected] * 3
    # Its producer continues.
    assert tx.send(b"two", 0, 1) == [0, 0]
    assert tx.end(commit=True) == 0
    cluster.heal()
    assert cluster.committed(0) == [*expected, b"two"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("events", range(50))
def test_a_coordinator_may_die_at_any_step_of_a_commit(events: int, version: int) -> None:
    cluster = Cluster()
    tx = Tx(cluster, version)
    tx.init()
    assert tx.send(b"one", 0, 1, 2) == [0, 0, 0]
    first = tx.coordinator()
    answers = tx.begin_end(commit=True)
    for _ in range(events):
        cluster.world.step()
    cluster.kill(first)
    cluster.until(lambda: bool(answers))
    # Whether or not it was received: it retries, with its old epoch.
    assert tx.end(commit=True) == 0
    assert tx.send(b"two", 0, 1, 2) == [0, 0, 0]
    assert tx.end(commit=False) == 0
    cluster.heal()
    assert [cluster.committed(number) for number in range(3)] == [[b"one"]] * 3


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_offsets_of_a_transaction_outlive_their_groups_coordinator(version: int, commit: bool) -> None:
    cluster = Cluster()
    tx = Tx(cluster, version)
    cluster.coordinator("g", 0)
    tx.init()
    assert tx.commit_offset(3) == 0
    assert tx.end(commit=True) == 0
    assert tx.commit_offset(7) == 0
    first = cluster.coordinator("g", 0)
    assert cluster.committed_offset(require_stable=False) == (0, 3)
    cluster.kill(first)
    cluster.until(lambda: cluster.coordinator("g", 0) != first)
    assert cluster.committed_offset(require_stable=True)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert cluster.committed_offset(require_stable=False) == (0, 3)
    assert tx.end(commit=commit) == 0
    for _ in range(100):
        if not cluster.committed_offset(require_stable=True)[0]:
            break
        cluster.run(100)
    assert cluster.committed_offset(require_stable=True) == (0, 7 if commit else 3)
    # The log says the same.
    second = cluster.coordinator("g", 0)
    cluster.start(first)
    number = partition_of("g", 4)
    cluster.until(lambda: cluster.all_in_sync(OFFSETS, number), 60_000)
    cluster.kill(second)
    cluster.until(lambda: cluster.coordinator("g", 0) != second)
    assert cluster.committed_offset(require_stable=True) == (0, 7 if commit else 3)


def test_a_producer_that_is_gone_has_its_transaction_aborted_by_whoever_coordinates_then() -> None:
    cluster = Cluster()
    tx = Tx(cluster, 2)
    tx.init()
    assert tx.send(b"one", 0, 1) == [0, 0]
    cluster.kill(tx.coordinator())
    cluster.run(25_000)
    cluster.heal()
    assert tx.state() == "CompleteAbort"
    assert [cluster.committed(number) for number in range(2)] == [[], []]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_all_brokers_may_die_at_any_step_of_an_end(count: int, version: int, commit: bool) -> None:
    """Several times: decisions are carried out after each start, in every partition."""
    cluster = Cluster(count)
    tx = Tx(cluster, version)
    tx.init()
    expected: list[bytes] = []
    for events in range(0, 45, 1 if count == 1 else 3):
        value = b"%d" % events
        assert tx.send(value, 0, 1, 2) == [0, 0, 0]
        answers = tx.begin_end(commit=commit)
        for _ in range(events):
            cluster.world.step()
        for node in list(cluster.members):
            cluster.kill(node)
        for node in range(1, count + 1):
            cluster.start(node)
        cluster.until(lambda answers=answers: bool(answers))  # type: ignore[misc]
        assert tx.end(commit=commit) == 0
        if commit:
            expected.append(value)
        cluster.heal()
        assert [cluster.committed(number) for number in range(3)] == [expected] * 3


@pytest.mark.parametrize("is_decided", [True, False])
def test_a_topic_that_is_deleted_does_not_hold_up_the_end(is_decided: bool) -> None:
    """Before the end is decided, or while a marker for it is in flight to an unreachable broker."""
    cluster = Cluster()
    cluster.create("other", (1, 2, 3))
    tx = Tx(cluster, 2)
    tx.init()
    assert tx.send(b"one", 0, 1, 2) == [0, 0, 0]
    first = tx.coordinator()
    # Not the controller, without which the coordinator's own ISR could not shrink.
    far = next(node for node in (1, 2, 3) if node not in (first, cluster.ensemble.holder))
    if is_decided:
        cluster.cut(first, far)
        assert tx.end(commit=True) == 0
        assert tx.state() == "PrepareCommit"
    body = {"topics": [{"name": "t", "topic_id": None}], "timeout": 5000}
    assert cluster.call(first, 20, 6, body).responses[0].error_code == 0
    if is_decided:
        cluster.mend()
    else:
        assert tx.end(commit=True) == 0
    for _ in range(400):
        if tx.state() == "CompleteCommit":
            break
        cluster.run(100)
    assert tx.state() == "CompleteCommit"
    cluster.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    assert tx.send(b"new", 0) == [0]
    assert tx.end(commit=True) == 0
    cluster.heal()
    assert cluster.committed(0) == [b"new"]
