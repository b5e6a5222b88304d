"""Cluster requests: brokers, features and the metadata quorum.

The functions implement the methods of the same names in `client/admin/core.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import ottla
from ottla.client.admin.requests import ask_controller, raise_all
from ottla.client.connection import Body
from ottla.client.errors import BrokerNotFound, UnsupportedVersion, refused
from ottla.client.metadata import Node
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster


Downgrade = Literal["no", "safe", "unsafe"]
_UPGRADE_TYPES: Final[dict[Downgrade, int]] = {"no": 1, "safe": 2, "unsafe": 3}


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str | None
    controller_id: int
    nodes: tuple[Node, ...]
    #: Registered brokers that are fenced; only with `include_fenced`.
    fenced: tuple[Node, ...] = ()

    @property
    def controller(self) -> Node | None:
        return next((node for node in self.nodes if node.id == self.controller_id), None)

    def __str__(self) -> str:
        lines = [f"cluster {self.cluster_id}: {len(self.nodes)} broker(s), controller {self.controller_id}"]
        lines += [f"  {node}" for node in self.nodes]
        return "\n".join([*lines, *(f"  {node}, away" for node in self.fenced)])


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the cluster (KIP-584): its finalized level (0: none), and the levels that the broker
    supports.
    """

    level: int
    supported_min: int
    supported_max: int

    def __str__(self) -> str:
        return f"level {self.level} of {self.supported_min} to {self.supported_max}"


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A voter or an observer of the metadata log; -1 for unknown values."""

    id: int
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int

    def __str__(self) -> str:
        return f"{self.id} at offset {self.log_end_offset}"


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """The leader of the metadata quorum, and the log end offset of each voter and observer."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]

    def __str__(self) -> str:
        return (
            f"metadata written by {self.leader_id} in epoch {self.leader_epoch}, "
            f"committed to {self.high_watermark}; voters {', '.join(map(str, self.voters))}; "
            f"observers {', '.join(map(str, self.observers)) or 'none'}"
        )


async def describe_cluster(cluster: Cluster, *, include_fenced: bool) -> ClusterInfo:
    metadata = await cluster.refresh(())
    nodes = tuple(metadata.nodes[node_id] for node_id in sorted(metadata.nodes))
    fenced = await _fenced_brokers(cluster) if include_fenced else ()
    return ClusterInfo(metadata.cluster_id, metadata.controller_id, nodes, fenced)


async def _fenced_brokers(cluster: Cluster) -> tuple[Node, ...]:
    """The registered brokers that are fenced; empty if the cluster cannot list them."""
    connection = await cluster.any_connection()
    try:
        if connection.version_for(ApiKey.DESCRIBE_CLUSTER) < 2:
            return ()
    except UnsupportedVersion:
        return ()
    answer = await connection.request(ApiKey.DESCRIBE_CLUSTER, {"include_fenced_brokers": True})
    if answer.error_code:
        raise refused(
            int(answer.error_code), "describing the cluster",
            message=answer.error_message, broker=connection.address,
        )  # fmt: skip
    return tuple(
        Node(int(row.broker_id), str(row.host), int(row.port), row.rack)
        for row in sorted(answer.brokers, key=lambda row: int(row.broker_id))
        if row.is_fenced
    )


async def unregister_broker(cluster: Cluster, broker_id: int) -> None:
    body: Body = {"broker_id": broker_id}
    answer, broker = await ask_controller(cluster, ApiKey.UNREGISTER_BROKER, body, lambda answer: [answer])
    if answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED:
        raise BrokerNotFound(
            f"there is no broker {broker_id} in the cluster", code=ErrorCode.BROKER_ID_NOT_REGISTERED
        )
    if answer.error_code:
        raise refused(
            int(answer.error_code), f"unregistering broker {broker_id}",
            message=answer.error_message, broker=broker,
        )  # fmt: skip


async def describe_features(cluster: Cluster) -> dict[str, Feature]:
    connection = await cluster.any_connection()
    body: Body = {"client_software_name": "ottla", "client_software_version": ottla.__version__}
    answer = await connection.request(ApiKey.API_VERSIONS, body)
    levels = {str(row.name): int(row.max_version_level) for row in getattr(answer, "finalized_features", ())}
    return {
        str(row.name): Feature(levels.get(str(row.name), 0), int(row.min_version), int(row.max_version))
        for row in sorted(getattr(answer, "supported_features", ()), key=lambda row: str(row.name))
    }


async def update_features(
    cluster: Cluster, levels: Mapping[str, int], *, downgrade: Downgrade, validate_only: bool
) -> None:
    body: Body = {
        "timeout": cluster.settings.request_timeout_ms,
        "feature_updates": [
            {
                "feature": name, "max_version_level": level, "allow_downgrade": downgrade != "no",
                "upgrade_type": _UPGRADE_TYPES[downgrade],
            }
            for name, level in levels.items()
        ],
        "validate_only": validate_only,
    }  # fmt: skip
    answer, broker = await ask_controller(cluster, ApiKey.UPDATE_FEATURES, body, lambda answer: [answer])
    if answer.error_code:
        raise refused(
            int(answer.error_code), "updating features", message=answer.error_message, broker=broker
        )
    errors = {
        str(row.feature): refused(
            int(row.error_code), f"updating feature {row.feature}", message=row.error_message, broker=broker
        )
        for row in getattr(answer, "results", ())
        if row.error_code
    }
    raise_all(errors, len(levels), "updating features")


async def describe_quorum(cluster: Cluster) -> QuorumInfo:
    body: Body = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
    answer, broker = await ask_controller(cluster, ApiKey.DESCRIBE_QUORUM, body, lambda answer: [answer])
    row = answer if answer.error_code else answer.topics[0].partitions[0]
    if row.error_code:
        raise refused(
            int(row.error_code),
            "describing the quorum",
            message=getattr(row, "error_message", None),
            broker=broker,
        )
    return QuorumInfo(
        int(row.leader_id), int(row.leader_epoch), int(row.high_watermark),
        tuple(map(_replica, row.current_voters)), tuple(map(_replica, row.observers)),
    )  # fmt: skip


def _replica(row: Any) -> QuorumReplica:
    return QuorumReplica(
        int(row.replica_id), int(row.log_end_offset), int(getattr(row, "last_fetch_timestamp", -1)),
        int(getattr(row, "last_caught_up_timestamp", -1)),
    )  # fmt: skip
