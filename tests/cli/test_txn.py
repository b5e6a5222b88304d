"""`ottla txn` against a real broker: list, describe, abort; hanging transactions are found and aborted.

What hangs is made as it would be in life: a broker stops while transactions are open, and the files of their
coordinator are lost.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import ottla
from ottla.client.admin.core import LATEST
from ottla.client.metadata import TopicPartition
from tests.cli.conftest import Run
from tests.cli.open_transactions import (
    PATIENCE_S,
    QUIET,
    TIMEOUT_MS,
    begin,
    committed,
    lose_coordinators,
    reader,
)

SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.max.timeout.ms": "600000",
}
#: The partition of two hanging transactions; the second starts after the first.
LOST = TopicPartition("lost", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
_NUMBERS = itertools.count()


def leave_open(home: Path) -> None:
    """The first run of a broker: two open transactions in `lost`, one of them also with offsets of group `g`."""
    with ottla.Broker(data_dir=str(home), config=SETTINGS) as broker:
        with ottla.Admin(broker.address) as admin:
            admin.create_topic("lost", 1)
        _first = begin(broker.address, "first", LOST)
        second = begin(broker.address, "second", LOST)
        consumer = reader(broker.address, "g")
        second.send_offsets_to_transaction(
            [confluent_kafka.TopicPartition("lost", 0, 1)], consumer.consumer_group_metadata(), PATIENCE_S
        )
        consumer.close()
        plain = confluent_kafka.Producer({"bootstrap.servers": broker.address, **QUIET})
        plain.produce("lost", b"behind", partition=0)
        assert plain.flush(PATIENCE_S) == 0
        assert committed(broker.address, LOST) == []


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Its second run, whose coordinator does not know these transactions."""
    home = tmp_path_factory.mktemp("data")
    leave_open(home)
    lose_coordinators(home)
    with ottla.Broker(data_dir=str(home), config=SETTINGS) as broker:
        yield broker


@pytest.fixture
def address(broker: Any) -> str:
    return str(broker.address)


@pytest.fixture
def run(address: str, run_here: Callable[[str], Run]) -> Run:
    return run_here(address)


@pytest.fixture
def admin(address: str) -> Iterator[Any]:
    with ottla.Admin(address) as admin:
        yield admin


@pytest.fixture
def place(admin: Any) -> TopicPartition:
    """A partition of a new topic."""
    name = f"topic-{next(_NUMBERS)}"
    admin.create_topic(name, 1)
    return TopicPartition(name, 0)


@pytest.fixture
def name() -> str:
    return f"tx-{next(_NUMBERS)}"


# --- those that are going on --------------------------------------------------------------------------------


def test_transactions_are_listed_by_filters(run: Run, address: str, place: TopicPartition, name: str) -> None:
    open_one = begin(address, name, place)
    ended = begin(address, f"{name}-ended", place)
    ended.commit_transaction(PATIENCE_S)

    def listed(*filters: str) -> set[str]:
        rows = run("txn", "list", *filters, "--json").json
        return {row["transactional_id"] for row in rows if row["transactional_id"].startswith(name)}

    assert listed() == {name, f"{name}-ended"}
    [row] = run("txn", "list", "--pattern", name, "--json").json
    assert row["state"] == "Ongoing" and row["coordinator"] == 1
    assert listed("--state", "ongoing") == {name}
    assert listed("--state", "Ongoing", "--state", "Empty") == {name}
    assert listed("--producer-id", str(row["producer_id"])) == {name}
    assert listed("--pattern", f"{name}-.*") == {f"{name}-ended"}
    deadline = time.monotonic() + PATIENCE_S
    while not listed("--longer-than", "100ms"):
        assert time.monotonic() < deadline
    assert listed("--longer-than", "100ms") == {name}
    assert listed("--longer-than", "1h") == set()
    assert name in run("txn", "list").out
    assert "no transactions found" in run("txn", "list", "--pattern", "nobody").err
    open_one.abort_transaction(PATIENCE_S)


def test_a_transaction_is_described_with_its_partitions(
    run: Run, address: str, place: TopicPartition, name: str
) -> None:
    producer = begin(address, name, place)
    told = run("txn", "describe", name, "--json").json
    assert (told["state"], told["timeout_ms"], told["coordinator"]) == ("Ongoing", TIMEOUT_MS, 1)
    assert told["partitions"] == [{"topic": place.topic, "partition": 0}]
    assert abs(told["started_ms"] - time.time() * 1000) < PATIENCE_S * 1000
    words = run("txn", "describe", name).out
    assert f"{name}  Ongoing" in words and "timeout 10m" in words and " ago" in words and place.topic in words
    [row] = run("txn", "describe", "--topic", place.topic, "--json").json
    assert (row["producer_id"], row["start_offset"]) == (told["producer_id"], 0)
    producer.commit_transaction(PATIENCE_S)
    told = run("txn", "describe", name, "--json").json
    deadline = time.monotonic() + PATIENCE_S
    while told["state"] == "PrepareCommit" and time.monotonic() < deadline:
        told = run("txn", "describe", name, "--json").json
    assert (told["state"], told["partitions"]) == ("CompleteCommit", [])
    assert "-" in run("txn", "describe", "--topic", place.topic, "--partition", "0").out.split()


