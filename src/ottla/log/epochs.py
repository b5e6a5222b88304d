"""Which leader epoch wrote which offsets: (epoch, start offset) pairs, sorted (R1).

Kept beside the log in `leader-epoch-checkpoint`. The pairs are the truth by which replicas agree where their
histories part; a log asks `end_of(epoch)` to answer another replica, and `assign` when an epoch writes its first record.
"""

from __future__ import annotations

from ottla.log.checkpoints import parse_epochs, render_epochs


class LeaderEpochs:
    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[int, int]] | None = None) -> None:
        self.pairs = pairs or []

    @classmethod
    def parse(cls, data: bytes | None) -> LeaderEpochs | None:
        pairs = parse_epochs(data)
        return None if pairs is None or pairs != sorted(pairs) else cls(pairs)

    def render(self) -> bytes:
        return render_epochs(self.pairs)

    @property
    def latest(self) -> int:
        return self.pairs[-1][0] if self.pairs else -1

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` begins at this offset; True if that was news."""
        if self.pairs and self.pairs[-1][0] >= epoch:
            return False
        # An epoch that wrote nothing before the next one began has no offsets of its own.
        while self.pairs and self.pairs[-1][1] >= start_offset:
            self.pairs.pop()
        self.pairs.append((epoch, start_offset))
        return True

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest known epoch ≤ the one asked for, its end offset), or (-1, -1) if there is none."""
        if epoch == self.latest:
            return epoch, log_end_offset
        floor, end = -1, -1
        for known, start in self.pairs:
            if known > epoch:
                return (floor, start) if floor >= 0 else (-1, -1)
            floor, end = known, log_end_offset
        # Above everything we know: undefined, the caller must ask somebody newer.
        return (-1, -1) if epoch > self.latest else (floor, end)

    def epoch_of(self, offset: int) -> int:
        found = -1
        for epoch, start in self.pairs:
            if start > offset:
                break
            found = epoch
        return found

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
