"""kcat, librdkafka's command-line tool, as the system packages it."""

import json
import shutil

import pytest

from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import run
from tests.interop.test_java_client import create


@pytest.fixture
def kcat() -> str:
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is None:
        pytest.skip("kcat is not here")
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(kcat: str, broker: BrokerProcess, topic: str, codec: str) -> None:
    create(broker, topic)
    to_topic = ["-b", broker.address, "-t", topic, "-p", "0"]
    lines = "".join(f"key-{number}:value-{number}\n" for number in range(200))
    run([kcat, "-P", *to_topic, "-K", ":", "-z", codec, "-H", "name=value"], text=lines)
    said = run([kcat, "-C", *to_topic, "-o", "50", "-e", "-q", "-J"])
    records = [json.loads(line) for line in said.lines]
    assert [(each["offset"], each["key"], each["payload"], each["headers"]) for each in records] == [
        (number, f"key-{number}", f"value-{number}", ["name", "value"]) for number in range(50, 200)
    ]


def test_metadata_and_offsets(kcat: str, broker: BrokerProcess, topic: str) -> None:
    create(broker, topic, 3)
    listed = json.loads(run([kcat, "-L", "-J", "-b", broker.address, "-t", topic]).out)
    assert listed["brokers"] == [{"id": 1, "name": broker.address}]
    assert [(part["partition"], part["leader"]) for part in listed["topics"][0]["partitions"]] == [
        (0, 1), (1, 1), (2, 1),
    ]  # fmt: skip
    run([kcat, "-P", "-b", broker.address, "-t", topic, "-p", "2"], text="a\nb\n")
    assert (
        run([kcat, "-Q", "-b", broker.address, "-t", f"{topic}:2:-1"]).out.strip() == f"{topic} [2] offset 2"
    )


def test_a_group_goes_on_where_it_was(kcat: str, broker: BrokerProcess, topic: str) -> None:
    create(broker, topic, 2)
    for partition in ("0", "1"):
        run([kcat, "-P", "-b", broker.address, "-t", topic, "-p", partition], text="a\nb\nc\n")
    member = [kcat, "-b", broker.address, "-X", "auto.offset.reset=earliest", "-q", "-f", "%p %o\n"]
    first = run([*member, "-c", "4", "-G", f"group-{topic}", topic]).lines
    rest = run([*member, "-c", "2", "-G", f"group-{topic}", topic]).lines
    assert sorted([*first, *rest]) == sorted(f"{number} {offset}" for number in (0, 1) for offset in range(3))
