"""Arrow batches into Kafka record batches, one open batch a partition: what a task does with its rows.

It touches no network: who asks for it says how many partitions a topic has, and takes each batch as it is full. Rows keep their order within a
partition. A row without partition and key goes to the task's partition of the moment, which changes with every Arrow batch, so that batches
are full and partitions alike. Every record has the time at which its Arrow batch was encoded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.errors import MessageTooLarge
from ottla.records.record import seal
from ottla.records.varint import VARINTS
from ottla.spark.topic_sink import layout
from ottla.spark.topic_sink.layout import Bytes
from ottla.spark.topic_sink.plan import Plan

#: numba takes half a second to load: a process that never encodes more than this does without.
PURE_ROWS: Final = 20_000
#: A batch is closed at this many records, though they are small.
RECORDS_MAX: Final = 1 << 20

_log = logging.getLogger("ottla.spark")


class RowError(ValueError):
    """A row that cannot be written, and why."""


class EncodedBatch(NamedTuple):
    """A record batch, ready to be sent, and where it belongs."""

    topic: str
    partition: int
    batch: bytes


class Twin(Protocol):
    """What `layout.py` and `layout_compiled.py` both are."""

    def lay_out(
        self,
        rows: Any,
        start: int,
        keys: Bytes,
        values: Bytes,
        headers: Bytes,
        stamp_delta: int,
        first_delta: int,
        out: Any,
        position: int,
        limit: int,
    ) -> tuple[int, int]: ...

    def choose(self, rows: Any, keys: Bytes, count: int, spread: int, out: Any) -> None: ...


class _LayoutChoice:
    """The twin of this process: the pure one until there is enough to do."""

    def __init__(self) -> None:
        self.twin: Twin = cast(Twin, layout)
        self._rows = 0

    def of(self, rows: int) -> Twin:
        before, self._rows = self._rows, self._rows + rows
        if before <= PURE_ROWS < self._rows:
            try:
                self.twin = cast(Twin, import_module("ottla.spark.topic_sink.layout_compiled"))
            except Exception as error:
                _log.warning("numba fails (%s): rows are encoded in pure Python", error)
        return self.twin


_chosen = _LayoutChoice()


class _OpenBatch:
    """A batch that is being filled."""

    __slots__ = ("buffer", "count", "first_ms", "last_ms", "size")

    def __init__(self, room: int) -> None:
        self.buffer = np.empty(room, np.uint8)
        self.size = self.count = 0
        self.first_ms = self.last_ms = 0

    def taken(self, codec: int) -> bytes:
        """The batch; from now on it is empty."""
        sealed = seal(
            self.buffer[: self.size].tobytes(),
            count=self.count,
            base_timestamp=self.first_ms,
            timestamp_max=self.last_ms,
            codec=codec,
        )
        self.size = self.count = 0
        return sealed


class Encoder:
    """`partitions_of` tells how many partitions a topic has; `emit` is handed each batch. `start` is where rows without a key begin."""

    def __init__(
        self,
        plan: Plan,
        partitions_of: Callable[[str], int],
        emit: Callable[[EncodedBatch], object],
        start: int,
        twin: Twin | None = None,
    ) -> None:
        self._plan = plan
        self._partitions_of = partitions_of
        self._emit = emit
        self._turn = start
        self._twin = twin
        self._open: dict[tuple[str, int], _OpenBatch] = {}
        self.rows = 0

    def add(self, batch: Any, now_ms: int) -> None:
        """Encode a `pyarrow.RecordBatch` with the columns of the plan."""
        rows = batch.num_rows
        if not rows:
            return
        twin = _chosen.of(rows) if self._twin is None else self._twin
        columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        used = self._plan.columns
        keys = _bytes(columns["key"]) if "key" in used else _nothing(rows)
        values = _bytes(columns["value"])
        headers = _headers(columns["headers"]) if "headers" in used else _nothing(rows)
        places = _partitions(columns["partition"]) if "partition" in used else np.full(rows, -1, np.int64)
        for topic, of_topic in self._topics(columns.get("topic"), rows):
            self._place(topic, of_topic, keys, places, twin)
            for partition, picked in _groups(places[of_topic]):
                self._fill(topic, partition, of_topic[picked], (keys, values, headers), now_ms, twin)
        self._turn += 1
        self.rows += rows

    def close(self) -> None:
        """Hand out what is not full."""
        for (topic, partition), each in self._open.items():
            if each.count:
                self._emit(EncodedBatch(topic, partition, each.taken(self._plan.codec)))
        self._open.clear()

    def _topics(self, column: Any, rows: int) -> list[tuple[str, Any]]:
        """Each topic with its rows."""
        if self._plan.topic is not None:
            return [(self._plan.topic, np.arange(rows))]
        if column.null_count:
            raise RowError("a row has no topic: set the option topic, or fill the column `topic`")
        encoded = column.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        names = encoded.dictionary.to_pylist()
        return [(name, np.flatnonzero(codes == code)) for code, name in enumerate(names)]

    def _place(self, topic: str, rows: Any, keys: Bytes, places: Any, twin: Twin) -> None:
        """Choose a partition where none is given, and check what is given."""
        count = self._partitions_of(topic)
        highest = int(places[rows].max())
        if highest >= count:
            raise RowError(
                f"a row is for partition {highest} of topic {topic!r}, which has {count}: 0 to {count - 1}"
            )
        twin.choose(rows, keys, count, self._turn % count, places)

    def _fill(
        self,
        topic: str,
        partition: int,
        rows: Any,
        columns: tuple[Bytes, Bytes, Bytes],
        now_ms: int,
        twin: Twin,
    ) -> None:
        plan = self._plan
        at = self._open.get((topic, partition))
        if at is None:
            at = self._open[topic, partition] = _OpenBatch(plan.batch_bytes)
        start = 0
        while start < len(rows):
            if not at.count:
                at.first_ms = at.last_ms = now_ms
            # The clock may have been set back meanwhile; a delta is not negative here.
            stamp_ms = max(now_ms, at.first_ms)
            done, at.size = twin.lay_out(
                rows, start, *columns, stamp_ms - at.first_ms, at.count, at.buffer, at.size, len(at.buffer)
            )  # fmt: skip
            if done:
                at.last_ms = max(at.last_ms, stamp_ms)
            at.count += done
            start += done
            if start == len(rows) and at.count < RECORDS_MAX:
                return
            if at.count:
                self._emit(EncodedBatch(topic, partition, at.taken(plan.codec)))
            elif not done:
                at.buffer = np.empty(self._room_for(topic, columns, int(rows[start])), np.uint8)

    def _room_for(self, topic: str, columns: tuple[Bytes, Bytes, Bytes], row: int) -> int:
        """What a record takes that is larger than a batch should be."""
        size = 32 + sum(len(layout.cut(column, row) or b"") for column in columns)
        if size > self._plan.record_bytes:
            raise MessageTooLarge(
                f"a row of {size} bytes is over max.request.size ({self._plan.record_bytes})",
                topic=topic,
                advice="Raise the option kafka.max.request.size and max.message.bytes of the topic, or write less in a row",
            )
        return size


def _groups(places: Any) -> list[tuple[int, Any]]:
    """Each partition that occurs with its rows, in their order."""
    first = int(places[0])
    if (places == first).all():
        return [(first, slice(None))]
    # 16 bits are sorted by counting.
    order = np.argsort(places.astype(np.uint16) if int(places.max()) < 1 << 16 else places, kind="stable")
    ordered = places[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(ordered)) + 1))
    return [
        (int(ordered[start]), rows) for start, rows in zip(starts, np.split(order, starts[1:]), strict=True)
    ]


def _bytes(column: Any) -> Bytes:
    """Texts and bytes as they stand in Arrow's buffers."""
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    _, offsets, data = column.buffers()
    kind: Any = np.int64 if wide else np.int32
    count = len(column)
    places = (
        np.frombuffer(offsets, kind, count + 1, column.offset * kind().itemsize) if count else np.zeros(1)
    )
    return Bytes(
        places.astype(np.int64, copy=False),
        np.frombuffer(data if data is not None and len(data) else b"\0", np.uint8),
        _valid(column),
    )


