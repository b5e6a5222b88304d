"""The consumer protocol (KIP-848): ConsumerGroupHeartbeat, in which members join, leave and report owned
partitions.

This module checks a request before anything changes, with Kafka's errors (Refusal). `member_lifecycle.py`
changes the group; all records of a heartbeat are one decision. Changed topics are noticed at the next
heartbeat of any member. A heartbeat that joins a classic group of consumers upgrades the group
(`protocol_migration.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ottla.groups.classic_group import ClassicGroup
from ottla.groups.consumer_group import ConsumerGroup, rows, rows_in_steps
from ottla.groups.consumer_member import STATIC_LEAVE_EPOCH, ConsumerMember, Subscription
from ottla.groups.formats import Encoded, Record
from ottla.groups.reconciliation import STABLE, CurrentAssignment
from ottla.groups.regex import BadPattern, compiled
from ottla.model import limits
from ottla.model.assignors import NOTHING, Place, Places
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import Steps
from ottla.model.strings import is_longer
from ottla.ports.coordination import Decision, Reply

if TYPE_CHECKING:
    from ottla.groups.shard import Shard

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
#: The value of an unchanged field in a request.
UNCHANGED: Final = -1
#: The first version of OffsetCommit with member epochs.
_COMMIT_VERSION_MIN: Final = 9
#: The member types in ConsumerGroupDescribe.
_SPEAKS_CLASSIC: Final = 0
_SPEAKS_CONSUMER: Final = 1
#: The cost to describe a group or a member, besides its partitions.
_ROW_COST: Final = 3


#: Retries a heartbeat that waited for a target; gets the error of the computation, if any.
Again: TypeAlias = Callable[[Exception | None], None]


class Heartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat request in any version. None: unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = UNCHANGED
    names: frozenset[str] | None = None
    regex: str | None = None
    server_assignor: str | None = None
    owned: Places | None = None

    @property
    def is_full(self) -> bool:
        """Whether all fields are set, as after a missed response."""
        return (
            self.rebalance_timeout_ms != UNCHANGED
            and (self.names is not None or self.regex is not None)
            and self.owned is not None
        )


class ConsumerProtocol:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host
        self._member_lifecycle = shard.member_lifecycle

    # --- heartbeats -----------------------------------------------------------------------------------------

    def heartbeat(self, request: Heartbeat, reply: Reply, now_ms: int, again: Again | None = None) -> None:
        """Respond, or raise Refusal if nothing has changed.

        If the member must wait for the computation of a target, `again` is called after it, and no response
        is sent.
        """
        self._check(request)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            self._leave(request, reply, now_ms)
        else:
            self._process(request, reply, now_ms, again)

    def prepare(self, request: Heartbeat) -> Steps[None]:
        """Prepare the heartbeat of a member with a very large assignment, in slices."""
        group = self._shard.consumer_group(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if group is not None and member is not None:
            yield from group.prepare(member, request.owned if request.member_epoch != JOIN_EPOCH else NOTHING)

    def is_large(self, group_id: str, member_id: str) -> bool:
        group = self._shard.groups.get(group_id)
        return isinstance(group, ConsumerGroup) and group.is_large(member_id)

    def _process(self, request: Heartbeat, reply: Reply, now_ms: int, again: Again | None) -> None:
        joins = request.member_epoch == JOIN_EPOCH
        known = self._shard.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            group = known
        elif joins:
            group = ConsumerGroup(request.group_id)
        else:
            raise _no_group(request.group_id, known)
        draft = self._member_lifecycle.draft(group, now_ms)
        is_upgraded = False
        if isinstance(known, ClassicGroup) and joins:
            is_upgraded = bool(self._shard.migration.upgrade(known, group, draft))
        member, old = self._member(group, request, joins)
        if member is None and old is None:
            self._member_lifecycle.check_capacity(group, now_ms)
        draft.register_group()
        subscription = _subscription(old or member, request)
        wish_before = member.subscription.preferences if member is not None else None
        if old is not None:
            self._member_lifecycle.replace_static_member(group, old, request.member_id, draft)
        member = self._member_lifecycle.update(
            group, request.member_id, subscription, draft, now_ms, force=is_upgraded
        )
        changed = self._member_lifecycle.reconcile_member(
            group, member, request.owned if not joins else NOTHING, draft, now_ms
        )
        if isinstance(known, ClassicGroup):
            self._shard.migration.retire(known)
            self._member_lifecycle.resume(group, now_ms)
        self._member_lifecycle.start_session(group, member, now_ms)
        if (
            again is not None
            and group.computing is not None
            and (joins or subscription.preferences != wish_before)
        ):
            group.computing.append(partial(self._computed, group, member, joins, again, now_ms))
            self._host.schedule(Decision(draft.records, is_replayed=True))
            return
        has_assignment = joins or changed or request.is_full or request.member_epoch != member.current.epoch
        answer = self._answer(group, member, has_assignment)
        self._host.schedule(Decision(draft.records, [(reply, answer)], is_read=True, is_replayed=True))

    def _computed(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        joins: bool,
        again: Again,
        now_ms: int,
        error: Exception | None,
    ) -> None:
        """A target is computed. If it cannot be written, the member that joined for it is removed."""
        is_here = self._shard.groups.get(group.group_id) is group and self._host.is_writable
        if error is not None and joins and is_here and group.members.get(member.member_id) is member:
            with suppress(Refusal):
                records = self._member_lifecycle.remove(group, (member,), now_ms)
                self._host.schedule(Decision(records, is_replayed=True))
        again(error)

    def _answer(self, group: ConsumerGroup, member: ConsumerMember, has_assignment: bool) -> dict[str, Any]:
        return {
            "error_code": 0,
            "error_message": None,
            "member_id": member.member_id,
            "member_epoch": member.current.epoch,
            "heartbeat_interval": self.heartbeat_interval_ms(group.group_id),
            "assignment": {
                "topic_partitions": member.assignment_rows.get(member.current.assigned)
                or rows(member.current.assigned)
            }
            if has_assignment
            else None,
        }

    # --- checks ---------------------------------------------------------------------------------------------

    def _check(self, request: Heartbeat) -> None:
        """The checks that do not depend on the group."""
        epoch = request.member_epoch
        problem = None
        if not request.member_id:
            problem = "MemberId can't be empty."
        elif request.instance_id == "":
            problem = "InstanceId can't be empty."
        elif request.rack_id == "":
            problem = "RackId can't be empty."
        elif is_longer(request.member_id, limits.MEMBER_ID_BYTES_MAX):
            problem = f"MemberId can have at most {limits.MEMBER_ID_BYTES_MAX} bytes."
        elif any(
            is_longer(text, limits.MEMBER_STRING_BYTES_MAX) for text in (request.instance_id, request.rack_id)
        ):
            problem = f"InstanceId and RackId can have at most {limits.MEMBER_STRING_BYTES_MAX} bytes."
        elif request.names and max(map(len, request.names)) > limits.TOPIC_NAME_LENGTH_MAX:
            problem = f"A topic name can have at most {limits.TOPIC_NAME_LENGTH_MAX} characters."
        elif epoch == JOIN_EPOCH:
            if request.rebalance_timeout_ms == UNCHANGED:
                problem = "RebalanceTimeoutMs must be provided in first request."
            elif request.owned is None or request.owned:
                problem = "TopicPartitions must be empty when (re-)joining."
            elif request.names is None and request.regex is None:
                problem = (
                    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
                )
        elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
            problem = "InstanceId can't be null."
        elif epoch < STATIC_LEAVE_EPOCH:
            problem = "MemberEpoch is invalid."
        if problem is not None:
            raise Refusal(ErrorCode.INVALID_REQUEST, problem)
        known = self._host.config.group_consumer_assignors
        if request.server_assignor and request.server_assignor not in known:
            raise Refusal(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.server_assignor[:200]} is not supported. Supported assignors: {', '.join(known)}.",
            )
        if request.regex:
            try:
                compiled(request.regex)
            except BadPattern as bad:
                raise Refusal(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"SubscribedTopicRegex `{request.regex[:200]}` is not a valid regular expression: {bad}.",
                ) from None

    def _member(
        self, group: ConsumerGroup, request: Heartbeat, joins: bool
    ) -> tuple[ConsumerMember | None, ConsumerMember | None]:
        """The member of the request, None if new; and the static member that it replaces, if any."""
        member_id, instance_id = request.member_id, request.instance_id
        member = group.members.get(member_id)
        if instance_id is None:
            if member is None and not joins:
                raise _unknown(member_id)
            if member is not None:
                _check_epoch(member, request)
            return member, None
        known = group.members.get(group.static.get(instance_id, ""))
        if joins:
            if (
                known is not None
                and known.member_id == member_id
                and known.current.epoch != STATIC_LEAVE_EPOCH
            ):
                # The same member: it missed the response to its first join, or was fenced.
                return known, None
            # A classic static member sends no leave.
            if (
                known is not None
                and known.current.epoch != STATIC_LEAVE_EPOCH
                and known.subscription.classic is None
            ):
                raise Refusal(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
                    f"is owned by member {known.member_id}.",
                )
            return (None if known is not None else member), known
        if known is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if known.member_id != member_id:
            raise Refusal(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {known.member_id}.",
            )
        _check_epoch(known, request)
        return known, None

    # --- leave ----------------------------------------------------------------------------------------------

    def _leave(self, request: Heartbeat, reply: Reply, now_ms: int) -> None:
        group = self._shard.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise _no_group(request.group_id, group)
        member_id, instance_id = request.member_id, request.instance_id
        if instance_id is None:
            member = group.members.get(member_id)
            if member is None:
                raise _unknown(member_id)
        else:
            member = group.members.get(group.static.get(instance_id, ""))
            if member is None:
                raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
            if member.member_id != member_id:
                raise Refusal(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
                )
        answer = {
            "error_code": 0, "error_message": None, "member_id": member_id, "member_epoch": request.member_epoch,
            "heartbeat_interval": 0, "assignment": None,
        }  # fmt: skip
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            # It has stopped consuming; its partitions stay reserved until its session expires.
            held = member.current
            draft = self._member_lifecycle.draft(group, now_ms)
            draft.apply(
                group.current_assignment_record(
                    member_id, CurrentAssignment(STATIC_LEAVE_EPOCH, held.epoch, STABLE, held.assigned)
                )
            )
            member.cancel_rebalance_timer()
            records: Sequence[Record | Encoded] = draft.records
        else:
            records = self._member_lifecycle.remove(group, (member,), now_ms)
        self._host.schedule(Decision(records, [(reply, answer)], is_replayed=True))

    # --- offsets --------------------------------------------------------------------------------------------

    def check_epoch(self, group: ConsumerGroup, member_id: str, epoch: int, version: int) -> ErrorCode:
        """Whether this caller may commit or fetch offsets of the group."""
        if epoch < 0 and not group.members:
            return ErrorCode.NONE
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.subscription.classic is not None:
            return ErrorCode.NONE if epoch == member.current.epoch else ErrorCode.ILLEGAL_GENERATION
        if version < _COMMIT_VERSION_MIN:
            return ErrorCode.UNSUPPORTED_VERSION
        return ErrorCode.NONE if epoch == member.current.epoch else ErrorCode.STALE_MEMBER_EPOCH

    def check_commit(
        self, group: ConsumerGroup, member_id: str, epoch: int, version: int, places: Sequence[Place]
    ) -> ErrorCode:
        """Whether this caller may commit offsets of these partitions.

        KIP-1251: a member with an older epoch may commit partitions that it owned in that epoch and still
        owns.
        """
        code = self.check_epoch(group, member_id, epoch, version)
        if code is not ErrorCode.STALE_MEMBER_EPOCH or epoch > group.members[member_id].current.epoch:
            return code
        are_its_own = bool(places) and all(
            group.owners.get(place) == member_id and group.assignment_epochs[place] <= epoch
            for place in places
        )
        return ErrorCode.NONE if are_its_own else code

    # --- settings -------------------------------------------------------------------------------------------

    def heartbeat_interval_ms(self, group_id: str) -> int:
        own = self._host.group_settings(group_id).get("consumer.heartbeat.interval.ms")
        return self._host.config.group_consumer_heartbeat_interval_ms if own is None else int(own)

    # --- describe -------------------------------------------------------------------------------------------

    def describe(self, group: ConsumerGroup) -> Steps[dict[str, Any]]:
        """A row of ConsumerGroupDescribe, in steps."""
        row: dict[str, Any] = {
            "error_code": 0,
            "error_message": None,
            "group_id": group.group_id,
            "group_state": group.state.value,
            "group_epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": group.assignor(self._host.config.group_consumer_assignors[0]),
            "members": [],
        }
        yield _ROW_COST + len(group.members) // 20
        for member in list(group.members.values()):
            assigned = yield from self._named(member.current.assigned)
            target = yield from self._named(group.targets.get(member.member_id, NOTHING))
            row["members"].append(_described(member, assigned, target))
            yield (
                _ROW_COST
                + len(member.subscription.names) // 8
                + len(assigned["topic_partitions"])
                + len(target["topic_partitions"])
            )
        return row

    def _named(self, places: Places) -> Steps[dict[str, Any]]:
        found = []
        for at, row in enumerate((yield from rows_in_steps(places))):
            name = self._host.topic_name(row["topic_id"])
            # A deleted topic has no name.
            if name is not None:
                found.append(row | {"topic_name": name})
            if at % 500 == 499:
                yield 250
        return {"topic_partitions": found}


def _described(
    member: ConsumerMember, assigned: Mapping[str, Any], target: Mapping[str, Any]
) -> dict[str, Any]:
    subscription = member.subscription
    return {
        "member_id": member.member_id, "instance_id": subscription.instance_id, "rack_id": subscription.rack_id,
        "member_epoch": member.current.epoch, "client_id": subscription.client_id, "client_host": subscription.client_host,
        "subscribed_topic_names": sorted(subscription.names), "subscribed_topic_regex": subscription.regex,
        "assignment": assigned, "target_assignment": target,
        "member_type": _SPEAKS_CONSUMER if subscription.classic is None else _SPEAKS_CLASSIC,
    }  # fmt: skip


def _subscription(member: ConsumerMember | None, request: Heartbeat) -> Subscription:
    """The subscription after this request; missing fields are unchanged."""
    before = member.subscription if member is not None else Subscription()
    regex = before.regex if request.regex is None else request.regex or None
    timeout_ms = request.rebalance_timeout_ms
    return Subscription(
        before.instance_id if request.instance_id is None else request.instance_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        before.names if request.names is None else request.names,
        regex,
        before.rebalance_timeout_ms if timeout_ms == UNCHANGED else timeout_ms,
        before.server_assignor if request.server_assignor is None else request.server_assignor or None,
    )


def _check_epoch(member: ConsumerMember, request: Heartbeat) -> None:
    """A member sends its current epoch, or the previous one if it missed the response with the current
    one."""
    epoch, current = request.member_epoch, member.current
    if epoch in (JOIN_EPOCH, current.epoch):
        return
    if epoch > current.epoch:
        raise Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group coordinator "
            f"({current.epoch}). The member must abandon all its partitions and rejoin.",
        )
    if epoch != current.previous_epoch or request.owned is None or not request.owned <= current.assigned:
        raise Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a smaller member epoch ({epoch}) than the one known by the group coordinator "
            f"({current.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _unknown(member_id: str) -> Refusal:
    return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group.")


def _no_group(group_id: str, known: object) -> Refusal:
    reason = "not found" if known is None else "is not a consumer group"
    return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
