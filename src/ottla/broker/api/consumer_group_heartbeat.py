"""ConsumerGroupHeartbeat (68): a member of a consumer group (KIP-848) joins, says what it owns, hears what it shall own, leaves.

Member epoch 0 joins, -1 leaves, -2 is a static member that will be back. Who joins a classic group of consumers makes it a consumer
group, if `group.consumer.migration.policy` allows it; otherwise it hears GROUP_ID_NOT_FOUND with the reason. From version 1 on the member makes its own id
(KIP-1082), and may subscribe to a pattern. Errors: INVALID_REQUEST, INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID,
FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID, UNSUPPORTED_ASSIGNOR, GROUP_MAX_SIZE_REACHED,
INVALID_REGULAR_EXPRESSION, UNKNOWN_SERVER_ERROR (an assignment too large to be written), and those of a coordinator that is elsewhere or not ready.

The answer to a member that joins a very large group, or changes its subscription there, waits until the target assignment is computed. The
heartbeat of a member with a very large assignment is prepared in slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CoordinatorReply, find_shard, milliseconds
from ottla.groups.consumer import JOIN_EPOCH, Again, Heartbeat
from ottla.model.assignors import Places
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work

_CLAIM_MAX: Final = 10_000


@serves(68, by_client=True)
def consumer_group_heartbeat(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    def refusal(code: ErrorCode, message: str | None = None) -> Response:
        return {
            "error_code": code, "error_message": message, "member_id": None, "member_epoch": 0, "heartbeat_interval": 0,
            "assignment": None,
        }  # fmt: skip

    try:
        shard = find_shard(broker, request.group_id, writes=True)
    except Refusal as refused:
        return refusal(refused.code, refused.message)
    member_id = request.member_id
    if not member_id and call.version == 0 and request.member_epoch == JOIN_EPOCH:
        member_id = shard.host.unique()
    reply = CoordinatorReply(broker, call, refusal)
    heartbeat = _heartbeat(broker, call, request, member_id)

    def hear(again: Again | None) -> Result:
        try:
            shard = find_shard(broker, request.group_id, writes=True)
            shard.consumer.heartbeat(heartbeat, reply, broker.now_ms, again)
        except Refusal as refused:
            return refusal(refused.code, refused.message)
        return reply.outcome

    def hear_prepared(again: Again | None) -> Work:
        yield from shard.consumer.prepare(heartbeat)
        return hear(again)

    def hear_again(error: Exception | None) -> None:
        if error is None:
            broker.slices.answer_later(call, hear_prepared(None))
        elif isinstance(error, Refusal):
            broker.answer(call, refusal(error.code, error.message))
        else:
            broker.answer(call, refusal(ErrorCode.UNKNOWN_SERVER_ERROR))

    if shard.consumer.is_large(request.group_id, member_id):
        return broker.slices.answer(call, hear_prepared(hear_again))
    return hear(hear_again)


def _heartbeat(broker: Broker, call: Call, request: Any, member_id: str) -> Heartbeat:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return Heartbeat(
        group_id=request.group_id,
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=call.client_id,
        client_host=f"/{call.connection.peer.rpartition(':')[0]}",
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        names=None if names is None else frozenset(names),
        regex=request.subscribed_topic_regex if call.version >= 1 else None,
        server_assignor=request.server_assignor,
        owned=None if owned is None else _claimed(broker, owned),
    )


def _claimed(broker: Broker, owned: Any) -> Places:
    """What a member says it owns. Of a claim that is larger than most clusters only what there is: it cannot have been given
    more, and a set of millions would hold up everybody."""
    rows = [(row.topic_id.bytes, row.partitions) for row in owned if row.topic_id is not None]
    if sum(len(numbers) for _topic_id, numbers in rows) > _CLAIM_MAX:
        topics = broker.image.topics_by_id
        rows = [
            (topic_id, set(numbers).intersection(range(len(topics[topic_id].partitions))))
            for topic_id, numbers in rows
            if topic_id in topics
        ]
    return frozenset((topic_id, number) for topic_id, numbers in rows for number in numbers)
