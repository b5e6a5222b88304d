"""DescribeLogDirs (35): the directories of the logs, how much each partition takes there, and how much room is left.

Null in the request means all partitions; partitions that are not here are left out, as Kafka does. A partition's size is
that of its segments. One that is on its way to another directory appears there as well, with `is_future_key` and how many
offsets it lags behind. Errors by directory: KAFKA_STORAGE_ERROR once it is offline.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.model.errors import ErrorCode
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.broker.storage.future_log import LogDirMove
    from ottla.broker.storage.log_directory import LogDirectory
    from ottla.replication.replica import Replica


@serves(35)
def describe_log_dirs(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _described(broker, request))


def _described(broker: Broker, request: Any) -> Work:
    # By directory, by topic: those in it.
    here: dict[LogDirectory, dict[str, list[dict[str, Any]]]] = {}
    for replica in _asked(broker, request.topics):
        yield 1
        if replica.gone:
            # Since the last slice.
            continue
        if replica in broker.partitions.unopened:
            with suppress(DiskError):
                replica.log  # noqa: B018  (opens it)
        if replica.opened:
            home = here.setdefault(broker.directories.of(replica.log), {})
            home.setdefault(replica.topic, []).append(_partition(replica))
        move = broker.log_dir_moves.of(replica)
        if move is not None:
            target = here.setdefault(move.target, {})
            target.setdefault(replica.topic, []).append(_future(replica, move))
    return {
        "error_code": 0,
        "results": [_directory(broker, each, here.get(each, {})) for each in broker.directories.all],
    }


def _directory(
    broker: Broker, directory: LogDirectory, topics: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "error_code": ErrorCode.KAFKA_STORAGE_ERROR, "log_dir": directory.path, "topics": (),
    }  # fmt: skip
    if directory.offline is None:
        try:
            total, usable = broker.disk.free_bytes(directory.path)
        except DiskError as error:
            broker.disk_failed(directory.path, error)
        else:
            rows = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
            row.update(error_code=0, total_bytes=total, usable_bytes=usable, topics=rows)
    return row


def _asked(broker: Broker, topics: Any) -> list[Replica]:
    by_name = broker.partitions.by_name
    if topics is None:
        return list(broker.partitions.replicas())
    # The same topic or partition twice is described once.
    wanted = {
        (topic.topic, number): None
        for topic in topics
        if topic.topic in by_name
        for number in topic.partitions
    }
    return [replica for name, number in wanted if (replica := by_name[name].replicas.get(number)) is not None]


def _partition(replica: Replica) -> dict[str, Any]:
    return {
        "partition_index": replica.number,
        "partition_size": replica.log.size,
        "offset_lag": 0,
        "is_future_key": False,
    }


def _future(replica: Replica, move: LogDirMove) -> dict[str, Any]:
    return {
        "partition_index": replica.number,
        "partition_size": move.size,
        "offset_lag": max(0, replica.log.next_offset - move.end_offset),
        "is_future_key": True,
    }
