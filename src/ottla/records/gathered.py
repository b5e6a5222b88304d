"""Records collected by a producer, as columns, and their encoding as a batch.

A producer receives records one at a time and needs them as bytes once. As columns they cost one append each
and no object, and a batch is encoded by a few calls that run in C: the pieces of all records are placed in
one list, one column per stride, and joined. A record of 200 bytes takes 0.28 µs this way, and 0.50 µs in
`encode_batch`; 0.13 µs of that is the join. `encode_batch` handles rare cases: headers, null values, keys on
some records only, timestamps that change all the time. Both produce the same bytes.

Timestamps are stored as runs, because many records come in one millisecond: the index at which each run
starts, and the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice, repeat
from operator import add
from typing import Final

from ottla.records.compression import NONE
from ottla.records.record import Headers, Record, encode_batch, seal
from ottla.records.varint import VARINTS

#: Runs that are shorter on average are not worth a table each.
_RUN_MIN: Final = 8
#: Larger batches are encoded record by record, so that the table of deltas stays small.
_COUNT_MAX: Final = 1 << 16
_NUMBERS_KEPT_MAX: Final = 1 << 14


class _BeforeValues(dict[int, bytes]):
    """The bytes before a value of that length in a record without a key."""

    def __missing__(self, length: int) -> bytes:
        before = b"\1" + VARINTS[length]
        if length < _NUMBERS_KEPT_MAX:
            self[length] = before
        return before


class _Sizes(dict[int, int]):
    """The size of a key or value of that length, with its length field."""

    def __missing__(self, length: int) -> int:
        size = len(VARINTS[length]) + length
        if length < _NUMBERS_KEPT_MAX:
            self[length] = size
        return size


_BEFORE_VALUES: Final = _BeforeValues()
_SIZES: Final = _Sizes()
_DELTAS: Final[list[bytes]] = []


class Gathered:
    """Records in order of arrival. Appending and encoding must not overlap: callers use a lock."""

    __slots__ = ("_forgotten", "_headers", "_nulls", "_stamps", "_starts", "keys", "stamp_ms", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        #: None until the first key; then as long as the values.
        self.keys: list[bytes | None] | None = None
        #: The timestamp of the last record.
        self.stamp_ms: int | None = None
        self._forgotten = 0
        self._nulls = False
        self._headers: dict[int, Headers] = {}
        self._starts: list[int] = []
        self._stamps: list[int] = []

    def __len__(self) -> int:
        return len(self.values) or self._forgotten

    def forget(self) -> None:
        """Release the records; their count and timestamps stay available."""
        self._forgotten = len(self)
        self.values, self.keys, self._headers = [], None, {}

    def append(self, value: bytes | None, key: bytes | None, headers: Headers, timestamp_ms: int) -> int:
        """Add a record; returns its index."""
        values = self.values
        index = len(values)
        if timestamp_ms != self.stamp_ms:
            self._starts.append(index)
            self._stamps.append(timestamp_ms)
            self.stamp_ms = timestamp_ms
        if key is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * index
            self.keys.append(key)
        if headers:
            self._headers[index] = headers
        if value is None:
            self._nulls = True
        values.append(value)
        return index

    def timestamp_of(self, index: int) -> int:
        return self._stamps[bisect_right(self._starts, index) - 1]

    def timestamps(self) -> list[int]:
        """One for each record."""
        if len(self._starts) == 1:
            return self._stamps * len(self)
        found: list[int] = []
        for stamp, start, stop in zip(
            self._stamps, self._starts, [*self._starts[1:], len(self)], strict=True
        ):
            found += repeat(stamp, stop - start)
        return found

    def __iter__(self) -> Iterator[Record]:
        keys, headers = self.keys, self._headers
        for index, value in enumerate(self.values):
            key = None if keys is None else keys[index]
            yield Record(0, self.timestamp_of(index), key, value, headers.get(index, ()))

    def part(self, start: int, stop: int) -> Gathered:
        """The records from `start` to `stop`."""
        part = Gathered()
        for _, timestamp_ms, key, value, headers in islice(self, start, stop):
            part.append(value, key, headers, timestamp_ms)
        return part

    def encode(
        self,
        *,
        codec: int = NONE,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytes:
        """One batch of these records. There must be at least one. Offsets start at 0."""
        payload = self._payload()
        if payload is None:
            return encode_batch(
                self,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                transactional=transactional,
            )
        return seal(
            payload,
            count=len(self.values),
            base_timestamp=self._stamps[0],
            timestamp_max=max(self._stamps),
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )

    def _payload(self) -> bytes | None:
        """The records as in an uncompressed batch; None if they are not uniform enough."""
        values, keys = self.values, self.keys
        count = len(values)
        if (
            self._nulls
            or self._headers
            or not 0 < count <= _COUNT_MAX
            or len(self._starts) * _RUN_MIN > count
        ):
            return None
        if keys is not None and None in keys:
            return None
        # A record is: end of the previous one (no headers), length, attributes and timestamp | delta | key |
        # value.
        width = 4 if keys is None else 6
        pieces: list[bytes] = [b""] * (width * count + 1)
        lengths = list(map(len, values))  # type: ignore[arg-type]
        pieces[1:-1:width] = _deltas(count)
        pieces[width - 1 : -1 : width] = values  # type: ignore[assignment]
        if keys is None:
            pieces[2:-1:4] = map(_BEFORE_VALUES.__getitem__, lengths)
            sizes = list(map(_SIZES.__getitem__, lengths))
        else:
            key_lengths = list(map(len, keys))  # type: ignore[arg-type]
            pieces[2:-1:6] = map(VARINTS.__getitem__, key_lengths)
            pieces[3:-1:6] = keys  # type: ignore[assignment]
            pieces[4:-1:6] = map(VARINTS.__getitem__, lengths)
            sizes = list(map(add, map(_SIZES.__getitem__, key_lengths), map(_SIZES.__getitem__, lengths)))
        pieces[0:-1:width] = self._heads(sizes, 0 if keys else 1)
        pieces[0] = pieces[0][1:]
        pieces[-1] = b"\0"
        return b"".join(pieces)

    def _heads(self, sizes: list[int], null_keys: int) -> list[bytes]:
        """The bytes before the offset delta of each record, by the size of keys and values (a null key takes
        one byte).
        """
        count = len(sizes)
        base = self._stamps[0]
        heads: list[bytes] = []
        stamp = b"\0" + VARINTS[0]
        # Within a run the timestamp and the length of the delta are constant: one head per size.
        times = dict(zip(self._starts, self._stamps, strict=True))
        starts = sorted({*times, *(start for start in (1 << 6, 1 << 13) if start < count)})
        for start, stop in zip(starts, [*starts[1:], count], strict=True):
            if start in times:
                stamp = b"\0" + VARINTS[times[start] - base]
            run = sizes[start:stop]
            rest = len(stamp) + len(_DELTAS[start]) + null_keys + 1
            table = {size: b"\0" + VARINTS[rest + size] + stamp for size in set(run)}
            heads += map(table.__getitem__, run)
        return heads


def _deltas(count: int) -> list[bytes]:
    if len(_DELTAS) < count:
        _DELTAS.extend(VARINTS[delta] for delta in range(len(_DELTAS), count))
    return _DELTAS[:count]
