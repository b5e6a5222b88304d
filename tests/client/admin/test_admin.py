from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.client.admin.core import EARLIEST, LATEST, MAX_TIMESTAMP, NewTopic, Resource
from ottla.client.errors import BrokerNotFound, BrokerUnreachable, InvalidRequest, TopicExists, TopicNotFound
from ottla.client.metadata import TopicPartition


def test_topics_are_created_described_grown_and_deleted(ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 2, 1, {"retention.ms": "1000000"})
        assert len(admin.list_topics()[topic_name].partitions) == 2
        admin.create_partitions(topic_name, 5)
        described = admin.describe_topics([topic_name])[topic_name]
        assert sorted(described.partitions) == [0, 1, 2, 3, 4]
        assert described.topic_id is not None and len(described.topic_id) == 16
        admin.delete_topics([topic_name])
        assert topic_name not in admin.list_topics()


def test_several_topics_in_one_request(ottla_address: str, topic_name: str) -> None:
    names = [f"{topic_name}-{number}" for number in range(3)]
    with ottla.Admin(ottla_address) as admin:
        admin.create_topics(NewTopic(name, 1) for name in names)
        assert set(names) <= set(admin.list_topics())


def test_validate_only_changes_nothing(ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1, validate_only=True)
        assert topic_name not in admin.list_topics()


def test_refusals_are_typed_and_say_why(ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 2)
        with pytest.raises(TopicExists, match=topic_name):
            admin.create_topic(topic_name)
        with pytest.raises(InvalidRequest, match="bad/name"):
            admin.create_topic("bad/name")
        with pytest.raises(InvalidRequest):
            admin.create_topic(f"{topic_name}-x", 1, 99)
        with pytest.raises(InvalidRequest, match=r"cleanup\.policy"):
            admin.create_topic(f"{topic_name}-y", 1, 1, {"cleanup.policy": "shred"})
        with pytest.raises(InvalidRequest):
            admin.create_partitions(topic_name, 1)
        for call in (
            lambda: admin.delete_topics(["no-such-topic"]),
            lambda: admin.describe_topics(["no-such-topic"]),
            lambda: admin.create_partitions("no-such-topic", 3),
            lambda: admin.list_offsets({TopicPartition("no-such-topic", 0): LATEST}),
            lambda: admin.list_offsets({TopicPartition(topic_name, 7): LATEST}),
        ):
            with pytest.raises(TopicNotFound):
                call()


def test_configs_are_set_unset_and_tell_their_source(ottla_address: str, topic_name: str) -> None:
    resource = Resource("topic", topic_name)
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1)
        before = admin.describe_configs(resource, ["retention.ms"])["retention.ms"]
        assert before.source != "topic"
        admin.alter_configs(resource, {"retention.ms": "5000", "segment.ms": "60000"})
        changed = admin.describe_configs(resource, documentation=True, synonyms=True)
        assert (changed["retention.ms"].value, changed["retention.ms"].source) == ("5000", "topic")
        assert changed["retention.ms"].documentation
        assert changed["retention.ms"].synonyms[0][1] == "5000"
        admin.alter_configs(resource, {"retention.ms": None})
        after = admin.describe_configs(resource, ["retention.ms", "segment.ms"])
        assert after["retention.ms"].value == before.value
        assert after["segment.ms"].value == "60000"
        with pytest.raises(InvalidRequest, match=r"retention\.ms"):
            admin.alter_configs(resource, {"retention.ms": "soon"})
        with pytest.raises(TopicNotFound):
            admin.describe_configs(Resource("topic", "no-such-topic"))


