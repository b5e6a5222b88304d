"""Transaction requests: list, describe and abort transactions, and find hanging ones.

The functions implement the methods of the same names in `client/admin/core.py`. Requests about a
transactional id go to its coordinator, lists to every broker, and requests about a partition's producers to
its leader.

A transaction is *hanging* if it is open in a partition and no coordinator knows it, so that no marker will be
written (KIP-664). It blocks `read_committed` consumers. The check asks the leaders, then the coordinators,
then the leaders again: a transaction that ends in between is not hanging.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.client.admin.requests import ask_leaders, raise_all
from ottla.client.connection import Body
from ottla.client.coordinators import MOVED, ask_coordinator, ask_every_broker
from ottla.client.errors import KafkaError, refused
from ottla.client.metadata import TopicPartition
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster


ONGOING = "Ongoing"
#: Their end is decided, but some of their partitions may not have the marker yet.
ENDING: Final = ("PrepareCommit", "PrepareAbort")
#: The states that a list can be filtered by.
STATES: Final = (
    "Empty", ONGOING, *ENDING, "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead",
)  # fmt: skip

#: The transaction timeout of the request that fences a producer; it begins no transaction.
_FENCING_TIMEOUT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    state: str
    producer_id: int
    #: Id of the broker.
    coordinator: int

    def __str__(self) -> str:
        return f"{self.transactional_id}: {self.state}, producer {self.producer_id}"


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    #: None without an open transaction.
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]
    coordinator: int

    def __str__(self) -> str:
        where = ", ".join(map(str, self.partitions))
        return (
            f"{self.transactional_id}: {self.state}, producer {self.producer_id} epoch {self.producer_epoch}"
            + (f", in {where}" if where else "")
        )


class ProducerIdAndEpoch(NamedTuple):
    """The current producer id and epoch of a transactional id. Producers with an older epoch are fenced."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state that a partition keeps of a producer."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_written_ms: int
    #: Epoch of the coordinator that wrote the last marker; -1 without one.
    coordinator_epoch: int
    #: The first offset of the open transaction; None without one.
    transaction_start: int | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    partition: TopicPartition
    producer: ProducerState
    #: The transactional id that has the producer id; None if there is none.
    transactional_id: str | None


Producers = dict[TopicPartition, list[ProducerState]]


async def list_transactions(
    cluster: Cluster,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int | None = None,
    pattern: str | None = None,
) -> list[TransactionListing]:
    body: Body = {
        "state_filters": list(states), "producer_id_filters": list(producer_ids),
        "duration_filter": -1 if longer_than_ms is None else longer_than_ms, "transactional_id_pattern": pattern,
    }  # fmt: skip
    # A broker that is too old for a filter would list everything.
    needed = 2 if pattern is not None else 1 if longer_than_ms is not None else 0
    answers = await ask_every_broker(
        cluster, ApiKey.LIST_TRANSACTIONS, body, "listing transactions", version_min=needed
    )
    found: dict[str, TransactionListing] = {}
    for node, answer in answers.items():
        if answer.unknown_state_filters:
            unknown = ", ".join(map(str, answer.unknown_state_filters))
            raise refused(
                ErrorCode.INVALID_REQUEST, "listing transactions", message=f"there is no state {unknown}", broker=node.address,
            )  # fmt: skip
        for row in answer.transaction_states:
            name = str(row.transactional_id)
            found[name] = TransactionListing(name, row.transaction_state, int(row.producer_id), node.id)
    return [found[name] for name in sorted(found)]


async def describe_transactions(
    cluster: Cluster, transactional_ids: Iterable[str]
) -> dict[str, TransactionInfo]:
    found: dict[str, TransactionInfo] = {}
    for name in transactional_ids:
        answer, node = await ask_coordinator(
            cluster, "transactional id", name, ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [name]},
            lambda answer: answer.transaction_states,
        )  # fmt: skip
        row = answer.transaction_states[0]
        if row.error_code:
            message = None
            if int(row.error_code) == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                message = "there is no such transactional id"
            raise refused(
                int(row.error_code), f"transactional id {name!r}", message=message, broker=node.address
            )
        began_ms = round(row.transaction_start_time.timestamp() * 1000)
        found[name] = TransactionInfo(
            name, row.transaction_state, int(row.producer_id), int(row.producer_epoch),
            round(row.transaction_timeout.total_seconds() * 1000), None if began_ms < 0 else began_ms,
            tuple(sorted(
                TopicPartition(str(topic.topic), int(number)) for topic in row.topics for number in topic.partitions
            )),
            node.id,
        )  # fmt: skip
    return found


async def abort_transaction(cluster: Cluster, transactional_id: str) -> TransactionInfo:
    """Fence the producer, so that its transaction is aborted. Return the transaction's state before."""
    what = f"aborting the transaction of {transactional_id!r}"
    # Fencing would create an unknown id, and would fence a producer without an open transaction for nothing.
    before = (await describe_transactions(cluster, [transactional_id]))[transactional_id]
    if before.state != ONGOING:
        message = f"it has no open transaction ({before.state})"
        if before.state in ENDING:
            message = f"it is already ending ({before.state}), as soon as all its partitions are available"
        raise refused(ErrorCode.INVALID_TXN_STATE, what, message=message)
    body: Body = {
        "transactional_id": transactional_id, "producer_id": -1, "producer_epoch": -1, "enable2_pc": False,
        "transaction_timeout": min(before.timeout_ms, _FENCING_TIMEOUT_MS), "keep_prepared_txn": False,
    }  # fmt: skip
    answer, node = await ask_coordinator(
        cluster, "transactional id", transactional_id, ApiKey.INIT_PRODUCER_ID, body, lambda answer: [answer],
        # The coordinator's answer while the transaction is being aborted.
        passing=MOVED | {ErrorCode.CONCURRENT_TRANSACTIONS},
    )  # fmt: skip
    if answer.error_code:
        reason = None
        if int(answer.error_code) == ErrorCode.CONCURRENT_TRANSACTIONS:
            reason = "not all its partitions are available yet; the coordinator continues the abort by itself"
        raise refused(int(answer.error_code), what, message=reason, broker=node.address)
    return before


