"""Detection of hanging transactions, and requests to older brokers. See also tests/cli/test_txn_command.py."""

import asyncio
from typing import Any

import confluent_kafka
import pytest

import ottla
from ottla.client.admin import transactions
from ottla.client.admin.core import AsyncAdmin
from ottla.client.admin.transactions import ProducerState, TransactionInfo, is_known
from ottla.client.cluster import Cluster
from ottla.client.errors import InvalidRequest, TopicNotFound, UnsupportedVersion
from ottla.client.metadata import TopicPartition
from ottla.model.api_key import ApiKey

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
        async with AsyncAdmin(ottla_address) as admin:
            connection = await admin._cluster.any_connection()
            connection.versions[ApiKey.LIST_TRANSACTIONS] = (0, version)
            await admin.list_transactions(**filters)

    if is_refused:
        with pytest.raises(UnsupportedVersion, match="too old for this filter"):
            asyncio.run(listing())
    else:
        asyncio.run(listing())


def test_a_state_that_no_broker_knows_is_refused(ottla_address: str) -> None:
    with ottla.Admin(ottla_address) as admin, pytest.raises(InvalidRequest, match="no state Sleeping"):
        admin.list_transactions(states=["Sleeping", "Ongoing"])


def test_partitions_that_are_not_there(ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1)
        assert admin.describe_producers([TopicPartition(topic_name, 0)]) == {
            TopicPartition(topic_name, 0): []
        }
        for place in (TopicPartition(topic_name, 1), TopicPartition("nowhere", 0)):
            with pytest.raises(TopicNotFound, match=place.topic):
                admin.describe_producers([place])


def test_what_ends_while_it_is_looked_for_does_not_hang(
    ottla_address: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TopicPartition(topic_name, 0)
    settings = {"bootstrap.servers": ottla_address, "transactional.id": topic_name, "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(30)
    original = transactions.list_transactions

    async def ended_just_before(cluster: Cluster, **filters: Any) -> Any:
        await asyncio.to_thread(producer.commit_transaction, 30)
        return await original(cluster, **filters)

    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1)
        producer.begin_transaction()
        producer.produce(topic_name, b"x", partition=0)
        assert producer.flush(30) == 0
        assert admin.find_hanging_transactions([place]) == []
        monkeypatch.setattr(transactions, "list_transactions", ended_just_before)
        assert admin.find_hanging_transactions([place]) == []
