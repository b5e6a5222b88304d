"""The life cycle of a member of a consumer group (KIP-848), with either protocol: join, reconcile, leave,
expire.

An update of a member has these steps, each a record of a draft (`draft.py`):

- record the subscription of the member;
- raise the group epoch if the subscription or the topics have changed;
- compute a new target for a new epoch (`target_assignment.py`);
- move the member one step towards its target (`reconciliation.py`).

When the last member with the consumer protocol is gone and classic members are left, the group becomes a
classic group (`protocol_migration.py`). Called by `consumer.py` and `classic_members.py`, which own requests
and responses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ottla.groups.budget import Usage
from ottla.groups.consumer_group import PLACE_BYTES, ConsumerGroup
from ottla.groups.consumer_member import ConsumerMember, Subscription
from ottla.groups.draft import Draft, too_large
from ottla.groups.formats import Encoded, Record
from ottla.groups.reconciliation import STABLE, UNREVOKED, CurrentAssignment, reconcile
from ottla.groups.target_assignment import TargetAssignmentBuilder
from ottla.model import limits
from ottla.model.assignors import NOTHING, Places
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.coordination import Decision

if TYPE_CHECKING:
    from ottla.groups.shard import Shard


class MemberLifecycle:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host
        self._target_builder = TargetAssignmentBuilder(shard)

    def draft(self, group: ConsumerGroup, now_ms: int) -> Draft:
        return Draft(self._shard, group, lambda: self.resume(group, now_ms, only_new=True))

    # --- join and update ------------------------------------------------------------------------------------

    def check_capacity(self, group: ConsumerGroup, now_ms: int) -> None:
        """Check that the group and the broker can take one more member. Raises Refusal."""
        size_max = min(self._host.config.group_consumer_max_size, limits.GROUP_MEMBERS_MAX)
        if len(group.members) >= size_max:
            raise _full(f"The consumer group has reached its maximum capacity of {size_max} members.")
        is_new = group.group_id not in self._shard.groups
        if not self._host.budget.reserve(Usage(int(is_new), 1, 0, len(group.group_id) * is_new), now_ms):
            raise _full("This broker has reached its maximum number of groups or group members.")

    def update(
        self,
        group: ConsumerGroup,
        member_id: str,
        subscription: Subscription,
        draft: Draft,
        now_ms: int,
        *,
        force: bool = False,
    ) -> ConsumerMember:
        """Add or update a member, and bring the epoch and the target up to date; `force`: raise the epoch in
        any case."""
        member = group.members.get(member_id)
        before = member.subscription if member is not None else None
        if before != subscription:
            record = group.member_record(member_id, subscription)
            encoded = draft.encoded(record)
            if encoded is None:
                draft.roll_back()
                raise Refusal(ErrorCode.INVALID_REQUEST, "The subscription is too large for a record.")
            size = subscription.size - (0 if before is None else before.size)
            if group.sent_bytes + size > limits.GROUP_BYTES_MAX:
                draft.roll_back()
                raise _full(f"The subscriptions of the group have more than {limits.GROUP_BYTES_MAX} bytes.")
            if not self._host.budget.reserve(Usage(size=max(size, 0)), now_ms):
                draft.roll_back()
                raise _full("The groups on this broker have reached its memory limit.")
            draft.apply(record, encoded)
        is_changed = force or before is None or before.preferences != subscription.preferences
        is_one_more = before is None and group.preference_counts[subscription.preferences] > 1
        draft.apply_all(
            self._target_builder.update(group, is_changed, is_one_more=is_one_more, now_ms=now_ms)
        )
        return group.members[member_id]

    def replace_static_member(
        self, group: ConsumerGroup, old: ConsumerMember, member_id: str, draft: Draft
    ) -> None:
        """A static member returns with another member id: it keeps its assignment and target."""
        subscription, assigned = old.subscription, old.current.assigned
        target = group.targets.get(old.member_id, NOTHING)
        draft.apply_all(
            (
                *group.member_tombstones(old.member_id),
                group.member_record(member_id, subscription),
                group.target_record(member_id, target),
                group.current_assignment_record(member_id, CurrentAssignment(0, 0, STABLE, assigned)),
            )
        )

    def reconcile_member(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Places | None, draft: Draft, now_ms: int
    ) -> bool:
        """Move a member one step towards its target; True if its assignment has changed."""
        before, member_id = member.current, member.member_id
        epoch, target = group.assignment_epoch, group.targets.get(member_id, NOTHING)
        prepared, member.prepared = member.prepared, None
        if prepared is not None and prepared.is_for(before, epoch, target, owned, group.changes):
            after = prepared.after
            draft.apply_current(member, after, prepared.record)
        else:
            after = reconcile(before, epoch, target, owned, group.free_for(member_id))
            if after is before:
                return False
            draft.apply(group.current_assignment_record(member_id, after))
        self._host.budget.add(PLACE_BYTES * len(after.assigned - before.assigned))
        if member.subscription.classic is None:
            if after.state == UNREVOKED:
                self.start_rebalance_timer(group, member, now_ms)
            else:
                member.cancel_rebalance_timer()
        return after.assigned != before.assigned or bool(after.pending_revocation)

    # --- leave and expire -----------------------------------------------------------------------------------

    def remove(
        self, group: ConsumerGroup, gone: Collection[ConsumerMember], now_ms: int
    ) -> Sequence[Record | Encoded]:
        """Remove members; returns the records, which are replayed already."""
        if self._shard.migration.may_downgrade(group, gone):
            records = self._shard.migration.downgrade(group, gone, now_ms)
            if records is not None:
                return records
        if not self._host.fits(group.record(group.epoch + 1, 0)):
            raise too_large()
        # The other records can always be written: no rollback is needed.
        records = [record for member in gone for record in group.member_tombstones(member.member_id)]
        for record in records:
            group.replay(*record)
        for record in self._target_builder.after_removal(group):
            group.replay(*record)
            records.append(record)
        return records

    def _session_expired(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
        """The session or the rebalance timeout is over. While no records can be written, its requests were
        refused: it gets another session."""
        if group.members.get(member.member_id) is not member:
            return
        if not self._host.is_writable:
            self.start_session(group, member, now_ms)
            if member.has_rebalance_timer:
                self.start_rebalance_timer(group, member, now_ms)
            return
        try:
            records = self.remove(group, (member,), now_ms)
        except Refusal:
            # A record cannot be written, as with a used up epoch. Nothing has changed; retry later.
            self.start_session(group, member, now_ms)
            return
        self._host.schedule(Decision(records, is_replayed=True))

    # --- deadlines ------------------------------------------------------------------------------------------

    def start_session(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
        classic = member.subscription.classic
        timeout_ms = (
            self.session_timeout_ms(group.group_id) if classic is None else classic.session_timeout_ms
        )
        member.start_session(
            self._host.timers, lambda now: self._session_expired(group, member, now), now_ms + timeout_ms
        )

    def start_rebalance_timer(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
        """Start the rebalance timeout for a revocation, join or sync."""
        member.start_rebalance_timer(
            self._host.timers,
            lambda now: self._session_expired(group, member, now),
            now_ms + max(member.subscription.rebalance_timeout_ms, 0),
        )

    def resume(self, group: ConsumerGroup, now_ms: int, *, only_new: bool = False) -> None:
        """After a load: start the sessions of all members."""
        for member in group.members.values():
            if only_new and member.bucket >= 0:
                continue
            self.start_session(group, member, now_ms)
            if member.current.state == UNREVOKED:
                self.start_rebalance_timer(group, member, now_ms)

    def unload(self, group: ConsumerGroup) -> None:
        """Another broker leads the partition: stop all timers."""
        for member in group.members.values():
            member.end_session()

    def session_timeout_ms(self, group_id: str) -> int:
        own = self._host.group_settings(group_id).get("consumer.session.timeout.ms")
        return self._host.config.group_consumer_session_timeout_ms if own is None else int(own)


def _full(reason: str) -> Refusal:
    return Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, reason)
