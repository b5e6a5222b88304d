"""Appending fetched batches on a follower: the leader's batches, unchanged, at the leader's offsets.

Only integrity is checked: length, magic, CRC, and that offsets increase. Producer state, transactions and
leader epochs are updated from the batches, so that this replica can become leader at any time (R1, R14).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from ottla.log.markers import replay_marker
from ottla.log.replay import ATTRIBUTES, BASE, DELTA, EPOCH, MAX_TIMESTAMP, PRODUCER, replay_producer
from ottla.model.errors import ErrorCode, Refusal
from ottla.records.batch import CONTROL_BIT, CRC_START, HEADER, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


def append_fetched(log: PartitionLog, records: bytes, now_ms: int) -> int:
    """Write the complete batches of a fetch response; returns their number. An incomplete last batch is
    ignored.

    Raises Refusal at the first batch that is damaged, out of order, or cannot be written. The batches before
    it are in the log.
    """
    view = memoryview(records)
    at, end, count = 0, len(records), 0
    while end - at >= HEADER_BYTES:
        header = HEADER.unpack_from(records, at)
        size = header[1] + LENGTH_OVERHEAD
        if header[3] != MAGIC or size < HEADER_BYTES:
            raise Refusal(
                ErrorCode.CORRUPT_MESSAGE,
                f"the leader's response has an invalid batch at offset {header[BASE]}",
            )
        if size > end - at:
            break
        batch = view[at : at + size]
        at += size
        last_offset = header[BASE] + header[DELTA]
        if last_offset < log.next_offset:
            # The response starts with the batch that contains the fetch offset. Batches that are in the log
            # already are skipped.
            continue
        if header[BASE] < log.next_offset:
            raise Refusal(
                ErrorCode.CORRUPT_MESSAGE,
                f"the leader's batch at {header[BASE]} overlaps the end {log.next_offset} of this log",
            )
        if crc32c(batch[CRC_START:]) != header[4]:
            raise Refusal(
                ErrorCode.CORRUPT_MESSAGE,
                f"the CRC of the leader's batch at {header[BASE]} does not match its content",
            )
        log.write(
            batch, size, last_offset, header[MAX_TIMESTAMP], header[EPOCH], now_ms, -1, base_offset=header[BASE]
        )  # fmt: skip
        if header[PRODUCER] >= 0:
            if header[ATTRIBUTES] & CONTROL_BIT:
                producer_id, epoch = header[PRODUCER], header[PRODUCER + 1]
                aborted = replay_marker(log.producers, bytes(batch), producer_id, epoch, header[BASE], now_ms)
                if aborted is not None:
                    log.note_aborted(log.active, aborted)
            else:
                replay_producer(log.producers, header, now_ms)
        count += 1
    return count