def test_an_aborted_transaction_is_not_read_and_its_producer_is_fenced(
    run: Run, address: str, place: TopicPartition, name: str
) -> None:
    producer = begin(address, name, place)
    told = run("txn", "abort", name, "--json").json
    assert (told["transactional_id"], told["partitions"]) == (name, [str(place)])
    plain = confluent_kafka.Producer({"bootstrap.servers": address, **QUIET})
    plain.produce(place.topic, b"behind", partition=0)
    assert plain.flush(PATIENCE_S) == 0
    assert committed(address, place) == [b"behind"]
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        producer.commit_transaction(PATIENCE_S)
    assert caught.value.args[0].fatal()
    again = run("txn", "abort", name)
    assert again.code == 1 and "it has no open transaction" in again.err


def test_a_description_creates_no_transactional_id(run: Run) -> None:
    for command in ("describe", "abort"):
        ended = run("txn", command, "nobody")
        assert ended.code == 4 and "ottla txn list" in ended.err
    assert "nobody" not in run("txn", "list").out


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--state", "Sleeping"], ["list", "--longer-than", "soon"], ["list", "--older-than", "1m"],
        ["list", "--topic", "lost"], ["list", "--hanging", "--state", "Ongoing"], ["list", "--hanging", "--older-than", "5"],
        ["list", "--hanging", "--topic", "lost:x"], ["describe"], ["describe", "a", "--topic", "lost"],
        ["describe", "a", "--partition", "0"], ["abort"], ["abort", "a", "--topic", "lost"],
        ["abort", "--topic", "lost", "--partition", "0"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_contradictory_options_are_refused(run: Run, arguments: list[str]) -> None:
    assert run("txn", *arguments).code == 2


def test_a_refusal_of_the_broker_comes_with_advice(run: Run) -> None:
    ended = run("txn", "list", "--pattern", "(")
    assert ended.code == 1 and "RE2" in ended.err
    assert run("txn", "describe", "--topic", "nowhere").code == 4
    assert run("txn", "describe", "--topic", "lost", "--partition", "7").code == 4


# --- those that hang ----------------------------------------------------------------------------------------


def hanging(run: Run, *filters: str, age: str = "0ms") -> list[tuple[str, int, int]]:
    rows = run("txn", "list", "--hanging", "--older-than", age, *filters, "--json").json
    return [(row["topic"], row["partition"], row["start_offset"]) for row in rows]


def test_hanging_transactions_are_found_and_aborted(
    run: Run, admin: Any, address: str, place: TopicPartition, name: str
) -> None:
    going_on = begin(address, name, LOST, place)
    found = hanging(run)
    assert [row for row in found if row[0] == "lost"] == [("lost", 0, 0), ("lost", 0, 1)]
    [offsets] = [row for row in found if row[0] == OFFSETS.topic]
    assert len(found) == 3, "what is going on does not hang"
    assert hanging(run, "--topic", "lost:0") == hanging(run, "--topic", "lost", "--broker", "1") == found[1:]
    assert hanging(run, "--topic", place.topic) == []
    assert hanging(run, age="1h") == []
    # By default the largest transaction timeout of the brokers: no transaction is that old yet.
    assert "for 10m" in run("txn", "list", "--hanging").err
    assert run("txn", "list", "--hanging", "--broker", "9").code == 4

    def abort(place: TopicPartition, offset: int, *more: str) -> Any:
        where = ("--topic", place.topic, "--partition", str(place.partition), "--start-offset", str(offset))
        return run("txn", "abort", *where, *more)

    # A transaction that its coordinator knows is aborted by its transactional id.
    refused = abort(place, 0)
    assert refused.code == 1 and f"ottla txn abort {name}" in refused.err
    nowhere = abort(LOST, 2)
    assert nowhere.code == 4 and "start at 0, 1" in nowhere.err
    going_on.commit_transaction(PATIENCE_S)

    words = run("txn", "list", "--hanging", "--older-than", "0ms", "--topic", "lost")
    assert "ottla txn abort --topic lost --partition 0 --start-offset 0" in words.err
    assert committed(address, LOST) == []
    assert abort(LOST, 0, "--json").json["start_offset"] == 0
    assert committed(address, LOST) == []
    assert abort(LOST, 1).code == 0
    assert committed(address, LOST) == [b"behind", name.encode()]
    assert abort(LOST, 1).code == 4
    assert hanging(run) == [offsets]

    group = reader(address, "g")
    wanted = confluent_kafka.TopicPartition("lost", 0)
    with pytest.raises(confluent_kafka.KafkaException):
        group.committed([wanted], 1)
    assert abort(OFFSETS, offsets[2]).code == 0
    assert group.committed([wanted], PATIENCE_S)[0].offset < 0
    group.close()
    assert hanging(run) == []
    assert admin.list_offsets({LOST: LATEST})[LOST].offset > 3
