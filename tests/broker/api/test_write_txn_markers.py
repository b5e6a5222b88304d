"""WriteTxnMarkers (27) of a client: it may abort what hangs, and nothing else. What brokers write is in test_transactions.py."""

from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.model.limits import HANGING_CHECKS_MAX
from tests.broker.api.transactors import Transactor

NONE, REFUSED, BAD_EPOCH = 0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_PRODUCER_EPOCH
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.fixture
def open_transaction(driver: Any, client: Any, batch: Any) -> Transactor:
    client.create("t", 2)
    made = Transactor(driver, batch, "tx", version=1)
    assert made.init() == 0 and made.send("t", b"one") == 0
    return made


def marker(
    tx: Transactor, *, topic: str = "t", number: int = 0, commit: bool = False, **more: Any
) -> dict[str, Any]:
    return {
        "producer_id": tx.producer_id, "producer_epoch": tx.epoch, "transaction_result": commit,
        "topics": [{"name": topic, "partition_indexes": [number]}], "coordinator_epoch": 0, "transaction_version": 0,
        **more,
    }  # fmt: skip


def mark(client: Any, tx: Transactor, **more: Any) -> int:
    [row] = client.ask(27, 2, markers=[marker(tx, **more)]).markers[0].topics[0].partitions
    return int(row.error_code)


def forget(driver: Any) -> None:
    """The coordinator knows of no transaction: what is open hangs."""
    for shard in driver.broker.transactions.shards:
        shard.listed = lambda _wanted: []


def is_open(driver: Any, tx: Transactor, number: int = 0) -> bool:
    known = driver.replica("t", number).log.producers.by_id[tx.producer_id]
    return bool(known.transaction_start >= 0)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_goes_on_is_not_ended(
    driver: Any, client: Any, open_transaction: Transactor, commit: bool
) -> None:
    assert mark(client, open_transaction, commit=commit) == REFUSED
    assert is_open(driver, open_transaction)
    assert open_transaction.end(commit=True) == 0


def test_a_hanging_transaction_is_aborted_and_never_committed(
    driver: Any, client: Any, open_transaction: Transactor
) -> None:
    forget(driver)
    assert mark(client, open_transaction, commit=True) == REFUSED
    assert is_open(driver, open_transaction)
    assert mark(client, open_transaction) == NONE
    assert not is_open(driver, open_transaction)
    # There is nothing more to abort.
    assert mark(client, open_transaction) == REFUSED


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"producer_epoch": 1}, BAD_EPOCH),
        ({"coordinator_epoch": 1}, REFUSED),
        ({"producer_id": 987_654}, REFUSED),
        ({"number": 1}, REFUSED),
        ({"topic": "__transaction_state"}, REFUSED),
        ({"topic": "nowhere"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_nothing_else_is_written(
    driver: Any, client: Any, open_transaction: Transactor, more: Any, code: int
) -> None:
    """A later epoch of the producer, or of its coordinator, would shut out the real one."""
    forget(driver)
    ends = [driver.replica("t", number).log.next_offset for number in (0, 1)]
    assert mark(client, open_transaction, **more) == code
    assert [driver.replica("t", number).log.next_offset for number in (0, 1)] == ends


def test_what_the_coordinators_do_not_say_is_not_known(
    driver: Any, client: Any, open_transaction: Transactor
) -> None:
    forget(driver)
    hanging = driver.broker.hanging_transactions
    asked: list[Any] = []
    forwarding = driver.broker.controller_channel
    forwarding.ask_broker = lambda *arguments: asked.append(arguments)
    client.send(27, 2, markers=[marker(open_transaction)] * 3)
    assert client.answers == [] and len(asked) == 1, "all of a request ask once"
    driver.advance(6000)
    rows = [row for each in client.answers.pop().markers for row in each.topics[0].partitions]
    assert [int(row.error_code) for row in rows] == [NOT_AVAILABLE] * 3
    assert is_open(driver, open_transaction) and hanging._under_way == 0
    # An answer that comes too late changes nothing.
    asked[0][-1](None, "late")
    # No more of them at a time than so many.
    others = [driver.connect() for _ in range(HANGING_CHECKS_MAX)]
    for each in others:
        each.send(27, 2, markers=[marker(open_transaction)])
    assert mark(client, open_transaction) == NOT_AVAILABLE
    del forwarding.ask_broker
    driver.advance(6000)
    assert mark(client, open_transaction) == NONE


def test_a_transaction_that_has_become_another_meanwhile_is_left_alone(
    driver: Any, client: Any, open_transaction: Transactor
) -> None:
    asked: list[Any] = []
    forwarding = driver.broker.controller_channel
    forwarding.ask_broker = lambda *arguments: asked.append(arguments)
    client.send(27, 2, markers=[marker(open_transaction)])
    del forwarding.ask_broker
    assert open_transaction.end(commit=True) == 0
    assert open_transaction.send("t", b"two") == 0
    nobody = type("Answer", (), {"error_code": 0, "transaction_states": ()})()
    asked[0][-1](nobody, None)
    driver.turn()
    [row] = client.answers.pop().markers[0].topics[0].partitions
    assert int(row.error_code) == REFUSED
    assert is_open(driver, open_transaction)
