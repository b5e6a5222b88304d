"""Checker of committed offsets: the offset of one group and partition is a register that members write and
anybody reads.

Every commit has unique metadata, so a read shows which commit it saw. A commit is begun, and then
acknowledged, refused or never answered. A commit without an answer may take effect at any time after it was
begun, and has taken effect once a read saw it. A read may see a commit only if no later one is known to have
taken effect before the read began: an acknowledged or seen offset never goes back by itself
(offset-regression). Deleting an offset is a write of nothing. Pure; time is the order of calls.
"""

from __future__ import annotations

from bisect import bisect_right

from testkit.checkers.partition import Anomaly


class _Write:
    __slots__ = ("begun", "done", "offset", "refused", "text")

    def __init__(self, text: str | None, offset: int, begun: int) -> None:
        self.text = text
        self.offset = offset
        self.begun = begun
        #: When it was known to have taken effect.
        self.done: int | None = None
        self.refused = False


class OffsetHistory:
    def __init__(self, name: str) -> None:
        self.name = name
        self._clock = 0
        nothing = _Write(None, -1, 0)
        nothing.done = 0
        self._commits: dict[str, _Write] = {}
        self._removals = [nothing]
        #: Writes in the order in which they were known to have taken effect: when, and the latest start so
        #: far.
        self._done_at = [0]
        self._floors = [0]

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    # --- writing ------------------------------------------------------------------------------------------------

    def commit(self, text: str, offset: int) -> _Write:
        """A commit begins."""
        assert text not in self._commits, f"{text!r} is committed twice"
        write = self._commits[text] = _Write(text, offset, self._tick())
        return write

    def remove(self) -> _Write:
        """A deletion of the offset begins."""
        write = _Write(None, -1, self._tick())
        self._removals.append(write)
        return write

    def counts(self, write: _Write) -> None:
        """It was acknowledged."""
        if write.done is None:
            write.done = self._tick()
            self._done_at.append(write.done)
            self._floors.append(max(self._floors[-1], write.begun))

    def is_refused(self, write: _Write) -> None:
        """It was refused and never takes effect. Writes without an answer are not reported."""
        if write.done is not None:
            raise Anomaly("aborted-read", f"{self.name}: {write.text!r} was seen, and then it was refused")
        write.refused = True

    # --- reading ------------------------------------------------------------------------------------------------

    def ask(self) -> int:
        """A read begins; pass the number to `saw`."""
        return self._tick()

    def saw(self, asked: int, text: str | None, offset: int) -> None:
        """The response to a read: metadata and offset of a commit, or None and -1."""
        floor = self._floors[bisect_right(self._done_at, asked) - 1]
        if text is None:
            possible = [each for each in self._removals if not each.refused and not _is_before(each, floor)]
            if not possible:
                raise Anomaly(
                    "offset-regression", f"{self.name}: nothing is committed, yet {self._latest(asked)} was"
                )
            if len(possible) == 1:
                self.counts(possible[0])
            return
        write = self._commits.get(text)
        if write is None or write.offset != offset:
            raise Anomaly("foreign-offset", f"{self.name}: {offset} of {text!r}, which nobody committed here")
        if write.refused:
            raise Anomaly("aborted-read", f"{self.name}: {text!r} was refused, and is seen")
        if _is_before(write, floor):
            raise Anomaly(
                "offset-regression", f"{self.name}: {offset} of {text!r} is seen after {self._latest(asked)}"
            )
        self.counts(write)

    def _latest(self, asked: int) -> str:
        floor = self._floors[bisect_right(self._done_at, asked) - 1]
        writes = [*self._removals, *self._commits.values()]
        return next(f"{each.offset} of {each.text!r}" for each in writes if each.begun == floor)


def _is_before(write: _Write, floor: int) -> bool:
    """Whether it ended before the start of a write that took effect."""
    return write.done is not None and write.done < floor
