"""Rebalances of a classic group: members join, a leader is elected, the leader assigns.

A rebalance has two phases, each with a timeout (`ClassicGroup.alarm`).

- PreparingRebalance: members join. It ends when all have joined or the longest rebalance timeout is over.
  Members that did not join are removed; static ones stay until their session expires.
- CompletingRebalance: members sync and wait for the leader's assignment. Members that have not synced at the
  timeout are removed.

The first rebalance of an empty group waits `group.initial.rebalance.delay.ms` for more members. New members
extend the wait, up to the rebalance timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.groups.classic_group import ClassicGroup, ClassicMember, Event, State
from ottla.model.errors import ErrorCode
from ottla.model.steps import STEP_COST, Steps
from ottla.ports.coordination import Alarm, Decision, Reply, Response

if TYPE_CHECKING:
    from ottla.groups.formats import Encoded
    from ottla.groups.shard import Shard

#: The session of a member in its first join: it cannot heartbeat, and its client may be gone.
NEW_MEMBER_JOIN_MS: Final = 5 * 60 * 1000

_CAN_REBALANCE: Final = (State.EMPTY, State.COMPLETING_REBALANCE, State.STABLE)


class ClassicRebalance:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host

    # --- sessions -------------------------------------------------------------------------------------------

    def start_session(
        self, group: ClassicGroup, member: ClassicMember, now_ms: int, timeout_ms: int | None = None
    ) -> None:
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.start_session(
            self._host.timers,
            lambda on_expired, now: self._session_expired(group, on_expired, now),
            timeout_ms,
            now_ms,
        )

    def _session_expired(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> None:
        """A session has expired. While no records can be written, requests were refused: it gets another
        session."""
        if not self._host.is_writable:
            self.start_session(group, member, now_ms)
        elif group.pending.pop(member.member_id, None) is not None:
            self.complete_if_all_joined(group, now_ms)
            self._shard.remove_if_unused(group)
        elif group.members.get(member.member_id) is member:
            self.remove(group, member, now_ms)

    def remove(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> None:
        """Remove a member that left or expired, and rebalance."""
        self.drop_member(group, member)
        self.after_removal(group, now_ms)

    def drop_member(self, group: ClassicGroup, member: ClassicMember) -> None:
        member.end_session()
        group.remove(member)
        for reply in (group.take_join_reply(member), member.sync):
            if reply is not None:
                reply.refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        member.sync = None

    def after_removal(self, group: ClassicGroup, now_ms: int) -> None:
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self.prepare(group, now_ms)
        elif group.state is State.PREPARING_REBALANCE:
            self.complete_if_all_joined(group, now_ms)

    # --- preparing ------------------------------------------------------------------------------------------

    def member_joined(self, group: ClassicGroup, now_ms: int) -> None:
        """A member has joined, for the first time or again."""
        if group.state in _CAN_REBALANCE:
            self.prepare(group, now_ms)
        else:
            self.complete_if_all_joined(group, now_ms)

    def prepare(self, group: ClassicGroup, now_ms: int) -> None:
        """Begin a rebalance: all members must join again."""
        if group.state is State.COMPLETING_REBALANCE:
            self.fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._clear(group)
        is_first = group.state is State.EMPTY
        group.transition(Event.CHANGED, self._host.wall_ms)
        if not is_first:
            self._complete_or_wait(group, now_ms)
            return
        delay_ms = self._host.config.group_initial_rebalance_delay_ms
        group.has_new_member = False
        group.remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        if delay_ms:
            self._set(group, now_ms + delay_ms, lambda now: self._extend_initial_delay(group, delay_ms, now))
        else:
            self._complete(group, now_ms)

    def _extend_initial_delay(self, group: ClassicGroup, waited_ms: int, now_ms: int) -> None:
        """The initial delay is over: complete the rebalance, or wait again if a member joined meanwhile."""
        if not group.has_new_member or not group.remaining_ms:
            self._complete(group, now_ms)
            return
        group.has_new_member = False
        delay_ms = min(self._host.config.group_initial_rebalance_delay_ms, group.remaining_ms)
        group.remaining_ms = max(group.remaining_ms - waited_ms, 0)
        self._set(group, now_ms + delay_ms, lambda now: self._extend_initial_delay(group, delay_ms, now))

    def complete_if_all_joined(self, group: ClassicGroup, now_ms: int) -> None:
        if (
            group.state is State.PREPARING_REBALANCE
            and group.previous is not State.EMPTY
            and group.has_all_joined
        ):
            self._complete(group, now_ms)

    def _complete_or_wait(self, group: ClassicGroup, now_ms: int) -> None:
        if group.has_all_joined:
            self._complete(group, now_ms)
        else:
            self._set(group, now_ms + group.rebalance_timeout_ms, lambda now: self._complete(group, now))

    def _complete(self, group: ClassicGroup, now_ms: int) -> None:
        """Begin the next generation with the members that have joined."""
        self._clear(group)
        if group.state is not State.PREPARING_REBALANCE:
            return
        for member in list(group.members.values()):
            if member.join is None and member.instance_id is None:
                self.drop_member(group, member)
        if not self._elect_leader(group) and group.members:
            # Only static members that did not join are left: wait for their sessions.
            self._set(group, now_ms + group.rebalance_timeout_ms, lambda now: self._complete(group, now))
            return
        group.begin_generation(self._host.wall_ms)
        if not group.members:
            self._host.schedule(Decision([group.record()], is_replayed=True))
            return
        answers: list[tuple[Reply, Response]] = []
        answer: dict[str, Any] = {}
        for member in group.members.values():
            reply = group.take_join_reply(member)
            if reply is not None:
                # Responses of followers differ by the member id only.
                if not answer or group.leader_id in (member.member_id, answer["member_id"]):
                    answer = joined(group, member)
                answers.append((reply, {**answer, "member_id": member.member_id}))
            member.is_new = False
            self.start_session(group, member, now_ms)
        self._set(group, now_ms + group.rebalance_timeout_ms, lambda now: self._remove_unsynced(group, now))
        self._host.schedule(Decision(answers=answers))

    def _elect_leader(self, group: ClassicGroup) -> bool:
        """Choose a leader among the members that have joined; False if none has."""
        leader = group.members.get(group.leader_id or "")
        if leader is None or leader.join is None:
            chosen = next((name for name, each in group.members.items() if each.join is not None), None)
            if chosen is None:
                return False
            group.leader_id = chosen
        return True

    # --- completing -----------------------------------------------------------------------------------------

    def _remove_unsynced(self, group: ClassicGroup, now_ms: int) -> None:
        """Remove members that joined and did not sync."""
        missing = [member for name, member in group.members.items() if name in group.unsynced]
        if not missing or group.state not in (State.COMPLETING_REBALANCE, State.STABLE):
            return
        for member in missing:
            self.drop_member(group, member)
        self.prepare(group, now_ms)

    def synced(self, group: ClassicGroup, member: ClassicMember) -> None:
        """A member has sent SyncGroup."""
        group.unsynced.discard(member.member_id)
        if not group.unsynced and group.state is State.STABLE:
            self._clear(group)

    def assign(
        self, group: ClassicGroup, assignments: Mapping[str, bytes], record: Encoded, now_ms: int
    ) -> None:  # fmt: skip
        """Apply the leader's assignment; waiting syncs are answered when its record is committed."""
        group.assigned_bytes = 0
        for name, member in group.members.items():
            member.assignment = assignments.get(name, b"")
            group.assigned_bytes += len(member.assignment)
        group.transition(Event.ASSIGNED, self._host.wall_ms)
        if not group.unsynced:
            self._clear(group)
        answers: list[tuple[Reply, Response]] = []
        for member in group.members.values():
            if member.sync is not None:
                answers.append((member.sync, synced(group, member)))
                member.sync = None
                member.extend_session(now_ms)
        self._host.schedule(Decision([record], answers, is_replayed=True))

    def fail_syncs(self, group: ClassicGroup, code: ErrorCode, now_ms: int) -> None:
        replies: list[Reply] = []
        for member in group.members.values():
            member.assignment = b""
            if member.sync is not None:
                replies.append(member.sync)
                member.sync = None
                member.extend_session(now_ms)
        if len(replies) > STEP_COST:
            self._host.compute(_refuse_in_steps(replies, code), lambda _result, _error: None)
        else:
            for reply in replies:
                reply.refuse(code)

    # --- alarms ---------------------------------------------------------------------------------------------

    def _set(self, group: ClassicGroup, deadline_ms: int, action: Any) -> None:
        self._clear(group)
        group.alarm = Alarm(self._host.timers, action)
        group.alarm.set(deadline_ms)

    def _clear(self, group: ClassicGroup) -> None:
        if group.alarm is not None:
            group.alarm.clear()
            group.alarm = None

    def unload(self, groups: Iterable[ClassicGroup]) -> list[Reply]:
        """Another broker leads the partition: stop all timers; returns the waiting requests."""
        waiting: list[Reply] = []
        for group in groups:
            self._clear(group)
            for member in (*group.members.values(), *group.pending.values()):
                member.end_session()
                waiting += [
                    reply for reply in (group.take_join_reply(member), member.sync) if reply is not None
                ]
                member.sync = None
        return waiting


def _refuse_in_steps(replies: Sequence[Reply], code: ErrorCode) -> Steps[None]:
    for at, reply in enumerate(replies):
        reply.refuse(code)
        if not at % 100:
            yield STEP_COST


def joined(group: ClassicGroup, member: ClassicMember, *, skip_assignment: bool = False) -> dict[str, Any]:
    """The response to a join: the leader gets all members."""
    leads = group.leader_id == member.member_id
    return {
        "error_code": 0,
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "leader": group.leader_id or "",
        "skip_assignment": skip_assignment,
        "member_id": member.member_id,
        "members": [
            {
                "member_id": each.member_id, "group_instance_id": each.instance_id,
                "metadata": each.metadata(group.protocol),
            }
            for each in group.members.values()
        ] if leads else [],
    }  # fmt: skip


def synced(group: ClassicGroup, member: ClassicMember) -> dict[str, Any]:
    return {
        "error_code": 0,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "assignment": member.assignment,
    }
