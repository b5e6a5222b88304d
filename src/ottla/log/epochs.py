"""The leader epochs of a log: sorted pairs of (epoch, start offset) (R1).

They are stored in `leader-epoch-checkpoint`. Replicas use them to find the offset where their logs diverge.
`end_of(epoch)` answers OffsetForLeaderEpoch; `assign` adds an epoch at its first record.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final

from ottla.log.checkpoints import parse_epochs, render_epochs

#: The protocol's value for an unknown epoch or offset.
_UNDEFINED: Final = -1


class LeaderEpochs:
    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[int, int]] | None = None) -> None:
        self.pairs = pairs or []

    @classmethod
    def parse(cls, data: bytes | None) -> LeaderEpochs | None:
        """None if the file is missing, torn or invalid: epochs and offsets must both increase."""
        pairs = parse_epochs(data)
        if pairs is None or any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(pairs)):
            return None
        return cls(pairs)

    def render(self) -> bytes:
        return render_epochs(self.pairs)

    @property
    def latest(self) -> int:
        return self.pairs[-1][0] if self.pairs else _UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` starts at this offset; True if the pairs changed."""
        known = len(self.pairs)
        while self.pairs and self.pairs[-1][0] > epoch and self.pairs[-1][1] >= start_offset:
            # This replica led a newer epoch without writing. The record at this offset is of an older epoch.
            self.pairs.pop()
        if self.pairs and self.pairs[-1][0] >= epoch:
            return len(self.pairs) < known
        # An epoch without records before the next one has no offsets.
        while self.pairs and self.pairs[-1][1] >= start_offset:
            self.pairs.pop()
        self.pairs.append((epoch, start_offset))
        return True

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest known epoch <= `epoch`, its end offset), or (-1, -1) if `epoch` is newer than all known
        here.

        For an epoch older than all known ones the answer is that epoch itself, ending at the start of the
        first.
        """
        if epoch < 0 or epoch > self.latest:
            return _UNDEFINED, _UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        at = bisect_right(self.pairs, epoch, key=_epoch)
        return (self.pairs[at - 1][0] if at else epoch), self.pairs[at][1]

    def epoch_of(self, offset: int) -> int:
        at = bisect_right(self.pairs, offset, key=_start)
        return self.pairs[at - 1][0] if at else _UNDEFINED

    def truncate_end(self, offset: int) -> bool:
        kept = [pair for pair in self.pairs if pair[1] < offset]
        changed = len(kept) != len(self.pairs)
        self.pairs = kept
        return changed

    def truncate_start(self, offset: int) -> bool:
        """Remove epochs that ended before the new log start; the epoch that contains it then starts there."""
        if not self.pairs or self.pairs[0][1] >= offset:
            return False
        epoch = self.epoch_of(offset)
        self.pairs = [(epoch, offset), *(pair for pair in self.pairs if pair[1] > offset)]
        return True


def _epoch(pair: tuple[int, int]) -> int:
    return pair[0]


def _start(pair: tuple[int, int]) -> int:
    return pair[1]