def _valid(column: Any) -> Any:
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    return np.ascontiguousarray(pc.is_valid(column).to_numpy(zero_copy_only=False))


def _nothing(rows: int) -> Bytes:
    return Bytes(np.zeros(rows + 1, np.int64), np.zeros(1, np.uint8), np.zeros(rows, np.bool_))


def _partitions(column: Any) -> Any:
    """The partition of each row, -1 where the sink is to choose. A copy, to be filled."""
    given = np.array(column.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
    below = int(given.min()) if len(given) else 0
    if below < -1 or (below == -1 and int((given == -1).sum()) != column.null_count):
        raise RowError(
            f"a row is for partition {below}: partitions count from 0; leave it null to have one chosen"
        )
    return given


def _headers(column: Any) -> Bytes:
    """Headers as they stand in a record: their count, then name and value of each."""
    made: list[bytes | None] = []
    for row in column.to_pylist():
        if not row:
            made.append(None)
            continue
        parts = [VARINTS[len(row)]]
        for header in row:
            name, content = header["key"], header["value"]
            if name is None:
                raise RowError("a header has no key: give it one, or leave the header out")
            key = name.encode()
            parts += (VARINTS[len(key)], key)
            parts += (b"\1",) if content is None else (VARINTS[len(content)], content)
        made.append(b"".join(parts))
    return _bytes(pa.array(made, pa.binary()))
