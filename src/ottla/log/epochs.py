"""Which leader epoch wrote which offsets: (epoch, start offset) pairs, sorted (R1).

Kept beside the log in `leader-epoch-checkpoint`. The pairs are the truth by which replicas agree where their
histories part; a log asks `end_of(epoch)` to answer another replica, and `assign` when an epoch writes its
first record.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final

from ottla.log.checkpoints import parse_epochs, render_epochs

#: What "unknown" is in the protocol, for an epoch and for an offset.
_UNDEFINED: Final = -1


class LeaderEpochs:
    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[int, int]] | None = None) -> None:
        self.pairs = pairs or []

    @classmethod
    def parse(cls, data: bytes | None) -> LeaderEpochs | None:
        """None if the file is missing, torn, or says what cannot be: epochs and offsets both only grow."""
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
        """Note that records of `epoch` stand from this offset on; True if that was news."""
        known = len(self.pairs)
        while self.pairs and self.pairs[-1][0] > epoch and self.pairs[-1][1] >= start_offset:
            # A newer epoch that this replica led without writing anything: what came to stand here is older
            # after all.
            self.pairs.pop()
        if self.pairs and self.pairs[-1][0] >= epoch:
            return len(self.pairs) < known
        # An epoch that wrote nothing before the next one began has no offsets of its own.
        while self.pairs and self.pairs[-1][1] >= start_offset:
            self.pairs.pop()
        self.pairs.append((epoch, start_offset))
        return True

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest known epoch ≤ the one asked for, its end offset), or (-1, -1) if only a newer broker can
        know.

        For an epoch before all that are known here, the answer is that epoch itself, ending where the first
        begins.
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
        """Forget epochs that ended before the log's new start; the one that holds the start begins there."""
        if not self.pairs or self.pairs[0][1] >= offset:
            return False
        epoch = self.epoch_of(offset)
        self.pairs = [(epoch, offset), *(pair for pair in self.pairs if pair[1] > offset)]
        return True


def _epoch(pair: tuple[int, int]) -> int:
    return pair[0]


def _start(pair: tuple[int, int]) -> int:
    return pair[1]
