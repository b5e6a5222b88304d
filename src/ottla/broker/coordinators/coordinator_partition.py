"""One partition of `__consumer_offsets` or `__transaction_state` that this broker coordinates.

- When this broker becomes the leader, `coordinator_loader.py` replays the log into a shard
  (`groups/shard.py`, `transactions/shard.py`). The shard is pure: it decides, and this class writes and
  responds.
- All decisions of a turn are written at its end as one batch. Their responses are sent when the high
  watermark has passed the batch.
- A response that reads earlier records waits until those are committed. So no client sees state that could be
  lost.
- If a batch cannot be written, memory is ahead of the log. The shard is dropped and loaded again.
- When the leader role ends, waiting requests get NOT_COORDINATOR.

Subclasses are the hosts of their shards. They encode and decode records, and give the shard what it needs of
the broker.
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

#: The size at which a batch is closed, well below max.message.bytes.
_BATCH_BYTES: Final = 256 * 1024
#: Upper bound on the bytes of a batch besides its records, and of a record besides its key and value.
_OVERHEAD_BYTES: Final = 128
#: Records written in one turn, and responses sent: some milliseconds.
_RECORDS_PER_TURN: Final = 2000
_ANSWERS_PER_TURN: Final = 100

#: The error for the client when a batch is not written.
_CLIENT_ERRORS: Final = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}

Answers = list[tuple[Reply, Response]]


class CoordinatorShard(Protocol):
    """The part of a shard that its host calls for every kind."""

    def replay(self, record: Any) -> None: ...

    def on_loaded(self, now_ms: int) -> None: ...

    def unload(self) -> Iterable[Reply]: ...


class ShardTimers:
    """The timers of one shard. If one raises, `isolation.py` finds the coordinator partition by `host`."""

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
        #: While it loads: the next offset to replay, and the end of the log at the election.
        self.load_offset = -1
        self.load_end_offset = -1
        self.reload_timer: Later | None = None
        #: Requests that wait for the load, and the timer that ends their wait.
        self.waiting_requests: list[Callable[[], None]] = []
        self.wait_timer: Later | None = None
        #: This turn's records, encoded, and the responses that wait for them.
        self.unwritten: list[tuple[bytes, bytes | None]] = []
        self.unanswered: Answers = []
        #: The responses that wait for written batches that are not committed yet, oldest first.
        self._batches: deque[Answers] = deque()

    @abstractmethod
    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        """Key and value of a decided record. Raises Malformed if it cannot be written."""

    @abstractmethod
    def decode(self, record: Record) -> Any:
        """A record of the log for `replay`; None if its kind is unknown. Raises Malformed."""

    # --- the host of the shard ------------------------------------------------------------------------------

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
        """The largest size of a record's key and value together."""
        return batch_bytes_max(self.replica) - _OVERHEAD_BYTES

    def fits(self, record: Any) -> bool:
        try:
            key, value = self.encode(record)
        except Malformed:
            return False
        return len(key) + len(value or b"") <= self.record_bytes_max

    def _encoded(self, records: Sequence[Any]) -> list[tuple[bytes, bytes | None]]:
        """Encode the records of a decision. Raises Malformed if one cannot be written: then none is."""
        encoded = []
        # This size always fits.
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
            raise Malformed(
                f"a record of {size} bytes is larger than the limit of {self.record_bytes_max} bytes"
            )

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
            # A shard that replays records itself checks first whether they fit. Otherwise nothing has
            # changed, and only these requests fail.
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
                # Some of them may be applied: only the log is right.
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
            # The end of a rebalance answers all members.
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
        """The shard may be half changed: reload it from the log."""
        self._reload(self, reason, soon=True)

    # --- the log --------------------------------------------------------------------------------------------

    def write_pending(self) -> None:
        """Write the decisions of this turn before a separate append. Raises Refusal."""
        self._broker.decided.pop(self, None)
        while self.unwritten:
            self.write()
        if not self.is_loaded:
            raise Refusal(ErrorCode.NOT_COORDINATOR)

    def write(self) -> None:
        """Append the decisions of this turn. Very many records are spread over turns; responses wait for the
        last one."""
        records, self.unwritten = self.unwritten[:_RECORDS_PER_TURN], self.unwritten[_RECORDS_PER_TURN:]
        answers: Answers = []
        if not self.unwritten:
            answers, self.unanswered = self.unanswered, []
        else:
            self._broker.slices.begin(self._write_later(), self._on_slices_done)
        wall_ms = self._broker.wall_ms
        batch: list[Record] = []
        batches = [batch]
        # This size always fits; the limit of the topic is read only for more.
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
            # Responses that wait for the remaining records are refused when the shard is dropped.
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
        """Append after all earlier batches; `answers` are sent when it is committed. Raises Refusal if
        nothing was written."""
        self._batches.append(answers)
        try:
            append(self._on_committed)
        except Exception:
            if self._batches and self._batches[-1] is answers:
                self._batches.pop()
            raise

    def _on_committed(self, code: ErrorCode) -> None:
        """The oldest batch is committed, or the next leader decides its outcome."""
        if not self._batches:
            return
        answers = self._batches.popleft()
        if code is ErrorCode.NONE:
            self._answer(answers)
        else:
            self._refuse(answers, _CLIENT_ERRORS.get(code, ErrorCode.NOT_COORDINATOR))

    # --- loading --------------------------------------------------------------------------------------------

    def replay(self, records: Iterable[Record]) -> None:
        """Replay a slice of the log."""
        for record in records:
            self.replay_one(record)

    def replay_one(self, record: Record) -> bool:
        """Replay a record; False if it is malformed or unknown, and skipped."""
        try:
            known = self.decode(record)
        except Malformed as damage:
            self._broker.say_once(
                f"{self.name}: skipping the malformed record at offset {record.offset}: {damage}"
            )
            return False
        if known is None:
            return False
        self.shard.replay(known)
        return True

    def replay_transactional(self, producer_id: int, records: Iterable[Record]) -> None:
        """Replay a batch that the next marker of its producer commits or aborts. Only offsets are
        transactional."""
        self.replay(records)

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Replay a marker. Only `__consumer_offsets` has markers."""
        return

    def on_loaded(self) -> None:
        """The log is replayed. Its uncommitted end is waited for like an own batch."""
        self.is_loaded = True
        if self.load_end_offset > self.replica.high_watermark:
            self._batches.append([])
            self.replica.waiting.append((self.load_end_offset, PendingAppend(self._on_committed), {}))
        self.start_shard()

    def finish_load(self) -> Steps[None]:
        """Work between the last record and `on_loaded`, in steps."""
        yield 1

    def start_shard(self) -> None:
        self.shard.on_loaded(self._broker.now_ms)

    # --- the end --------------------------------------------------------------------------------------------

    def unload(self) -> None:
        """This broker no longer leads the partition: refuse all waiting requests."""
        self.is_loaded = False
        self.is_over = True
        waiting = [reply for reply, _response in self.unanswered]
        waiting += [reply for batch in self._batches for reply, _response in batch]
        self.unwritten, self.unanswered = [], []
        self._batches.clear()
        try:
            waiting += self.shard.unload()
        except Exception as error:
            # The shard itself may be what failed. Requests that only it knows of time out.
            self._broker.isolation.contain(f"the end of {self.name}", error, reloads=False)
        self._refuse([(reply, {}) for reply in waiting], ErrorCode.NOT_COORDINATOR)
