"""Produce in a transaction: who may append to which partition, before anything is appended (R17).

A partition in which the transaction is open already needs no asking. For the others the coordinator is asked (`verification.py`), and
the request waits, with a copy of its records. What was open and has ended meanwhile, or is led here only since then, was not asked for,
and must come again. Clients before version 12 have added their partitions themselves; for later ones that is done here (KIP-890).
A request with batches of several producers, or of a transaction that it does not name, is refused whole, as Kafka does: its other
batches belong to the same mistake. What a coordinator says in passing is told as NOT_ENOUGH_REPLICAS, on which every client tries again;
CONCURRENT_TRANSACTIONS to those of version 12 as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import NoResponse, Result
from ottla.broker.coordinators.txn_verification import HELD_BYTES_MAX, Producer
from ottla.broker.requests.produce_queue import kept
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.disk import DiskError
from ottla.records.batch import ATTRIBUTES_LOW, HEADER, HEADER_BYTES, MAGIC, MAGIC_START, TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.replication.replica import Replica
    from ottla.transactions.formats import Place

#: From this version on partitions are added to the transaction by its first batch, and each transaction has an epoch of its own.
ADDS_SINCE: Final = 12
#: Before this version nobody knows TRANSACTION_ABORTABLE.
_ABORTABLE_SINCE: Final = 11

#: Fields of a batch header as `HEADER` unpacks it.
_MAGIC_FIELD: Final = 3
_ATTRIBUTES_FIELD: Final = 5
_PRODUCER_FIELD: Final = 9

#: What passes, of a coordinator that is elsewhere, loads, is out of reach, or has not heard of a topic yet that is led here.
_PASSING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

NOBODY: Final[Mapping[Any, Refusal]] = {}


class TransactionalProduce:
    """One request, from its first look to its appends: `append(broker, call, request, now_ms, refused)`."""

    __slots__ = (
        "_append",
        "_broker",
        "_call",
        "_held_bytes",
        "_is_finished",
        "_is_late",
        "_outcome",
        "_request",
    )

    def __init__(self, broker: Broker, call: Call, request: Any, append: Callable[..., Result]) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._append = append
        self._held_bytes = 0
        self._is_finished = False
        self._is_late = False
        # Who wants no answer does not stand in line for one.
        self._outcome: Result = NoResponse.LATER if request.acks else NoResponse.DONE

    def begin(self) -> Result:
        """What the handler returns."""
        self._look()
        if not self._is_finished:
            self._keep()
            self._is_late = True
        return self._outcome

    def _look(self) -> None:
        producers, places = self._named()
        if len(producers) > 1:
            return self._answer(refused_all(self._broker, self._call, self._request, too_many()))
        if not producers:
            # It names a transaction and has no batch of one, or none of ours.
            return self._finish(NOBODY)
        [producer] = producers
        verification = self._broker.txn_verification
        new = {place: replica for place, (replica, _) in places.items() if not _is_open(replica, producer)}
        for place in new:
            verification.sent(place, producer, places[place][1])
        must_wait = bool(new) or verification.is_busy(producer)
        if not must_wait:
            return self._finish(NOBODY)
        if not self._is_late and verification.held_bytes > HELD_BYTES_MAX:
            refusal = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "too many produces wait for coordinators")
            return self._finish(dict.fromkeys(places, refusal))
        if verification.waits(producer, self._look):
            return None
        adds = self._call.version >= ADDS_SINCE
        return verification.verify(producer, new, adds=adds, done=partial(self._verified, producer))

    def _named(self) -> tuple[set[Producer], dict[Place, tuple[Replica, int]]]:
        """The producers whose transactional batches are here, the partitions of ours that they are for, and their sequences."""
        request, hosting = self._request, self._broker.partitions
        producers: set[Producer] = set()
        places: dict[Place, tuple[Replica, int]] = {}
        for topic in request.topic_data:
            hosted = hosting.of_topic(topic, self._call.version)
            if hosted is None or hosted.is_internal:
                continue
            for partition in topic.partition_data:
                replica = hosted.replicas.get(partition.index)
                records = partition.records
                if not records or len(records) < HEADER_BYTES:
                    continue
                header = HEADER.unpack_from(records)
                if header[_MAGIC_FIELD] != MAGIC or not header[_ATTRIBUTES_FIELD] & TRANSACTIONAL_BIT:
                    continue
                producer_id, epoch, sequence = header[_PRODUCER_FIELD : _PRODUCER_FIELD + 3]
                producers.add(Producer(request.transactional_id, producer_id, epoch))
                if replica is not None and replica.leading is not None and replica.offline is None:
                    places[hosted.name, partition.index] = replica, sequence
        return producers, places

    def _verified(self, producer: Producer, codes: Mapping[Place, ErrorCode]) -> None:
        """The coordinator has answered. Partitions may have come and gone, and transactions ended, since it was asked."""
        verification = self._broker.txn_verification
        producers, places = self._named()
        if len(producers) > 1:
            return self._answer(refused_all(self._broker, self._call, self._request, too_many()))
        refused = {place: self._refusal(place, code) for place, code in codes.items() if code}
        for place, (replica, sequence) in places.items():
            if place in refused or _is_open(replica, producer):
                continue
            if place not in codes:
                refused[place] = self._refusal(place, ErrorCode.NOT_COORDINATOR)
            elif not verification.is_first(place, producer, sequence) and not _is_known(replica, producer):
                reason = f"producer {producer.producer_id} has sent what comes before sequence {sequence}, and it was not taken"
                refused[place] = Refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, reason)
        self._finish(refused)
        for place, (replica, _) in places.items():
            if _is_open(replica, producer):
                verification.taken(place, producer.producer_id)
        return None

    def _refusal(self, place: Place, code: ErrorCode) -> Refusal:
        if code is ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        elif code is ErrorCode.TRANSACTION_ABORTABLE and self._call.version < _ABORTABLE_SINCE:
            code = ErrorCode.INVALID_TXN_STATE
        where = f"{place[0]}-{place[1]}"
        if code in _PASSING or (
            code is ErrorCode.CONCURRENT_TRANSACTIONS and self._call.version < ADDS_SINCE
        ):
            reason = f"whether {where} belongs to the transaction cannot be told now: {code.name}"
            return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, reason)
        return Refusal(code, f"{where} is no part of the transaction: {code.name}")

    def _finish(self, refused: Mapping[Place, Refusal]) -> None:
        broker = self._broker
        self._answer(self._append(broker, self._call, self._request, broker.now_ms, refused))

    def _answer(self, response: Result) -> None:
        self._is_finished = True
        self._broker.txn_verification.held_bytes -= self._held_bytes
        if not self._is_late:
            self._outcome = response
        elif not isinstance(response, NoResponse):
            self._broker.answer(self._call, response)

    def _keep(self) -> None:
        """The frame that the records stand in is valid no longer than the call."""
        self._request, self._held_bytes = kept(self._request)
        self._broker.txn_verification.held_bytes += self._held_bytes


def too_many() -> Refusal:
    return Refusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the request has batches of more than one producer")


def named_producers(request: Any) -> set[tuple[int, int]]:
    """The ids and epochs of the producers whose transactional batches are in a request."""
    producers = set()
    for topic in request.topic_data:
        for partition in topic.partition_data:
            records = partition.records
            if records and len(records) >= HEADER_BYTES:
                header = HEADER.unpack_from(records)
                if header[_MAGIC_FIELD] == MAGIC and header[_ATTRIBUTES_FIELD] & TRANSACTIONAL_BIT:
                    producers.add(header[_PRODUCER_FIELD : _PRODUCER_FIELD + 2])
    return producers


def has_transactional(request: Any) -> bool:
    """Whether any of its batches says that it belongs to a transaction."""
    for topic in request.topic_data:
        for partition in topic.partition_data:
            records = partition.records
            if (
                records
                and len(records) > ATTRIBUTES_LOW
                and records[ATTRIBUTES_LOW] & TRANSACTIONAL_BIT
                and records[MAGIC_START] == MAGIC
            ):
                return True
    return False


def refused_all(broker: Broker, call: Call, request: Any, refusal: Refusal) -> Result:
    """The answer to a request of which nothing is appended."""
    if not request.acks:
        # Without an answer this is the only way to tell.
        broker.close(call.connection, "a produce with acks=0 failed")
        return NoResponse.DONE
    key = "topic_id" if call.version >= 13 else "name"
    return {
        "responses": [
            {
                key: topic.topic_id.bytes if call.version >= 13 and topic.topic_id else getattr(topic, key),
                "partition_responses": [
                    {
                        "index": partition.index, "error_code": refusal.code, "base_offset": -1,
                        "error_message": refusal.message,
                    }
                    for partition in topic.partition_data
                ],
            }
            for topic in request.topic_data
        ]
    }  # fmt: skip


def _is_open(replica: Replica, producer: Producer) -> bool:
    try:
        return replica.log.producers.has_open(producer.producer_id, producer.producer_epoch)
    except DiskError:
        # The append will say what is wrong.
        return True


def _is_known(replica: Replica, producer: Producer) -> bool:
    """Whether the log knows by itself which batch of a producer is the next."""
    try:
        return producer.producer_id in replica.log.producers.by_id
    except DiskError:
        return True