def test_a_broker_tells_its_configs_and_an_unknown_broker_is_named(ottla_address: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        node = admin.describe_cluster().nodes[0]
        assert node.address == ottla_address
        configs = admin.describe_configs(Resource("broker", str(node.id)))
        assert configs["log.dirs"].value
        with pytest.raises(BrokerNotFound, match=r"99.*brokers are"):
            admin.describe_configs(Resource("broker", "99"))


def test_offsets_by_time_and_deleted_records(ottla_address: str, topic_name: str) -> None:
    tp = TopicPartition(topic_name, 0)
    with ottla.Admin(ottla_address) as admin, ottla.Producer(ottla_address) as producer:
        admin.create_topic(topic_name, 1)
        for number in range(10):
            producer.send(topic_name, b"v", timestamp_ms=1_700_000_000_000 + number * 1000).result(30)
        assert admin.list_offsets({tp: EARLIEST})[tp].offset == 0
        assert admin.list_offsets({tp: LATEST})[tp].offset == 10
        assert admin.list_offsets({tp: MAX_TIMESTAMP})[tp] == (9, 1_700_000_009_000)
        assert admin.list_offsets({tp: 1_700_000_003_500})[tp] == (4, 1_700_000_004_000)
        assert admin.list_offsets({tp: 1_800_000_000_000})[tp].offset == -1
        assert admin.delete_records({tp: 4}) == {tp: 4}
        assert admin.list_offsets({tp: EARLIEST})[tp].offset == 4


def test_every_bootstrap_address_is_tried_and_named(ottla_address: str, free_port: int) -> None:
    with ottla.Admin([f"127.0.0.1:{free_port}", ottla_address]) as admin:
        assert admin.describe_cluster().nodes
    with pytest.raises(BrokerUnreachable, match="no broker can be reached") as caught:
        ottla.Admin(f"127.0.0.1:{free_port},localhost:{free_port}")
    assert "127.0.0.1" in str(caught.value) and "localhost" in str(caught.value)


def test_a_wrong_advertised_listener_is_explained(
    start_broker: Callable[..., Any], free_port: int, topic_name: str
) -> None:
    broker = start_broker(0, f"advertised.listeners=PLAINTEXT://127.0.0.1:{free_port}")
    with ottla.Admin(f"127.0.0.1:{_listening_port(broker.process.pid)}") as admin:
        expected = rf"advertises 127\.0\.0\.1:{free_port}.*advertised\.listeners"
        with pytest.raises(BrokerUnreachable, match=expected):
            admin.create_topic(topic_name, 1)


def _listening_port(pid: int) -> int:
    """The port that a process listens on, which is not the one it advertises."""
    sockets = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            return int(fields[1].rpartition(":")[2], 16)
    raise AssertionError("the broker listens nowhere")


def test_partitions_are_elected_reassigned_and_listed(ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 2)
        first, second = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
        elected = admin.elect_leaders([first, second])
        assert {tp: (each.code.name, each.failed) for tp, each in elected.items()} == {
            first: ("ELECTION_NOT_NEEDED", False),
            second: ("ELECTION_NOT_NEEDED", False),
        }
        assert admin.elect_leaders([TopicPartition(topic_name, 7)])[TopicPartition(topic_name, 7)].failed
        admin.alter_partition_reassignments({first: [1]})
        assert admin.list_partition_reassignments([first]) == {}
        assert admin.list_partition_reassignments() == {}
        with pytest.raises(InvalidRequest, match=f"{topic_name}-1"):
            admin.alter_partition_reassignments({second: [99]})
        with pytest.raises(ottla.KafkaError, match="There is nothing to cancel"):
            admin.alter_partition_reassignments({second: None})


def test_the_cluster_tells_who_is_away(ottla_address: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        cluster = admin.describe_cluster(include_fenced=True)
        assert ([node.id for node in cluster.nodes], cluster.fenced) == ([1], ())
        with pytest.raises(BrokerNotFound, match="99"):
            admin.unregister_broker(99)
        with pytest.raises(InvalidRequest):
            admin.unregister_broker(1)
        with pytest.raises(BrokerNotFound):
            admin.alter_configs(Resource("broker", "99"), {"message.max.bytes": "2000"})
