"""Converts polled columns to Arrow batches for Spark.

Columns with one constant value are built once and reused.

No Python object is created per record, except for headers. Spark expects timestamps in microseconds.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from ottla.client.consumer.columns import Columns
from ottla.records.record import Headers

#: Timestamps beyond this many ms overflow in microseconds, and are clipped.
_MS_MAX: Final = (2**63 - 1) // 1000
#: The values of `timestampType` in Spark's connector.
CREATE_TIME, LOG_APPEND_TIME = 0, 1


class BatchMaker:
    """Builds the Arrow batches of one partition, in the columns of the source's schema."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int) -> None:
        self._schema = schema
        self._same: dict[str, tuple[Any, pa.Array]] = {
            "topic": (pa.scalar(topic, schema.field("topic").type), pa.nulls(0)),
            "partition": (pa.scalar(partition, pa.int32()), pa.nulls(0)),
            "create": (pa.scalar(CREATE_TIME, pa.int32()), pa.nulls(0)),
            "append": (pa.scalar(LOG_APPEND_TIME, pa.int32()), pa.nulls(0)),
        }

    def batch(self, columns: Columns) -> pa.RecordBatch:
        arrays = {
            "key": columns.keys_to_arrow(),
            "value": columns.values_to_arrow(),
            "topic": self._repeated("topic", len(columns)),
            "partition": self._repeated("partition", len(columns)),
            "offset": pa.array(np.asarray(columns.offsets), pa.int64()),
            "timestamp": _microseconds(columns.timestamps),
            "timestampType": self._timestamp_types(columns),
        }
        if "headers" in self._schema.names:
            arrays["headers"] = headers_array(columns.headers, self._schema.field("headers").type)
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._schema.names], schema=self._schema)

    def _repeated(self, name: str, rows: int) -> pa.Array:
        value, made = self._same[name]
        if len(made) < rows:
            made = pa.repeat(value, rows)
            self._same[name] = (value, made)
        return made.slice(0, rows)

    def _timestamp_types(self, columns: Columns) -> pa.Array:
        runs = columns.append_times
        arrays = [self._repeated("append" if is_append else "create", rows) for rows, is_append in runs]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _microseconds(timestamps_ms: Any) -> pa.Array:
    times = np.asarray(timestamps_ms)
    if len(times) and (times.max() > _MS_MAX or times.min() < -_MS_MAX):
        times = times.clip(-_MS_MAX, _MS_MAX)
    times = times * 1000
    return pa.Array.from_buffers(pa.timestamp("us", "UTC"), len(times), [None, pa.py_buffer(times)], 0)


def headers_array(rows: list[Headers], kind: pa.DataType) -> pa.Array:
    """Build the column of headers; null for a record without headers, as in Spark's connector."""
    counts = np.fromiter(map(len, rows), np.int32, len(rows))
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    flat = [header for row in rows for header in row]
    names = [name.encode("utf-8", "replace").decode() for name, _ in flat]
    struct = kind.value_type
    values = pa.StructArray.from_arrays(
        [pa.array(names, struct.field(0).type), pa.array([value for _, value in flat], struct.field(1).type)],
        fields=[struct.field(0), struct.field(1)],
    )
    return pa.ListArray.from_arrays(
        pa.array(offsets), values, type=kind, mask=pa.array(counts == 0) if len(rows) else None
    )
