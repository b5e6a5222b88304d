"""`ottla group` against a real broker: its output is correct, and members continue at the offsets that it
sets.
"""

import threading
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

import ottla
from ottla.client.metadata import TopicPartition
from tests.cli.conftest import Run

PATIENCE_S = 30


@pytest.fixture
def admin(ottla_address: str) -> Iterator[Any]:
    with ottla.Admin(ottla_address) as admin:
        yield admin


@pytest.fixture
def filled(admin: Any, ottla_address: str, topic_name: str) -> str:
    """A topic of two partitions with five records in each."""
    admin.create_topic(topic_name, 2)
    producer = confluent_kafka.Producer({"bootstrap.servers": ottla_address, "log_level": 0})
    for at in range(10):
        producer.produce(topic_name, str(at), partition=at % 2)
    assert producer.flush(PATIENCE_S) == 0
    return topic_name


@pytest.fixture
def group(admin: Any, filled: str) -> str:
    """A group with committed offset 3 in each partition and no members."""
    admin.set_group_offsets(f"g-{filled}", {TopicPartition(filled, number): 3 for number in range(2)})
    return f"g-{filled}"


@pytest.fixture
def member(ottla_address: str, filled: str, group: str) -> Iterator[str]:
    """A member that stays in the group."""
    stop, ready = threading.Event(), threading.Event()

    def stay() -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": ottla_address,
                "group.id": group,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([filled])
        while not stop.is_set():
            consumer.poll(0.1)
            if consumer.assignment():
                ready.set()
        consumer.close()

    thread = threading.Thread(target=stay)
    thread.start()
    assert ready.wait(PATIENCE_S)
    yield group
    stop.set()
    thread.join(PATIENCE_S)


def offsets(admin: Any, group: str) -> dict[int, int]:
    return {place.partition: offset for place, offset in admin.group_offsets(group).items()}


def test_a_group_is_listed_and_described_with_its_lag(run: Run, group: str, filled: str) -> None:
    assert {"group": group, "state": "Empty", "type": "classic", "protocol_type": ""} in run(
        "group", "list", "--json"
    ).json
    assert group in run("group", "list").out
    found = run("group", "describe", group, "--json").json
    assert (found["state"], found["members"], found["lag"]) == ("Empty", [], 4)
    assert found["partitions"][0] == {
        "topic": filled, "partition": 0, "offset": 3, "end": 5, "lag": 2, "member": None, "client": None, "host": None,
    }  # fmt: skip
    text = run("group", "describe", group).out
    assert "lag 4" in text and filled in text


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (["--to-earliest"], {0: 0, 1: 0}), (["--to-latest"], {0: 5, 1: 5}), (["--to-offset", "4"], {0: 4, 1: 4}),
        (["--to-offset", "99"], {0: 5, 1: 5}), (["--shift", "1"], {0: 4, 1: 4}), (["--shift", "-2"], {0: 1, 1: 1}),
        (["--to-time", "0"], {0: 0, 1: 0}), (["--to-time", "2999-01-01T00:00:00+00:00"], {0: 5, 1: 5}),
    ],
)  # fmt: skip
def test_offsets_are_reset(
    run: Run, admin: Any, group: str, way: list[str], expected: dict[int, int]
) -> None:
    done = run("group", "reset", group, *way, "--json").json
    assert {row["partition"]: (row["from"], row["to"]) for row in done["partitions"]} == {
        number: (3, offset) for number, offset in expected.items()
    }
    assert offsets(admin, group) == expected


def test_a_single_partition_is_reset_and_a_dry_run_sets_nothing(
    run: Run, admin: Any, group: str, filled: str
) -> None:
    arguments = ("group", "reset", group, "--topic", f"{filled}:1", "--to-earliest")
    would = run(*arguments, "--dry-run", "--json").json
    assert [(row["partition"], row["to"]) for row in would["partitions"]] == [(1, 0)]
    assert offsets(admin, group) == {0: 3, 1: 3}
    assert run(*arguments).code == 0
    assert offsets(admin, group) == {0: 3, 1: 0}
    assert run("group", "reset", group, "--topic", f"{filled}:7", "--to-earliest").code == 2


@pytest.mark.parametrize("way", [[], ["--to-earliest", "--to-latest"], ["--to-time", "yesterday"]])
def test_how_to_reset_must_be_said_and_once(run: Run, group: str, way: list[str]) -> None:
    assert run("group", "reset", group, *way).code == 2


def test_a_group_with_members_is_neither_reset_nor_deleted(run: Run, admin: Any, member: str) -> None:
    described = run("group", "describe", member, "--json").json
    assert described["state"] == "Stable" and len(described["members"]) == 1
    assert all(row["member"] for row in described["partitions"])
    for arguments in (("reset", member, "--to-earliest"), ("delete", member)):
        refused = run("group", *arguments)
        assert refused.code == 1 and "active members" in refused.err
    assert offsets(admin, member) == {0: 3, 1: 3}


def test_a_group_is_deleted_with_its_offsets(run: Run, group: str) -> None:
    assert run("group", "delete", group).code == 0
    assert group not in run("group", "list").out
    gone = run("group", "describe", group)
    assert gone.code == 1 and "no such group" in gone.err
    assert run("group", "delete", group).code == 1
