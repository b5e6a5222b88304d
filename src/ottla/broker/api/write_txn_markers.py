"""WriteTxnMarkers (27): the end of transactions, written into their partitions. From a coordinator to the leaders, or by hand.

A proven broker may write any marker; the epochs of the producer and of the coordinator decide. A client may only abort a hanging
transaction (KIP-664): one that is open in the partition, under the epochs that the partition knows, and that no coordinator has
among its own (`broker/coordinators/hanging_transactions.py`). Each marker is answered when it is committed. Errors by partition:
CLUSTER_AUTHORIZATION_FAILED (a client, and it does not hang), COORDINATOR_NOT_AVAILABLE (a client, and not all coordinators answered),
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, INVALID_PRODUCER_EPOCH, INVALID_REQUEST,
TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR; for partitions of groups' offsets those of their coordinator too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.group_requests import CombinedReply
from ottla.broker.coordinators.txn_markers import Abort
from ottla.model.errors import ErrorCode
from ottla.model.limits import ROWS_PER_WRITE_MAX
from ottla.ports.coordination import Reply
from ottla.transactions.host import Marker

if TYPE_CHECKING:
    from ottla.broker.coordinators.txn_markers import Codes
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work

#: The first version that says which transactions it is about.
_VERSIONED: Final = 2


@serves(27, rows_max=ROWS_PER_WRITE_MAX)
def write_txn_markers(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _written(broker, call, request))


def _written(broker: Broker, call: Call, request: Any) -> Work:
    by_broker = call.connection.broker_id is not None
    aborts: list[Abort] = []
    combined = CombinedReply(broker, call, len(request.markers), lambda rows: {"markers": rows})
    for at, asked in enumerate(request.markers):
        marker = Marker(
            asked.producer_id, asked.producer_epoch, asked.transaction_result, asked.coordinator_epoch,
            asked.transaction_version if call.version >= _VERSIONED else 0,
        )  # fmt: skip
        places = tuple((topic.name, number) for topic in asked.topics for number in topic.partition_indexes)
        reply: Reply = combined.row(at, lambda _code: {})

        def done(codes: Codes, asked: Any = asked, reply: Reply = reply) -> None:
            reply.answer(_row(asked, codes))

        if asked.producer_id < 0 or asked.producer_epoch < 0:
            done(dict.fromkeys(places, ErrorCode.INVALID_PRODUCER_EPOCH))
        elif marker.transaction_version < 0:
            done(dict.fromkeys(places, ErrorCode.INVALID_REQUEST))
        elif by_broker:
            yield from broker.txn_markers.write_in_steps(marker, places, done)
        else:
            aborts.append(Abort(marker, places, done))
    if aborts:
        broker.txn_markers.abort_hanging(aborts)
    return combined.outcome


def _row(asked: Any, codes: Codes) -> dict[str, Any]:
    return {
        "producer_id": asked.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": number, "error_code": codes[topic.name, number]}
                    for number in topic.partition_indexes
                ],
            }
            for topic in asked.topics
        ],
    }
