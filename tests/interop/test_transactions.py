"""Transactions of kafka-clients (`java/TransactionTour.java`) and Apache's tool for them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.records.record import Record, encode_batch
from tests.crash.broker_process import BrokerProcess, Wire
from tests.interop.programs import Java, Program
from tests.interop.test_java_client import create

DESCRIBE_TRANSACTIONS = 65


@pytest.fixture
def tour(java: Java, java_classes: Path) -> Program:
    # That it is fenced, and what it aborts, the client says aloud; a test asks for it.
    return Program(
        java.command(java_classes, "TransactionTour", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
    )


def test_commit_abort_copy_and_a_zombie(tour: Program, broker: BrokerProcess, topic: str) -> None:
    create(broker, topic, 3)
    create(broker, f"{topic}-copy")
    told = tour.see(broker.address, f"tx-{topic}", topic, f"{topic}-copy")
    assert sorted(told["read"]) == sorted(told["committed"])
    assert told["copied"] == [each for each in told["committed"] if int(each.split("-")[1]) % 3 == 0]
    assert told["offset"] > 0
    assert told["fenced"] in ("ProducerFencedException", "InvalidProducerEpochException")
    with Wire(broker.address) as wire:
        [row] = wire.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=[f"tx-{topic}"]).transaction_states
    # KIP-890: every end has raised the epoch.
    assert row.producer_epoch > 20


def begin(broker: BrokerProcess, name: str, topic: str) -> int:
    """A transaction with partition 0 of the topic in it, and a record there; its producer's id."""
    with Wire(broker.address) as wire:
        wire.ask(10, 4, key_type=1, coordinator_keys=[name])
        known = wire.ask(
            22, 4, transactional_id=name, transaction_timeout=600_000, producer_id=-1, producer_epoch=-1
        )
        batch = encode_batch(
            [Record(0, 1, None, name.encode())], producer_id=known.producer_id, producer_epoch=0, base_sequence=0,
            transactional=True,
        )  # fmt: skip
        # Version 12: the partition is added by it.
        answer = wire.ask(
            0, 12, transactional_id=name, acks=-1, timeout=30_000,
            topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
        )  # fmt: skip
        assert int(answer.responses[0].partition_responses[0].error_code) == 0
        return int(known.producer_id)


Tool = Callable[..., list[list[str]]]


def tool_for(java: Java, broker: BrokerProcess) -> Tool:
    def tool(*arguments: str) -> list[list[str]]:
        said = java.tool("TransactionsCommand", "--bootstrap-server", broker.address, *arguments)
        return [line.split() for line in said.lines]

    return tool


def test_the_tool_for_transactions(java: Java, broker: BrokerProcess, topic: str) -> None:
    tool = tool_for(java, broker)
    create(broker, topic)
    name = f"tx-{topic}"
    producer_id = begin(broker, name, topic)
    [row] = [row for row in tool("list") if row[0] == name]
    assert (row[2], row[3]) == (str(producer_id), "Ongoing")
    assert name in {
        row[0] for row in tool("list", "--duration-filter", "0", "--transactional-id-pattern", "tx-.*")
    }
    assert name not in {row[0] for row in tool("list", "--duration-filter", "3600000")}
    [_head, row] = tool("describe", "--transactional-id", name)
    assert name in row and "Ongoing" in row and f"{topic}-0" in row
    [_head, row] = tool("describe-producers", "--topic", topic, "--partition", "0")
    assert row[0] == str(producer_id) and row[-1] == "0"
    # It ends in a partition whatever is open there, as it is told to.
    tool("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    [_head, row] = tool("describe-producers", "--topic", topic, "--partition", "0")
    assert row[-1] == "None"


def test_the_tool_finds_what_hangs_and_ends_it(
    java: Java, start_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    broker = start_broker(transaction_state_log_num_partitions="2")
    create(broker, topic)
    producer_id = begin(broker, "lost", topic)
    assert broker.stop() == 0
    # The coordinator's files are gone, and so nobody knows any more what is open.
    for folder in broker.data_dir.glob("__transaction_state-*"):
        shutil.rmtree(folder)
    broker.start()
    tool = tool_for(java, broker)
    begin(broker, "known", topic)

    def hanging() -> list[list[str]]:
        return tool("find-hanging", "--max-transaction-timeout", "0", "--topic", topic, "--partition", "0")[
            1:
        ]

    [row] = hanging()
    assert row[:3] == [topic, "0", str(producer_id)] and row[5] == "0"
    tool("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert hanging() == []
