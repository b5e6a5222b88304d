"""Classic members of a consumer group (KIP-848): their JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

- The member epoch is the generation.
- Heartbeat returns REBALANCE_IN_PROGRESS when the group epoch has grown, when the member must revoke
  partitions, and when all partitions that it waits for are free.
- A join is answered at once. The subscription tells what the member still owns: nothing with an eager
  assignor. The join is one reconciliation step.
- The sync after it returns the current assignment. No member is the leader: the broker assigns.
- A member has its rebalance timeout to join when told to, and again from the join to the sync.

Errors are Kafka's. `member_lifecycle.py` changes the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.groups.classic_group import CONSUMER, UNKNOWN_MEMBER
from ottla.groups.consumer_group import ConsumerGroup
from ottla.groups.consumer_member import ClassicSide, ConsumerMember, Subscription
from ottla.groups.reconciliation import UNRELEASED, UNREVOKED
from ottla.model import limits
from ottla.model.assignors import NOTHING
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.coordination import Decision, Reply
from ottla.records.consumer_protocol import Wanted, read_subscription, read_topics
from ottla.records.layout import Malformed

if TYPE_CHECKING:
    from ottla.groups.classic import Join, Sync
    from ottla.groups.shard import Shard


class ClassicMembers:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host
        self._member_lifecycle = shard.member_lifecycle

    # --- join -----------------------------------------------------------------------------------------------

    def join(self, group: ConsumerGroup, request: Join, new_id: str, reply: Reply, now_ms: int) -> None:
        """Respond, or raise Refusal if nothing has changed. `new_id` is for a member without an id."""
        member_id = request.member_id or new_id
        member, old = self._find_member(group, request, member_id)
        if member is None and old is None:
            self._member_lifecycle.check_capacity(group, now_ms)
        if not group.supports(
            (old or member or ConsumerMember("")).member_id, request.protocol_type, request.protocols
        ):
            raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        wanted = _wanted(request)
        if not request.member_id and request.instance_id is None and request.needs_known_id:
            reply.answer(refused_join(member_id, ErrorCode.MEMBER_ID_REQUIRED))
            return
        classic = ClassicSide(request.session_timeout_ms, request.protocols)
        if old is not None and old.subscription.classic is None:
            migration = self._shard.migration
            if migration.may_downgrade(group, (old,), classic) and migration.downgrade_with(
                group, old, request.as_member(member_id), reply, now_ms
            ):
                return
        before = (old or member or ConsumerMember("")).subscription
        subscription = Subscription(
            before.instance_id if request.instance_id is None else request.instance_id,
            wanted.rack, request.client_id, request.client_host, wanted.topics, None, request.rebalance_timeout_ms,
            before.server_assignor, classic,
        )  # fmt: skip
        draft = self._member_lifecycle.draft(group, now_ms)
        if old is not None:
            self._member_lifecycle.replace_static_member(group, old, member_id, draft)
        member = self._member_lifecycle.update(group, member_id, subscription, draft, now_ms)
        owned = self._shard.migration.places(wanted.owned)
        self._member_lifecycle.reconcile_member(group, member, owned, draft, now_ms)
        # The session timeout may be shorter; and a sync must follow.
        member.end_session()
        self._member_lifecycle.start_session(group, member, now_ms)
        self._member_lifecycle.start_rebalance_timer(group, member, now_ms)
        answer = _joined(member, classic)
        self._host.schedule(Decision(draft.records, [(reply, answer)], is_read=True, is_replayed=True))

    def _find_member(
        self, group: ConsumerGroup, request: Join, member_id: str
    ) -> tuple[ConsumerMember | None, ConsumerMember | None]:
        """The joining member, None if new; and the static member that it replaces, if any."""
        member = group.members.get(member_id)
        if request.instance_id is not None:
            known = group.members.get(group.static.get(request.instance_id, UNKNOWN_MEMBER))
            if not request.member_id:
                return None, known
            if known is None:
                raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
            if known.member_id != member_id:
                raise Refusal(ErrorCode.FENCED_INSTANCE_ID)
        if member is not None and member.subscription.classic is None:
            # The id of a member with the consumer protocol.
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        return member, None

    # --- sync -----------------------------------------------------------------------------------------------

    def sync(self, group: ConsumerGroup, request: Sync, reply: Reply, now_ms: int) -> None:
        """Respond, or raise Refusal."""
        member, classic = self._known(group, request.member_id, request.instance_id, request.generation)
        if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (
            None,
            classic.protocol,
        ):
            raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._member_lifecycle.start_session(group, member, now_ms)
        # A member that still revokes partitions has joined already and continues after that.
        if group.assignment_epoch > member.current.epoch and member.current.state != UNREVOKED:
            self._member_lifecycle.start_rebalance_timer(group, member, now_ms)
            raise Refusal(ErrorCode.REBALANCE_IN_PROGRESS)
        member.cancel_rebalance_timer()
        answer = {
            "error_code": 0, "protocol_type": CONSUMER, "protocol_name": classic.protocol,
            "assignment": self._shard.migration.written(classic, member.current.assigned),
        }  # fmt: skip
        self._host.schedule(Decision(answers=[(reply, answer)], is_read=True))

    # --- heartbeat and leave --------------------------------------------------------------------------------

    def heartbeat(
        self, group: ConsumerGroup, generation: int, member_id: str, instance_id: str | None, now_ms: int
    ) -> ErrorCode:
        try:
            member, _classic = self._known(group, member_id, instance_id, generation)
        except Refusal as refusal:
            return refusal.code
        self._member_lifecycle.start_session(group, member, now_ms)
        if not _must_join(group, member, now_ms):
            return ErrorCode.NONE
        if not member.has_rebalance_timer:
            self._member_lifecycle.start_rebalance_timer(group, member, now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(
        self, group: ConsumerGroup, leaving: Sequence[tuple[str, str | None]], now_ms: int
    ) -> list[ErrorCode]:
        """Remove members (id, instance) of either protocol; an administrator removes an instance without an
        id."""
        errors: list[ErrorCode] = []
        gone: dict[str, ConsumerMember] = {}
        for member_id, instance_id in leaving:
            known = member_id if instance_id is None else group.static.get(instance_id, UNKNOWN_MEMBER)
            member, error = group.members.get(known), ErrorCode.NONE
            if member is None:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            elif member_id not in (UNKNOWN_MEMBER, known):
                error = ErrorCode.FENCED_INSTANCE_ID
            else:
                gone[known] = member
            errors.append(error)
        if gone:
            records = self._member_lifecycle.remove(group, list(gone.values()), now_ms)
            self._host.schedule(Decision(records, is_replayed=True))
        return errors

    def _known(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicSide]:
        """A classic member in its current generation. Raises Refusal."""
        known = member_id if instance_id is None else group.static.get(instance_id)
        member = group.members.get(known or UNKNOWN_MEMBER)
        if member is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        if known != member_id:
            raise Refusal(ErrorCode.FENCED_INSTANCE_ID)
        if member.subscription.classic is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != member.current.epoch:
            raise Refusal(ErrorCode.ILLEGAL_GENERATION)
        return member, member.subscription.classic


def refused_join(member_id: str, code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "member_id": member_id, "members": [], "leader": "", "protocol_name": ""}


def _joined(member: ConsumerMember, classic: ClassicSide) -> dict[str, Any]:
    """The response to a join. No member is the leader, so no client assigns."""
    return {
        "error_code": 0, "generation_id": member.current.epoch, "protocol_type": CONSUMER,
        "protocol_name": classic.protocol, "leader": "", "skip_assignment": False, "member_id": member.member_id,
        "members": [],
    }  # fmt: skip


def _wanted(request: Join) -> Wanted:
    try:
        metadata = request.protocols[0][1]
        read_topics(metadata, limits.GROUP_TOPICS_MAX)
        return read_subscription(metadata)
    except Malformed:
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None


def _must_join(group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> bool:
    """Whether a member must join again: for a new epoch, to revoke, or because its missing partitions are
    free."""
    current = member.current
    if current.epoch < group.assignment_epoch or current.state == UNREVOKED:
        return True
    if group.epoch > group.assignment_epoch and now_ms >= group.target_due_ms:
        # Its join starts the computation of the target. Earlier, it would stop consuming for nothing.
        return True
    if current.state != UNRELEASED:
        return False
    missing = group.targets.get(member.member_id, NOTHING) - current.assigned
    return len(group.free_for(member.member_id)(missing)) == len(missing)
