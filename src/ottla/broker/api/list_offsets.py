"""ListOffsets (2): the offset of a time, or of the start, the end or the newest timestamp of a partition (A7).

Special timestamps: -1 latest, -2 earliest, -3 newest timestamp (version 7+), -4 earliest local (8+), -5 latest tiered
(9+), -6 earliest pending upload (11+). Nothing is tiered here, so -4 is the start and -5 and -6 are unknown (-1).
With isolation level 1 (read committed, version 2+) the end is the last stable offset, and nothing at or after it is found.
A time that no record reaches answers offset -1. Errors by partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_NOT_AVAILABLE (by a leader that does not know yet how far records count),
UNSUPPORTED_VERSION, INVALID_REQUEST (the same partition twice), KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.topic_rows import topic_rows
from ottla.model.errors import ErrorCode
from ottla.model.steps import Steps
from ottla.ports.disk import DiskError
from ottla.records.errors import CorruptRecords

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.replication.replica import Replica

_LATEST: Final = -1
_EARLIEST: Final = -2
_NEWEST: Final = -3
_EARLIEST_LOCAL: Final = -4
_READ_COMMITTED: Final = 1
#: The cost of a row, and of a look-up by time in addition to the batch that is decoded for it.
_ROW_COST: Final = 2
_LOOK_UP_COST: Final = 60
#: The first version that knows each special timestamp.
_SINCE: Final = {_LATEST: 0, _EARLIEST: 0, _NEWEST: 7, _EARLIEST_LOCAL: 8, -5: 9, -6: 11}


@serves(2)
def list_offsets(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _listed(broker, call, request))


def _listed(broker: Broker, call: Call, request: Any) -> Work:
    """In slices: a look-up by time may decode a large batch, in each of many partitions."""
    seen: set[tuple[str, int]] = set()
    committed = request.isolation_level == _READ_COMMITTED

    def row(name: str, replica: Replica | None, partition: Any) -> Steps[dict[str, Any]]:
        yield _ROW_COST
        place = (name, partition.partition_index)
        if place in seen:
            return {"error_code": ErrorCode.INVALID_REQUEST}
        seen.add(place)
        return (yield from _row(broker, name, replica, partition, call.version, committed))

    return {"topics": (yield from topic_rows(broker, request.topics, row))}


def _row(
    broker: Broker, name: str, replica: Replica | None, partition: Any, version: int, committed: bool
) -> Steps[dict[str, Any]]:
    if replica is None:
        elsewhere = broker.not_here(None, name, partition.partition_index)
        return {"error_code": elsewhere or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    asked = partition.current_leader_epoch
    if asked >= 0 and asked != replica.leader_epoch:
        older = asked < replica.leader_epoch
        return {"error_code": ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH}
    if replica.leading is None:
        return {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}
    if replica.opened and replica.high_watermark < replica.leading.epoch_start:
        # KIP-207: a new leader learns from its followers how far records count. Until then an end could go back.
        return {
            "error_code": ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
        }
    timestamp = partition.timestamp
    if timestamp < 0 and (timestamp not in _SINCE or version < _SINCE[timestamp]):
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
    try:
        return (yield from _find(replica, timestamp, committed))
    except DiskError as error:
        if replica.opened:
            broker.disk_failed(replica.log.directory, error)
        return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    except CorruptRecords:
        return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}


def _find(replica: Replica, timestamp: int, committed: bool) -> Steps[dict[str, Any]]:
    log = replica.log
    end = replica.last_stable_offset if committed else replica.high_watermark
    if timestamp == _LATEST:
        return {"error_code": 0, "offset": end, "leader_epoch": replica.leader_epoch}
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        start = log.log_start_offset
        return {"error_code": 0, "offset": start, "leader_epoch": log.epochs.epoch_of(start)}
    if timestamp < _EARLIEST_LOCAL:
        return {"error_code": 0}
    found = yield from log.look_up_newest() if timestamp == _NEWEST else log.look_up_time(timestamp)
    yield _LOOK_UP_COST
    if found is None or found[0] >= end:
        return {"error_code": 0}
    return {
        "error_code": 0,
        "offset": found[0],
        "timestamp": found[1],
        "leader_epoch": log.epochs.epoch_of(found[0]),
    }
