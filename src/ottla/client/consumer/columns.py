"""Records as columns, for numeric work: the result of `poll_columns`.

No Python object per record is created until one is accessed. Offsets and timestamps are arrays of 64-bit
integers: numpy arrays if numpy is installed (`ottla[fast]`), else `array.array`. Keys and values are
`BytesColumn`s: one buffer and the start and end of each item, like Arrow's binary arrays. Deserializers are
not applied: `values_as` reads numbers of a fixed width.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Final, overload

from ottla.records.packed import Packed, Part, pack
from ottla.records.pieces import Integers, Piece, integers
from ottla.records.record import Headers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: The formats of `numbers`, as codes of the `array` module.
_CODES: Final = {
    "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f4": "f", "f8": "d",
}  # fmt: skip


class BytesColumn(Sequence["bytes | None"]):
    """Byte strings or None. An item is sliced when it is accessed; `to_list` slices all of them."""

    def __init__(self, data: bytes | memoryview, starts: Integers, ends: Integers) -> None:
        self.data = data
        self.starts = starts
        self.ends = ends

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, row: int) -> bytes | None: ...

    @overload
    def __getitem__(self, row: slice) -> BytesColumn: ...

    def __getitem__(self, row: int | slice) -> bytes | BytesColumn | None:
        if isinstance(row, slice):
            return BytesColumn(self.data, self.starts[row], self.ends[row])
        start, end = self.starts[row], self.ends[row]
        return None if end < start else bytes(self.data[start:end])

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self.to_list())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.to_list() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} byte strings>"

    def to_list(self) -> list[bytes | None]:
        data = bytes(self.data)
        return [
            None if end < start else data[start:end]
            for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        ]

    def numbers(self, form: str) -> Any:
        """Return every item as a number, in an array of the machine's byte order.

        `form` is a numpy format: `>i8` for Kafka's LongSerializer (and the SDK's `int`), `<f8` for a C
        double. A null, or an item of another width, raises ValueError with its row.
        """
        kind = form.lstrip("<>=|")
        if kind not in _CODES:
            raise ValueError(
                f"unknown number format {form!r}: write one of {', '.join(_CODES)}, with < or > in front"
            )
        width = int(kind[1:])
        self._demand_width(width)
        try:
            import numpy as np
        except ImportError:
            found = array(_CODES[kind], b"".join(self.to_list()))  # type: ignore[arg-type]
            if form[0] in "<>" and (form[0] == "<") != (sys.byteorder == "little"):
                found.byteswap()
            return found
        places = np.asarray(self.starts)[:, None] + np.arange(width)
        raw = np.frombuffer(self.data, np.uint8)[places]
        return raw.reshape(-1).view(form).astype(np.dtype(form).newbyteorder("="), copy=False)

    def _demand_width(self, width: int) -> None:
        try:
            import numpy as np
        except ImportError:
            lengths = [end - start for start, end in zip(self.starts, self.ends, strict=True)]
            wrong = next((row for row, length in enumerate(lengths) if length != width), -1)
        else:
            others = np.flatnonzero(np.asarray(self.ends) - np.asarray(self.starts) != width)
            wrong = int(others[0]) if len(others) else -1
        if wrong >= 0:
            there = self[wrong]
            what = "null" if there is None else f"{len(there)} bytes wide"
            raise ValueError(f"row {wrong} is {what}, not {width} bytes")


class Columns:
    """Records of one partition, column by column. `len()` is their number; `headers` has a tuple for each."""

    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]

    def __init__(
        self, topic: str, partition: int, pieces: Sequence[Piece], pack: Callable[[list[Part]], Packed] = pack
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offsets = _joined([piece.offsets for piece in pieces])
        self.timestamps = _joined([piece.timestamps for piece in pieces])
        self._pieces = pieces
        self._pack = pack
        self._keys: BytesColumn | None = None
        self._values: BytesColumn | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        where = f"{self.topic}-{self.partition}"
        if not len(self):
            return f"<no records of {where}>"
        return f"<{len(self)} records of {where}, offsets {self.offsets[0]} to {self.offsets[-1]}>"

    @property
    def keys(self) -> BytesColumn:
        if self._keys is None:
            self._keys = _column(
                [(piece.key_data, piece.key_starts, piece.key_ends) for piece in self._pieces]
            )
        return self._keys

    @property
    def values(self) -> BytesColumn:
        if self._values is None:
            self._values = _column(
                [(piece.value_data, piece.value_starts, piece.value_ends) for piece in self._pieces]
            )
        return self._values

    @property
    def headers(self) -> list[Headers]:
        found: list[Headers] = []
        for piece in self._pieces:
            found += [()] * len(piece.offsets) if piece.headers is None else list(piece.headers)
        return found

    def keys_as(self, form: str) -> Any:
        """The keys as numbers: see `values_as`."""
        return self.keys.numbers(form)

    def values_as(self, form: str) -> Any:
        """The values as an array of numbers: `>i8` is the format of Kafka's LongSerializer."""
        return self.values.numbers(form)

    @property
    def append_times(self) -> list[tuple[int, bool]]:
        """Runs of rows, each with whether the broker (LogAppendTime) or the producer set the timestamps."""
        return [
            (sum(len(piece.offsets) for piece in run), is_append_time)
            for is_append_time, run in groupby(self._pieces, key=lambda piece: piece.is_append_time)
        ]

    def keys_to_arrow(self) -> Any:
        """The keys as a pyarrow BinaryArray."""
        return self._binary([(piece.key_data, piece.key_starts, piece.key_ends) for piece in self._pieces])

    def values_to_arrow(self) -> Any:
        """The values as a pyarrow BinaryArray."""
        return self._binary(
            [(piece.value_data, piece.value_starts, piece.value_ends) for piece in self._pieces]
        )

    def _binary(self, parts: list[Part]) -> Any:
        import pyarrow as pa

        packed = self._pack(parts)
        buffers = [
            None if each is None else pa.py_buffer(each)
            for each in (packed.validity, packed.offsets, packed.data)
        ]
        return pa.Array.from_buffers(pa.binary(), packed.rows, buffers, packed.nulls)

    def to_arrow(self) -> Any:
        """A pyarrow RecordBatch: offset, timestamp (in ms, UTC), key and value. Needs pyarrow."""
        import pyarrow as pa

        return pa.record_batch(
            {
                "offset": pa.array(self.offsets, pa.int64()),
                "timestamp": pa.array(self.timestamps, pa.int64()).cast(pa.timestamp("ms", "UTC")),
                "key": self.keys_to_arrow(),
                "value": self.values_to_arrow(),
            }
        )


