"""One assigned partition of a consumer: where it is read from, what is buffered for it, and where its caller is.

`position` is the next record for the caller, `fetch_offset` the next to ask for. The batch at the head of the queue stays there until
its last record is taken; `rows` is that batch, opened. A new generation begins with each seek, so that what was asked for or being made
before is dropped. `FetchBuffer` owns it, and its lock guards it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ottla.client.errors import KafkaError
from ottla.client.metadata import TopicPartition
from ottla.records.batch import CRC_START, TIMESTAMP_TYPE_BIT
from ottla.records.pieces import Piece, Rows


class FetchedBatch(NamedTuple):
    """A whole batch that was fetched; `end` is the offset after it."""

    data: memoryview
    base_offset: int
    end: int

    @property
    def timestamp_type(self) -> str:
        return "LogAppendTime" if self.data[CRC_START + 1] & TIMESTAMP_TYPE_BIT else "CreateTime"


class Partition:
    """One assigned partition. `reset` is where to start when `position` is None: a ListOffsets timestamp."""

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
        #: The leader epoch of the last batch that was fetched (KIP-320); -1: not known.
        self.last_epoch = -1
        #: The id of the topic that the position is in; None: not known.
        self.topic_id: bytes | None = None
        #: The replica to read from, and until when.
        self.preferred: tuple[int, float] | None = None
        self.generation = 0
        self.paused = False
        self.batches: deque[FetchedBatch] = deque()
        self.buffered_bytes = 0
        #: How many bytes had come for all partitions when this one got its last.
        self.fed_at = 0
        self.rows: Rows | None = None
        #: What is left of the batch at the head, when part of it was taken as columns.
        self.rest: Piece | None = None
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.not_before_ms = 0.0
        self.error: KafkaError | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there is something to take or to raise."""
        return self.error is not None or (bool(self.batches) and not self.paused)

    def clear(self) -> None:
        self.generation += 1
        self.batches.clear()
        self.buffered_bytes = 0
        self.rows = self.rest = None
        self.error = None
        self.not_before_ms = 0.0

    def drop_head(self) -> None:
        """The batch at the head is done with."""
        batch = self.batches.popleft()
        self.buffered_bytes -= len(batch.data)
        self.rows = self.rest = None
        # Control records and gaps of compaction at the end of what was fetched are behind the caller too.
        self.position = batch.end if self.batches else self.fetch_offset
