"""Readers of transactional topics, with read_committed and without, checked against the outcome of each
record in the logs.

Now and then they read again from an earlier position: aborted records must be filtered there too.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.model.errors import ErrorCode
from testkit.checkers.partition import Anomaly
from testkit.checkers.transactions import Log, Place
from testkit.sim.actors import RETRIABLE, Common
from testkit.sim.clients import Topic
from testkit.sim.cluster_reader import ClusterReader
from testkit.sim.isolation import delivered

_COMMITTED: Final = 1


class TransactionReader(ClusterReader):
    def __init__(
        self, common: Common, name: str, topics: dict[bytes, Topic], logs: dict[Place, Log], *, committed: bool, pause_ms: int
    ) -> None:  # fmt: skip
        super().__init__(common, name, pause_ms=pause_ms)
        self._topics = topics
        self._logs = logs
        self.isolation_level = _COMMITTED if committed else 0
        #: The end of each partition; None: read without end.
        self.ends: dict[Place, int] | None = None
        self.read = 0
        self._stable: dict[tuple[bytes, int, int], int] = {}

    def wanted(self) -> list[tuple[Topic, int]]:
        ends = self.ends
        return [
            (self._topics[place[0]], place[1])
            for place in self._logs
            if ends is None or self.positions.get(place, 0) < ends[place]
        ]

    def topic_of(self, topic_id: bytes) -> Topic:
        return self._topics[topic_id]

    def is_finished(self) -> bool:
        return (self.ends is not None and not self.wanted()) or (
            self.ends is None and not self.common.is_open
        )

    def take_row(self, topic: Topic, row: Any, epoch: int, node_id: int) -> bool:
        place = (topic.topic_id, row.partition_index)
        log, start = self._logs[place], self.positions[place]
        if row.error_code in RETRIABLE:
            return False
        if row.error_code:
            raise Anomaly(
                "unexpected-error",
                f"{self.name}: {log.name} from {start} by {node_id}: {ErrorCode(row.error_code)!r}",
            )
        stable, where = row.last_stable_offset, (*place, epoch)
        if not self._stable.get(where, 0) <= stable <= row.high_watermark:
            raise Anomaly(
                "watermark-regression",
                f"{log.name}: a last stable offset of {stable} after {self._stable.get(where, 0)} in epoch {epoch}, "
                f"with a high watermark of {row.high_watermark}",
            )
        self._stable[where] = stable
        committed = self.isolation_level == _COMMITTED
        values, end = delivered(row, start, committed=committed)
        bound = stable if committed else row.high_watermark
        if end > bound > start:
            raise Anomaly("above-watermark", f"{self.name}: {log.name} was read up to {end}, beyond {bound}")
        log.read(start, end, values, committed=committed)
        self.read += len(values)
        if self.ends is None and self.world.chance(0.05):
            end = self.world.below(end + 1)
        self.positions[place] = end
        return True
