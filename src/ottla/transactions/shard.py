"""The transactional ids of one partition of `__transaction_state`: what its records make of them, and what time does to them.

`replay` is the only way in which the log comes in: a coordinator that loads a partition calls it for each record, and so does one
that has just decided. So a state is what the records say, plus deadlines, markers under way, and who waits for a producer id.

The host calls: `replay`… and `loaded` once; then requests (`initializing`, `adding`, `ending`) and `markers_answered` in any order;
`forget` when the partition is led elsewhere. Every answer, errors included, leaves only when what it is built on counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from ottla.model.errors import ErrorCode
from ottla.ports.coordination import Alarm, Decision, Reply, Response, Then
from ottla.transactions.add_partitions import Adding
from ottla.transactions.completion import Completing
from ottla.transactions.end_txn import Ending
from ottla.transactions.formats import Place, Record, State
from ottla.transactions.host import Owed, TransactionHost
from ottla.transactions.init_producer_id import Initializing
from ottla.transactions.transaction import PREPARED, TRANSITIONS, Event, Transaction

#: The time-out of a transaction that has none: Kafka writes it for two-phase commits (KIP-939).
_FOR_EVER_MS: Final = 2**31 - 1

#: How many transactions are aborted, and transactional ids forgotten, in one turn: a few milliseconds each. Then others have theirs.
_TIMED_OUT_AT_ONCE: Final = 10
_EXPIRED_AT_ONCE: Final = 1_000
_SLICE_MS: Final = 10

#: By the names that ListTransactions may be asked for.
STATES: Final[Mapping[str, State]] = {state.title: state for state in State}


class Filter(NamedTuple):
    """What ListTransactions is asked for; None is anything."""

    producer_ids: Collection[int] | None = None
    states: Collection[State] | None = None
    #: Begun longer ago than that.
    duration_ms: int = -1
    #: Whether a transactional id matches the pattern asked for.
    matches: Callable[[str], object] | None = None

    def takes(self, transaction: Transaction, wall_ms: int) -> bool:
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
        #: Those that have begun and not been ended.
        self.ongoing: dict[str, None] = {}
        #: The bytes of all ids and of the partitions of their transactions.
        self.size = 0
        #: Transactional ids whose next record waits for a new producer id, and who waits for that. Nobody else is let near them.
        self.awaiting: dict[str, Reply | None] = {}
        self.initializing = Initializing(self)
        self.adding = Adding(self)
        self.ending = Ending(self)
        self.completing = Completing(self)
        self._time_outs = Alarm(host.timers, self._look_for_timed_out)
        self._expiry = Alarm(host.timers, self._look_for_expired)

    # --- the log ------------------------------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """Make the state what this record says."""
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

    def loaded(self, now_ms: int) -> None:
        """The log has been replayed: from now on time counts, and ends that were decided on are carried out."""
        for transactional_id in self.ongoing:
            self.begin_time_out(self.transactions[transactional_id])
        prepared = [each for each, transaction in self.transactions.items() if transaction.state in PREPARED]
        if prepared:
            # What was read may not count yet.
            self.host.decided(Decision((), [(Then(lambda: self._go_on_with(prepared)), {})], is_read=True))
        config = self.host.config
        self._time_outs.set(now_ms + config.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        self._expiry.set(now_ms + config.transaction_remove_expired_transaction_cleanup_interval_ms)

    def _go_on_with(self, prepared: Sequence[str]) -> None:
        for transactional_id in prepared:
            self.completing.begin(transactional_id)

    def forget(self) -> list[Reply]:
        """The transactions are coordinated elsewhere; returns those who still wait here."""
        self._time_outs.clear()
        self._expiry.clear()
        self.completing.forget()
        waiting = [reply for reply in self.awaiting.values() if reply is not None]
        self.awaiting.clear()
        return waiting

    # --- deciding -----------------------------------------------------------------------------------------------

    def write(self, records: Sequence[Record], answers: Sequence[tuple[Reply, Response]] = ()) -> None:
        self.host.decided(Decision(records, answers))

    def tell(self, reply: Reply, response: Response) -> None:
        """Answer without a record, once everything counts that the answer is built on."""
        self.host.decided(Decision((), [(reply, response)], is_read=True))

    def await_producer_id(
        self, transactional_id: str, reply: Reply | None, then: Callable[[int], None]
    ) -> None:
        """Go on with a new producer id; if there is none to be had, who waits may try again."""
        assert transactional_id not in self.awaiting
        self.awaiting[transactional_id] = reply

        def done(producer_id: int | None) -> None:
            if transactional_id not in self.awaiting:
                # The role has ended meanwhile.
                return
            del self.awaiting[transactional_id]
            if producer_id is not None:
                then(producer_id)
            elif reply is not None:
                reply.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

        self.host.new_producer_id(done)

    def markers_answered(self, owed: Owed, codes: Mapping[Place, ErrorCode]) -> None:
        """The answer to markers that were sent; without codes: there will be none."""
        self.completing.answered(owed, codes)

    # --- time ---------------------------------------------------------------------------------------------------

    def begin_time_out(self, transaction: Transaction) -> None:
        """Time counts for an ongoing transaction. The date of its beginning says how much is left of it, but a clock that was set
        makes that neither less than nothing nor more than there was."""
        entry = transaction.entry
        left_ms = min(max(entry.started_ms + entry.timeout_ms - self.host.wall_ms, 0), entry.timeout_ms)
        transaction.deadline_ms = None if entry.timeout_ms == _FOR_EVER_MS else self.host.now_ms + left_ms

    def _look_for_timed_out(self, now_ms: int) -> None:
        interval_ms = self.host.config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._time_outs.set(now_ms + interval_ms)
        if self.host.is_writable and not self.ending.abort_timed_out(now_ms, _TIMED_OUT_AT_ONCE):
            # The rest after others had their turn.
            self._time_outs.set(now_ms + min(_SLICE_MS, interval_ms))

    def _look_for_expired(self, now_ms: int) -> None:
        interval_ms = self.host.config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._expiry.set(now_ms + interval_ms)
        if not self.host.is_writable:
            return
        unused_since_ms = self.host.wall_ms - self.host.config.transactional_id_expiration_ms
        expired = (
            Record(transactional_id, None)
            for transactional_id, transaction in self.transactions.items()
            if transaction.entry.updated_ms <= unused_since_ms
            and (transaction.state, Event.EXPIRED) in TRANSITIONS
            and transactional_id not in self.awaiting
        )
        records = list(islice(expired, _EXPIRED_AT_ONCE))
        if len(records) == _EXPIRED_AT_ONCE:
            self._expiry.set(now_ms + min(_SLICE_MS, interval_ms))
        if records:
            self.write(records)

    # --- telling ------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> dict[str, Any]:
        """A row of DescribeTransactions. Of a transaction that ends: the partitions that have no marker yet."""
        if not transactional_id:
            return {"error_code": int(ErrorCode.INVALID_REQUEST), "transactional_id": transactional_id}
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return {"error_code": int(code), "transactional_id": transactional_id}
        entry = transaction.entry
        completion = self.completing.under_way.get(transactional_id)
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(entry.partitions if completion is None else completion.owed):
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
            if wanted.takes(transaction, wall_ms)
        ]  # fmt: skip
