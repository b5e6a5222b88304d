"""Record batches that are already encoded: they are sent as they are, with this producer's fields in their
headers.

A Spark task or a program that copies topics has whole batches, possibly compressed. Decoding them and calling
`send` for each record would cost a hundred times more than rewriting the 61 bytes of the header: producer id,
epoch, sequence, transactional bit and CRC. A `ReadyMade` takes the place of the records in a `ProducerBatch`,
so order, retries, sequence numbers and transactions work as for every batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from ottla.records.batch import CONTROL_BIT, CRC_START, HEADER, HEADER_BYTES, TRANSACTIONAL_BIT
from ottla.records.compression import NONE
from ottla.records.gathered import Gathered
from ottla.records.record import Record, decode_batch, read_header


class ReadyMade(Gathered):
    """One encoded batch. It must be complete; its offsets and producer id are ignored."""

    __slots__ = ("_count", "_encoded", "_timestamp_ms")

    def __init__(self, encoded: bytes | memoryview) -> None:
        super().__init__()
        header = read_header(encoded, check_crc=False)
        if header[5] & CONTROL_BIT:
            raise ValueError("a control batch cannot be sent: only brokers write control batches")
        self._encoded: bytes | memoryview = encoded
        self._timestamp_ms = header[7]
        self._count = header[-1]
        if self._count < 1:
            raise ValueError("a batch without records cannot be sent")

    def __len__(self) -> int:
        return self._count

    def forget(self) -> None:
        self._encoded = b""

    def timestamp_of(self, index: int) -> int:
        """The first timestamp, for every record: the records are not decoded."""
        return self._timestamp_ms

    def timestamps(self) -> list[int]:
        return [self._timestamp_ms] * self._count

    def __iter__(self) -> Iterator[Record]:
        return iter(decode_batch(self._encoded))

    def encode(
        self,
        *,
        codec: int = NONE,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytes:
        """The batch with this producer's fields. It stays compressed as it is, whatever `codec` says."""
        encoded = memoryview(self._encoded)
        offset, length, epoch, magic, _, attributes, delta, first_ms, last_ms, _, _, _, count = (
            HEADER.unpack_from(encoded)
        )
        attributes = attributes | TRANSACTIONAL_BIT if transactional else attributes & ~TRANSACTIONAL_BIT
        before = (offset, length, epoch, magic)
        after = (
            attributes, delta, first_ms, last_ms, producer_id, producer_epoch, base_sequence, count,
        )  # fmt: skip
        records = encoded[HEADER_BYTES:]
        crc = crc32c(records, crc32c(HEADER.pack(*before, 0, *after)[CRC_START:]))
        return b"".join((HEADER.pack(*before, crc, *after), records))
