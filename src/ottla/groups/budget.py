"""What the groups of one broker hold in memory, against the limits of `model/limits.py`.

An exact count would have to be kept up to date wherever a member or an offset comes or goes. Instead an upper bound grows with what
is admitted and never shrinks; when it reaches a limit everything is counted once, at most once a second. So what clients hold is
bounded, an ordinary request pays for an addition, and groups that end give back what they held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.model import limits

#: A broker that is at a limit counts at most this often.
_COUNT_MS: Final = 1_000


class Usage(NamedTuple):
    groups: int = 0
    members: int = 0
    offsets: int = 0
    #: The bytes that clients have sent and the groups hold.
    size: int = 0

    def with_more(self, more: Usage) -> Usage:
        return Usage(*(mine + added for mine, added in zip(self, more, strict=True)))

    @property
    def is_within(self) -> bool:
        return (
            self.groups <= limits.GROUPS_MAX
            and self.members <= limits.MEMBERS_MAX
            and self.offsets <= limits.OFFSETS_MAX
            and self.size <= limits.GROUP_STATE_BYTES_MAX
        )


class Budget:
    """`count` is the exact usage of all groups on this broker."""

    def __init__(self, count: Callable[[], Usage]) -> None:
        self._count = count
        self._upper: Usage | None = None
        self._counted_ms = -_COUNT_MS

    def forget(self) -> None:
        """Groups were loaded, or are coordinated elsewhere: the next request has everything counted."""
        self._upper = None

    def takes(self, more: Usage, now_ms: int) -> bool:
        """Whether there is memory for this; then it is counted."""
        if self._upper is not None:
            after = self._upper.with_more(more)
            if after.is_within:
                self._upper = after
                return True
            if 0 <= now_ms - self._counted_ms < _COUNT_MS:
                return False
        self._upper, self._counted_ms = self._count(), now_ms
        after = self._upper.with_more(more)
        if after.is_within:
            self._upper = after
        return after.is_within

    def add(self, size: int) -> None:
        """Something that was admitted has come to hold more, as partitions that were assigned."""
        if self._upper is not None:
            self._upper = self._upper._replace(size=self._upper.size + size)
