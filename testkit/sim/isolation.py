"""The records of a fetch that a consumer delivers: with read_committed without aborted ones, as in Kafka's
clients.
"""

from __future__ import annotations

from typing import Any

from ottla.log.markers import decode_marker
from ottla.records.batch import CONTROL_BIT, HEADER, TRANSACTIONAL_BIT
from ottla.records.record import decode_batch, whole_batches


def delivered(row: Any, start: int, *, committed: bool) -> tuple[dict[int, bytes], int]:
    """The delivered values by offset, and the next position."""
    aborted = sorted((each.first_offset, each.producer_id) for each in row.aborted_transactions or ())
    inside: set[int] = set()
    values: dict[int, bytes] = {}
    at = start
    for batch in whole_batches(row.records or b""):
        header = HEADER.unpack_from(batch)
        last_offset, attributes, producer_id = header[0] + header[6], header[5], header[9]
        while committed and aborted and aborted[0][0] <= last_offset:
            inside.add(aborted.pop(0)[1])
        at = max(at, last_offset + 1)
        if attributes & CONTROL_BIT:
            marker = decode_marker(bytes(batch))
            if marker is not None and not marker.commit:
                inside.discard(producer_id)
        elif not (attributes & TRANSACTIONAL_BIT and producer_id in inside):
            values.update(
                (record.offset, record.value or b"")
                for record in decode_batch(batch)
                if record.offset >= start
            )
    return values, at
