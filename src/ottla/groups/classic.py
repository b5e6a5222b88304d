"""The classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup. Errors are Kafka's, in Kafka's order.

This module checks requests; `rebalance.py` changes the group. The response to a join waits until all members
have joined. The response to a sync waits for the leader's assignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.groups.budget import Usage
from ottla.groups.classic_group import UNKNOWN_MEMBER, ClassicGroup, ClassicMember, Protocols, State
from ottla.groups.classic_members import refused_join
from ottla.groups.formats import Encoded, Record, encode
from ottla.groups.rebalance import NEW_MEMBER_JOIN_MS, ClassicRebalance, joined, synced
from ottla.model import limits
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.strings import is_longer
from ottla.ports.coordination import Decision, Reply
from ottla.records.layout import Malformed

if TYPE_CHECKING:
    from ottla.groups.shard import Shard

#: The characters of client.id or group.instance.id at the start of a member id.
_PREFIX_MAX: Final = 256


class Join(NamedTuple):
    """A JoinGroup request in any version."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    #: Whether a new member first gets its id and then joins with it (KIP-394, version 4).
    needs_known_id: bool
    #: Whether the response can tell the leader to skip the assignment (KIP-814, version 9).
    can_skip_assignment: bool

    def as_member(self, member_id: str) -> ClassicMember:
        return ClassicMember(
            member_id, self.instance_id, client_id=self.client_id, client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms, rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
        )  # fmt: skip


