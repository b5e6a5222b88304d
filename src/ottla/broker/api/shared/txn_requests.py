"""What the APIs of transactions share: finding a transactional id's coordinator, and rows of partitions by topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.model.errors import ErrorCode, Refusal
from ottla.model.strings import is_name

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.transactions.formats import Place
    from ottla.transactions.shard import Shard


def find_shard(broker: Broker, transactional_id: str, *, writes: bool = True) -> Shard:
    """Where a transactional id is coordinated. Raises Refusal with what the client should hear."""
    if not transactional_id or not is_name(transactional_id):
        raise Refusal(ErrorCode.INVALID_REQUEST)
    transactions = broker.transactions
    if writes:
        return transactions.writable_partition(transactional_id).shard
    return transactions.partition_for(transactional_id).shard


def places_of(topics: Any) -> list[Place]:
    """The partitions that the rows of AddPartitionsToTxn name."""
    return [(topic.name, number) for topic in topics for number in topic.partitions]


def results_of(codes: Mapping[Place, int]) -> list[dict[str, Any]]:
    """The rows of its answer."""
    by_topic: dict[str, list[dict[str, int]]] = {}
    for (topic, number), code in sorted(codes.items()):
        by_topic.setdefault(topic, []).append({"partition_index": number, "partition_error_code": code})
    return [{"name": topic, "results_by_partition": rows} for topic, rows in by_topic.items()]
