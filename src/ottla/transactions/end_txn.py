"""The end of a transaction: EndTxn, timeouts, and fenced producers. Errors are Kafka's, in Kafka's order.

One record, PrepareCommit or PrepareAbort, decides the outcome. When it is committed, the outcome is final,
the producer gets its response, and `completion.py` writes the markers. The tables below map states to
outcomes of EndTxn; a missing entry is INVALID_TXN_STATE.

- Version 1 keeps the epoch. A retry is recognized by the state alone.
- Version 2 (KIP-890, EndTxn version 5 and later) raises the epoch and returns the new one. A retry is
  recognized by the previous epoch. A client may abort an empty transaction, since it cannot know whether a
  batch arrived.
- When the epochs are used up, the producer continues with another producer id and epoch 0.
- If a producer is fenced or times out, its transaction is aborted as in version 2, whatever its own version.
  Its next request is refused, unless that request aborts the transaction.
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

#: The first version with PRODUCER_FENCED (KIP-588).
FENCED_SINCE: Final = 2
#: The first version in which the end raises the epoch (KIP-890).
RAISES_SINCE: Final = 5

_Outcomes = Mapping[tuple[State, bool], ErrorCode | Event]

#: Version 1: by state, and whether to commit.
_V1_OUTCOMES: Final[_Outcomes] = {
    (State.ONGOING, True): Event.COMMITTED,
    (State.ONGOING, False): Event.ABORTED,
    (State.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.COMPLETE_COMMIT, True): ErrorCode.NONE,
    (State.COMPLETE_ABORT, False): ErrorCode.NONE,
}
#: Version 2, with the current epoch.
_V2_OUTCOMES: Final[_Outcomes] = {
    (State.EMPTY, False): Event.ABORTED,
    (State.ONGOING, True): Event.COMMITTED,
    (State.ONGOING, False): Event.ABORTED,
    (State.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.COMPLETE_COMMIT, False): Event.ABORTED,
    (State.COMPLETE_ABORT, False): Event.ABORTED,
}
#: Version 2, with the previous epoch: a retry.
_V2_RETRY_OUTCOMES: Final[_Outcomes] = {
    (State.EMPTY, True): ErrorCode.PRODUCER_FENCED,
    (State.EMPTY, False): ErrorCode.PRODUCER_FENCED,
    (State.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.COMPLETE_COMMIT, True): ErrorCode.NONE,
    (State.COMPLETE_ABORT, False): ErrorCode.NONE,
    # A retry of a commit: the coordinator has aborted after the timeout. INVALID_TXN_STATE is fatal for
    # clients, while Kafka Streams recovers from PRODUCER_FENCED (KAFKA-20785).
    (State.PREPARE_ABORT, True): ErrorCode.PRODUCER_FENCED,
    (State.COMPLETE_ABORT, True): ErrorCode.PRODUCER_FENCED,
}


class End(NamedTuple):
    """An EndTxn request in any version."""

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

    # --- by the coordinator itself --------------------------------------------------------------------------

    def fence(
        self, transaction: Transaction, reply: Reply | None = None, response: Response | None = None
    ) -> None:
        """Abort an ongoing transaction and raise its epoch; `reply` gets `response`."""
        self._prepare(transaction, Event.FENCED, V2, reply, response)

    def abort_timed_out(self, now_ms: int, limit: int) -> bool:
        """Abort transactions past their timeout (R19), at most `limit`; True if none is left."""
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

    # --- the decision ---------------------------------------------------------------------------------------

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
            # An abort of an empty transaction begins and ends now.
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
    """The response to a successful EndTxn: in version 2 with the next producer id and epoch."""
    producer_id, producer_epoch = transaction.next_producer if version >= V2 else (NO_ID, -1)
    return {"error_code": 0, "producer_id": producer_id, "producer_epoch": producer_epoch}
