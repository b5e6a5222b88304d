"""The contract between a coordinator shard and its host, for groups and for transactions.

A shard is the in-memory state of one partition of `__consumer_offsets` or `__transaction_state`. It turns a
request into a `Decision`: records to write and responses to send. Its host
(`broker/coordinators/coordinator_partition.py`)

- replays the records of a decision at once, so that the next decision builds on them;
- writes all records of a turn as one batch;
- sends the responses when that batch is committed, that is, when the high watermark has passed it.

If a batch cannot be written, the host drops the shard and loads it again from the log. So a request is never
half applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ottla.model.errors import ErrorCode
from ottla.model.timer_wheel import Timed

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig

Response: TypeAlias = Mapping[str, Any]
#: The record type of a shard.
R = TypeVar("R")

_KNOWN_LENGTH_MAX: Final = 256


def partition_of(name: str, count: int) -> int:
    """The partition of the coordinator's topic for a group id or transactional id: Java's hash, as in
    Kafka."""
    # Long names are not cached: a client may send thousands of ids of 32 kB.
    return _known(name, count) if len(name) <= _KNOWN_LENGTH_MAX else _hashed(name, count)


def java_hash(name: str) -> int:
    """Java's `String.hashCode`, as an unsigned number.

    A loop takes 0.1 µs a character, half a second for the names of one large request. This function combines
    all pairs of neighbours at once, in the lanes of one large integer, then pairs of pairs, until one lane is
    left.
    """
    number = int.from_bytes(name.encode("utf-16-be", "surrogatepass"), "big")
    # Rounded up to a power of two: few different masks.
    bits = 1 << max(number.bit_length() - 1, 0).bit_length()
    width, power = 16, 31
    while width < bits:
        # A lane holds at most 32 bits, whatever its width.
        low = _lanes(min(width, 32), 2 * width, bits)
        number = (number >> width & low) * power + (number & low)
        width, power = 2 * width, power * power & 0xFFFFFFFF
    return number & 0xFFFFFFFF


@lru_cache(maxsize=256)
def _lanes(size: int, width: int, bits: int) -> int:
    """A mask of the `size` low bits of each lane."""
    lane = ((1 << size) - 1).to_bytes(width // 8, "big")
    return int.from_bytes(lane * (bits // width), "big")


@lru_cache(maxsize=20_000)
def _known(name: str, count: int) -> int:
    return _hashed(name, count)


def _hashed(name: str, count: int) -> int:
    number = java_hash(name)
    if number == 0x80000000:
        return 0
    return (number if number < 0x80000000 else 0x100000000 - number) % count


class Reply(Protocol):
    """Where the response to one request goes. Exactly one of the two methods is called, once."""

    def answer(self, response: Response) -> None: ...

    def refuse(self, code: ErrorCode) -> None:
        """Send an error in the form of the request's API."""


class WhenCommitted:
    """Runs an action when a decision is committed. It stands among the replies of the decision.

    If the decision is never committed, the shard is unloaded and the action does not run.
    """

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def answer(self, response: Response) -> None:
        self._action()

    def refuse(self, code: ErrorCode) -> None:
        pass


class CommitCallback:
    """Calls `done(NONE)` when a decision is committed, or `done(error)` when it is not."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[ErrorCode], None]) -> None:
        self._done = done

    def answer(self, response: Response) -> None:
        self._done(ErrorCode.NONE)

    def refuse(self, code: ErrorCode) -> None:
        self._done(code)


class Decision(NamedTuple, Generic[R]):
    records: Sequence[R] = ()
    answers: Sequence[tuple[Reply, Response]] = ()
    #: The responses depend on earlier records: they wait until those are committed.
    is_read: bool = False
    #: The shard has applied the records itself: they are not replayed.
    is_replayed: bool = False


class Timers(Protocol):
    """The part of `model/timer_wheel.py` that shards use."""

    def add(self, timed: Timed, deadline_ms: int) -> None: ...

    def cancel(self, timed: Timed) -> None: ...


class ShardHost(Protocol, Generic[R]):
    """What the host gives to every shard. `GroupHost` and `TransactionHost` extend it."""

    @property
    def timers(self) -> Timers: ...

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def wall_ms(self) -> int:
        """The wall clock, for timestamps in records. Deadlines use `now_ms`, the monotonic clock."""

    @property
    def is_writable(self) -> bool:
        """Whether records can be written now: the partition is loaded and its ISR is large enough.

        Requests that write are refused while it is False. Timers of the shard wait until it is True.
        """

    def schedule(self, decision: Decision[R]) -> None:
        """Replay and write the records of a decision, and send its responses when they are committed."""

    def fits(self, record: R) -> bool:
        """Whether a record is small enough to be written."""


class Alarm:
    """A timer with one deadline. Setting it again moves the deadline."""

    __slots__ = ("_action", "_timers", "bucket")

    def __init__(self, timers: Timers, action: Callable[[int], None]) -> None:
        self._timers = timers
        self._action = action
        self.bucket = -1

    @property
    def is_set(self) -> bool:
        return self.bucket >= 0

    def set(self, deadline_ms: int) -> None:
        self.clear()
        self._timers.add(self, deadline_ms)

    def clear(self) -> None:
        if self.bucket >= 0:
            self._timers.cancel(self)

    def expire(self, now_ms: int) -> None:
        self._action(now_ms)
