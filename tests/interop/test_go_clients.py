"""franz-go and Sarama, the two Go clients (`go/franz`, `go/sarama`)."""

from typing import Any

import pytest

from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import Program
from tests.interop.test_java_client import TIME, create

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


# --- franz-go -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_franz_produces_and_reads(franz: Program, broker: BrokerProcess, topic: str, codec: str) -> None:
    create(broker, topic, 3)
    acknowledged = franz.see(broker.address, "produce", topic, codec, "300")
    assert sorted(acknowledged) == sorted([number % 3, number // 3] for number in range(300))

    def expected(number: int) -> dict[str, Any]:
        return {
            "partition": number % 3,
            "offset": number // 3,
            "time": TIME + number,
            "key": None if number % 10 == 3 else f"key-{number}",
            "value": None if number % 10 == 5 else f"value-{number}",
            "headers": [["number", str(number)]],
            "leader epoch": 0,
        }

    for first in (0, 40):
        records = franz.see(broker.address, "read", topic, str(first))
        records.sort(key=lambda record: (record["offset"], record["partition"]))
        assert records == [expected(number) for number in range(first * 3, 300)]


def test_franz_administers(franz: Program, broker: BrokerProcess, topic: str) -> None:
    seen = franz.see(broker.address, "admin", topic)
    configs = seen.pop("configs")
    assert configs["segment.bytes"] == ["3000000", "DYNAMIC_TOPIC_CONFIG"]
    assert configs["retention.ms"] == ["604800000", "DEFAULT_CONFIG"]
    assert seen == {
        "brokers": 1,
        "controller": 1,
        "produce is known": True,
        "validated": "none",
        "after validation": False,
        "created": 3,
        "created again": "TOPIC_ALREADY_EXISTS",
        "bad name": "INVALID_TOPIC_EXCEPTION",
        "more partitions": 5,
        "fewer partitions": "INVALID_PARTITIONS",
        "offsets": {
            "start": [0, -1],
            "end": [3, -1],
            "committed": [3, -1],
            "max timestamp": [1, TIME + 300],
            "by time": [1, TIME + 300],
        },
        "low watermark": 2,
        "deleted again": "UNKNOWN_TOPIC_OR_PARTITION",
        "after deletion": False,
    }


def test_franz_reads_a_hundred_partitions(franz: Program, broker: BrokerProcess, topic: str) -> None:
    create(broker, topic, 100)
    seen = franz.see(broker.address, "many", topic)
    assert sorted(seen) == sorted(
        [number * 7 % 100, number // 100, f"value-{number}"] for number in range(200)
    )


# --- Sarama -------------------------------------------------------------------------------------------------------

# The oldest that knows headers, one from the middle, and all that Sarama has learned since.
VERSIONS = ["1.0.0", "2.8.0", "newest"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", CODECS)
def test_sarama_produces_and_reads(
    sarama: Program, broker: BrokerProcess, topic: str, version: str, codec: str
) -> None:
    if (version, codec) == ("1.0.0", "zstd"):
        # Sarama refuses it by itself: zstd came with Kafka 2.1.
        version = "2.1.0"
    create(broker, topic)
    assert sarama.see(broker.address, "produce", topic, version, codec, "300") == list(range(300))
    for first in (0, 120):
        assert sarama.see(broker.address, "read", topic, version, str(first)) == [
            {
                "offset": number,
                "time": TIME + number,
                "key": f"key-{number}",
                "value": f"value-{number}",
                "headers": [["number", str(number)]],
            }
            for number in range(first, 300)
        ]


@pytest.mark.parametrize("version", ["2.3.0", "2.8.0", "newest"])
def test_sarama_administers(sarama: Program, broker: BrokerProcess, topic: str, version: str) -> None:
    assert sarama.see(broker.address, "admin", topic, version) == {
        "brokers": 1,
        "controller": 1,
        "after validation": False,
        "created again": "36",
        "partitions": 3,
        "retention": "7200000",
        "fewer partitions": "37",
        "more partitions": 5,
        "configs": {"segment.bytes": ["3000000", "Topic"], "retention.ms": ["604800000", "Default"]},
        "offsets": {"oldest": 0, "newest": 4, "by time": 2, "too late": -1},
        "oldest after": 3,
        "deleted again": "3",
    }
