"""Readers of a cluster: one that reads everything during the whole run, and fresh ones that read everything
at the end.

A reader asks each leader, with the epoch that it knows, for its partitions. Records that were read are
committed: they may never disappear or change, whoever leads later.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from testkit.checkers.partition import Anomaly
from testkit.sim.actors import RETRIABLE, Actor, Common
from testkit.sim.clients import Topic
from testkit.sim.fetched_rows import HighWatermarks, fetched_records

_WAIT_MS: Final = 500
Key = tuple[bytes, int]


class ClusterReader(Actor):
    def __init__(self, common: Common, name: str, *, pause_ms: int, wait_ms: int = _WAIT_MS) -> None:
        super().__init__(common, name)
        self._pause_ms = pause_ms
        self._wait_ms = wait_ms
        self.positions: dict[Key, int] = {}
        #: By partition and leader epoch.
        self._watermarks = HighWatermarks()
        #: Leaders with a fetch in flight.
        self._asked: dict[int, None] = {}
        self._pausing = False
        self.isolation_level = 0

    def begin(self) -> None:
        self.refresh(self._fetch)

    def wanted(self) -> list[tuple[Topic, int]]:
        return [(topic, at) for topic in self.common.live() for at in range(len(topic.partitions))]

    def topic_of(self, topic_id: bytes) -> Topic:
        return self.common.topics[topic_id]

    def is_finished(self) -> bool:
        return False

    def got(self, topic: Topic, partition: int, offset: int, value: bytes) -> None:
        topic.partitions[partition].read(offset, value)

    def _later(self, *, looks: bool) -> None:
        if self._pausing:
            return
        self._pausing = True

        def go_on() -> None:
            self._pausing = False
            self._fetch()

        self.later(self._pause_ms, (lambda: self.refresh(go_on)) if looks else go_on)

    def _fetch(self) -> None:
        """One request to each leader without one in flight."""
        if self.is_finished():
            return
        by_leader: dict[int, dict[bytes, list[dict[str, Any]]]] = {}
        is_unknown = False
        for topic, at in self.wanted():
            leader = self.leaders.get((topic.topic_id, at))
            if leader is None or leader.node_id < 0:
                is_unknown = True
                continue
            row = {
                "partition": at,
                "current_leader_epoch": leader.epoch,
                "fetch_offset": self.positions.setdefault((topic.topic_id, at), 0),
                "partition_max_bytes": 64 + self.world.below(4000),
            }
            by_leader.setdefault(leader.node_id, {}).setdefault(topic.topic_id, []).append(row)
        if is_unknown or not by_leader:
            self._later(looks=True)
        for node_id, topics in by_leader.items():
            if node_id not in self._asked:
                self._asked[node_id] = None
                self._ask_leader(node_id, topics)

    def _ask_leader(self, node_id: int, topics: dict[bytes, list[dict[str, Any]]]) -> None:
        epochs = {
            (topic_id, row["partition"]): row["current_leader_epoch"]
            for topic_id, rows in topics.items()
            for row in rows
        }
        offsets = {
            (topic_id, row["partition"]): row["fetch_offset"]
            for topic_id, rows in topics.items()
            for row in rows
        }

        def answered(response: Any | None) -> None:
            del self._asked[node_id]
            is_well = response is not None
            for topic_rows in response.responses if response is not None else ():
                topic = self.topic_of(topic_rows.topic_id.bytes)
                for row in topic_rows.partitions:
                    key = (topic.topic_id, row.partition_index)
                    if self.positions.get(key) == offsets[key]:
                        is_well &= self.take_row(topic, row, epochs[key], node_id)
            self._later(looks=not is_well)

        self.ask(
            node_id,
            ApiKey.FETCH,
            {
                "max_wait": self._wait_ms, "min_bytes": 1, "max_bytes": 500 + self.world.below(8000),
                "isolation_level": self.isolation_level,
                "session_id": 0, "session_epoch": -1, "rack_id": "", "forgotten_topics_data": [],
                "topics": [{"topic_id": key, "partitions": rows} for key, rows in topics.items()],
            },
            answered,
        )  # fmt: skip

    def take_row(self, topic: Topic, row: Any, epoch: int, node_id: int) -> bool:
        """Check one partition of a response; False if the metadata must be refreshed."""
        number, error = row.partition_index, row.error_code
        key, history = (topic.topic_id, number), topic.partitions[number]
        if error in RETRIABLE or not topic.live:
            return False
        position = self.positions[key]
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Anomaly(
                "lost-write",
                f"{history.name}: read up to {position}, now leader {node_id} of epoch {epoch} has "
                f"{row.log_start_offset} to {row.high_watermark}",
            )
        if error != 0:
            raise Anomaly("unexpected-error", f"{self.name}: {history.name}: {ErrorCode(error)!r}")
        self._watermarks.check((*key, epoch), row.high_watermark, history.name, f"in epoch {epoch}")
        for record in fetched_records(row, position, history.name):
            self.got(topic, number, record.offset, record.value or b"")
            position = record.offset + 1
        self.positions[key] = position
        return True


class FreshReader(ClusterReader):
    """Reads everything once: each partition from its start to its present end."""

    def __init__(self, common: Common, name: str, ends: dict[Key, int]) -> None:
        super().__init__(common, name, pause_ms=5)
        self._ends = ends
        self._logs: dict[Key, dict[int, bytes]] = {}
        self.done = False

    def wanted(self) -> list[tuple[Topic, int]]:
        return [
            (topic, at)
            for topic, at in super().wanted()
            if self.positions.get((topic.topic_id, at), 0) < self._ends.get((topic.topic_id, at), 0)
        ]

    def got(self, topic: Topic, partition: int, offset: int, value: bytes) -> None:
        super().got(topic, partition, offset, value)
        self._logs.setdefault((topic.topic_id, partition), {})[offset] = value

    def is_finished(self) -> bool:
        if not self.done and not self.wanted():
            self.done = True
            for topic in self.common.live():
                for at, history in enumerate(topic.partitions):
                    key = (topic.topic_id, at)
                    end = self._ends.get(key, 0)
                    if end < history.end_offset_min:
                        raise Anomaly(
                            "lost-write", f"{history.name} ends at {end}, not {history.end_offset_min}"
                        )
                    history.check_all(self._logs.get(key, {}), log_start_offset=0, end_offset=end)
        return self.done
