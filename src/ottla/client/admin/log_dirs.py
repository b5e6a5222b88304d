"""Log directory requests: replicas and disk space of each directory, and moving replicas between directories.

The functions implement the methods of the same names in `client/admin/core.py`. Each broker knows only its
own directories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.client.admin.requests import by_topic, raise_all, refused_at
from ottla.client.connection import Body, BrokerConnection
from ottla.client.errors import BrokerNotFound, KafkaError, refused
from ottla.client.metadata import TopicPartition, known_code
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    size_bytes: int
    #: How many offsets the replica is behind the end of the log.
    offset_lag: int
    #: The replica is being moved here; the other directory serves it until this one has caught up.
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    path: str
    #: NONE, or the reason why the directory is offline.
    code: ErrorCode
    #: Size of the volume; -1 if the broker does not return it.
    total_bytes: int
    usable_bytes: int
    replicas: Mapping[TopicPartition, ReplicaLog]

    def __str__(self) -> str:
        if self.code:
            return f"{self.path}: {self.code.name}"
        size = sum(replica.size_bytes for replica in self.replicas.values())
        room = f", {self.usable_bytes:,} of {self.total_bytes:,} bytes free" if self.total_bytes >= 0 else ""
        return f"{self.path}: {len(self.replicas)} replica(s) of {size:,} bytes{room}"


async def describe_log_dirs(
    cluster: Cluster, brokers: Iterable[int] | None, partitions: Iterable[TopicPartition] | None
) -> dict[int, dict[str, LogDir]]:
    metadata = await cluster.refresh(())
    wanted = sorted(metadata.nodes) if brokers is None else list(brokers)
    topics = None if partitions is None else by_topic(dict.fromkeys(partitions))
    body: Body = {
        "topics": None
        if topics is None
        else [{"topic": name, "partitions": list(rows)} for name, rows in topics.items()]
    }
    return {broker_id: await _directories(await _broker(cluster, broker_id), body) for broker_id in wanted}


async def _directories(connection: BrokerConnection, body: Body) -> dict[str, LogDir]:
    answer = await connection.request(ApiKey.DESCRIBE_LOG_DIRS, body)
    code = int(getattr(answer, "error_code", 0))
    if code:
        raise refused(code, "describing log directories", broker=connection.address)
    found: dict[str, LogDir] = {}
    for row in answer.results:
        replicas = {
            TopicPartition(str(topic.name), int(each.partition_index)): ReplicaLog(
                int(each.partition_size), int(each.offset_lag), bool(each.is_future_key)
            )
            for topic in row.topics
            for each in topic.partitions
        }
        found[str(row.log_dir)] = LogDir(
            str(row.log_dir), known_code(int(row.error_code)), int(getattr(row, "total_bytes", -1)),
            int(getattr(row, "usable_bytes", -1)), dict(sorted(replicas.items())),
        )  # fmt: skip
    return found


async def alter_replica_log_dirs(
    cluster: Cluster, broker_id: int, directories: Mapping[TopicPartition, str]
) -> None:
    await cluster.refresh(())
    connection = await _broker(cluster, broker_id)
    rows: list[Body] = []
    for path in sorted(set(directories.values())):
        topics = by_topic({place: None for place, into in directories.items() if into == path})
        rows.append(
            {
                "path": path,
                "topics": [{"name": name, "partitions": list(numbers)} for name, numbers in topics.items()],
            }
        )
    answer = await connection.request(ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": rows})
    errors: dict[str, KafkaError] = {}
    for topic in answer.results:
        for row in topic.partitions:
            if row.error_code:
                place = TopicPartition(str(topic.topic_name), int(row.partition_index))
                errors[str(place)] = refused_at(int(row.error_code), "moving", place, connection.address)
    raise_all(errors, len(directories), "moving replicas")


async def _broker(cluster: Cluster, broker_id: int) -> BrokerConnection:
    nodes = cluster.metadata.nodes
    if broker_id not in nodes:
        raise BrokerNotFound(
            f"there is no broker {broker_id} in the cluster",
            code=ErrorCode.BROKER_NOT_AVAILABLE,
            advice=f"The brokers are {', '.join(map(str, sorted(nodes)))}",
        )
    return await cluster.connection(nodes[broker_id])
