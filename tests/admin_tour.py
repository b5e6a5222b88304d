"""What the admin client does, as the same calls against any broker: `tests/client/admin` against ottla, `make interop` against Apache Kafka.

Each function takes an admin client, the broker's address and a name that is its own. The cluster has one broker.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import ottla
from ottla.client.admin.core import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    NewTopic,
    Resource,
)
from ottla.client.errors import (
    BrokerNotFound,
    InvalidRequest,
    KafkaError,
    SeveralFailed,
    TopicExists,
    TopicNotFound,
)
from ottla.client.metadata import OffsetAndMetadata, TopicPartition
from ottla.model.errors import ErrorCode

PATIENCE_S = 60

Tour = Callable[[ottla.Admin, str, str], None]


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        # What is on its way may be refused meanwhile.
        with suppress(KafkaError):
            found = condition()
            if found:
                return found
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


def code_of(call: Callable[[], object]) -> ErrorCode | None:
    with pytest.raises(KafkaError) as failure:
        call()
    return failure.value.code


def topics(admin: ottla.Admin, address: str, name: str) -> None:
    node = admin.describe_cluster().nodes[0].id
    made = admin.create_topics(
        [
            NewTopic(name, 2, 1, {"retention.ms": "1000000"}),
            NewTopic(f"{name}-placed", assignments={0: [node], 1: [node]}),
        ]
    )
    assert [len(topic.partitions) for topic in made.values()] == [2, 2]
    assert "2 partition(s)" in str(made[name]) and f"0: leader {node}" in str(made[name])
    admin.create_topic(f"{name}-one", assignments={0: [node]})
    admin.create_partitions(name, 3)
    admin.create_partitions(name, 5, [[node], [node]])
    assert until(lambda: len(admin.describe_topics([name])[name].partitions) == 5, "five partitions")
    assert {name, f"{name}-placed"} <= admin.list_topics().keys()
    # What can be done is done, and each refusal told.
    with pytest.raises(SeveralFailed, match="2 of 3 failed") as failure:
        admin.create_topics([NewTopic(name, 1), NewTopic("bad/name", 1), NewTopic(f"{name}-new", 1)])
    assert {each: type(error) for each, error in failure.value.errors.items()} == {
        name: TopicExists,
        "bad/name": InvalidRequest,
    }
    assert f"{name}-new" in admin.list_topics()
    with pytest.raises(SeveralFailed) as missing:
        admin.describe_topics([name, "no-such-1", "no-such-2"])
    assert missing.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(TopicNotFound, match="no-such-1"):
        admin.delete_topics([f"{name}-new", "no-such-1"])
    admin.delete_topics([name, f"{name}-placed", f"{name}-one"])
    until(
        lambda: not {each for each in admin.list_topics() if each.startswith(name)}, "the end of the topics"
    )


def configs(admin: ottla.Admin, address: str, name: str) -> None:
    admin.create_topic(name, 1)
    topic = Resource("topic", name)
    admin.alter_configs(topic, {"retention.ms": "5000", "cleanup.policy": "delete"})
    until(
        lambda: admin.describe_configs(topic, ["retention.ms"])["retention.ms"].value == "5000",
        "the new value",
    )
    admin.alter_configs(topic, {"retention.ms": None}, append={"cleanup.policy": "compact"})
    changed = until(
        lambda: (
            (found := admin.describe_configs(topic, synonyms=True))["retention.ms"].value != "5000" and found
        ),
        "the default",
    )
    assert changed["cleanup.policy"].value == "delete,compact"
    assert changed["cleanup.policy"].type == "list" and not changed["cleanup.policy"].is_default
    assert changed["retention.ms"].source != "topic"
    admin.alter_configs(topic, {}, subtract={"cleanup.policy": "compact"})
    until(
        lambda: str(admin.describe_configs(topic)["cleanup.policy"]) == "cleanup.policy=delete (topic)",
        "the shorter list",
    )
    with pytest.raises(InvalidRequest, match=r"retention\.ms"):
        admin.alter_configs(topic, {"retention.ms": "soon"})
    group = Resource("group", name)
    admin.alter_configs(group, {"consumer.session.timeout.ms": "50000"})
    shown = until(
        lambda: (
            (found := admin.describe_configs(group)["consumer.session.timeout.ms"]).value == "50000" and found
        ),
        "the group's value",
    )
    assert shown.source == "group"
    broker = Resource("broker", str(admin.describe_cluster().nodes[0].id))
    assert admin.describe_configs(broker)["log.dirs"].value
    listed = admin.list_config_resources()
    assert {topic, group, broker} <= set(listed)
    assert group in admin.list_config_resources(["group"]) and topic not in admin.list_config_resources(
        ["group"]
    )


def offsets(admin: ottla.Admin, address: str, name: str) -> None:
    place, other = TopicPartition(name, 0), TopicPartition(name, 1)
    admin.create_topic(name, 2)
    with ottla.Producer(address) as producer:
        for number in range(10):
            producer.send(name, b"v", partition=0, timestamp_ms=1_700_000_000_000 + number * 1000).result(60)

    def offset(time_ms: int, **more: Any) -> int:
        return admin.list_offsets({place: time_ms}, **more)[place].offset

    assert [offset(each) for each in (EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED)] == [
        0,
        10,
        9,
        0,
        -1,
    ]
    assert offset(1_700_000_003_500) == 4
    assert offset(LATEST, isolation_level="read_committed") == 10
    assert admin.delete_records({place: 4, other: -1}) == {place: 4, other: 0}
    assert offset(EARLIEST) == 4
    assert code_of(lambda: admin.delete_records({place: 99})) is ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(SeveralFailed):
        admin.delete_records({TopicPartition(name, 7): 1, TopicPartition("no-such", 0): 1, place: 5})
    with ottla.Producer(address, transactional_id=name) as producer:
        producer.begin()
        producer.send(name, b"open", partition=0).result(60)
        assert offset(LATEST) == 11
        assert offset(LATEST, isolation_level="read_committed") == 10
        producer.abort()


def cluster(admin: ottla.Admin, address: str, name: str) -> None:
    described = admin.describe_cluster()
    (node,) = described.nodes
    assert described.controller is None or described.controller == node
    assert f"broker {node.id} at {address}" in str(described)
    features = admin.describe_features()
    assert features["transaction.version"].level == 2
    admin.update_features({"transaction.version": 2})
    assert code_of(lambda: admin.update_features({"no.such.feature": 1})) is not None
    quorum = admin.describe_quorum()
    assert quorum.leader_id in {each.id for each in quorum.voters}
    assert quorum.high_watermark > 0 and "metadata written by" in str(quorum)
    with pytest.raises(BrokerNotFound, match="99"):
        admin.unregister_broker(99)


def log_dirs(admin: ottla.Admin, address: str, name: str) -> None:
    admin.create_topic(name, 2)
    with ottla.Producer(address) as producer:
        producer.send(name, b"x" * 1000, partition=0).result(60)
    place = TopicPartition(name, 0)
    (node,) = admin.describe_cluster().nodes
    ((path, directory),) = admin.describe_log_dirs()[node.id].items()
    assert directory.replicas[place].size_bytes > 1000 and not directory.replicas[place].is_future
    assert directory.total_bytes >= directory.usable_bytes > 0
    assert path in str(directory) and "replica(s)" in str(directory)
    ((_, filtered),) = admin.describe_log_dirs([node.id], [place])[node.id].items()
    assert list(filtered.replicas) == [place]
    admin.alter_replica_log_dirs(node.id, {place: path})
    assert (
        code_of(lambda: admin.alter_replica_log_dirs(node.id, {place: "/nowhere"}))
        is ErrorCode.LOG_DIR_NOT_FOUND
    )
    with pytest.raises(BrokerNotFound, match="99"):
        admin.describe_log_dirs([99])


def groups(admin: ottla.Admin, address: str, name: str) -> None:
    """A classic group and one of KIP-848, from their first member to their end."""
    places = [TopicPartition(name, number) for number in range(2)]
    admin.create_topic(name, 2)
    with ottla.Producer(address) as producer:
        for place in places:
            for _ in range(5):
                producer.send(name, b"v", partition=place.partition).result(60)
    old, new = f"{name}-classic", f"{name}-consumer"
    settings: Any = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    with (
        ottla.Consumer(
            address, group_id=old, group_protocol="classic", group_instance_id=f"{name}-static", **settings
        ) as first,
        ottla.Consumer(address, group_id=new, group_protocol="consumer", **settings) as second,
    ):
        for consumer in (first, second):
            consumer.subscribe([name])
            until(
                lambda consumer=consumer: (consumer.poll(200), consumer.assignment() and True)[1],
                "partitions",
            )  # type: ignore[misc]
            consumer.commit({places[0]: 3})
        described = admin.describe_groups([old, new])
        assert [(each.type, each.state, len(each.members)) for each in described.values()] == [
            ("classic", "Stable", 1), ("consumer", "Stable", 1),
        ]  # fmt: skip
        assert all(each.members[0].partitions == tuple(places) for each in described.values())
        assert described[old].members[0].instance_id == f"{name}-static"
        assert "1 member(s)" in str(described[old])
        listed = {each.group: each for each in admin.list_groups(states=["Stable"])}
        assert {old, new} <= listed.keys() and listed[new].type.lower() == "consumer"
        assert old not in {each.group for each in admin.list_groups(types=["consumer"])}
        assert code_of(lambda: admin.delete_groups([old])) is ErrorCode.NON_EMPTY_GROUP
        assert (
            code_of(lambda: admin.delete_group_offsets(old, [places[0]]))
            is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        )
        assert code_of(lambda: admin.set_group_offsets(old, {places[0]: 1})) is ErrorCode.NON_EMPTY_GROUP
        assert code_of(lambda: admin.remove_members(old, ["nobody"])) is ErrorCode.UNKNOWN_MEMBER_ID
        admin.remove_members(old, [f"{name}-static"], reason="moving house")
        assert admin.describe_group(old).members == ()
    until(lambda: not admin.describe_group(new).members, "an empty group")
    admin.set_group_offsets(old, {places[0]: OffsetAndMetadata(2, "by hand"), places[1]: 5})
    found = admin.list_group_offsets([old, new])
    assert found[old][places[0]][:2] == (2, "by hand")
    assert admin.group_offsets(new) == {places[0]: 3}
    assert admin.group_lag([old, new]) == {old: {places[0]: 3, places[1]: 0}, new: {places[0]: 2}}
    admin.delete_group_offsets(old, [places[1]])
    assert admin.group_offsets(old) == {places[0]: 2}
    with pytest.raises(KafkaError, match="no-such-group"):
        admin.delete_groups([old, "no-such-group"])
    admin.delete_groups([new])
    assert not {old, new} & {each.group for each in admin.list_groups()}
    with pytest.raises(SeveralFailed, match="2 of 2"):
        admin.describe_groups([old, new])


def transactions(admin: ottla.Admin, address: str, name: str) -> None:
    place = TopicPartition(name, 0)
    admin.create_topic(name, 1)
    with ottla.Producer(address, transactional_id=name) as producer:
        producer.begin()
        producer.send(name, b"1").result(60)
        described = admin.describe_transactions([name])[name]
        assert (described.state, described.partitions) == ("Ongoing", (place,))
        assert f"{name}: Ongoing" in str(described) and str(place) in str(described)
        assert name in {each.transactional_id for each in admin.list_transactions(states=["Ongoing"])}
        (writing,) = admin.describe_producers([place])[place]
        assert writing.transaction_start == 0
        fenced = admin.fence_producers([name])[name]
        assert fenced.producer_id >= 0 and fenced.epoch > described.producer_epoch
        until(
            lambda: admin.describe_transactions([name])[name].state in ("CompleteAbort", "Empty"), "the abort"
        )
        with pytest.raises(KafkaError):
            producer.commit()
    assert admin.find_hanging_transactions([place]) == []


def partitions(admin: ottla.Admin, address: str, name: str) -> None:
    admin.create_topic(name, 2)
    place, other = (TopicPartition(name, number) for number in range(2))
    (node,) = admin.describe_cluster().nodes
    elected = admin.elect_leaders([place])
    assert elected[place].code is ErrorCode.ELECTION_NOT_NEEDED and not elected[place].failed
    admin.alter_partition_reassignments({place: [node.id]})
    until(lambda: admin.list_partition_reassignments([place]) == {}, "the end of the move")
    with pytest.raises(SeveralFailed) as failure:
        admin.alter_partition_reassignments({place: [99], other: [98]})
    assert failure.value.errors.keys() == {str(place), str(other)}


TOURS: list[Tour] = [topics, configs, offsets, cluster, log_dirs, groups, transactions, partitions]