async def fence_producers(
    cluster: Cluster, transactional_ids: Iterable[str]
) -> dict[str, ProducerIdAndEpoch]:
    found: dict[str, ProducerIdAndEpoch] = {}
    errors: dict[str, KafkaError] = {}
    for name in transactional_ids:
        body: Body = {
            "transactional_id": name, "producer_id": -1, "producer_epoch": -1, "enable2_pc": False,
            "transaction_timeout": _FENCING_TIMEOUT_MS, "keep_prepared_txn": False,
        }  # fmt: skip
        answer, node = await ask_coordinator(
            cluster, "transactional id", name, ApiKey.INIT_PRODUCER_ID, body, lambda answer: [answer],
            passing=MOVED | {ErrorCode.CONCURRENT_TRANSACTIONS},
        )  # fmt: skip
        if answer.error_code:
            errors[name] = refused(
                int(answer.error_code), f"fencing the producer of {name!r}", broker=node.address
            )
        else:
            found[name] = ProducerIdAndEpoch(int(answer.producer_id), int(answer.producer_epoch))
    raise_all(errors, len(found) + len(errors), "fencing producers")
    return found


# --- open transactions of partitions ------------------------------------------------------------------------


async def describe_producers(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Producers:
    def body(places: Collection[TopicPartition]) -> Body:
        by_topic: dict[str, list[int]] = {}
        for place in places:
            by_topic.setdefault(place.topic, []).append(place.partition)
        return {
            "topics": [{"name": name, "partition_indexes": numbers} for name, numbers in by_topic.items()]
        }

    def rows(answer: Any) -> Iterable[tuple[str, Any]]:
        return ((str(topic.name), row) for topic in answer.topics for row in topic.partitions)

    found = await ask_leaders(cluster, set(partitions), ApiKey.DESCRIBE_PRODUCERS, body, rows, "producers of")
    return {
        place: [
            ProducerState(
                int(each.producer_id), int(each.producer_epoch), int(each.last_sequence), int(each.last_timestamp),
                int(each.coordinator_epoch),
                int(each.current_txn_start_offset) if each.current_txn_start_offset >= 0 else None,
            )
            for each in row.active_producers
        ]
        for place, row in found.items()
    }  # fmt: skip


async def find_hanging(
    cluster: Cluster, partitions: Iterable[TopicPartition], older_than_ms: int | None = None
) -> list[HangingTransaction]:
    """Find hanging transactions without a write for longer than that; without a limit, all of them."""
    now_ms = round(time.time() * 1000)
    candidates = {
        (place, each)
        for place, producers in (await describe_producers(cluster, partitions)).items()
        for each in producers
        if each.transaction_start is not None
        and (older_than_ms is None or now_ms - each.last_written_ms > older_than_ms)
    }
    if not candidates:
        return []
    listed = await list_transactions(
        cluster, producer_ids=sorted({each.producer_id for _, each in candidates})
    )
    names = {each.producer_id: each.transactional_id for each in listed}
    described: dict[int, TransactionInfo] = {}
    for producer_id, name in names.items():
        try:
            described[producer_id] = (await describe_transactions(cluster, [name]))[name]
        except KafkaError as error:
            # The id may have expired meanwhile.
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
    unknown = {
        (place, each)
        for place, each in candidates
        if not is_known(described.get(each.producer_id), place, each)
    }
    if not unknown:
        return []
    still = await describe_producers(cluster, {place for place, _ in unknown})
    return sorted(
        (
            HangingTransaction(place, each, names.get(each.producer_id))
            for place, each in unknown
            if each in still[place]
        ),
        key=lambda each: (each.partition, each.producer.transaction_start),
    )


def is_known(info: TransactionInfo | None, place: TopicPartition, producer: ProducerState) -> bool:
    """Whether the coordinator will end the producer's open transaction in that partition."""
    if info is None or place not in info.partitions:
        return False
    if info.state == ONGOING:
        return info.producer_epoch == producer.epoch
    # The decision to end the transaction may have raised the epoch.
    return info.state in ENDING and info.producer_epoch >= producer.epoch


async def abort_hanging(cluster: Cluster, hanging: HangingTransaction) -> None:
    """Write the abort marker. Only for a hanging transaction: half of a live one would be lost."""
    place, producer = hanging.partition, hanging.producer
    marker: Body = {
        "producer_id": producer.producer_id, "producer_epoch": producer.epoch, "transaction_result": False,
        "topics": [{"name": place.topic, "partition_indexes": [place.partition]}],
        # A higher epoch would make the partition refuse the next markers of the real coordinator.
        "coordinator_epoch": max(producer.coordinator_epoch, 0),
        # v1: the epoch is the producer's own, and not raised by the end of the transaction.
        "transaction_version": 0,
    }  # fmt: skip

    def rows(answer: Any) -> Iterable[tuple[str, Any]]:
        return (
            (str(topic.name), row) for each in answer.markers for topic in each.topics for row in topic.partitions
        )  # fmt: skip

    await ask_leaders(
        cluster,
        {place},
        ApiKey.WRITE_TXN_MARKERS,
        lambda _: {"markers": [marker]},
        rows,
        "writing a marker into",
    )
