"""Transactions of kafka-clients (`java/TransactionTour.java`) and Apache's tool for them."""

from pathlib import Path

import pytest

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


def test_the_tool_for_transactions(java: Java, broker: BrokerProcess, topic: str) -> None:
    def tool(*arguments: str) -> list[list[str]]:
        said = java.tool("TransactionsCommand", "--bootstrap-server", broker.address, *arguments)
        return [line.split() for line in said.lines]

    create(broker, topic)
    name = f"tx-{topic}"
    with Wire(broker.address) as wire:
        wire.ask(10, 4, key_type=1, coordinator_keys=[name])
        known = wire.ask(
            22, 4, transactional_id=name, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        who = {"transactional_id": name, "producer_id": known.producer_id, "producer_epoch": 0}
        wire.ask(
            24,
            5,
            transactions=[{**who, "verify_only": False, "topics": [{"name": topic, "partitions": [0]}]}],
        )
    [row] = [row for row in tool("list") if row[0] == name]
    assert (row[2], row[3]) == (str(known.producer_id), "Ongoing")
    [_head, row] = tool("describe", "--transactional-id", name)
    assert name in row and "Ongoing" in row and f"{topic}-0" in row
