"""The end of a transaction: EndTxn, time-outs, and producers that are fenced. Errors are Kafka's, in Kafka's order.

An end is decided by one record, Prepare…: once that counts it is final, the producer has its answer, and `completing.py` tells
the partitions. The tables say what EndTxn does; what is not in one is INVALID_TXN_STATE.

Version 1 keeps the epoch: a repetition is known by the state alone. Version 2 (KIP-890, from version 5 of EndTxn) raises it and says
so in the answer, so that a repetition is known by the epoch before; and it may abort what has not begun, since a client cannot
know whether any of its batches has come. When the epochs are used up the producer goes on with another id from epoch 0.

Who is fenced, or takes too long, has its transaction aborted in the manner of version 2, whatever its own: its next request is
refused, or if it comes to abort, it may go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.model.errors import ErrorCode
from ottla.ports.coordination import WhenCommitted
from ottla.transactions.formats import EPOCH_MAX, NO_ID, State
from ottla.transactions.init_producer_id import refused
from ottla.transactions.transaction import REFUSALS, V1, V2, Event, ProducerMatch, Transaction

if TYPE_CHECKING:
    from ottla.ports.coordination import Reply, Response
    from ottla.transactions.shard import Shard

#: Before this version clients do not know PRODUCER_FENCED (KIP-588).
FENCED_SINCE: Final = 2
#: From this version on the end raises the epoch (KIP-890).
RAISES_SINCE: Final = 5

_Outcomes = Mapping[tuple[State, bool], ErrorCode | Event]

#: By state, and whether it is to commit. Version 1.
_V1_OUTCOMES: Final[_Outcomes] = {
    (State.ONGOING, True): Event.COMMITTED,
    (State.ONGOING, False): Event.ABORTED,
    (State.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.COMPLETE_COMMIT, True): ErrorCode.NONE,
    (State.COMPLETE_ABORT, False): ErrorCode.NONE,
}
#: Version 2, with the present epoch.
_V2_OUTCOMES: Final[_Outcomes] = {
    (State.EMPTY, False): Event.ABORTED,
    (State.ONGOING, True): Event.COMMITTED,
    (State.ONGOING, False): Event.ABORTED,
    (State.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.COMPLETE_COMMIT, False): Event.ABORTED,
    (State.COMPLETE_ABORT, False): Event.ABORTED,
}
#: Version 2, with the epoch before: a repetition.
_V2_RETRY_OUTCOMES: Final[_Outcomes] = {
    (State.EMPTY, True): ErrorCode.PRODUCER_FENCED,
    (State.EMPTY, False): ErrorCode.PRODUCER_FENCED,
    (State.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.COMPLETE_COMMIT, True): ErrorCode.NONE,
    (State.COMPLETE_ABORT, False): ErrorCode.NONE,
    # A client repeats what it asked for, so the coordinator itself has aborted: the time-out was over. Clients treat
    # INVALID_TXN_STATE as fatal, while Kafka Streams recovers from being fenced (KAFKA-20785).
    (State.PREPARE_ABORT, True): ErrorCode.PRODUCER_FENCED,
    (State.COMPLETE_ABORT, True): ErrorCode.PRODUCER_FENCED,
}


class End(NamedTuple):
    """An EndTxn request, whatever its version."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    version: int

    @property
    def transaction_version(self) -> int:
        return V2 if self.version >= RAISES_SINCE else V1


class EndTxnHandler:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host

    def end(self, request: End, reply: Reply) -> None:
        transaction = self._shard.transactions.get(request.transactional_id)
        outcome = self._outcome(request, transaction)
        if isinstance(outcome, Event):
            assert transaction is not None
            return self._prepare(transaction, outcome, request.transaction_version, reply)
        if outcome is ErrorCode.NONE:
            assert transaction is not None
            return self._shard.answer(reply, _ended(transaction, request.transaction_version))
        if outcome is ErrorCode.PRODUCER_FENCED and request.version < FENCED_SINCE:
            outcome = ErrorCode.INVALID_PRODUCER_EPOCH
        return self._shard.answer(reply, refused(outcome))

    def _outcome(self, request: End, transaction: Transaction | None) -> ErrorCode | Event:
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if request.transactional_id in self._shard.awaiting_producer_id:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        match = transaction.match_producer(request.producer_id, request.producer_epoch)
        is_new = request.transaction_version == V2
        if match is ProducerMatch.CURRENT:
            outcomes = _V2_OUTCOMES if is_new else _V1_OUTCOMES
        elif match is ProducerMatch.PREVIOUS and is_new:
            outcomes = _V2_RETRY_OUTCOMES
        else:
            return REFUSALS[match]
        return outcomes.get((transaction.state, request.commit), ErrorCode.INVALID_TXN_STATE)

    # --- by the coordinator itself ------------------------------------------------------------------------------

    def fence(
        self, transaction: Transaction, reply: Reply | None = None, response: Response | None = None
    ) -> None:
        """Abort an ongoing transaction that its producer has lost; who asked for that hears `response`."""
        self._prepare(transaction, Event.FENCED, V2, reply, response)

    def abort_timed_out(self, now_ms: int, limit: int) -> bool:
        """Abort transactions that take longer than their producers said (R19), this many at most; whether that were all."""
        shard = self._shard
        for transactional_id in list(shard.ongoing):
            transaction = shard.transactions[transactional_id]
            deadline_ms = transaction.deadline_ms
            if (
                deadline_ms is not None
                and deadline_ms <= now_ms
                and transactional_id not in shard.awaiting_producer_id
            ):
                if not limit:
                    return False
                limit -= 1
                self.fence(transaction)
        return True

    # --- the decision -------------------------------------------------------------------------------------------

    def _prepare(
        self, transaction: Transaction, event: Event, version: int, reply: Reply | None, response: Response | None = None
    ) -> None:  # fmt: skip
        if version >= V2 and transaction.epochs_exhausted:
            return self._shard.await_producer_id(
                transaction.transactional_id,
                reply,
                lambda producer_id: self._write(transaction, event, version, producer_id, reply, response),
            )
        return self._write(transaction, event, version, NO_ID, reply, response)

    def _write(
        self, transaction: Transaction, event: Event, version: int, next_producer_id: int, reply: Reply | None,
        response: Response | None,
    ) -> None:  # fmt: skip
        entry, wall_ms = transaction.entry, self._host.wall_ms
        epoch = entry.producer_epoch
        record = transaction.after(
            event,
            wall_ms,
            producer_epoch=min(epoch + 1, EPOCH_MAX) if version >= V2 else epoch,
            next_producer_id=next_producer_id,
            # What has not begun and is aborted all the same begins now.
            started_ms=entry.started_ms if entry.state is State.ONGOING else wall_ms,
            client_version=version,
        )
        after = Transaction(transaction.transactional_id, record.entry or entry)
        answers: list[tuple[Reply, Response]] = []
        if reply is not None:
            answers.append((reply, _ended(after, version) if response is None else response))
        answers.append(
            (WhenCommitted(lambda: self._shard.completions.begin(transaction.transactional_id)), {})
        )
        self._shard.write([record], answers)


def _ended(transaction: Transaction, version: int) -> Response:
    """The answer to an EndTxn that has succeeded: with version 2, who the producer is from now on."""
    producer_id, producer_epoch = transaction.next_producer if version >= V2 else (NO_ID, -1)
    return {"error_code": 0, "producer_id": producer_id, "producer_epoch": producer_epoch}
