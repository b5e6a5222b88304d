"""The transactional ids of one partition of `__transaction_state`: their state, timeouts and expiration.

`replay` applies one record. The host calls it for each record of the log at a load, and for each record that
it schedules. So the state is what the records say, plus deadlines, missing markers, and requests that wait
for a producer id.

The host calls `replay` for each record, then `on_loaded` once. Then it calls requests (`init_producer_id`,
`add_partitions`, `end_txn`) and `markers_answered` in any order, and `unload` when another broker leads the
partition. Every response, also an error, is sent only when the records that it depends on are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from ottla.model.errors import ErrorCode
from ottla.ports.coordination import Alarm, Decision, Reply, Response, WhenCommitted
from ottla.transactions.add_partitions import AddPartitionsHandler
from ottla.transactions.completion import PendingCompletions
from ottla.transactions.end_txn import EndTxnHandler
from ottla.transactions.formats import Place, Record, State
from ottla.transactions.host import MarkerRequest, TransactionHost
from ottla.transactions.init_producer_id import InitProducerIdHandler
from ottla.transactions.transaction import PREPARED, TRANSITIONS, Event, Transaction

#: The timeout in records of transactions without one: Kafka writes it for two-phase commits (KIP-939).
_NO_TIMEOUT_MS: Final = 2**31 - 1

#: Transactions aborted, and transactional ids removed, in one turn: a few milliseconds each.
_ABORTS_PER_TURN: Final = 10
_EXPIRATIONS_PER_TURN: Final = 1_000
_SLICE_MS: Final = 10

#: By the names in ListTransactions.
STATES: Final[Mapping[str, State]] = {state.title: state for state in State}


class Filter(NamedTuple):
    """The filters of ListTransactions; None matches all."""

    producer_ids: Collection[int] | None = None
    states: Collection[State] | None = None
    #: Only transactions older than this; -1 matches all.
    duration_ms: int = -1
    #: Whether a transactional id matches the requested pattern.
    matches: Callable[[str], object] | None = None

    def accepts(self, transaction: Transaction, wall_ms: int) -> bool:
        entry = transaction.entry
        if self.producer_ids is not None and entry.producer_id not in self.producer_ids:
            return False
        if self.states is not None and entry.state not in self.states:
            return False
        if self.duration_ms >= 0:
            if entry.started_ms < 0 or wall_ms - entry.started_ms <= self.duration_ms:
                return False
        return self.matches is None or bool(self.matches(transaction.transactional_id))


class Shard:
    def __init__(self, number: int, host: TransactionHost) -> None:
        self.number = number
        self.host = host
        self.transactions: dict[str, Transaction] = {}
        #: The ids of ongoing transactions.
        self.ongoing: dict[str, None] = {}
        #: The bytes of all ids and partitions of transactions.
        self.size = 0
        #: Transactional ids that wait for a producer id, with the waiting request. Other requests are refused
        #: meanwhile.
        self.awaiting_producer_id: dict[str, Reply | None] = {}
        self.init_producer_id = InitProducerIdHandler(self)
        self.add_partitions = AddPartitionsHandler(self)
        self.end_txn = EndTxnHandler(self)
        self.completions = PendingCompletions(self)
        self._timeout_alarm = Alarm(host.timers, self._abort_timed_out)
        self._expiration_alarm = Alarm(host.timers, self._remove_expired)

    # --- the log --------------------------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """Apply one record."""
        transactional_id, entry = record
        self.ongoing.pop(transactional_id, None)
        known = self.transactions.get(transactional_id)
        if known is not None:
            self.size -= known.size
        if entry is None:
            self.transactions.pop(transactional_id, None)
            return
        if known is None:
            known = self.transactions[transactional_id] = Transaction(transactional_id, entry)
        else:
            known.entry = entry
        self.size += known.size
        if entry.state is State.ONGOING:
            self.ongoing[transactional_id] = None

    def on_loaded(self, now_ms: int) -> None:
        """The log is replayed: start timeouts, and continue with prepared transactions."""
        for transactional_id in self.ongoing:
            self.start_timeout(self.transactions[transactional_id])
        prepared = [each for each, transaction in self.transactions.items() if transaction.state in PREPARED]
        if prepared:
            # The end of the log may not be committed yet.
            self.host.schedule(
                Decision((), [(WhenCommitted(lambda: self._resume_completions(prepared)), {})], is_read=True)
            )
        config = self.host.config
        self._timeout_alarm.set(now_ms + config.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        self._expiration_alarm.set(now_ms + config.transaction_remove_expired_transaction_cleanup_interval_ms)

    def _resume_completions(self, prepared: Sequence[str]) -> None:
        for transactional_id in prepared:
            self.completions.begin(transactional_id)

    def unload(self) -> list[Reply]:
        """Another broker leads the partition: stop all timers; returns the waiting requests."""
        self._timeout_alarm.clear()
        self._expiration_alarm.clear()
        self.completions.unload()
        waiting = [reply for reply in self.awaiting_producer_id.values() if reply is not None]
        self.awaiting_producer_id.clear()
        return waiting

    # --- deciding -------------------------------------------------------------------------------------------

    def write(self, records: Sequence[Record], answers: Sequence[tuple[Reply, Response]] = ()) -> None:
        self.host.schedule(Decision(records, answers))

    def answer(self, reply: Reply, response: Response) -> None:
        """Send a response without a record, when all earlier records are committed."""
        self.host.schedule(Decision((), [(reply, response)], is_read=True))

    def await_producer_id(
        self, transactional_id: str, reply: Reply | None, then: Callable[[int], None]
    ) -> None:
        """Call `then` with a new producer id; if none is available, the request gets a retriable error."""
        assert transactional_id not in self.awaiting_producer_id
        self.awaiting_producer_id[transactional_id] = reply

        def done(producer_id: int | None) -> None:
            if transactional_id not in self.awaiting_producer_id:
                # Unloaded meanwhile.
                return
            del self.awaiting_producer_id[transactional_id]
            if producer_id is not None:
                then(producer_id)
            elif reply is not None:
                reply.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

        self.host.new_producer_id(done)

    def markers_answered(self, owed: MarkerRequest, codes: Mapping[Place, ErrorCode]) -> None:
        """The response to a marker request; empty `codes` if there is none."""
        self.completions.answered(owed, codes)

    # --- time -----------------------------------------------------------------------------------------------

    def start_timeout(self, transaction: Transaction) -> None:
        """Set the deadline of an ongoing transaction from its start time. A changed wall clock cannot make
        the remaining time negative or longer than the timeout."""
        entry = transaction.entry
        left_ms = min(max(entry.started_ms + entry.timeout_ms - self.host.wall_ms, 0), entry.timeout_ms)
        transaction.deadline_ms = None if entry.timeout_ms == _NO_TIMEOUT_MS else self.host.now_ms + left_ms

    def _abort_timed_out(self, now_ms: int) -> None:
        interval_ms = self.host.config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._timeout_alarm.set(now_ms + interval_ms)
        if self.host.is_writable and not self.end_txn.abort_timed_out(now_ms, _ABORTS_PER_TURN):
            # The rest in the next slice.
            self._timeout_alarm.set(now_ms + min(_SLICE_MS, interval_ms))

    def _remove_expired(self, now_ms: int) -> None:
        interval_ms = self.host.config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._expiration_alarm.set(now_ms + interval_ms)
        if not self.host.is_writable:
            return
        unused_since_ms = self.host.wall_ms - self.host.config.transactional_id_expiration_ms
        expired = (
            Record(transactional_id, None)
            for transactional_id, transaction in self.transactions.items()
            if transaction.entry.updated_ms <= unused_since_ms
            and (transaction.state, Event.EXPIRED) in TRANSITIONS
            and transactional_id not in self.awaiting_producer_id
        )
        records = list(islice(expired, _EXPIRATIONS_PER_TURN))
        if len(records) == _EXPIRATIONS_PER_TURN:
            self._expiration_alarm.set(now_ms + min(_SLICE_MS, interval_ms))
        if records:
            self.write(records)

    # --- describe and list ----------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> dict[str, Any]:
        """A row of DescribeTransactions. For an ending transaction: the partitions without a marker."""
        if not transactional_id:
            return {"error_code": int(ErrorCode.INVALID_REQUEST), "transactional_id": transactional_id}
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return {"error_code": int(code), "transactional_id": transactional_id}
        entry = transaction.entry
        completion = self.completions.pending.get(transactional_id)
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(entry.partitions if completion is None else completion.unmarked):
            by_topic.setdefault(topic, []).append(number)
        return {
            "error_code": 0,
            "transactional_id": transactional_id,
            "transaction_state": entry.state.title,
            "transaction_timeout_ms": entry.timeout_ms,
            "transaction_start_time_ms": entry.started_ms,
            "producer_id": entry.producer_id,
            "producer_epoch": entry.producer_epoch,
            "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic.items()],
        }

    def listed(self, wanted: Filter) -> list[dict[str, Any]]:
        """The rows of ListTransactions."""
        wall_ms = self.host.wall_ms
        return [
            {
                "transactional_id": transactional_id, "producer_id": transaction.entry.producer_id,
                "transaction_state": transaction.state.title,
            }
            for transactional_id, transaction in self.transactions.items()
            if wanted.accepts(transaction, wall_ms)
        ]  # fmt: skip
