"""What the groups of one broker hold in memory, against the limits of `model/limits.py`.

An exact count would have to be kept up to date wherever a member or an offset comes or goes. Instead an upper bound grows with what
is admitted and never shrinks; when it comes near to a limit everything is counted once, in slices. So what clients hold is
bounded, an ordinary request pays for an addition, and groups that end give back what they held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.model import limits

#: A broker that is at a limit counts at most this often.
_COUNT_MS: Final = 1_000
#: One that comes near to a limit counts this often, so that it does not refuse what it has memory for.
_COUNT_SOON_MS: Final = 10_000
#: This many groups are counted within some milliseconds.
_COUNTED_AT_ONCE_MAX: Final = 20_000


class Usage(NamedTuple):
    groups: int = 0
    members: int = 0
    offsets: int = 0
    #: The bytes that clients have sent and the groups hold.
    size: int = 0

    def plus(self, more: Usage) -> Usage:
        return Usage(*(mine + added for mine, added in zip(self, more, strict=True)))

    @property
    def is_within(self) -> bool:
        return (
            self.groups <= limits.GROUPS_MAX
            and self.members <= limits.MEMBERS_MAX
            and self.offsets <= limits.OFFSETS_MAX
            and self.size <= limits.GROUP_STATE_BYTES_MAX
        )

    @property
    def is_near(self) -> bool:
        """Whether it is more than three quarters of a limit."""
        return not Usage(*(each + each // 3 for each in self)).is_within


class Budget:
    """`count` is the exact usage of all groups on this broker. `count_later(done)` counts it in slices, because very many groups take
    long; without it they are counted at once."""

    def __init__(
        self, count: Callable[[], Usage], count_later: Callable[[Callable[[Usage], None]], None] | None = None
    ) -> None:
        self._count = count
        self._count_later = count_later
        # At first there are no groups, and those that are loaded are added. If they are to be counted at once, that is done when needed.
        self._upper: Usage | None = None if count_later is None else Usage()
        self._counted_ms = -_COUNT_SOON_MS
        #: What was admitted since a count in slices began; None if there is none.
        self._grown: Usage | None = None

    def add_loaded(self, more: Usage) -> None:
        """Groups were loaded that hold this."""
        if self._upper is not None:
            self._grow(more)

    def reserve(self, more: Usage, now_ms: int) -> bool:
        """Whether there is memory for this; then it is counted."""
        if self._upper is not None:
            after = self._upper.plus(more)
            if after.is_within:
                self._grow(more)
                if after.is_near:
                    self._begin_count(now_ms, _COUNT_SOON_MS)
                return True
            if self._count_later is not None and self._upper.groups > _COUNTED_AT_ONCE_MAX:
                self._begin_count(now_ms, _COUNT_MS)
                return False
            if 0 <= now_ms - self._counted_ms < _COUNT_MS:
                return False
        self._upper, self._counted_ms = self._count(), now_ms
        after = self._upper.plus(more)
        if after.is_within:
            self._upper = after
        return after.is_within

    def _grow(self, more: Usage) -> None:
        if self._upper is not None:
            self._upper = self._upper.plus(more)
        if self._grown is not None:
            self._grown = self._grown.plus(more)

    def _begin_count(self, now_ms: int, every_ms: int) -> None:
        if self._count_later is None or self._grown is not None or 0 <= now_ms - self._counted_ms < every_ms:
            return
        self._counted_ms = now_ms
        self._grown = Usage()
        self._count_later(self._counted)

    def _counted(self, usage: Usage) -> None:
        # Some of what was admitted meanwhile is counted twice: it is an upper bound.
        grown, self._grown = self._grown or Usage(), None
        self._upper = usage.plus(grown)

    def add(self, size: int) -> None:
        """Something that was admitted has come to hold more, as partitions that were assigned."""
        self._grow(Usage(size=size))
