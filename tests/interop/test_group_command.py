"""`ottla group` with Apache Kafka as the broker."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.process import Process
from tests.interop.kafka_directory import PATIENCE_S, running
from tests.interop.members import Member, share
from tests.interop.programs import Java, Program, Said, run

OTTLA = str(Path(sys.executable).parent / "ottla")
TOPIC = "orders"
EVERYTHING = {(TOPIC, 0), (TOPIC, 1)}


@pytest.fixture(scope="module")
def kafka(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    del java  # only asks whether it is here
    with running("4", tmp_path_factory.mktemp("kafka")) as process:
        admin = AdminClient({"bootstrap.servers": process.address, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": process.address, "log_level": 0})
        for number in range(10):
            producer.produce(TOPIC, b"x", partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        yield process


def ottla(kafka: Process, *arguments: str, code: int = 0) -> Said:
    return run([OTTLA, "group", *arguments, "--bootstrap", kafka.address], code=code)


def told(kafka: Process, *arguments: str) -> Any:
    return json.loads(ottla(kafka, *arguments, "--json").out)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_life_of_a_group(kafka: Process, java_member: Program, protocol: str) -> None:
    def join() -> Member:
        return java_member.join(kafka.address, protocol, f"topics:{TOPIC}", f"group.protocol={protocol}")

    with join() as member:
        share([member], EVERYTHING)
        member.wait_until(lambda: len(member.read) == 10, "it reads")
        member.commit()
        assert {
            "group": protocol, "state": "Stable", "type": protocol, "protocol_type": "consumer",
        } in told(kafka, "list")  # fmt: skip
        described = told(kafka, "describe", protocol)
        assert (described["state"], described["lag"], len(described["members"])) == ("Stable", 0, 1)
        assert described["protocol"] == ("range" if protocol == "classic" else "uniform")
        [who] = described["members"]
        assert [(row["partition"], row["offset"], row["member"]) for row in described["partitions"]] == [
            (0, 5, who["member"]), (1, 5, who["member"]),
        ]  # fmt: skip
        refused = ottla(kafka, "reset", protocol, "--to-earliest", code=1)
        assert "active members" in refused.errors
        assert ottla(kafka, "delete", protocol, code=1).errors
        member.leave()
    assert f"{protocol}  Empty  0 member(s)  lag 0" in ottla(kafka, "describe", protocol).out
    would = told(kafka, "reset", protocol, "--shift", "-2", "--dry-run")
    assert [(row["from"], row["to"]) for row in would["partitions"]] == [(5, 3)] * 2
    told(kafka, "reset", protocol, "--topic", f"{TOPIC}:1", "--to-offset", "4")
    with join() as member:
        share([member], EVERYTHING)
        member.wait_until(lambda: member.read, "it reads what it was set back to")
        assert member.read == [(TOPIC, 1, 4)]
        member.leave()
    assert told(kafka, "delete", protocol) == {"deleted": [protocol]}
    assert protocol not in {row["group"] for row in told(kafka, "list")}