class Sync(NamedTuple):
    """A SyncGroup request in any version."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


class ClassicProtocol:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host
        self.rebalance = ClassicRebalance(shard)

    # --- join -----------------------------------------------------------------------------------------------

    def join(self, request: Join, reply: Reply, now_ms: int) -> None:
        config = self._host.config
        if not _can_be_stored(request):
            return _fail_join(reply, request.member_id, ErrorCode.INVALID_REQUEST)
        if (
            not config.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= config.group_max_session_timeout_ms
        ):
            return _fail_join(reply, request.member_id, ErrorCode.INVALID_SESSION_TIMEOUT)
        is_unknown = request.member_id == UNKNOWN_MEMBER
        other = self._shard.consumer_group(request.group_id)
        if other is not None and other.members:
            try:
                return self._shard.classic_members.join(other, request, self._new_id(request), reply, now_ms)
            except Refusal as refusal:
                return _fail_join(reply, request.member_id, refusal.code)
        if is_unknown:
            self._shard.remove_empty_consumer_group(request.group_id)
        group = self._shard.classic_group(request.group_id)
        if group is None:
            if not is_unknown:
                return _fail_join(reply, request.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            group = ClassicGroup(request.group_id)
        if not self._has_capacity(group, request.member_id):
            member = group.members.get(request.member_id)
            if member is not None:
                self.rebalance.remove(group, member, now_ms)
            return _fail_join(reply, UNKNOWN_MEMBER, ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not group.supports(request.protocol_type, request.protocols):
            return _fail_join(reply, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        error = self._check_size(group, request, now_ms)
        if error:
            return _fail_join(reply, request.member_id, error)
        self._shard.groups.setdefault(group.group_id, group)
        if is_unknown:
            self._join_new(group, request, reply, now_ms)
        else:
            self._join_again(group, request, reply, now_ms)
        return None

    def _has_capacity(self, group: ClassicGroup, member_id: str) -> bool:
        size_max = self._host.config.group_max_size
        member = group.members.get(member_id)
        if len(group.members) < size_max or group.state is State.EMPTY:
            return True
        if group.state is State.PREPARING_REBALANCE:
            return (member is not None and member.join is not None) or group.joined < size_max
        return member is not None

    def _check_size(self, group: ClassicGroup, request: Join, now_ms: int) -> ErrorCode:
        """Whether there is memory for the member, and its group's record is not too large."""
        known_id = request.member_id or group.static.get(request.instance_id or "", "")
        old = group.members.get(known_id)
        is_more = old is None and known_id not in group.pending
        if is_more and group.member_count >= limits.GROUP_MEMBERS_MAX:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        # The id of a new member has this length.
        weight = request.as_member(request.member_id or f"{_prefix(request)}{'':37}").weight
        record_max = self._host.record_bytes_max
        if ClassicGroup(group.group_id).with_member(weight, None).stored > record_max:
            return ErrorCode.INVALID_REQUEST
        after = group.with_member(weight, old)
        if after.stored > record_max or after.sent > limits.GROUP_BYTES_MAX:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        is_new = group.group_id not in self._shard.groups
        growth = weight.sent - (old.weight.sent if old is not None else 0)
        more = Usage(int(is_new), int(is_more), 0, max(growth, 0) + len(group.group_id) * is_new)
        return ErrorCode.NONE if self._host.budget.reserve(more, now_ms) else ErrorCode.GROUP_MAX_SIZE_REACHED

    def _new_id(self, request: Join) -> str:
        return f"{_prefix(request)}-{self._host.unique()}"

    def _join_new(self, group: ClassicGroup, request: Join, reply: Reply, now_ms: int) -> None:
        member_id = self._new_id(request)
        if request.instance_id is not None:
            old = group.members.get(group.static.get(request.instance_id, UNKNOWN_MEMBER))
            if old is None:
                self._add(group, member_id, request, reply, now_ms)
            else:
                self._replace(group, old, member_id, request, reply, now_ms)
        elif request.needs_known_id:
            # Until it joins, only its session matters; the next join has its protocols again.
            expected = request._replace(protocols=()).as_member(member_id)
            group.pending[member_id] = expected
            self.rebalance.start_session(group, expected, now_ms)
            _fail_join(reply, member_id, ErrorCode.MEMBER_ID_REQUIRED)
        else:
            self._add(group, member_id, request, reply, now_ms)

    def _add(self, group: ClassicGroup, member_id: str, request: Join, reply: Reply, now_ms: int) -> None:
        expected = group.pending.get(member_id)
        if expected is not None:
            expected.end_session()
        member = request.as_member(member_id)
        member.is_new = True
        group.set_join_reply(member, reply)
        if group.state is State.PREPARING_REBALANCE and group.previous is State.EMPTY:
            group.has_new_member = True
        group.add(member, request.protocol_type)
        self.rebalance.start_session(group, member, now_ms, NEW_MEMBER_JOIN_MS)
        self.rebalance.member_joined(group, now_ms)

    def _join_again(self, group: ClassicGroup, request: Join, reply: Reply, now_ms: int) -> None:
        member_id = request.member_id
        if member_id in group.pending and request.instance_id is None:
            return self._add(group, member_id, request, reply, now_ms)
        error = group.check(member_id, request.instance_id)
        if error:
            return _fail_join(reply, member_id, error)
        member = group.members[member_id]
        is_same = member.protocols == request.protocols
        # A retry gets the same response. But a leader that joins a stable group wants a rebalance.
        if is_same and (
            group.state is State.COMPLETING_REBALANCE
            or (group.state is State.STABLE and group.leader_id != member_id)
        ):
            member.extend_session(now_ms)
            return self._host.schedule(Decision(answers=[(reply, joined(group, member))], is_read=True))
        group.update_protocols(member, request.protocols)
        _update(member, request)
        if member.join is not None:
            # The client has sent the request again: the older one is obsolete.
            member.join.refuse(ErrorCode.REBALANCE_IN_PROGRESS)
        group.set_join_reply(member, reply)
        return self.rebalance.member_joined(group, now_ms)

    def _replace(
        self,
        group: ClassicGroup,
        old: ClassicMember,
        member_id: str,
        request: Join,
        reply: Reply,
        now_ms: int,
    ) -> None:
        """A static member returns with a new member id: it keeps its assignment, and the old id is fenced
        (KIP-345)."""
        led, old_id = group.leader_id == old.member_id, old.member_id
        for waiting in (group.take_join_reply(old), old.sync):
            if waiting is not None:
                waiting.refuse(ErrorCode.FENCED_INSTANCE_ID)
        old.end_session()
        member = request.as_member(member_id)
        member.assignment = old.assignment
        group.replace(old, member)
        self.rebalance.start_session(group, member, now_ms)
        if group.state is State.STABLE and group.choose_protocol() == group.protocol:
            group.compute_subscribed_topics()
            record = group.record()
            if self._host.fits(record):
                answer = joined(group, member, skip_assignment=led and request.can_skip_assignment)
                if led and not request.can_skip_assignment:
                    # If it knew that it leads, it would compute another assignment.
                    answer |= {"leader": old_id, "members": []}
                return self._host.schedule(Decision([record], [(reply, answer)], is_replayed=True))
        group.set_join_reply(member, reply)
        return self.rebalance.member_joined(group, now_ms)

    # --- sync -----------------------------------------------------------------------------------------------

    def sync(self, request: Sync, reply: Reply, now_ms: int) -> None:
        other = self._shard.consumer_group(request.group_id)
        if other is not None:
            try:
                return self._shard.classic_members.sync(other, request, reply, now_ms)
            except Refusal as refusal:
                return reply.refuse(refusal.code)
        group = self._shard.classic_group(request.group_id)
        if group is None:
            return reply.refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        member_id, assignments = request.member_id, request.assignments
        error = group.check(member_id, request.instance_id)
        if not error and request.generation != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        if not error and (
            request.protocol_type not in (None, group.protocol_type)
            or request.protocol_name not in (None, group.protocol)
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not error and group.state is State.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error:
            return reply.refuse(error)
        member = group.members[member_id]
        member.extend_session(now_ms)
        self.rebalance.synced(group, member)
        if group.state is State.STABLE:
            return self._host.schedule(Decision(answers=[(reply, synced(group, member))], is_read=True))
        if member.sync is not None:
            member.sync.refuse(ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync = reply
        if group.leader_id != member_id:
            return None
        growth = max(sum(map(len, assignments.values())) - group.assigned_bytes, 0)
        record = _encoded(group.record(assignments))
        if (
            record is None
            or not self._host.fits(record)
            or not self._host.budget.reserve(Usage(size=growth), now_ms)
        ):
            # The assignment cannot be written, and would be lost in a restart.
            self.rebalance.fail_syncs(group, ErrorCode.UNKNOWN_SERVER_ERROR, now_ms)
            return self.rebalance.prepare(group, now_ms)
        return self.rebalance.assign(group, assignments, record, now_ms)

    # --- heartbeat and leave --------------------------------------------------------------------------------

    def heartbeat(
        self, group: ClassicGroup, generation: int, member_id: str, instance_id: str | None, now_ms: int
    ) -> ErrorCode:
        member = group.members.get(member_id)
        if member is None or instance_id is not None:
            error = group.check(member_id, instance_id)
            if error:
                return error
        assert member is not None
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        member.deadline_ms = now_ms + member.session_timeout_ms
        if group.state is State.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, group_id: str, leaving: Sequence[tuple[str, str | None]], now_ms: int) -> list[ErrorCode]:
        """Remove members (id, instance); an administrator removes an instance without an id."""
        other = self._shard.consumer_group(group_id)
        if other is not None:
            return self._shard.classic_members.leave(other, leaving, now_ms)
        group = self._shard.classic_group(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        errors: list[ErrorCode] = []
        any_gone = False
        for member_id, instance_id in leaving:
            error, known = ErrorCode.NONE, member_id
            if member_id == UNKNOWN_MEMBER:
                known = group.static.get(instance_id or "", UNKNOWN_MEMBER)
                error = ErrorCode.NONE if known in group.members else ErrorCode.UNKNOWN_MEMBER_ID
            elif member_id in group.pending:
                group.pending.pop(member_id).end_session()
                any_gone = True
                errors.append(error)
                continue
            else:
                error = group.check(member_id, instance_id)
            if not error:
                self.rebalance.drop_member(group, group.members[known])
                any_gone = True
            errors.append(error)
        if any_gone:
            self.rebalance.after_removal(group, now_ms)
            self._shard.remove_if_unused(group)
        return errors

    def check_commit(
        self, group: ClassicGroup, generation: int, member_id: str, instance_id: str | None, now_ms: int
    ) -> ErrorCode:
        """Whether this caller may commit offsets for the group; extends the session of a member."""
        if generation < 0 and group.state is State.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            # The group has members, and the caller is not one of them.
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check(member_id, instance_id)
        if error:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is State.COMPLETING_REBALANCE:
            # The generation is known, the assignment is not.
            return ErrorCode.REBALANCE_IN_PROGRESS
        group.members[member_id].extend_session(now_ms)
        return ErrorCode.NONE

    # --- load -----------------------------------------------------------------------------------------------

    def resume(self, group: ClassicGroup, now_ms: int) -> bool:
        """After a load: start the sessions of all members; True if the group needs a rebalance."""
        for member in group.members.values():
            self.rebalance.start_session(group, member, now_ms)
        if group.members and group.leader_id is None:
            # A downgrade from a consumer group wrote no leader.
            group.leader_id = next(iter(group.members))
            return True
        return len(group.members) > self._host.config.group_max_size

    # --- describe -------------------------------------------------------------------------------------------

    def describe(self, group: ClassicGroup) -> dict[str, Any]:
        is_stable = group.state is State.STABLE
        return {
            "error_code": 0,
            "group_id": group.group_id,
            "group_state": group.state.value,
            "protocol_type": group.protocol_type or "",
            "protocol_data": (group.protocol or "") if is_stable else "",
            "members": [
                {
                    "member_id": member.member_id, "group_instance_id": member.instance_id,
                    "client_id": member.client_id, "client_host": member.client_host,
                    "member_metadata": member.metadata(group.protocol) if is_stable else b"",
                    # Until the member joins again, it consumes its last assignment.
                    "member_assignment": member.assignment,
                }
                for member in group.members.values()
            ],
        }  # fmt: skip


def _encoded(record: Record) -> Encoded | None:
    """The encoded record; None if it cannot be written."""
    try:
        return Encoded(*encode(record))
    except Malformed:
        return None


def _prefix(request: Join) -> str:
    """The start of a new member id."""
    prefix = request.client_id if request.instance_id is None else request.instance_id
    return prefix[:_PREFIX_MAX]


def _can_be_stored(request: Join) -> bool:
    """Whether the strings of a join fit every version of every API that returns them."""
    if len(request.protocols) > limits.MEMBER_PROTOCOLS_MAX:
        return False
    strings = (request.instance_id, request.protocol_type, *(name for name, _ in request.protocols))
    return not any(is_longer(text, limits.MEMBER_STRING_BYTES_MAX) for text in strings)


def _update(member: ClassicMember, request: Join) -> None:
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.client_id, member.client_host = request.client_id, request.client_host


def _fail_join(reply: Reply, member_id: str, code: ErrorCode) -> None:
    reply.answer(refused_join(member_id, code))
