from typing import Any

import pytest

from tests.broker.api.clustered import join_cluster, part

UNKNOWN_TOPIC_OR_PARTITION = 3


def describe(client: Any, topic: str = "__cluster_metadata", partition: int = 0) -> Any:
    topics = [{"topic_name": topic, "partitions": [{"partition_index": partition}]}]
    answer = client.ask(55, topics=topics)
    assert answer.error_code.value == 0
    [[row]] = [each.partitions for each in answer.topics]
    assert row.partition_index == partition
    return row


def test_this_node_is_the_only_voter_and_has_everything(client: Any, driver: Any) -> None:
    before = describe(client).high_watermark
    client.create("t", 3)
    row = describe(client)
    assert (row.leader_id, row.leader_epoch, row.observers) == (1, 0, ())
    # A topic, and its partitions: two records.
    assert row.high_watermark == driver.broker.image.end == before + 2
    [voter] = row.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, row.high_watermark)
    assert voter.replica_directory_id.bytes == driver.broker.directories.all[0].directory_id
    assert voter.last_caught_up_timestamp == voter.last_fetch_timestamp == driver.now_ms


def test_what_is_proposed_does_not_count_yet(client: Any, driver: Any) -> None:
    before = describe(client).high_watermark
    driver.are_proposals_held = True
    driver.connect().send(19, topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}])
    row = describe(client)
    assert (row.high_watermark, row.current_voters[0].log_end_offset) == (before, before)
    driver.commit()
    driver.turn()
    assert describe(client).high_watermark > before


def test_nothing_else_has_a_quorum(client: Any) -> None:
    client.create("t")
    for topic, partition in (("t", 0), ("__cluster_metadata", 1), ("nowhere", 0)):
        row = describe(client, topic, partition)
        assert row.error_code.value == UNKNOWN_TOPIC_OR_PARTITION
        assert (row.leader_id, row.current_voters) == (-1, ())
        assert topic in row.error_message


def test_nodes_are_reached_where_the_broker_is(client: Any) -> None:
    [node] = client.ask(55, topics=[]).nodes
    [listener] = node.listeners
    assert (node.node_id, listener.name, listener.host, listener.port) == (1, "PLAINTEXT", "127.0.0.1", 9092)


@pytest.mark.parametrize("leader", [1, 2])
def test_in_a_cluster_no_lag_is_negative(client: Any, driver: Any, leader: int) -> None:
    """As kafka-metadata-quorum computes it: the leader's log end less that of each replica."""
    join_cluster(driver, part(0, 2, 3), fenced=(4,))
    driver.broker.lifecycle.controller_id = leader
    row = describe(client)
    replicas = {each.replica_id: each for each in (*row.current_voters, *row.observers)}
    assert sorted(replicas) == [1, 2, 3] and [each.replica_id for each in row.current_voters] == [leader]
    end = replicas[leader].log_end_offset
    assert end == row.high_watermark == driver.broker.image.end
    for replica in replicas.values():
        assert 0 <= replica.log_end_offset <= end
        assert replica.last_caught_up_timestamp == replica.last_fetch_timestamp == driver.now_ms


def test_while_the_store_is_away_the_times_stand_still(client: Any, driver: Any) -> None:
    join_cluster(driver, part(0, 2, 3))
    began_ms = driver.now_ms
    driver.broker.store_suspended(began_ms)
    driver.advance(5_000)
    row = describe(client)
    assert {each.last_fetch_timestamp for each in (*row.current_voters, *row.observers)} == {began_ms}
