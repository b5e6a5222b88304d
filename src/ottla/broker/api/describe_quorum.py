"""DescribeQuorum (55): who keeps the metadata log, and how far each of its voters is.

This cluster holds no Raft elections. What it has is one metadata log with one writer, and that is what is answered for
`__cluster_metadata` partition 0: this node is the leader and the only voter, in epoch 0 because there never was another,
and both the high watermark and the end of the log are the number of records that made the present image. So a tool that
asks whether the metadata is safe gets the truth: one copy, complete, without a second to fall back on. The node's
endpoint is the broker's own listener, since there is none for controllers.

Error by partition: UNKNOWN_TOPIC_OR_PARTITION for anything else, since no other partition has a quorum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker

_METADATA: Final = ("__cluster_metadata", 0)


@serves(55)
def describe_quorum(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    topics = []
    for topic in request.topics:
        rows = []
        for partition in topic.partitions:
            is_metadata = (topic.topic_name, partition.partition_index) == _METADATA
            row = _metadata(broker, broker.wall_ms) if is_metadata else _unknown(topic.topic_name)
            rows.append(row | {"partition_index": partition.partition_index})
        topics.append({"topic_name": topic.topic_name, "partitions": rows})
    listener = broker.config.advertised_listeners[0]
    me = broker.image.brokers.get(broker.config.node_id)
    host, port = (me.host, me.port) if me is not None else (listener.host, listener.port)
    return {
        "error_code": 0,
        "topics": topics,
        "nodes": [
            {
                "node_id": broker.config.node_id,
                "listeners": [{"name": listener.name, "host": host, "port": port}],
            }
        ],
    }


def _metadata(broker: Broker, now_ms: int) -> dict[str, Any]:
    voter = {
        "replica_id": broker.config.node_id,
        "replica_directory_id": broker.directories.all[0].directory_id,
        "log_end_offset": broker.image.end,
        # A leader has everything it has, at every moment.
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    return {
        "error_code": 0,
        "leader_id": broker.config.node_id,
        "leader_epoch": 0,
        "high_watermark": broker.image.end,
        "current_voters": [voter],
        "observers": (),
    }


def _unknown(name: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "error_message": f"'{name}' has no quorum: only partition 0 of {_METADATA[0]} has one",
        "leader_id": -1,
        "leader_epoch": -1,
        "high_watermark": -1,
        "current_voters": (),
        "observers": (),
    }
