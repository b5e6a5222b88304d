"""The migration of groups between the classic and the consumer protocol while they have members (KIP-848).

Upgrade: a ConsumerGroupHeartbeat joins a classic group of consumers.

- The members stay. Each keeps its assigned partitions, and those that it claimed in its last join.
- The generation becomes the epoch.
- They keep using their own requests (`classic_members.py`), and soon must join again.
- Waiting joins and syncs of the classic group get REBALANCE_IN_PROGRESS.

Downgrade: the last member with the consumer protocol has left and classic members are left, or it is a static
member that returns with the classic protocol.

- The epoch becomes the generation, and a rebalance begins.
- The record has no leader. So a coordinator that loads it rebalances the group too: nobody consumes the
  partitions of the member that left.

`group.consumer.migration.policy` allows either direction. Groups without members change at the next join.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from ottla.groups.classic_group import CONSUMER, ClassicGroup, ClassicMember, State
from ottla.groups.consumer_group import ConsumerGroup, Phase
from ottla.groups.consumer_member import ClassicSide, ConsumerMember, Subscription
from ottla.groups.draft import Draft
from ottla.groups.formats import GROUP_METADATA, Record
from ottla.groups.rebalance import joined
from ottla.groups.reconciliation import STABLE, CurrentAssignment
from ottla.model.assignors import Place, Places
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.coordination import Decision, Reply
from ottla.records.consumer_protocol import (
    NamedPlace,
    Wanted,
    read_assignment,
    read_subscription,
    write_assignment,
)
from ottla.records.layout import Malformed

if TYPE_CHECKING:
    from ottla.groups.shard import Shard

_UP: Final = ("bidirectional", "upgrade")
_DOWN: Final = ("bidirectional", "downgrade")
#: The built-in assignors of clients. User data of other assignors would be lost; that of these is not needed.
_KNOWN_ASSIGNORS: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})


class ProtocolMigration:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host

    # --- upgrade --------------------------------------------------------------------------------------------

    def upgrade(self, classic: ClassicGroup, group: ConsumerGroup, draft: Draft) -> int:
        """Copy a classic group to `group`; returns the number of members. Raises Refusal. `classic` is not
        changed."""
        if classic.state is not State.EMPTY:
            self._check_upgrade(classic)
        # A member in its first join has no partitions, and will join again.
        members = [member for member in classic.members.values() if not member.is_new]
        wanted = {member.member_id: self._wanted(classic, member) for member in members}
        held = self._held(classic, members, wanted)
        draft.append(Record((GROUP_METADATA, group.group_id), None))
        if not members:
            return 0
        draft.apply(group.record(classic.generation, 0))
        for member in members:
            name = member.member_id
            subscription = Subscription(
                member.instance_id, wanted[name].rack, member.client_id, member.client_host, wanted[name].topics,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                classic=ClassicSide(member.session_timeout_ms, member.protocols),
            )  # fmt: skip
            draft.apply(group.member_record(name, subscription))
            draft.apply(group.target_record(name, held[name]))
            current = CurrentAssignment(classic.generation, classic.generation, STABLE, held[name])
            draft.apply(group.current_assignment_record(name, current))
        draft.apply(group.assignment_record(self._host.wall_ms))
        return len(members)

    def retire(self, classic: ClassicGroup) -> None:
        """Refuse the waiting requests of a classic group that was upgraded."""
        for reply in self._shard.classic.rebalance.unload((classic,)):
            reply.refuse(ErrorCode.REBALANCE_IN_PROGRESS)

    def _check_upgrade(self, classic: ClassicGroup) -> None:
        problem = None
        if self._host.config.group_consumer_migration_policy.lower() not in _UP:
            problem = "online upgrade is disabled"
        elif classic.protocol_type != CONSUMER:
            problem = "the group does not use the consumer embedded protocol"
        elif len(classic.members) > self._host.config.group_consumer_max_size:
            problem = "the group size exceeds the consumer group maximum size"
        if problem is not None:
            raise _cannot_upgrade(classic, problem)

    def _wanted(self, classic: ClassicGroup, member: ClassicMember) -> Wanted:
        # All protocols of a member have the same subscription; before the first generation there is no chosen
        # one.
        metadata = member.metadata(classic.protocol) or member.protocols[0][1]
        try:
            return read_subscription(metadata)
        except Malformed:
            raise _cannot_upgrade(classic, "the embedded consumer protocol is malformed") from None

    def _held(
        self, classic: ClassicGroup, members: Collection[ClassicMember], wanted: Mapping[str, Wanted]
    ) -> dict[str, Places]:
        """The partitions that each member may consume. An assignment wins over a claim, which may be old."""
        owners: dict[Place, str] = {}
        for member in members:
            try:
                given, extra = read_assignment(member.assignment)
            except Malformed:
                raise _cannot_upgrade(classic, "the embedded consumer protocol is malformed") from None
            if extra and classic.protocol not in _KNOWN_ASSIGNORS:
                raise _cannot_upgrade(classic, "an unsupported custom assignor is in use")
            for place in self.places(given):
                owners.setdefault(place, member.member_id)
        for name, each in wanted.items():
            for place in self.places(each.owned):
                owners.setdefault(place, name)
        held: dict[str, set[Place]] = {member.member_id: set() for member in members}
        for place, name in owners.items():
            held[name].add(place)
        return {name: frozenset(places) for name, places in held.items()}

    # --- downgrade ------------------------------------------------------------------------------------------

    def may_downgrade(
        self, group: ConsumerGroup, gone: Collection[ConsumerMember], joining: ClassicSide | None = None
    ) -> bool:
        """Whether only classic members are left without `gone`, and they can be a classic group."""
        if joining is None and not group.classic_count:
            return False
        ids = {member.member_id for member in gone}
        left = [
            member.subscription.classic for member in group.members.values() if member.member_id not in ids
        ]
        if joining is not None:
            left.append(joining)
        if not left or len(left) > self._host.config.group_max_size:
            return False
        if self._host.config.group_consumer_migration_policy.lower() not in _DOWN:
            return False
        common: frozenset[str] | None = None
        for classic in left:
            if classic is None:
                return False
            common = classic.names if common is None else common & classic.names
        return bool(common)

    def downgrade(
        self, group: ConsumerGroup, gone: Collection[ConsumerMember], now_ms: int
    ) -> list[Record] | None:
        """Make a classic group of the remaining members and rebalance it. None without changes if it cannot
        be written."""
        classic = self._classic(group, gone)
        record = _unled(classic)
        if not self._host.fits(record):
            return None
        records = [*group.tombstones(), record]
        self._replace(group, classic, now_ms)
        self._shard.classic.rebalance.prepare(classic, now_ms)
        return records

    def downgrade_with(
        self, group: ConsumerGroup, old: ConsumerMember, member: ClassicMember, reply: Reply, now_ms: int
    ) -> bool:
        """Downgrade when the static `old` returns as the classic `member`, which keeps its assignment.

        There is no rebalance if all members are stable. False without changes if the group cannot be written.
        """
        is_settled = group.state is Phase.STABLE and len(group.members) > 1
        is_settled &= read_subscription(member.protocols[0][1]).topics == group.names_of(
            old.subscription.preferences
        )
        classic = self._classic(group, (old,))
        member.assignment = self.written(ClassicSide(0, member.protocols), old.current.assigned)
        classic.add(member, CONSUMER)
        self._choose(classic)
        record = classic.record() if is_settled else _unled(classic)
        if not self._host.fits(record):
            return False
        records = [*group.tombstones(), record]
        self._replace(group, classic, now_ms)
        if is_settled:
            answers = [(reply, joined(classic, member))]
            self._host.schedule(Decision(records, answers, is_replayed=True))
        else:
            classic.set_join_reply(member, reply)
            self._host.schedule(Decision(records, is_replayed=True))
            self._shard.classic.rebalance.prepare(classic, now_ms)
        return True

    def _classic(self, group: ConsumerGroup, gone: Collection[ConsumerMember]) -> ClassicGroup:
        """The classic group of the remaining members, with their current assignments."""
        ids = {member.member_id for member in gone}
        classic = ClassicGroup(group.group_id)
        classic.generation, classic.since_ms = group.epoch, self._host.wall_ms
        classic.protocol_type = CONSUMER
        classic.state = classic.previous = State.STABLE
        for name, each in group.members.items():
            subscription = each.subscription
            if name in ids or subscription.classic is None:
                continue
            member = ClassicMember(
                name, subscription.instance_id, client_id=subscription.client_id, client_host=subscription.client_host,
                session_timeout_ms=subscription.classic.session_timeout_ms,
                rebalance_timeout_ms=subscription.rebalance_timeout_ms, protocols=subscription.classic.protocols,
            )  # fmt: skip
            member.assignment = self.written(subscription.classic, each.current.assigned)
            classic.add(member, CONSUMER)
        if classic.members:
            self._choose(classic)
        return classic

    @staticmethod
    def _choose(classic: ClassicGroup) -> None:
        classic.protocol = classic.choose_protocol()
        classic.compute_subscribed_topics()

    def _replace(self, group: ConsumerGroup, classic: ClassicGroup, now_ms: int) -> None:
        for each in group.members.values():
            each.end_session()
        self._shard.groups[group.group_id] = classic
        for member in classic.members.values():
            self._shard.classic.rebalance.start_session(classic, member, now_ms)

    # --- names and ids --------------------------------------------------------------------------------------

    def places(self, named: Collection[NamedPlace]) -> Places:
        """Partitions by topic id; those of unknown topics are left out."""
        ids = {
            topic: view.topic_id
            for topic in {topic for topic, _number in named}
            if (view := self._host.topic(topic))
        }
        return frozenset((ids[topic], number) for topic, number in named if topic in ids)  # fmt: skip

    def written(self, classic: ClassicSide, places: Places) -> bytes:
        """An assignment in the format of a classic member."""
        names = {topic_id: self._host.topic_name(topic_id) for topic_id in {place[0] for place in places}}
        named = [(name, number) for topic_id, number in places if (name := names[topic_id]) is not None]
        return write_assignment(classic.version, named)


def _unled(classic: ClassicGroup) -> Record:
    """The record of a group without a leader: a coordinator that loads it rebalances it."""
    key, value = classic.record()
    return Record(key, value | {"leader": None})


def _cannot_upgrade(classic: ClassicGroup, reason: str) -> Refusal:
    return Refusal(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}.",
    )
