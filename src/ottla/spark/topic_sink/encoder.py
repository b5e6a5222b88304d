"""Encodes Arrow batches as Kafka record batches, with one open batch per partition.

No network access: the caller provides partition counts and receives each full batch. Rows keep their order
within a partition. Rows without partition and key go to one partition, which changes with every Arrow batch,
so that batches are full and partitions are balanced. The timestamp of a record is the time when its Arrow
batch was encoded.
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

#: numba takes 0.5 s to load. A process that encodes fewer rows does not load it.
PURE_ROWS: Final = 20_000
#: A batch is closed at this number of records, even if they are small.
RECORDS_MAX: Final = 1 << 20

_log = logging.getLogger("ottla.spark")


class RowError(ValueError):
    """A row cannot be written."""


class EncodedBatch(NamedTuple):
    """An encoded record batch and its partition."""

    topic: str
    partition: int
    batch: bytes


class Twin(Protocol):
    """The interface of `layout.py` and `layout_compiled.py`."""

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
    """The layout module of this process: the pure one until enough rows were encoded."""

    def __init__(self) -> None:
        self.twin: Twin = cast(Twin, layout)
        self._rows = 0

    def of(self, rows: int) -> Twin:
        before, self._rows = self._rows, self._rows + rows
        if before <= PURE_ROWS < self._rows:
            try:
                self.twin = cast(Twin, import_module("ottla.spark.topic_sink.layout_compiled"))
            except Exception as error:
                _log.warning("numba cannot be loaded (%s): rows are encoded in pure Python", error)
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
        """Return the encoded batch, and empty the buffer."""
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
    """Encodes the rows of one task.

    `partitions_of` returns the partition count of a topic; `emit` receives each batch. `start` selects the
    first partition of rows without a key.
    """

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
        """Emit the batches that are not full."""
        for (topic, partition), each in self._open.items():
            if each.count:
                self._emit(EncodedBatch(topic, partition, each.taken(self._plan.codec)))
        self._open.clear()

    def _topics(self, column: Any, rows: int) -> list[tuple[str, Any]]:
        """The rows of each topic."""
        if self._plan.topic is not None:
            return [(self._plan.topic, np.arange(rows))]
        if column.null_count:
            raise RowError("a row has no topic: set the option topic, or fill the column `topic`")
        encoded = column.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        names = encoded.dictionary.to_pylist()
        return [(name, np.flatnonzero(codes == code)) for code, name in enumerate(names)]

    def _place(self, topic: str, rows: Any, keys: Bytes, places: Any, twin: Twin) -> None:
        """Check given partitions, and choose the missing ones."""
        count = self._partitions_of(topic)
        highest = int(places[rows].max())
        if highest >= count:
            raise RowError(
                f"a row has partition {highest}, but topic {topic!r} has {count}: use 0 to {count - 1}"
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
            # The clock may have been set back; timestamp deltas are never negative here.
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
        """The buffer size for a record that is larger than a batch."""
        size = 32 + sum(len(layout.cut(column, row) or b"") for column in columns)
        if size > self._plan.record_bytes:
            raise MessageTooLarge(
                f"a row of {size} bytes exceeds max.request.size ({self._plan.record_bytes})",
                topic=topic,
                advice="Raise the option kafka.max.request.size and the topic's max.message.bytes, "
                "or write smaller rows",
            )
        return size


def _groups(places: Any) -> list[tuple[int, Any]]:
    """The rows of each partition, in their order."""
    first = int(places[0])
    if (places == first).all():
        return [(first, slice(None))]
    # numpy sorts 16-bit integers with radix sort.
    order = np.argsort(places.astype(np.uint16) if int(places.max()) < 1 << 16 else places, kind="stable")
    ordered = places[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(ordered)) + 1))
    return [
        (int(ordered[start]), rows) for start, rows in zip(starts, np.split(order, starts[1:]), strict=True)
    ]


def _bytes(column: Any) -> Bytes:
    """The Arrow buffers of a string or binary column."""
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
    """A copy of the partition of each row; -1 if the sink chooses it."""
    given = np.array(column.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
    below = int(given.min()) if len(given) else 0
    if below < -1 or (below == -1 and int((given == -1).sum()) != column.null_count):
        raise RowError(f"a row has partition {below}: partitions start at 0; use null to let the sink choose")
    return given


def _headers(column: Any) -> Bytes:
    """Encode headers as in a record: the count, then name and value of each."""
    made: list[bytes | None] = []
    for row in column.to_pylist():
        if not row:
            made.append(None)
            continue
        parts = [VARINTS[len(row)]]
        for header in row:
            name, content = header["key"], header["value"]
            if name is None:
                raise RowError("a header has no key: set its key, or drop the header")
            key = name.encode()
            parts += (VARINTS[len(key)], key)
            parts += (b"\1",) if content is None else (VARINTS[len(content)], content)
        made.append(b"".join(parts))
    return _bytes(pa.array(made, pa.binary()))
