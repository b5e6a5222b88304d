"""The memory of all groups on one broker, against the limits of `model/limits.py`.

An exact count would need an update wherever a member or an offset is added or removed. Instead an upper bound
grows with each admitted request and never shrinks. When it gets near a limit, all groups are counted once, in
slices. So memory is bounded, an ordinary request costs one addition, and deleted groups free their share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.model import limits

#: The shortest interval between two counts at a limit.
_COUNT_MS: Final = 1_000
#: The interval between two counts near a limit, so that no request is refused without need.
_COUNT_SOON_MS: Final = 10_000
#: Groups that are counted within some milliseconds.
_COUNTED_AT_ONCE_MAX: Final = 20_000


class Usage(NamedTuple):
    groups: int = 0
    members: int = 0
    offsets: int = 0
    #: The bytes of client data in the groups.
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
        """Whether one figure is above three quarters of its limit."""
        return not Usage(*(each + each // 3 for each in self)).is_within


class Budget:
    """`count` returns the exact usage of all groups on this broker. `count_later(done)` counts in slices;
    without it groups are always counted at once."""

    def __init__(
        self, count: Callable[[], Usage], count_later: Callable[[Callable[[Usage], None]], None] | None = None
    ) -> None:
        self._count = count
        self._count_later = count_later
        # With `count_later` the bound starts at zero and loaded groups are added. Otherwise the first request
        # counts.
        self._upper: Usage | None = None if count_later is None else Usage()
        self._counted_ms = -_COUNT_SOON_MS
        #: Usage admitted since the current count in slices began; None if no count is running.
        self._grown: Usage | None = None

    def add_loaded(self, more: Usage) -> None:
        """Add the usage of loaded groups."""
        if self._upper is not None:
            self._grow(more)

    def reserve(self, more: Usage, now_ms: int) -> bool:
        """Reserve memory; False if a limit would be exceeded."""
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
        # Usage admitted meanwhile may be counted twice: it is an upper bound.
        grown, self._grown = self._grown or Usage(), None
        self._upper = usage.plus(grown)

    def add(self, size: int) -> None:
        """Add bytes of an admitted member, as for assigned partitions."""
        self._grow(Usage(size=size))
