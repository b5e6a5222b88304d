"""DescribeQuorum (55): who writes the metadata log, and how far those who read it are.

This cluster holds no Raft elections: one controller at a time appends to the metadata log, which the cluster store keeps (a
broker on its own: its journal). That is what is answered for `__cluster_metadata` partition 0:

- The leader is the controller, in the epoch under which the store takes its writes; a broker on its own leads in epoch 0.
  Without a controller the error is LEADER_NOT_AVAILABLE.
- The only voter is the leader: an append counts as soon as the store has it, whoever else has read it. The high watermark is the
  number of records that made the image of the broker that answers; records that were proposed and are not committed do not count.
- Other live brokers are observers: they read the log, and any of them can be the next controller. The store notifies all brokers of
  each append, so the log end that is told of each is that of the broker that answers, and the lag that tools compute is 0. A
  broker that cannot read the log is fenced after zookeeper.session.timeout.ms, and is in the answer no more.
- The times are now; while the broker that answers cannot reach the store, the moment when it last could.

A node's endpoint is the broker's own listener, since there is none for controllers. Error by partition:
UNKNOWN_TOPIC_OR_PARTITION for anything else, since no other partition has a quorum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Result, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work

_METADATA: Final = ("__cluster_metadata", 0)


@serves(55)
def describe_quorum(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _described(broker, request))


def _described(broker: Broker, request: Any) -> Work:
    topics = []
    for topic in request.topics:
        rows = []
        for partition in topic.partitions:
            is_metadata = (topic.topic_name, partition.partition_index) == _METADATA
            row = _metadata(broker, broker.wall_ms) if is_metadata else _unknown(topic.topic_name)
            rows.append(row | {"partition_index": partition.partition_index})
            yield 1
        topics.append({"topic_name": topic.topic_name, "partitions": rows})
    return {"error_code": 0, "topics": topics, "nodes": _nodes(broker)}


def _nodes(broker: Broker) -> list[dict[str, Any]]:
    listener = broker.config.advertised_listeners[0]
    if not broker.clustered:
        me = broker.image.brokers.get(broker.config.node_id)
        host, port = (me.host, me.port) if me is not None else (listener.host, listener.port)
        addresses = {broker.config.node_id: (host, port)}
    else:
        addresses = {
            node.node_id: (node.host, node.port) for node in broker.image.brokers.values() if not node.fenced
        }
    return [
        {"node_id": node_id, "listeners": [{"name": listener.name, "host": host, "port": port}]}
        for node_id, (host, port) in addresses.items()
    ]


def _metadata(broker: Broker, now_ms: int) -> dict[str, Any]:
    leader = broker.lifecycle.controller_id
    now_ms -= broker.lifecycle.store_away_ms
    others = [
        node.node_id
        for node in broker.image.brokers.values()
        if broker.clustered and not node.fenced and node.node_id != leader
    ]
    return {
        "error_code": 0 if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        "error_message": None if leader >= 0 else "no broker controls the cluster at the moment",
        "leader_id": leader,
        "leader_epoch": broker.lifecycle.controller_epoch,
        "high_watermark": broker.image.end,
        "current_voters": [_replica(broker, leader, now_ms)] if leader >= 0 else (),
        "observers": [_replica(broker, node_id, now_ms) for node_id in others],
    }


def _replica(broker: Broker, node_id: int, now_ms: int) -> dict[str, Any]:
    is_here = node_id == broker.config.node_id
    return {
        "replica_id": node_id,
        "replica_directory_id": broker.directories.all[0].directory_id if is_here else None,
        "log_end_offset": broker.image.end,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
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
