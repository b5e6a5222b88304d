"""AddPartitionsToTxn, which also begins a transaction, and AddOffsetsToTxn. Errors are Kafka's, in Kafka's
order.

Clients before KIP-890 add partitions themselves (versions 0 to 3). For clients with KIP-890 the partition
leader adds them at the first batch (from version 4, several transactions in a request). A leader can also
only verify that a partition has been added, so that no late batch opens a transaction that is never ended
(R17).

A response names every partition: {"error_code": of the transaction, "partitions": {(topic, number): own
code}}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.model import limits
from ottla.model.errors import ErrorCode
from ottla.model.names import INTERNAL_TOPICS
from ottla.transactions.formats import Place, Record, State
from ottla.transactions.transaction import PLACE_BYTES, REFUSALS, V1, V2, Event, ProducerMatch, Transaction

if TYPE_CHECKING:
    from ottla.ports.coordination import Reply, Response
    from ottla.transactions.shard import Shard

#: The first version of AddPartitionsToTxn and AddOffsetsToTxn with PRODUCER_FENCED (KIP-588).
FENCED_SINCE: Final = 2
#: The first version of AddPartitionsToTxn that leaders send, for clients of version 2.
BY_LEADERS_SINCE: Final = 4
#: The first version with TRANSACTION_ABORTABLE (KIP-890).
ABORTABLE_SINCE: Final = 5


class Add(NamedTuple):
    """One transaction of an AddPartitionsToTxn request, or an AddOffsetsToTxn request, in any version."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[Place]
    version: int
    verify_only: bool = False

    @property
    def transaction_version(self) -> int:
        return V2 if self.version >= BY_LEADERS_SINCE else V1


class AddPartitionsHandler:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host

    def add(self, request: Add, reply: Reply) -> None:
        wrong = {place: code for place in request.partitions if (code := self._wrong(request, place))}
        if wrong:
            # None is added.
            rest = ErrorCode.OPERATION_NOT_ATTEMPTED
            codes = {place: int(wrong.get(place, rest)) for place in request.partitions}
            return self._shard.answer(reply, {"error_code": 0, "partitions": codes})
        return self._add(request, reply, is_for_offsets=False)

    def add_offsets(self, request: Add, group_id: str, reply: Reply) -> None:
        """Add the `__consumer_offsets` partition of a group, like any other partition."""
        place = self._host.offsets_partition(group_id)
        if place is None:
            return self._shard.answer(reply, _answer(request, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return self._add(request._replace(partitions=frozenset((place,))), reply, is_for_offsets=True)

    def _wrong(self, request: Add, place: Place) -> ErrorCode:
        """Why a partition cannot be added. Only brokers add partitions of internal topics."""
        if request.version < BY_LEADERS_SINCE and place[0] in INTERNAL_TOPICS:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if self._host.leader(place) is None else ErrorCode.NONE

    def _add(self, request: Add, reply: Reply, *, is_for_offsets: bool) -> None:
        transaction = self._shard.transactions.get(request.transactional_id)
        code = self._check(request, transaction)
        if code or transaction is None:
            return self._shard.answer(reply, _answer(request, code))
        if request.verify_only:
            return self._shard.answer(reply, self._verified(request, transaction))
        entry = transaction.entry
        is_ongoing = entry.state is State.ONGOING
        if is_ongoing and request.partitions <= entry.partitions:
            return self._shard.answer(reply, _answer(request, ErrorCode.NONE))
        partitions = entry.partitions | request.partitions
        size = PLACE_BYTES * (len(partitions) - len(entry.partitions))
        if len(partitions) > limits.TRANSACTION_PARTITIONS_MAX or not self._host.has_capacity(0, size):
            return self._shard.answer(reply, _answer(request, ErrorCode.POLICY_VIOLATION))
        record = transaction.after(
            Event.ADDED,
            self._host.wall_ms,
            partitions=partitions,
            started_ms=entry.started_ms if is_ongoing else self._host.wall_ms,
            # For clients of version 2 the group coordinator adds the offsets, in TxnOffsetCommit.
            client_version=V1 if is_for_offsets else request.transaction_version,
        )
        if not self._host.fits(_largest(record)):
            return self._shard.answer(reply, _answer(request, ErrorCode.UNKNOWN_SERVER_ERROR))
        self._shard.write([record], [(reply, _answer(request, ErrorCode.NONE))])
        if not is_ongoing:
            self._shard.start_timeout(transaction)
        return None

    def _check(self, request: Add, transaction: Transaction | None) -> ErrorCode:
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if request.transactional_id in self._shard.awaiting_producer_id:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        match = transaction.match_producer(request.producer_id, request.producer_epoch)
        if match is not ProducerMatch.CURRENT:
            return REFUSALS[match]
        return ErrorCode.CONCURRENT_TRANSACTIONS if transaction.is_prepared else ErrorCode.NONE

    def _verified(self, request: Add, transaction: Transaction) -> Response:
        absent = (
            ErrorCode.TRANSACTION_ABORTABLE
            if request.version >= ABORTABLE_SINCE
            else ErrorCode.INVALID_TXN_STATE
        )
        known = transaction.entry.partitions
        return {
            "error_code": 0,
            "partitions": {place: 0 if place in known else int(absent) for place in request.partitions},
        }


def _answer(request: Add, code: ErrorCode) -> Response:
    if code is ErrorCode.PRODUCER_FENCED and request.version < FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return {"error_code": int(code), "partitions": dict.fromkeys(request.partitions, int(code))}


def _largest(record: Record) -> Record:
    """The longest record that the end of this transaction can need: an open transaction can always end."""
    assert record.entry is not None
    entry = record.entry
    return record._replace(entry=entry._replace(next_producer_id=entry.producer_id, client_version=V2))
