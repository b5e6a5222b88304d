"""A shard of transactions in a world of its own: records go into a list, count when a test says so, and so does time."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from ottla.config.broker import BrokerConfig
from ottla.model.errors import ErrorCode
from ottla.model.timer_wheel import TimerWheel
from ottla.ports.coordination import Decision, Reply, Response
from ottla.transactions.add_partitions import Add
from ottla.transactions.end_txn import End
from ottla.transactions.formats import Entry, Place, Record, State, decode, encode
from ottla.transactions.host import MarkerRequest
from ottla.transactions.init_producer_id import Init
from ottla.transactions.shard import Shard
from tests.heard import Heard as AnyHeard

WALL_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
A: Place = ("a", 0)
B: Place = ("b", 3)
OFFSETS: Place = ("__consumer_offsets", 7)


class Heard(AnyHeard):
    """With what answers about transactions tell."""

    @property
    def producer(self) -> tuple[int, int]:
        assert self.response is not None
        return self.response["producer_id"], self.response["producer_epoch"]

    @property
    def partitions(self) -> dict[Place, ErrorCode]:
        assert self.response is not None
        return {place: ErrorCode(code) for place, code in self.response["partitions"].items()}


class World:
    """The host of a shard. `log` is all that was written, `counted` how much of it counts."""

    def __init__(self, **settings: str) -> None:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self._config = BrokerConfig.from_properties({"log.dirs": "/nowhere", **names})
        self.log: list[tuple[bytes, bytes | None]] = []
        self.counted = 0
        #: Whether what is written counts at once.
        self.counts_at_once = True
        self._waiting: deque[tuple[int, Reply, Response]] = deque()
        self.now_ms = 1000
        self.wall_ahead_ms = 0
        self.coordinator_epoch = 4
        self.is_writable = True
        self.next_producer_id = 1000
        #: Producer ids are given at once, or when a test calls one of these.
        self.gives_ids = True
        self.waiting_for_ids: list[Callable[[int | None], None]] = []
        #: Who leads what; what is missing does not exist.
        self.leaders: dict[Place, int] = {A: 1, B: 2, OFFSETS: 1}
        self.sent: list[MarkerRequest] = []
        self.record_bytes_max = 1_000_000
        self.ids_max = self.size_max = 1_000_000
        self.begin()

    # --- lives of the coordinator -------------------------------------------------------------------------------

    def begin(self) -> None:
        """A coordinator that has just come: it has the log and nothing else."""
        self.timers = TimerWheel()
        self.shard = Shard(0, self)
        for key, value in self.log:
            record = decode(key, value)
            assert record is not None
            self.shard.replay(record)
        self.shard.on_loaded(self.now_ms)

    def end_role(self, kept: int | None = None) -> None:
        """The role ends here, and of what does not count yet only so much is left in the log."""
        kept = self.counted if kept is None else kept
        assert self.counted <= kept <= len(self.log)
        waiting = [reply for _position, reply, _response in self._waiting] + self.shard.unload()
        self._waiting.clear()
        self.waiting_for_ids.clear()
        del self.log[kept:]
        for reply in waiting:
            reply.refuse(ErrorCode.NOT_COORDINATOR)

    def move(self, kept: int | None = None) -> None:
        """Another coordinator comes, and all that it finds counts."""
        self.end_role(kept)
        self.counted = len(self.log)
        self.coordinator_epoch += 1
        self.begin()

    # --- what a shard is handed ---------------------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        return self._config

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ms + self.wall_ahead_ms

    def schedule(self, decision: Decision[Record]) -> None:
        for record in decision.records:
            encoded = encode(record)
            assert decode(*encoded) == record
            if not decision.is_replayed:
                self.shard.replay(record)
            self.log.append(encoded)
        for reply, response in decision.answers:
            if decision.records or decision.is_read:
                self._waiting.append((len(self.log), reply, response))
            else:
                reply.answer(response)
        if self.counts_at_once:
            self.count()
        else:
            self._answer()

    def count(self, until: int | None = None) -> None:
        """What was written counts, or a part of it."""
        self.counted = len(self.log) if until is None else until
        self._answer()

    def _answer(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.counted:
            _position, reply, response = self._waiting.popleft()
            reply.answer(response)

    def fits(self, record: Record) -> bool:
        key, value = encode(record)
        return len(key) + len(value or b"") <= self.record_bytes_max

    def has_capacity(self, ids: int, size: int) -> bool:
        return len(self.shard.transactions) + ids <= self.ids_max and self.shard.size + size <= self.size_max

    def new_producer_id(self, done: Callable[[int | None], None]) -> None:
        if self.gives_ids:
            done(self.fresh_id())
        else:
            self.waiting_for_ids.append(done)

    def fresh_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def send_markers(self, owed: Sequence[MarkerRequest]) -> None:
        for each in owed:
            # Until the decision counts it may be lost, and be decided otherwise.
            records = (decode(*encoded) for encoded in reversed(self.log[: self.counted]))
            last = next(
                record for record in records if record and record.transactional_id == each.transactional_id
            )
            assert last.entry is not None
            assert last.entry.state is (State.PREPARE_COMMIT if each.marker.commit else State.PREPARE_ABORT)
        self.sent += owed

    def leader(self, place: Place) -> int | None:
        return self.leaders.get(place)

    def offsets_partition(self, group_id: str) -> Place | None:
        return OFFSETS if OFFSETS in self.leaders else None

    # --- what clients and brokers do ----------------------------------------------------------------------------

    def init(
        self, transactional_id: str = "t", pair: tuple[int, int] = (-1, -1), timeout_ms: int = TIMEOUT_MS, **more: Any
    ) -> Heard:  # fmt: skip
        heard = Heard()
        self.shard.init_producer_id.init(Init(transactional_id, timeout_ms, *pair, **more), heard)
        return heard

    def add(
        self, pair: tuple[int, int], *places: Place, transactional_id: str = "t", version: int = 3, verify: bool = False
    ) -> Heard:  # fmt: skip
        heard = Heard()
        request = Add(transactional_id, *pair, frozenset(places), version, verify)
        self.shard.add_partitions.add(request, heard)
        return heard

    def add_offsets(self, pair: tuple[int, int], group_id: str = "g", version: int = 4) -> Heard:
        heard = Heard()
        self.shard.add_partitions.add_offsets(Add("t", *pair, frozenset(), version), group_id, heard)
        return heard

    def end(
        self, pair: tuple[int, int], commit: bool, *, transactional_id: str = "t", version: int = 5
    ) -> Heard:
        heard = Heard()
        self.shard.end_txn.end(End(transactional_id, *pair, commit, version), heard)
        return heard

    def mark(self, codes: Mapping[Place, ErrorCode] | None = None) -> list[MarkerRequest]:
        """The brokers answer all the markers that were sent: well, or with these codes."""
        sent, self.sent = self.sent, []
        for owed in sent:
            known = dict.fromkeys(owed.partitions, ErrorCode.NONE)
            self.shard.markers_answered(owed, known | dict(codes or {}))
        return sent

    def advance(self, ms: int) -> None:
        end = self.now_ms + ms
        while (deadline := self.timers.next_ms) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.timers.expire(self.now_ms)
        self.now_ms = end

    # --- what came of it ----------------------------------------------------------------------------------------

    def entry(self, transactional_id: str = "t") -> Entry:
        return self.shard.transactions[transactional_id].entry

    def state(self, transactional_id: str = "t") -> State:
        return self.entry(transactional_id).state

    def put(self, entry: Entry, transactional_id: str = "t") -> None:
        """A record that is in the log already."""
        self.log.append(encode(Record(transactional_id, entry)))
        self.counted = len(self.log)
        self.begin()

    def producer(self, transactional_id: str = "t") -> tuple[int, int]:
        """A producer that has just begun."""
        heard = self.init(transactional_id)
        assert heard.error is ErrorCode.NONE
        return heard.producer

    def states(self, transactional_id: str = "t") -> list[State]:
        """The states that were written, one after another."""
        records: Iterable[Record | None] = (decode(*each) for each in self.log)
        return [
            record.entry.state
            for record in records
            if record is not None and record.transactional_id == transactional_id and record.entry is not None
        ]


@pytest.fixture
def world() -> World:
    return World()
