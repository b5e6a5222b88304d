"""The records of a batch while they gather, column by column, and the batch that they become: the producer's
side.

A producer takes records one at a time and needs them as bytes once. Kept as columns they cost an append each,
no object of their own, and a whole batch is encoded by a handful of calls that run in C: the pieces of all
records are laid out in one list, a column at a stride, and joined. A record of 200 bytes takes 0.28 µs so,
0.50 in `encode_batch`; of that 0.13 is the join, which compiled code would need too. What is rare goes to
`encode_batch`: headers, null values, keys on some records only, timestamps that change all the time. Both
make the same bytes.

Timestamps are kept as runs, since records come many in a millisecond: the index at which each begins, and the
time.
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

#: Runs of fewer records than this on average are not worth a table each.
_RUN_MIN: Final = 8
#: Batches of more records than this are encoded one by one, so that the table of deltas stays small.
_COUNT_MAX: Final = 1 << 16
_NUMBERS_KEPT_MAX: Final = 1 << 14


class _BeforeValues(dict[int, bytes]):
    """What stands before a value of that length in a record without a key."""

    def __missing__(self, length: int) -> bytes:
        before = b"\1" + VARINTS[length]
        if length < _NUMBERS_KEPT_MAX:
            self[length] = before
        return before


class _Sizes(dict[int, int]):
    """What a key or a value of that length takes, with its length."""

    def __missing__(self, length: int) -> int:
        size = len(VARINTS[length]) + length
        if length < _NUMBERS_KEPT_MAX:
            self[length] = size
        return size


_BEFORE_VALUES: Final = _BeforeValues()
_SIZES: Final = _Sizes()
_DELTAS: Final[list[bytes]] = []


class Gathered:
    """Records in the order in which they came. Whoever appends and whoever encodes take turns by a lock of
    their own.
    """

    __slots__ = ("_forgotten", "_headers", "_nulls", "_stamps", "_starts", "keys", "stamp_ms", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        #: None until the first key comes; then as long as the values.
        self.keys: list[bytes | None] | None = None
        #: The timestamp of the last one.
        self.stamp_ms: int | None = None
        self._forgotten = 0
        self._nulls = False
        self._headers: dict[int, Headers] = {}
        self._starts: list[int] = []
        self._stamps: list[int] = []

    def __len__(self) -> int:
        return len(self.values) or self._forgotten

    def forget(self) -> None:
        """Let the records go; how many there were, and when, stays known."""
        self._forgotten = len(self)
        self.values, self.keys, self._headers = [], None, {}

    def append(self, value: bytes | None, key: bytes | None, headers: Headers, timestamp_ms: int) -> int:
        """Add a record; its index."""
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
        """The records between these."""
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
        """One batch of these records, of which there is at least one. Offsets are numbered from 0."""
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
        """The records as they stand in a batch without compression; None if they are not alike enough."""
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
        # A record is: the end of the one before (no headers), its length, attributes and timestamp | its
        # delta | key | value.
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
        """What stands before the delta of each record, for records whose keys and values take so much (a null
        key one byte).
        """
        count = len(sizes)
        base = self._stamps[0]
        heads: list[bytes] = []
        stamp = b"\0" + VARINTS[0]
        # Within a run timestamp and length of the delta are the same: one head for each size there is.
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
