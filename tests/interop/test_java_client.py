"""kafka-clients, the Java library that most of the world speaks through (`java/ClientTour.java`)."""

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.broker_process import CREATE_TOPICS, BrokerProcess, Wire
from tests.interop.programs import Program

TIME = 1_700_000_000_000


def create(broker: BrokerProcess, topic: str, partitions: int = 1, **configs: str) -> None:
    settings = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": settings}
    with Wire(broker.address) as wire:
        answer = wire.ask(CREATE_TOPICS, 5, topics=[wanted], timeout_ms=10_000)
    assert [row.error_code.value for row in answer.topics] == [0]


def expected(number: int, partitions: int, time_type: str = "CreateTime") -> dict[str, Any]:
    """What ClientTour's record of that number is like when it is read."""
    headers: list[list[str | None]] = [[f"header-{each}", str(number)] for each in range(number % 3)]
    return {
        "partition": number % partitions,
        "offset": number // partitions,
        "time": TIME + number,
        "time type": time_type,
        "key": None if number % 10 == 3 else f"key-{number}",
        "value": None if number % 10 == 5 else f"value-{number}",
        "headers": headers + ([["none", None]] if number % 7 == 0 else []),
        "leader epoch": 0,
    }


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_read(java_client: Program, broker: BrokerProcess, topic: str, codec: str) -> None:
    create(broker, topic, 3)
    produced = java_client.see(broker.address, "produce", topic, codec, "300")
    assert produced["failed"] == []
    by_partition = defaultdict(list)
    for partition, offset, time in produced["acknowledged"]:
        by_partition[partition].append((offset, time))
    assert by_partition == {
        partition: [(each, TIME + 3 * each + partition) for each in range(100)] for partition in range(3)
    }

    seen = java_client.see(broker.address, "read", topic, str(TIME + 100))
    assert seen["beginning"] == {"0": 0, "1": 0, "2": 0}
    assert seen["end"] == {"0": 100, "1": 100, "2": 100}
    # Records 102, 100 and 101 are the first ones, of their partitions, that are not earlier.
    assert seen["at"] == {"0": [34, TIME + 102], "1": [33, TIME + 100], "2": [33, TIME + 101]}
    found = {(record["partition"], record["offset"]): record for record in seen["records"]}
    assert len(found) == len(seen["records"])
    assert found == {(number % 3, number // 3): expected(number, 3) for number in range(300)}
    assert seen["sought"] == expected(150, 3)
    assert seen["first"] == expected(0, 3)
    assert (seen["last position"], seen["lag"]) == (100, 0)


def test_the_brokers_clock(java_client: Program, broker: BrokerProcess, topic: str) -> None:
    create(broker, topic, message_timestamp_type="LogAppendTime")
    produced = java_client.see(broker.address, "produce", topic, "zstd", "100")
    times = [time for _partition, _offset, time in produced["acknowledged"]]
    assert min(times) > TIME and times == sorted(times)
    seen = java_client.see(broker.address, "read", topic, str(times[-1]))
    assert [record["time"] for record in seen["records"]] == times
    assert {record["time type"] for record in seen["records"]} == {"LogAppendTime"}
    assert seen["at"] == {"0": [times.index(times[-1]), times[-1]]}


def test_what_is_refused(java_client: Program, broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    create(broker, f"{topic}-compacted", cleanup_policy="compact")
    assert java_client.see(broker.address, "refusals", topic, f"{topic}-compacted") == {
        "too large": "RecordTooLargeException",
        "below the limit": "none",
        "no key": "InvalidRecordException",
        "a key": "none",
        "of tomorrow": "InvalidTimestampException",
        "beyond the end": "OffsetOutOfRangeException",
    }


def test_the_admin_client(java_client: Program, broker: BrokerProcess, topic: str) -> None:
    seen = java_client.see(broker.address, "admin", topic)
    configs = {when: seen.pop(when) for when in ("configs", "altered configs", "subtracted configs")}
    assert seen.pop("cluster").items() >= {"controller": 1, "nodes": [broker.address]}.items()
    four = [[number, 1, 1, 1] for number in range(4)]
    assert seen == {
        "validated partitions": 4,
        "after validation": False,
        "created": {"partitions": 4, "replicas": 1, "retention": "7200000"},
        "created again": "TopicExistsException",
        "listed id is its id": True,
        "described": four,
        "described by id": four,
        "unknown id": "UnknownTopicIdException",
        "unknown name": "UnknownTopicOrPartitionException",
        "fewer partitions": "InvalidPartitionsException",
        "more partitions": 6,
        "wrong config": "InvalidConfigurationException",
        "offsets": {
            "earliest": [0, -1],
            "latest": [3, -1],
            "max timestamp": [1, TIME + 300],
            "earliest local": [0, -1],
            "latest tiered": [-1, -1],
            "by time": [1, TIME + 300],
            "too late": [-1, -1],
        },
        "deleted below": 2,
        "deleted beyond": "OffsetOutOfRangeException",
        "earliest after": 2,
        "after deletion": False,
        "deleted again": "UnknownTopicOrPartitionException",
    }
    first, altered, subtracted = configs.values()
    assert first["retention.ms"] == ["7200000", "DYNAMIC_TOPIC_CONFIG", "LONG", True, 2]
    assert first["cleanup.policy"] == ["delete", "DEFAULT_CONFIG", "LIST", True, 1]
    assert all(documented for _value, _source, _type, documented, _synonyms in first.values())
    assert "UNKNOWN" not in {kind for _value, _source, kind, _documented, _synonyms in first.values()}
    assert altered["retention.ms"] == ["604800000", "DEFAULT_CONFIG", "LONG", True, 1]
    assert altered["segment.bytes"] == ["3000000", "DYNAMIC_TOPIC_CONFIG", "INT", True, 2]
    assert altered["cleanup.policy"] == ["delete,compact", "DYNAMIC_TOPIC_CONFIG", "LIST", True, 2]
    assert subtracted["cleanup.policy"][:2] == ["delete", "DYNAMIC_TOPIC_CONFIG"]


def test_a_fetch_session_of_a_hundred_partitions(
    talkative_java_client: Program, broker: BrokerProcess, topic: str
) -> None:
    create(broker, topic, 100)
    said = talkative_java_client.hear(broker.address, "many", topic, "100")
    seen = json.loads(said.out)
    assert sorted(seen) == sorted(
        [number * 7 % 100, number // 100, f"value-{number}"] for number in range(300)
    )
    assert "sent a full fetch response that created a new incremental fetch session" in said.errors
    assert said.errors.count("sent an incremental fetch response") > 10
    assert "was unable to process the fetch request" not in said.errors
    assert "sent an invalid" not in said.errors


def test_an_idempotent_producer_goes_on_after_a_crash(
    java_client: Program, start_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    broker = start_broker()
    create(broker, topic)
    with java_client.talk(broker.address, "in-two-halves", topic, "500") as producer:
        assert producer.listen() == list(range(500))
        broker.kill()
        broker.start()
        producer.go_on()
        assert producer.listen() == list(range(1000))
    seen = java_client.see(broker.address, "read", topic, str(TIME))
    assert [record["value"] for record in seen["records"]] == [
        expected(number, 1)["value"] for number in range(1000)
    ]
