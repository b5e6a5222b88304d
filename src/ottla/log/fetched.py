"""What a follower does with what it fetched: the leader's batches, as they are, at the leader's offsets.

Nothing is decided here but whether the bytes are whole: length, magic, CRC, and that each batch comes after
the one before it. Producers, transactions and leader epochs follow the batches, so that this replica could
lead at any moment (R1, R14).
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
    """Write the whole batches of a fetch's answer; returns how many there were. The last one may be cut, and
    is left out.

    Raises Refusal at the first that is damaged, out of place, or cannot be written; those before it are in
    the log.
    """
    view = memoryview(records)
    at, end, count = 0, len(records), 0
    while end - at >= HEADER_BYTES:
        header = HEADER.unpack_from(records, at)
        size = header[1] + LENGTH_OVERHEAD
        if header[3] != MAGIC or size < HEADER_BYTES:
            raise Refusal(
                ErrorCode.CORRUPT_MESSAGE, f"the leader sent what is no batch at offset {header[BASE]}"
            )
        if size > end - at:
            break
        batch = view[at : at + size]
        at += size
        last_offset = header[BASE] + header[DELTA]
        if last_offset < log.next_offset:
            # The answer begins with the batch that holds the offset asked for; of one that is here nothing is
            # wanted.
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
