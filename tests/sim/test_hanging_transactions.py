"""Abort markers of clients in a cluster: the partition leader asks all coordinators, on any broker."""

import pytest

from ottla.model.errors import ErrorCode
from tests.sim.transaction_cluster import TOPIC, Cluster, Tx

WRITE_MARKERS = 27


def abort(cluster: Cluster, tx: Tx, number: int) -> int:
    marker = {
        "producer_id": tx.producer_id, "producer_epoch": tx.epoch, "transaction_result": False, "coordinator_epoch": 0,
        "transaction_version": 0, "topics": [{"name": "t", "partition_indexes": [number]}],
    }  # fmt: skip
    answer = cluster.call(cluster.leader("t", number), WRITE_MARKERS, 2, {"markers": [marker]})
    return int(answer.markers[0].topics[0].partitions[0].error_code)


def begin(cluster: Cluster) -> Tx:
    tx = Tx(cluster, version=1)
    tx.init()
    assert tx.send(b"open", 0, 1, 2) == [0, 0, 0]
    return tx


def forget(cluster: Cluster) -> None:
    """No coordinator has any state."""
    for member in cluster.members.values():
        for shard in member.broker.transactions.shards:
            shard.listed = lambda _wanted: []  # type: ignore[method-assign]


@pytest.mark.parametrize("number", range(3))
def test_every_leader_finds_the_coordinator_that_will_end_it(number: int) -> None:
    cluster = Cluster()
    tx = begin(cluster)
    assert abort(cluster, tx, number) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    tx.end(commit=True)
    cluster.until(lambda: all(cluster.glance(each) == [b"open"] for each in range(3)))


@pytest.mark.parametrize("number", range(3))
def test_what_no_coordinator_knows_is_aborted(number: int) -> None:
    cluster = Cluster()
    tx = begin(cluster)
    forget(cluster)
    assert abort(cluster, tx, number) == 0
    assert cluster.committed(number) == [] and cluster.is_stable(number)


def test_with_a_coordinator_away_nothing_is_known() -> None:
    cluster = Cluster()
    tx = begin(cluster)
    forget(cluster)
    leaders = {each.leader for each in cluster.ensemble.image.topics[TOPIC].partitions}
    away = next(node for node in leaders if node != cluster.leader("t", 0))
    # It is paused, and nobody has noticed yet.
    cluster.members[away].pause()
    assert abort(cluster, tx, 0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not cluster.is_stable(0)
