"""What a coordinator and whoever runs it say to each other, whatever it coordinates: groups or transactions.

A shard (the part of a coordinator that one partition of its topic holds) decides: these records are to be written, these
answers are to be given. Its host writes all the records of a turn as one batch, and gives the answers once that batch counts. The
records of a decision are replayed at once, before any other decision, so that the next one builds on them; if they cannot be
written after all, the host drops the shard and loads it again from what was written. So a decision that a request led to never
half happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ottla.model.errors import ErrorCode

Response: TypeAlias = Mapping[str, Any]
#: What a shard has written: its own kind of record.
R = TypeVar("R")

_KNOWN_LENGTH_MAX: Final = 256


def partition_of(name: str, count: int) -> int:
    """The partition of a coordinator's topic that a group, or a transactional id, belongs to: Java's hash of it."""
    # Strangers may ask for thousands of ids of 32 kB: those are not kept.
    return _known(name, count) if len(name) <= _KNOWN_LENGTH_MAX else _hashed(name, count)


def java_hash(name: str) -> int:
    """Java's `String.hashCode`, as an unsigned number.

    A loop over the characters takes 0.1 µs for each, which for the names of one large request is half a second. Here all pairs of
    neighbours are combined at once, in the lanes of one large integer: then pairs of pairs, until one lane is left.
    """
    number = int.from_bytes(name.encode("utf-16-be", "surrogatepass"), "big")
    # Rounded up to a power of two, so that there are few masks.
    bits = 1 << max(number.bit_length() - 1, 0).bit_length()
    width, power = 16, 31
    while width < bits:
        # In a lane are at most 32 bits, whatever its width.
        low = _lanes(min(width, 32), 2 * width, bits)
        number = (number >> width & low) * power + (number & low)
        width, power = 2 * width, power * power & 0xFFFFFFFF
    return number & 0xFFFFFFFF


@lru_cache(maxsize=256)
def _lanes(size: int, width: int, bits: int) -> int:
    """A mask: the low bits of each lane, this many."""
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
    """Where the answer to one request goes; it is given one answer or one refusal."""

    def answer(self, response: Response) -> None: ...

    def refuse(self, code: ErrorCode) -> None:
        """An error in the shape of the request's own API."""


class Then:
    """Something that is done when a decision counts. It stands among the decision's answers, as one that nobody hears; if the
    decision never counts, the shard is gone and nothing is done."""

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def answer(self, response: Response) -> None:
        self._action()

    def refuse(self, code: ErrorCode) -> None:
        pass


class Told:
    """Somebody who hears only whether a decision counts."""

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
    #: The answers tell what is in records that were decided on earlier, and must not leave before those count.
    is_read: bool = False
    #: The state has what the records say already: they are not replayed.
    is_replayed: bool = False


class Timed(Protocol):
    """Something with a deadline, as `model/timer_wheel.py` has it: `bucket` is its own, -1 at first."""

    bucket: int

    def expire(self, now_ms: int) -> None: ...


class Timers(Protocol):
    def add(self, timed: Timed, deadline_ms: int) -> None: ...

    def cancel(self, timed: Timed) -> None: ...


class Alarm:
    """One deadline; setting it again moves it."""

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
