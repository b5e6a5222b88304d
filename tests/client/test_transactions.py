"""Which open transactions hang, and what brokers of other ages are asked. The requests themselves: tests/cli/test_txn_command.py."""

import asyncio
from typing import Any

import pytest

from ottla.client.admin import AsyncAdmin
from ottla.client.errors import UnsupportedVersion
from ottla.client.metadata import TopicPartition
from ottla.client.settings import Client
from ottla.client.transactions import LIST_TRANSACTIONS, ProducerState, TransactionInfo, is_known

HERE, ELSEWHERE = TopicPartition("t", 0), TopicPartition("t", 1)


def info(state: str, epoch: int, *partitions: TopicPartition) -> TransactionInfo:
    return TransactionInfo("tx", state, 7, epoch, 60_000, 1, partitions, 1)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, False),
        (info("Ongoing", 4, HERE), True),
        (info("Ongoing", 4, ELSEWHERE, HERE), True),
        # Its transaction is somewhere else, or it has another one than the one that is open there.
        (info("Ongoing", 4, ELSEWHERE), False),
        (info("Ongoing", 5, HERE), False),
        # The marker is on its way, with the epoch of before or the next one.
        (info("PrepareCommit", 4, HERE), True),
        (info("PrepareAbort", 5, HERE), True),
        (info("PrepareAbort", 5, ELSEWHERE), False),
        (info("PrepareCommit", 3, HERE), False),
        (info("CompleteCommit", 5), False),
        (info("Empty", 4), False),
    ],
)
def test_what_a_coordinator_will_end_does_not_hang(known: TransactionInfo | None, expected: bool) -> None:
    assert is_known(known, HERE, ProducerState(7, 4, 0, 0, -1, 10)) is expected


@pytest.mark.parametrize(
    ("version", "filters", "is_refused"),
    [
        (0, {}, False), (0, {"longer_than_ms": 5}, True), (1, {"longer_than_ms": 5}, False),
        (1, {"pattern": "x"}, True), (2, {"pattern": "x"}, False),
    ],
)  # fmt: skip
def test_a_broker_that_does_not_know_a_filter_is_not_asked(
    ottla_address: str, version: int, filters: dict[str, Any], is_refused: bool
) -> None:
    async def listing() -> None:
        async with AsyncAdmin(ottla_address, Client()) as admin:
            connection = await admin.cluster.any_connection()
            connection.versions[LIST_TRANSACTIONS] = (0, version)
            await admin.list_transactions(**filters)

    if is_refused:
        with pytest.raises(UnsupportedVersion, match="too old for this filter"):
            asyncio.run(listing())
    else:
        asyncio.run(listing())
