"""Transaction markers: the control batches that end transactions, in Kafka's format.

    key     version i16 = 0 | type i16 (0 abort, 1 commit)
    value   version i16 = 0 | epoch of the transaction coordinator i32

`append_marker` implements `PartitionLog.append_marker`. `replay_marker` applies a marker from the file to
producer state.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.log.producers import Producers
from ottla.log.transactions import Ended
from ottla.model.limits import DECOMPRESSED_BYTES_MAX
from ottla.records.errors import CorruptRecords
from ottla.records.record import Record, decode_batch, encode_batch

if TYPE_CHECKING:
    from ottla.log.partition_log import Appended, PartitionLog

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1


class Marker(NamedTuple):
    commit: bool
    coordinator_epoch: int
    #: Whether its producer epoch is above that of the transaction it ends (transactions v2, KIP-890). Not
    #: stored in the batch.
    raises_epoch: bool = False


def encode_marker(
    marker: Marker, *, producer_id: int, producer_epoch: int, now_ms: int, append_time: bool = False
) -> bytes:
    key = _KEY.pack(_VERSION, _COMMIT if marker.commit else _ABORT)
    return encode_batch(
        [Record(0, now_ms, key, _VALUE.pack(_VERSION, marker.coordinator_epoch))],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        append_time_ms=now_ms if append_time else None,
    )


def decode_marker(batch: bytes) -> Marker | None:
    """The marker in a control batch; None if it is another control record, or compaction has emptied the
    batch.
    """
    try:
        records = decode_batch(batch, size_max=DECOMPRESSED_BYTES_MAX)
    except CorruptRecords:
        return None
    if not records:
        return None
    key, value = records[0].key or b"", records[0].value or b""
    if len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    # Later versions of key or value may have more fields at the end.
    kind = _KEY.unpack_from(key)[1]
    return Marker(kind == _COMMIT, _VALUE.unpack_from(value)[1]) if kind in (_ABORT, _COMMIT) else None


def append_marker(
    log: PartitionLog,
    producer_id: int,
    producer_epoch: int,
    marker: Marker,
    leader_epoch: int,
    now_ms: int,
) -> Appended:
    log.producers.check_marker(
        producer_id, producer_epoch, marker.coordinator_epoch, raises_epoch=marker.raises_epoch
    )
    append_time = log.config.message_timestamp_type == "LogAppendTime"
    batch = encode_marker(
        marker,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        now_ms=now_ms,
        append_time=append_time,
    )
    offset = log.next_offset
    appended = log.write(
        batch, len(batch), offset, now_ms, leader_epoch, now_ms, now_ms if append_time else -1
    )
    ended = log.producers.ended(producer_id, producer_epoch, marker.coordinator_epoch, offset, now_ms)
    if ended is not None and not marker.commit:
        log.note_aborted(log.active, ended)
    return appended


def replay_marker(
    producers: Producers, batch: bytes, producer_id: int, producer_epoch: int, offset: int, timestamp: int
) -> Ended | None:
    """The transaction that this control batch aborted, if any."""
    marker = decode_marker(batch)
    if marker is None:
        return None
    ended = producers.ended(producer_id, producer_epoch, marker.coordinator_epoch, offset, timestamp)
    return None if marker.commit else ended
