"""The batches of a fetch that a consumer skips: control batches, and batches of aborted transactions
(read_committed).

A read_committed Fetch stops at the last stable offset and lists the aborted transactions in it: a producer id
and the first offset of each. From that offset on, the producer's transactional batches are aborted, until its
abort marker. One filter serves one partition of one response and gets the batches in log order. The CRC of a
batch is checked before it is skipped.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Final

from ottla.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from ottla.records.record import CorruptRecords, decode_batch

#: The key of a control record: version and type.
_CONTROL_KEY: Final = struct.Struct(">hh")
_ABORT: Final = 0


class Unwanted:
    """Decides for each batch in turn whether to skip it. `aborted` holds (first offset, producer id)."""

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        self._coming = deque(sorted(aborted))
        self._producers: set[int] = set()

    def has(self, batch: memoryview, attributes: int, producer_id: int, last_offset: int) -> bool:
        while self._coming and self._coming[0][0] <= last_offset:
            self._producers.add(self._coming.popleft()[1])
        if attributes & CONTROL_BIT:
            if producer_id in self._producers and _is_abort(batch):
                self._producers.discard(producer_id)
            return True
        return bool(attributes & TRANSACTIONAL_BIT) and producer_id in self._producers


def _is_abort(batch: memoryview) -> bool:
    try:
        key = decode_batch(batch, check_crc=False)[0].key
        return key is not None and _CONTROL_KEY.unpack_from(key)[1] == _ABORT
    except (CorruptRecords, IndexError, struct.error):
        return False
