"""A broker's time as the coordinator of one partition: what is decided there is written down, and answered once that counts.

It begins when this broker begins to lead the partition: the log is read (`loading.py`) and replayed into a shard, which is pure and
decides (`groups/shard.py`, `transactions/shard.py`). What the shard decides in a turn is written at its end as one batch, and
answered when the high watermark has passed it. An answer that tells what was written before waits for that too: nobody
hears of what could be lost. If a batch cannot be written, the state is ahead of the log: the shard is dropped and loaded
again, and nothing was promised. The tenure ends with the role; who waits then hears NOT_COORDINATOR.

Subclasses are the hosts of their shards: they say what records look like, and what a shard may know of the broker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.broker.coordinators.internal_appends import PendingAppend, append_as_leader, batch_bytes_max
from ottla.config.broker import BrokerConfig
from ottla.model import limits
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import Steps
from ottla.model.timer_wheel import Later, Timed, TimerWheel
from ottla.ports.coordination import Decision, Reply, Response
from ottla.records.layout import Malformed
from ottla.records.record import Record, encode_batch

if TYPE_CHECKING:
    from ottla.broker.coordinators.host import CoordinatorHost
    from ottla.replication.replica import Replica

#: A batch is closed when it has grown to this, well below what a topic takes.
_BATCH_BYTES: Final = 256 * 1024
#: What a batch has beside its records, and a record beside its key and value, at most.
_OVERHEAD_BYTES: Final = 128
#: Records that are written in one turn, and answers that are given: some milliseconds.
_RECORDS_PER_TURN: Final = 2000
_ANSWERS_PER_TURN: Final = 100

#: What a client may hear of a batch that was not written.
_CLIENT_ERRORS: Final = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}

Answers = list[tuple[Reply, Response]]


class CoordinatorShard(Protocol):
    """What every shard is to its host."""

    def replay(self, record: Any) -> None: ...

    def on_loaded(self, now_ms: int) -> None: ...

    def unload(self) -> Iterable[Reply]: ...


class ShardTimers:
    """The timers that a shard is handed: they tell whose they are, for when one of them raises (`isolation.py`)."""

    __slots__ = ("_timers", "host")

    def __init__(self, timers: TimerWheel, host: CoordinatorPartition) -> None:
        self._timers = timers
        self.host = host

    def add(self, timed: Timed, deadline_ms: int) -> None:
        self._timers.add(timed, deadline_ms)

    def cancel(self, timed: Timed) -> None:
        self._timers.cancel(timed)


class CoordinatorPartition(ABC):
    """`reload(partition, reason, soon=False)` is called when the shard differs from its log."""

    shard: CoordinatorShard

    def __init__(
        self, broker: CoordinatorHost, topic: str, replica: Replica, reload: Callable[..., None]
    ) -> None:
        self._broker = broker
        self._reload = reload
        self.timers = ShardTimers(broker.timers, self)
        self.name = f"{topic}-{replica.number}"
        self.replica = replica
        self.is_loaded = False
        self.is_over = False
        #: While it loads: where it is in the log, and where that ended when the role began.
        self.load_offset = -1
        self.load_end_offset = -1
        self.reload_timer: Later | None = None
        #: Those who came while it loads and are called when that is over, and how long they wait at most.
        self.waiting_requests: list[Callable[[], None]] = []
        self.wait_timer: Later | None = None
        #: This turn's records, encoded, and the answers that wait for them.
        self.unwritten: list[tuple[bytes, bytes | None]] = []
        self.unanswered: Answers = []
        #: The answers that wait for batches which were written and do not count yet, oldest first.
        self._batches: deque[Answers] = deque()

    @abstractmethod
    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        """A decided record as it is written. Raises Malformed if it cannot be."""

    @abstractmethod
    def decode(self, record: Record) -> Any:
        """A record of the log as it is replayed; None if it is of no known kind. Raises Malformed."""

    # --- what every shard is handed -----------------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        return self._broker.config

    @property
    def wall_ms(self) -> int:
        return self._broker.wall_ms

    @property
    def is_writable(self) -> bool:
        leading = self.replica.leading
        return self.is_loaded and leading is not None and len(leading.isr) >= leading.isr_min

    @property
    def record_bytes_max(self) -> int:
        """How many bytes the key and the value of a record may have together."""
        return batch_bytes_max(self.replica) - _OVERHEAD_BYTES

    def fits(self, record: Any) -> bool:
        try:
            key, value = self.encode(record)
        except Malformed:
            return False
        return len(key) + len(value or b"") <= self.record_bytes_max

    def _encoded(self, records: Sequence[Any]) -> list[tuple[bytes, bytes | None]]:
        """The records of a decision as they are written. Raises Malformed if one cannot be: then none is."""
        encoded = []
        # So much fits in any case.
        small = limits.COORDINATOR_RECORD_BYTES - _OVERHEAD_BYTES
        for record in records:
            key, value = row = self.encode(record)
            if len(key) + (len(value) if value else 0) > small:
                self._check_size(key, value)
            encoded.append(row)
        return encoded

    def _check_size(self, key: bytes, value: bytes | None) -> None:
        size = len(key) + len(value or b"")
        if size > self.record_bytes_max:
            raise Malformed(f"a record has {size} bytes, at most {self.record_bytes_max} can be written")

    def schedule(self, decision: Decision[Any]) -> None:
        records, answers, is_read, is_replayed = decision
        if not records:
            if is_read and self.unwritten:
                self.unanswered.extend(answers)
            elif is_read and self._batches:
                self._batches[-1].extend(answers)
            else:
                self._answer(answers)
            return
        try:
            encoded = self._encoded(records)
        except Malformed as reason:
            # A shard that replays records itself asks first whether they fit; otherwise nothing has changed, and only these answers
            # are errors.
            self._refuse(answers, ErrorCode.UNKNOWN_SERVER_ERROR)
            if is_replayed:
                self._reload(self, str(reason))
            return
        except Exception as error:
            self._refuse(answers, ErrorCode.UNKNOWN_SERVER_ERROR)
            self._broker.isolation.contain(f"a record for {self.name}", error, reloads=False)
            if is_replayed:
                self.failed(f"a record could not be encoded: {error!r}")
            return
        if not is_replayed:
            replay = self.shard.replay
            try:
                for record in records:
                    replay(record)
            except Exception as error:
                # Perhaps some of them were: only the log knows what is so.
                self._refuse(answers, ErrorCode.UNKNOWN_SERVER_ERROR)
                self._broker.isolation.contain(f"a decision of {self.name}", error, reloads=False)
                self.failed(f"a decision could not be applied: {error!r}")
                return
        if not self.unwritten:
            self._broker.decided[self] = None
        self.unwritten += encoded
        self.unanswered.extend(answers)

    def _answer(self, answers: Sequence[tuple[Reply, Response]]) -> None:
        if len(answers) > _ANSWERS_PER_TURN:
            # A rebalance answers all members at once.
            self._broker.slices.begin(self._answer_all(answers), self._on_slices_done)
            return
        for reply, response in answers:
            try:
                reply.answer(response)
            except Exception as error:
                self._broker.isolation.contain(f"an answer of {self.name}", error)

    def _answer_all(self, answers: Sequence[tuple[Reply, Response]]) -> Steps[None]:
        for at in range(0, len(answers), _ANSWERS_PER_TURN):
            self._answer(answers[at : at + _ANSWERS_PER_TURN])
            yield 5 * _ANSWERS_PER_TURN

    def _refuse(self, answers: Sequence[tuple[Reply, Response]], code: ErrorCode) -> None:
        if len(answers) > _ANSWERS_PER_TURN:
            self._broker.slices.begin(self._refuse_all(answers, code), self._on_slices_done)
            return
        for reply, _response in answers:
            self._broker.isolation.run(f"an answer of {self.name}", reply.refuse, code)

    def _refuse_all(self, answers: Sequence[tuple[Reply, Response]], code: ErrorCode) -> Steps[None]:
        for at in range(0, len(answers), _ANSWERS_PER_TURN):
            self._refuse(answers[at : at + _ANSWERS_PER_TURN], code)
            yield 5 * _ANSWERS_PER_TURN

    def failed(self, reason: str) -> None:
        """Its shard was interrupted half-way: what is so is read again from the log."""
        self._reload(self, reason, soon=True)

    # --- the log ------------------------------------------------------------------------------------------------

    def write_pending(self) -> None:
        """Something is about to be appended by itself: what was decided in this turn stands before it. Raises Refusal."""
        self._broker.decided.pop(self, None)
        while self.unwritten:
            self.write()
        if not self.is_loaded:
            raise Refusal(ErrorCode.NOT_COORDINATOR)

    def write(self) -> None:
        """Append what was decided in this turn. Of very many records only some, and the others in the next turns: the answers wait for
        all of them."""
        records, self.unwritten = self.unwritten[:_RECORDS_PER_TURN], self.unwritten[_RECORDS_PER_TURN:]
        answers: Answers = []
        if not self.unwritten:
            answers, self.unanswered = self.unanswered, []
        else:
            self._broker.slices.begin(self._write_later(), self._on_slices_done)
        wall_ms = self._broker.wall_ms
        batch: list[Record] = []
        batches = [batch]
        # So much fits in any case; what the topic allows is looked at when there is more.
        batch_max, size = min(_BATCH_BYTES, limits.COORDINATOR_RECORD_BYTES), 0
        try:
            for key, value in records:
                record_bytes = len(key) + (len(value) if value else 0) + _OVERHEAD_BYTES
                size += record_bytes
                if size > batch_max and batch:
                    batch_max = min(_BATCH_BYTES, batch_bytes_max(self.replica))
                    if size > batch_max:
                        batch = []
                        batches.append(batch)
                        size = record_bytes
                batch.append(Record(0, wall_ms, key, value))
            for full in batches[:-1]:
                self._append(full, [])
            self._append(batch, answers)
        except Refusal as refusal:
            # Those that wait for the rest are refused when the shard is dropped.
            self._refuse(answers, _CLIENT_ERRORS.get(refusal.code, ErrorCode.UNKNOWN_SERVER_ERROR))
            self._reload(self, f"could not write: {refusal}")
        except Exception as error:
            self._refuse(answers, ErrorCode.UNKNOWN_SERVER_ERROR)
            self._broker.isolation.contain(f"writing to {self.name}", error, reloads=False)
            self.failed(f"could not write: {error!r}")

    def _write_later(self) -> Steps[None]:
        yield 1
        if self.unwritten:
            # Written at the end of this turn.
            self._broker.decided[self] = None

    def _on_slices_done(self, _result: None, error: Exception | None) -> None:
        if error is not None:
            raise error

    def _append(self, records: list[Record], answers: Answers) -> None:
        batch = encode_batch(records)
        self.append_in_order(lambda done: append_as_leader(self._broker, self.replica, batch, done), answers)

    def append_in_order(self, append: Callable[[Callable[[ErrorCode], None]], int], answers: Answers) -> None:
        """Append something behind what has been; the answers wait for it to count. Raises Refusal if nothing was written."""
        self._batches.append(answers)
        try:
            append(self._on_committed)
        except Exception:
            if self._batches and self._batches[-1] is answers:
                self._batches.pop()
            raise

    def _on_committed(self, code: ErrorCode) -> None:
        """The oldest batch counts, or its outcome will be known elsewhere."""
        if not self._batches:
            return
        answers = self._batches.popleft()
        if code is ErrorCode.NONE:
            self._answer(answers)
        else:
            self._refuse(answers, _CLIENT_ERRORS.get(code, ErrorCode.NOT_COORDINATOR))

    # --- loading ------------------------------------------------------------------------------------------------

    def replay(self, records: Iterable[Record]) -> None:
        """A piece of the log."""
        for record in records:
            self.replay_one(record)

    def replay_one(self, record: Record) -> bool:
        """Whether the record made sense; if not, it is left out."""
        try:
            known = self.decode(record)
        except Malformed as damage:
            self._broker.say_once(f"{self.name}: the record at {record.offset} is left out: {damage}")
            return False
        if known is None:
            return False
        self.shard.replay(known)
        return True

    def replay_transactional(self, producer_id: int, records: Iterable[Record]) -> None:
        """A batch that counts, or not, by the marker of its producer that follows. Only offsets are written so."""
        self.replay(records)

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """A marker. Only a partition of groups' offsets has any."""
        return

    def on_loaded(self) -> None:
        """All there was has been replayed. What of it does not count yet is waited for like an own batch."""
        self.is_loaded = True
        if self.load_end_offset > self.replica.high_watermark:
            self._batches.append([])
            self.replica.waiting.append((self.load_end_offset, PendingAppend(self._on_committed), {}))
        self.start_shard()

    def finish_load(self) -> Steps[None]:
        """What is done between the last record and `loaded`, in steps."""
        yield 1

    def start_shard(self) -> None:
        self.shard.on_loaded(self._broker.now_ms)

    # --- the end ------------------------------------------------------------------------------------------------

    def unload(self) -> None:
        """The role is over."""
        self.is_loaded = False
        self.is_over = True
        waiting = [reply for reply, _response in self.unanswered]
        waiting += [reply for batch in self._batches for reply, _response in batch]
        self.unwritten, self.unanswered = [], []
        self._batches.clear()
        try:
            waiting += self.shard.unload()
        except Exception as error:
            # It may be the shard that failed half-way. Those that it alone knows of have their own time-outs.
            self._broker.isolation.contain(f"the end of {self.name}", error, reloads=False)
        self._refuse([(reply, {}) for reply in waiting], ErrorCode.NOT_COORDINATOR)