def _joined(parts: Sequence[Integers]) -> Integers:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], array):
        return array("q", b"".join(part.tobytes() for part in parts))
    import numpy as np

    return np.concatenate(parts)


def _column(parts: Sequence[tuple[bytes | memoryview, Integers, Integers]]) -> BytesColumn:
    """Concatenate the columns of the batches: the buffers one after the other, with adjusted positions."""
    if len(parts) == 1:
        return BytesColumn(*parts[0])
    data, bases = _together([data for data, _, _ in parts])
    return BytesColumn(
        data,
        _joined([_moved(starts, base) for (_, starts, _), base in zip(parts, bases, strict=True)]),
        _joined([_moved(ends, base) for (_, _, ends), base in zip(parts, bases, strict=True)]),
    )


def _together(buffers: Sequence[bytes | memoryview]) -> tuple[bytes | memoryview, list[int]]:
    """One buffer with all parts, and the start of each: the buffer that they are all views of, if there is
    one.

    Uncompressed batches of one response are such views: then nothing is copied.
    """
    first = buffers[0]
    if isinstance(first, memoryview) and all(
        isinstance(each, memoryview) and each.obj is first.obj for each in buffers
    ):
        import numpy as np

        whole = memoryview(first.obj).cast("B")
        at = [np.frombuffer(each, np.uint8).__array_interface__["data"][0] for each in (whole, *buffers)]
        begin, end = min(at[1:]), max(place + len(each) for place, each in zip(at[1:], buffers, strict=True))
        return whole[begin - at[0] : end - at[0]], [place - begin for place in at[1:]]
    return b"".join(buffers), [0, *accumulate(len(each) for each in buffers[:-1])]


def _moved(places: Integers, by: int) -> Integers:
    return integers([place + by for place in places]) if isinstance(places, array) else places + by
