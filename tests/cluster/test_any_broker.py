"""Whoever is asked answers: what only the controller decides is handed on to it; settings of brokers are the cluster's."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.cluster.running_cluster import RunningCluster
from tests.cluster.topics import new_topic, write
from tests.crash.broker_process import CREATE_TOPICS, DELETE_TOPICS, Wire

CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS, DESCRIBE_CONFIGS, ELECT_LEADERS = 37, 44, 32, 43
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1


@pytest.fixture(params=[1, 2, 3])
def via(request: pytest.FixtureRequest, shared: RunningCluster) -> Iterator[Wire]:
    """Each of the brokers, one of which is the controller."""
    with Wire(shared.nodes[request.param].address) as wire:
        yield wire


def alter(wire: Wire, kind: int, name: str, operation: int, setting: str, value: str | None) -> str:
    """The name of the error."""
    rows = [{"name": setting, "config_operation": operation, "value": value}]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    [answer] = wire.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False).responses
    return str(answer.error_code.name)


def described(wire: Wire, kind: int, name: str, setting: str) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [setting]}
    [answer] = wire.ask(
        DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=False, include_documentation=False
    ).results
    assert answer.error_code.value == 0, answer.error_message
    [row] = answer.configs
    return row.value


def test_any_broker_creates_alters_grows_elects_and_deletes(shared: RunningCluster, via: Wire) -> None:
    row = {"name": "any", "num_partitions": 2, "replication_factor": 3, "configs": []}
    [created] = via.ask(CREATE_TOPICS, 5, topics=[row], timeout=30_000).topics
    assert created.error_code.value == 0 and created.num_partitions == 2
    [again] = via.ask(CREATE_TOPICS, 5, topics=[row], timeout=30_000).topics
    assert again.error_code.name == "topic_already_exists"
    assert alter(via, TOPIC, "any", SET, "retention.ms", "3600000") == "none"
    [grown] = via.ask(
        CREATE_PARTITIONS, 3, topics=[{"name": "any", "count": 3, "assignments": None}],
        timeout=30_000, validate_only=False,
    ).results  # fmt: skip
    assert grown.error_code.value == 0, grown.error_message
    for number in shared.nodes:
        shared.wait_in_sync("any", number, (1, 2, 3), range(3))
        with Wire(shared.nodes[number].address) as wire:
            assert described(wire, TOPIC, "any", "retention.ms") == "3600000"
    [elected] = via.ask(
        ELECT_LEADERS, 2, election_type=0, topic_partitions=[{"topic": "any", "partitions": [0]}], timeout=30_000
    ).replica_election_results  # fmt: skip
    assert elected.partition_result[0].error_code.name == "election_not_needed"
    [deleted] = via.ask(
        DELETE_TOPICS, 6, topics=[{"name": "any", "topic_id": None}], timeout=30_000
    ).responses
    assert deleted.error_code.value == 0
    for number in shared.nodes:
        shared.wait_until(lambda number=number: not shared.partitions("any", number), "it is gone everywhere")


def test_settings_of_all_brokers_reach_all_and_last(shared: RunningCluster, via: Wire) -> None:
    topics = {leader: new_topic(shared, (leader,)) for leader in shared.nodes}
    big = bytes(20_000)
    assert alter(via, BROKER, "", SET, "message.max.bytes", "10000") == "none"
    try:
        for number, topic in topics.items():
            with Wire(shared.nodes[number].address) as wire:
                shared.wait_until(
                    lambda number=number, wire=wire: (
                        described(wire, BROKER, str(number), "message.max.bytes") == "10000"
                    ),
                    "the setting is known",
                )
            with pytest.raises(KafkaException) as refused:
                write(shared, topic, big)
            assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
        # It is kept for those who come later.
        shared.stop(3)
        shared.restart(3)
        with pytest.raises(KafkaException):
            write(shared, topics[3], big)
    finally:
        with Wire(shared.nodes[1].address) as wire:
            assert alter(wire, BROKER, "", DELETE, "message.max.bytes", None) == "none"
    for number, topic in topics.items():
        with Wire(shared.nodes[number].address) as wire:
            shared.wait_until(
                lambda number=number, wire=wire: (
                    described(wire, BROKER, str(number), "message.max.bytes") != "10000"
                ),
                "the setting is gone",
            )
        write(shared, topic, big)


def test_a_setting_of_one_broker_is_its_own(shared: RunningCluster) -> None:
    topics = {leader: new_topic(shared, (leader,)) for leader in shared.nodes}
    big = bytes(20_000)
    with Wire(shared.nodes[2].address) as wire:
        assert alter(wire, BROKER, "2", SET, "message.max.bytes", "10000") == "none"
        shared.wait_until(
            lambda: described(wire, BROKER, "2", "message.max.bytes") == "10000", "the setting is known"
        )
        with pytest.raises(KafkaException) as refused:
            write(shared, topics[2], big)
        assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
        write(shared, topics[1], big)
        write(shared, topics[3], big)
        assert alter(wire, BROKER, "2", DELETE, "message.max.bytes", None) == "none"
        shared.wait_until(
            lambda: described(wire, BROKER, "2", "message.max.bytes") != "10000", "the setting is gone"
        )
    write(shared, topics[2], big)


def test_what_only_the_controller_can_do_waits_for_the_next_one(shared: RunningCluster) -> None:
    """The controller dies with the request still to come: the next one answers it, and the client need not know."""
    shared.wait_until(lambda: shared.controller(1) > 0, "somebody controls")
    controller = shared.controller(1)
    other = next(node for node in shared.nodes if node != controller)
    with Wire(shared.nodes[other].address) as wire:
        shared.kill(controller)
        row = {"name": "orphan", "num_partitions": 1, "replication_factor": 2, "configs": []}
        [created] = wire.ask(CREATE_TOPICS, 5, topics=[row], timeout=30_000).topics
        # Whether the dead one had it before it died nobody knows.
        assert created.error_code.name in ("none", "topic_already_exists"), created.error_message
        shared.wait_until(lambda: shared.partitions("orphan", other), "the topic is there")
        [deleted] = wire.ask(
            DELETE_TOPICS, 6, topics=[{"name": "orphan", "topic_id": None}], timeout=30_000
        ).responses
        assert deleted.error_code.value == 0
