"""ListPartitionReassignments (46): which partitions are being moved, and who of their replicas is new and who goes (KIP-455).

Without topics all of the cluster. A partition that is not being moved, or is not there, is not in the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, serves
from ottla.controller.reassignment import running

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(46, by_controller=True, changes_metadata=False)
def list_partition_reassignments(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    asked: dict[str, set[int]] | None = None
    if request.topics is not None:
        asked = {}
        for topic in request.topics:
            asked.setdefault(topic.name, set()).update(topic.partition_indexes)
    topics: dict[str, list[dict[str, Any]]] = {}
    for name, partition in running(broker.image):
        if asked is not None and partition.partition not in asked.get(name, ()):
            continue
        topics.setdefault(name, []).append(
            {
                "partition_index": partition.partition,
                "replicas": partition.replicas,
                "adding_replicas": partition.adding,
                "removing_replicas": partition.removing,
            }
        )
    return {
        "error_code": 0,
        "error_message": None,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }
