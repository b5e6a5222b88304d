"""A transaction's Produce with many rows: appended in parts, each verified by itself, and answered once."""

from typing import Any

import pytest

from ottla.broker.requests import produce_queue
from tests.broker.api.transactors import Transactor

PARTITIONS, PART = 25, 8
BAD_STATE, BAD_MAPPING = 48, 49


@pytest.fixture
def asked(driver: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For how many partitions the coordinator was asked at once."""
    client.create("t", PARTITIONS)
    monkeypatch.setattr(produce_queue, "_ROWS_AT_ONCE_MAX", 10)
    monkeypatch.setattr(produce_queue, "_ROWS_IN_A_TRANSACTIONS_PART", PART)
    found: list[int] = []
    verify = driver.broker.txn_verification.verify

    def counted(producer: Any, replicas: Any, **more: Any) -> None:
        found.append(len(replicas))
        verify(producer, replicas, **more)

    monkeypatch.setattr(driver.broker.txn_verification, "verify", counted)
    return found


def wide(transactor: Transactor) -> dict[str, Any]:
    fields = transactor.fields("t", b"x")
    rows = fields["topic_data"][0]["partition_data"]
    for number in range(1, PARTITIONS):
        rows += transactor.fields("t", b"x", number=number)["topic_data"][0]["partition_data"]
    return fields


def codes(answer: Any) -> dict[int, int]:
    [topic] = answer.responses
    return {row.index: int(row.error_code) for row in topic.partition_responses}


@pytest.mark.parametrize("version", [1, 2])
def test_every_row_is_appended_and_answered_once(
    driver: Any, batch: Any, asked: list[int], version: int
) -> None:
    transactor = Transactor(driver, batch, version=version)
    transactor.init()
    if version == 1:
        transactor.add(*[("t", number) for number in range(PARTITIONS)])
    for offset in (0, 1):
        answer = transactor.client.ask(0, transactor.versions[0], **wide(transactor))
        assert codes(answer) == dict.fromkeys(range(PARTITIONS), 0)
        assert {row.base_offset for row in answer.responses[0].partition_responses} == {offset}
    assert asked == [PART, PART, PART, PARTITIONS - 3 * PART]
    assert transactor.end(commit=True) == 0
    assert not transactor.client.answers


def test_rows_that_belong_to_no_transaction_are_refused_alone(
    driver: Any, batch: Any, asked: list[int]
) -> None:
    transactor = Transactor(driver, batch)
    transactor.init()
    transactor.add(*[("t", number) for number in range(1, PARTITIONS)])
    answer = transactor.client.ask(0, 9, **wide(transactor))
    assert codes(answer) == {0: BAD_STATE, **dict.fromkeys(range(1, PARTITIONS), 0)}


def test_batches_of_two_producers_are_refused_whole(driver: Any, batch: Any, asked: list[int]) -> None:
    one, two = Transactor(driver, batch), Transactor(driver, batch, "other")
    for each in (one, two):
        each.init()
        each.add(*[("t", number) for number in range(PARTITIONS)])
    fields = wide(one)
    fields["topic_data"][0]["partition_data"][-1] = wide(two)["topic_data"][0]["partition_data"][-1]
    assert codes(one.client.ask(0, 9, **fields)) == dict.fromkeys(range(PARTITIONS), BAD_MAPPING)
    assert driver.replica("t").log.next_offset == 0
