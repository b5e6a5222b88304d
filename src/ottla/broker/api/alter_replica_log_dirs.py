"""AlterReplicaLogDirs (34): move partitions to other log directories of this broker, or have them made there (KIP-113).

Answers once the move is accepted; DescribeLogDirs tells how far it is. Naming the directory a partition is in, or another
than the one it is on its way to, ends a move that is under way. Errors by partition: UNKNOWN_TOPIC_OR_PARTITION,
LOG_DIR_NOT_FOUND (not one of `log.dirs`), KAFKA_STORAGE_ERROR (that directory, or the partition's own, is offline).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode
from ottla.model.limits import ROWS_PER_WRITE_MAX
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(34, rows_max=ROWS_PER_WRITE_MAX)
def alter_replica_log_dirs(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    results: dict[str, list[dict[str, int]]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            results.setdefault(topic.name, []).extend(
                {
                    "partition_index": number,
                    "error_code": _move(broker, directory.path, topic.name, number),
                }
                for number in topic.partitions
            )
    return {"results": [{"topic_name": name, "partitions": rows} for name, rows in results.items()]}


def _move(broker: Broker, path: str, name: str, number: int) -> int:
    target = broker.directories.at(path)
    if target is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if target.offline is not None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    hosted = broker.partitions.by_name.get(name)
    replica = hosted.replicas.get(number) if hosted is not None else None
    if replica is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not replica.opened and replica.offline is None and replica not in broker.partitions.unopened:
        # It is made there in the first place.
        broker.directories.chosen[name, number] = target
    try:
        replica.log  # noqa: B018  (opens it)
    except DiskError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    broker.log_dir_moves.begin(replica, target)
    return 0
