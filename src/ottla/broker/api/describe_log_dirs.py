"""DescribeLogDirs (35): the directory of the logs, how much of it each partition takes, and how much room is left.

Null in the request means all partitions; partitions that are not here are left out, as Kafka does. A partition's size is
that of its segments; nothing lags or is on its way to another directory. Errors by directory: KAFKA_STORAGE_ERROR once
it is offline.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ottla.broker.api.table import Response, serves
from ottla.model.errors import ErrorCode
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker
    from ottla.replication.leader import Leader


@serves(35)
def describe_log_dirs(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    row: dict[str, Any] = {"error_code": 0, "log_dir": broker.directory.path, "topics": ()}
    try:
        total, usable = broker.disk.free_bytes(broker.directory.path)
        row.update(total_bytes=total, usable_bytes=usable)
    except DiskError:
        row["error_code"] = ErrorCode.KAFKA_STORAGE_ERROR
    if broker.offline is not None:
        row["error_code"] = ErrorCode.KAFKA_STORAGE_ERROR
    if row["error_code"] == 0:
        row["topics"] = [
            {"name": name, "partitions": [_partition(leader) for leader in leaders]}
            for name, leaders in _asked(broker, request.topics)
        ]
    return {"error_code": 0, "results": [row]}


def _asked(broker: Broker, topics: Any) -> Iterable[tuple[str, list[Leader]]]:
    by_name = broker.hosting.by_name
    if topics is None:
        return [(name, list(hosted.leaders.values())) for name, hosted in by_name.items()]
    # The same topic or partition twice is described once.
    wanted: dict[str, dict[int, None]] = {}
    for topic in topics:
        if topic.topic in by_name:
            wanted.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
    here = (
        (name, [leader for number in numbers if (leader := by_name[name].leaders.get(number)) is not None])
        for name, numbers in wanted.items()
    )
    return [(name, leaders) for name, leaders in here if leaders]


def _partition(leader: Leader) -> dict[str, Any]:
    return {
        "partition_index": leader.number,
        # A log that nobody has needed yet is not made for this.
        "partition_size": leader.log.size if leader.opened else 0,
        "offset_lag": 0,
        "is_future_key": False,
    }
