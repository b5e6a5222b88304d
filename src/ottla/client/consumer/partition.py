"""One assigned partition of a consumer: its fetch offset, its buffer, and the caller's position.

`position` is the next record for the caller, `fetch_offset` the next one to fetch. The first batch of the
queue stays until its last record is taken; `rows` is that batch, decoded. Each seek starts a new generation,
so that older fetches and records are dropped. Owned by `FetchBuffer`, whose lock guards it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ottla.client.errors import KafkaError
from ottla.client.metadata import TopicPartition
from ottla.records.batch import CRC_START, TIMESTAMP_TYPE_BIT
from ottla.records.pieces import Piece, Rows


class FetchedBatch(NamedTuple):
    """A complete fetched batch; `end` is the offset after it."""

    data: memoryview
    base_offset: int
    end: int

    @property
    def timestamp_type(self) -> str:
        return "LogAppendTime" if self.data[CRC_START + 1] & TIMESTAMP_TYPE_BIT else "CreateTime"


class Partition:
    """One assigned partition. `reset` is the start if `position` is None: a ListOffsets timestamp."""

    __slots__ = (
        "batches",
        "buffered_bytes",
        "error",
        "fed_at",
        "fetch_offset",
        "generation",
        "high_watermark",
        "last_epoch",
        "last_stable_offset",
        "log_start_offset",
        "not_before_ms",
        "paused",
        "position",
        "preferred",
        "reset",
        "rest",
        "rows",
        "topic_id",
        "tp",
    )

    def __init__(self, tp: TopicPartition, reset: int | None) -> None:
        self.tp = tp
        self.reset = reset
        self.position: int | None = None
        self.fetch_offset = -1
        #: The leader epoch of the last fetched batch (KIP-320); -1: unknown.
        self.last_epoch = -1
        #: The topic id of the position; None: unknown.
        self.topic_id: bytes | None = None
        #: The preferred read replica, and until when to use it.
        self.preferred: tuple[int, float] | None = None
        self.generation = 0
        self.paused = False
        self.batches: deque[FetchedBatch] = deque()
        self.buffered_bytes = 0
        #: The total bytes fetched for all partitions when this one got its last.
        self.fed_at = 0
        self.rows: Rows | None = None
        #: The rest of the first batch, if a part of it was taken as columns.
        self.rest: Piece | None = None
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.not_before_ms = 0.0
        self.error: KafkaError | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there are records to take or an error to raise."""
        return self.error is not None or (bool(self.batches) and not self.paused)

    def clear(self) -> None:
        self.generation += 1
        self.batches.clear()
        self.buffered_bytes = 0
        self.rows = self.rest = None
        self.error = None
        self.not_before_ms = 0.0

    def drop_head(self) -> None:
        """Remove the first batch."""
        batch = self.batches.popleft()
        self.buffered_bytes -= len(batch.data)
        self.rows = self.rest = None
        # The position also moves past control records and compaction gaps at the end of the fetched data.
        self.position = batch.end if self.batches else self.fetch_offset
