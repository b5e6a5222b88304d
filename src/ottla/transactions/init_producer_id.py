"""InitProducerId with a transactional id: allocates the producer id and epoch, and fences the previous
producer. Errors are Kafka's, in Kafka's order.

- A new transactional id gets a new producer id and epoch 0.
- A known one keeps its producer id and gets the next epoch, which fences the producer with the previous
  epoch. When the epochs are used up, it gets another producer id.
- An ongoing transaction is aborted first. The producer gets CONCURRENT_TRANSACTIONS and retries until the
  abort is done.
- A producer that sends its own id and epoch (KIP-360, version 3) recovers from an error. It gets the next
  epoch only if no other producer came after it. A retry gets the same response (R15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.model.errors import ErrorCode
from ottla.transactions.formats import EPOCH_MAX, NO_EPOCH, NO_ID, Entry, Record, State
from ottla.transactions.transaction import Event, ProducerMatch, Transaction

if TYPE_CHECKING:
    from ottla.ports.coordination import Reply
    from ottla.transactions.shard import Shard

#: The first version with PRODUCER_FENCED (KIP-588).
FENCED_SINCE: Final = 4


class Init(NamedTuple):
    """An InitProducerId request in any version."""

    transactional_id: str
    timeout_ms: int
    #: The current id and epoch of the producer, if it sends them.
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    #: Two-phase commit with an external coordinator (KIP-939).
    two_phase: bool = False
    keep_prepared: bool = False
    version: int = FENCED_SINCE

    @property
    def names_itself(self) -> bool:
        return self.producer_id != NO_ID


class InitProducerIdHandler:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host

    def init(self, request: Init, reply: Reply) -> None:
        code = self._check(request)
        if code:
            return self._refuse(request, reply, code)
        transaction = self._shard.transactions.get(request.transactional_id)
        if request.transactional_id in self._shard.awaiting_producer_id:
            return self._refuse(request, reply, ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction is None:
            if not self._host.has_capacity(1, len(request.transactional_id)):
                return self._refuse(request, reply, ErrorCode.POLICY_VIOLATION)
            return self._shard.await_producer_id(
                request.transactional_id, reply, lambda producer_id: self._create(request, reply, producer_id)
            )
        match = (
            transaction.match_producer(request.producer_id, request.producer_epoch)
            if request.names_itself
            else ProducerMatch.CURRENT
        )
        if match in (ProducerMatch.FENCED, ProducerMatch.OTHER):
            return self._refuse(request, reply, ErrorCode.PRODUCER_FENCED)
        if transaction.is_prepared:
            return self._refuse(request, reply, ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction.state is State.ONGOING:
            response = refused(ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._shard.end_txn.fence(transaction, reply, response)
        return self._next_epoch(request, reply, transaction, match)

    def _check(self, request: Init) -> ErrorCode:
        if (request.producer_id == NO_ID) != (request.producer_epoch == NO_EPOCH):
            return ErrorCode.INVALID_REQUEST
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if request.two_phase:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keep_prepared:
            return ErrorCode.UNSUPPORTED_VERSION
        if not 0 < request.timeout_ms <= self._host.config.transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _create(self, request: Init, reply: Reply, producer_id: int) -> None:
        """The transactional id is new, or has expired."""
        entry = Entry(
            producer_id, 0, request.timeout_ms, State.EMPTY, self._host.wall_ms, previous_producer_id=producer_id
        )  # fmt: skip
        self._write(reply, Record(request.transactional_id, entry))

    def _next_epoch(
        self, request: Init, reply: Reply, transaction: Transaction, match: ProducerMatch
    ) -> None:
        """No transaction is open: return the next epoch, or the same one again for a retry."""
        entry = transaction.entry
        changes: dict[str, Any] = {
            "timeout_ms": request.timeout_ms,
            "partitions": frozenset(),
            "started_ms": -1,
            # NO_EPOCH for a new producer: the previous one is fenced.
            "last_epoch": request.producer_epoch,
        }
        if match is ProducerMatch.PREVIOUS and entry.producer_epoch < EPOCH_MAX:
            # It may retry once more, with its previous id.
            changes["previous_producer_id"] = entry.previous_producer_id
            return self._write(reply, transaction.after(Event.INITIALIZED, self._host.wall_ms, **changes))
        if not transaction.epochs_exhausted:
            changes["producer_epoch"] = entry.producer_epoch + 1
            return self._write(reply, transaction.after(Event.INITIALIZED, self._host.wall_ms, **changes))

        def rotate(producer_id: int) -> None:
            self._write(
                reply,
                transaction.after(
                    Event.INITIALIZED, self._host.wall_ms, producer_id=producer_id, producer_epoch=0, **changes
                ),
            )  # fmt: skip

        return self._shard.await_producer_id(request.transactional_id, reply, rotate)

    def _write(self, reply: Reply, record: Record) -> None:
        entry = record.entry
        assert entry is not None
        if not self._host.fits(record):
            return self._shard.answer(reply, refused(ErrorCode.UNKNOWN_SERVER_ERROR))
        response = {
            "error_code": 0, "producer_id": entry.producer_id, "producer_epoch": entry.producer_epoch
        }  # fmt: skip
        return self._shard.write([record], [(reply, response)])

    def _refuse(self, request: Init, reply: Reply, code: ErrorCode) -> None:
        if code is ErrorCode.PRODUCER_FENCED and request.version < FENCED_SINCE:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        self._shard.answer(reply, refused(code))


def refused(code: ErrorCode) -> dict[str, int]:
    """An error response to InitProducerId or EndTxn."""
    return {"error_code": int(code), "producer_id": NO_ID, "producer_epoch": NO_EPOCH}
