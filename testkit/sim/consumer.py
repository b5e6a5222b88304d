"""Readers: a consumer that reads all partitions during the whole run, and an auditor that reads everything
again.

The consumer keeps its positions across crashes, so it notices when a record disappears or changes. An auditor
is created after each start. It reads every live partition from its start to the required end, looks up some
records by timestamp, and checks the topics.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.records.batch import HEADER
from ottla.records.record import whole_batches
from testkit.checkers.partition import Anomaly
from testkit.sim.clients import Client, Shared, Topic
from testkit.sim.fetched_rows import HighWatermarks, fetched_records
from testkit.sim.node import SimNode

_WAIT_MS: Final = 300
_TIMES_ASKED: Final = 3


class Reader(Client):
    def __init__(self, shared: Shared, name: str) -> None:
        super().__init__(shared, name)
        self.positions: dict[tuple[bytes, int], int] = {}
        self.starts: dict[tuple[bytes, int], int] = {}
        #: Of the present incarnation of the broker.
        self._watermarks = HighWatermarks()
        self._node: SimNode | None = None
        self._generation = 0

    def connected(self) -> None:
        self._generation += 1
        if self._node is not self.shared.node:
            self._node = self.shared.node
            self._watermarks.clear()
        self.fetch()

    def wanted(self) -> list[tuple[Topic, int]]:
        return [(topic, at) for topic in self.shared.live() for at in range(len(topic.partitions))]

    def fetch(self) -> None:
        wanted = self.wanted()
        if not wanted:
            self._fetch_later(_WAIT_MS)
            return
        by_topic: dict[bytes, list[dict[str, Any]]] = {}
        for topic, at in wanted:
            row = {
                "partition": at,
                "fetch_offset": self.positions.setdefault((topic.topic_id, at), 0),
                "partition_max_bytes": 64 + self.world.below(2000),
            }
            by_topic.setdefault(topic.topic_id, []).append(row)
        self.request(
            ApiKey.FETCH,
            {
                "max_wait": _WAIT_MS, "min_bytes": 1, "max_bytes": 200 + self.world.below(8000),
                "session_id": 0, "session_epoch": -1, "rack_id": "", "forgotten_topics_data": [],
                "topics": [{"topic_id": key, "partitions": rows} for key, rows in by_topic.items()],
            },
            self._fetched,
        )  # fmt: skip

    def _fetched(self, response: Any) -> None:
        pause_ms = 1
        for answered in response.responses:
            topic = self.shared.topics[answered.topic_id.bytes]
            for row in answered.partitions:
                if not self._take(topic, row):
                    pause_ms = 100
        if not self.finished():
            self._fetch_later(pause_ms)

    def _fetch_later(self, delay_ms: int) -> None:
        generation = self._generation

        def go_on() -> None:
            if self.is_connected and generation == self._generation:
                self.fetch()

        self.world.later(delay_ms, go_on)

    def finished(self) -> bool:
        return False

    def got(self, topic: Topic, partition: int, offset: int, value: bytes) -> None:
        topic.partitions[partition].read(offset, value)

    def skipped(self, key: tuple[bytes, int]) -> None:
        """The log start passed the position of this reader."""

    def _take(self, topic: Topic, row: Any) -> bool:
        """Check one partition of a response; False if it cannot be read now."""
        number, error = row.partition_index, row.error_code
        key, history = (topic.topic_id, number), topic.partitions[number]
        if error in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            if topic.live:
                raise Anomaly("topic-lost", f"{topic.name} {topic.topic_id.hex()} is unknown to the broker")
            return False
        if error == ErrorCode.KAFKA_STORAGE_ERROR:
            return False
        self.starts[key] = row.log_start_offset
        position = self.positions[key]
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            if position < row.log_start_offset:
                history.check_start(row.log_start_offset)
                self.positions[key] = row.log_start_offset
                self.skipped(key)
            elif history.is_durable:
                raise Anomaly(
                    "lost-write",
                    f"{history.name}: read up to {position}, now the log ends at {row.high_watermark}",
                )
            else:
                self.positions[key] = row.log_start_offset
            return True
        if error != 0:
            raise Anomaly("unexpected-error", f"{self.name}: {history.name}: {ErrorCode(error)!r}")
        self._watermarks.check(key, row.high_watermark, history.name, "from the same broker")
        for record in fetched_records(row, position, history.name, has_gaps=topic.is_compacted):
            self.got(topic, number, record.offset, record.value or b"")
            position = record.offset + 1
        if topic.is_compacted:
            # Compaction may have removed the last records of a batch, or all: its header has the last offset.
            for batch in whole_batches(row.records or b""):
                header = HEADER.unpack_from(batch)
                position = max(position, header[0] + header[6] + 1)
        self.positions[key] = position
        return True


class Consumer(Reader):
    """Reads everything."""


class Auditor(Reader):
    """Reads everything once, after a start; `done` when everything required was found."""

    def __init__(self, shared: Shared, name: str) -> None:
        super().__init__(shared, name)
        self.done = False
        self._logs: dict[tuple[bytes, int], dict[int, bytes]] = {}
        #: The required content: the present live topics and the ends of their partitions.
        self._topics = shared.live()
        self._ends = {
            (topic.topic_id, at): history.end_offset_min
            for topic in self._topics
            for at, history in enumerate(topic.partitions)
        }

    def wanted(self) -> list[tuple[Topic, int]]:
        return [
            (topic, at)
            for topic in self._topics
            if topic.live
            for at in range(len(topic.partitions))
            if self.positions.get((topic.topic_id, at), 0) < self._ends[topic.topic_id, at]
        ]

    def got(self, topic: Topic, partition: int, offset: int, value: bytes) -> None:
        super().got(topic, partition, offset, value)
        self._logs.setdefault((topic.topic_id, partition), {})[offset] = value

    def skipped(self, key: tuple[bytes, int]) -> None:
        self._logs.pop(key, None)

    def disconnected(self) -> None:
        # Its node is gone; the next one gets its own auditor.
        self.done = True

    def begin(self) -> None:
        if not self.done:
            super().begin()

    def fetch(self) -> None:
        if self.wanted():
            super().fetch()
        else:
            self._check()

    def finished(self) -> bool:
        if self.wanted():
            return False
        self._check()
        return True

    def _check(self) -> None:
        for topic in self._topics:
            if topic.live:
                for at, history in enumerate(topic.partitions):
                    key = (topic.topic_id, at)
                    history.check_all(
                        self._logs.get(key, {}),
                        log_start_offset=self.starts.get(key, 0),
                        end_offset=self._ends[key],
                    )
        self.request(ApiKey.METADATA, {"topics": None}, self._check_topics)

    def _check_topics(self, response: Any) -> None:
        known = {topic.topic_id.bytes for topic in response.topics if topic.topic_id is not None}
        for topic in self._topics:
            if topic.live and topic.topic_id not in known:
                raise Anomaly("topic-lost", f"{topic.name} {topic.topic_id.hex()} is not in the metadata")
        self._ask_for_times()

    def _ask_for_times(self) -> None:
        """Look up records by timestamp, to check the time index."""
        asked = []
        for topic in self._topics:
            for at, history in enumerate(topic.partitions):
                log = self._logs.get((topic.topic_id, at), {})
                offsets = sorted(offset for offset in log if offset >= history.start_max)
                if topic.live and offsets and not topic.is_compacted:
                    for _ in range(_TIMES_ASKED):
                        offset = offsets[self.world.below(len(offsets))]
                        asked.append((topic, at, offset, history.sent[log[offset]].timestamp_ms))
        for topic, at, offset, timestamp_ms in asked:
            self._ask_for_time(topic, at, offset, timestamp_ms)
        self.request(ApiKey.METADATA, {"topics": []}, lambda _: self._finish())

    def _ask_for_time(self, topic: Topic, at: int, offset: int, timestamp_ms: int) -> None:
        def answered(response: Any) -> None:
            row = response.topics[0].partitions[0]
            # Records may have been deleted since the request.
            is_there = topic.live and offset >= topic.partitions[at].start_max
            if is_there and row.error_code == 0 and not 0 <= row.offset <= offset:
                raise Anomaly(
                    "time-lookup",
                    f"{topic.partitions[at].name} offset {offset} has time {timestamp_ms}, found {row.offset}",
                )

        partitions = [{"partition_index": at, "timestamp": timestamp_ms}]
        self.request(
            ApiKey.LIST_OFFSETS,
            {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [{"name": topic.name, "partitions": partitions}],
            },
            answered,
        )

    def _finish(self) -> None:
        self.world.log(f"{self.name}: everything is there")
        self.done = True
        self.hang_up()
