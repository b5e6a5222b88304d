"""The groups of one partition of `__consumer_offsets`: classic groups, consumer groups, and their offsets.

`replay` applies one record. The host calls it for each record of the log at a load, and for each record that
it schedules. Requests for a group of either kind enter here. Sessions and joins in progress are not recorded;
they start again after a load.

The host calls `replay` for each record, then `on_loaded` once, then requests in any order, and `unload` when
another broker leads the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from ottla.groups.budget import Usage
from ottla.groups.classic import ClassicProtocol
from ottla.groups.classic_group import ClassicGroup, Event, State
from ottla.groups.classic_members import ClassicMembers
from ottla.groups.consumer import ConsumerProtocol
from ottla.groups.consumer_group import ConsumerGroup
from ottla.groups.formats import (
    CONSUMER_GROUP_METADATA,
    GROUP_METADATA,
    OFFSET_COMMIT,
    Committed,
    Encoded,
    Record,
    encode,
)
from ottla.groups.host import GroupHost
from ottla.groups.member_lifecycle import MemberLifecycle
from ottla.groups.offsets import Offsets, Place
from ottla.groups.protocol_migration import ProtocolMigration
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import STEP_COST, Steps, run
from ottla.ports.coordination import Decision, Reply

NO_OFFSET: Final = -1
#: The first version of OffsetFetch with a member epoch.
FETCH_WITH_EPOCH: Final = 9
_MINUTE_MS: Final = 60_000
#: Groups and offsets scanned in one step.
_SCANNED_PER_STEP: Final = 4000


class Commit(NamedTuple):
    """One offset of an OffsetCommit request."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: bytes


class Shard:
    def __init__(self, number: int, host: GroupHost) -> None:
        self.number = number
        self.host = host
        self.groups: dict[str, Any] = {}
        self.offsets = Offsets()
        self.migration = ProtocolMigration(self)
        self.member_lifecycle = MemberLifecycle(self)
        self.classic = ClassicProtocol(self)
        self.classic_members = ClassicMembers(self)
        self.consumer = ConsumerProtocol(self)

    # --- the log --------------------------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """Apply one record."""
        key, value = record
        if key[0] == OFFSET_COMMIT:
            self.offsets.replay(key[1], key[2], key[3], value)
        elif key[0] == GROUP_METADATA:
            if value is not None:
                self.groups[key[1]] = ClassicGroup.replayed(key[1], value)
            elif self.classic_group(key[1]) is not None:
                del self.groups[key[1]]
        else:
            self._replay_consumer(record)

    def _replay_consumer(self, record: Record) -> None:
        key, value = record
        group = self.consumer_group(key[1])
        if key[0] == CONSUMER_GROUP_METADATA and value is None:
            if group is not None:
                del self.groups[key[1]]
            return
        if group is None:
            if value is None:
                return
            group = self.groups[key[1]] = ConsumerGroup(key[1])
        group.replay(key, value)

    def on_loaded(self, now_ms: int) -> None:
        """The log is replayed: start sessions, and rebalance where needed."""
        for group in run(self.resume_in_steps(now_ms)):
            self.classic.rebalance.prepare(group, now_ms)

    def resume_in_steps(self, now_ms: int) -> Steps[list[ClassicGroup]]:
        """Start sessions in steps; returns the groups to rebalance."""
        for at, group_id in enumerate((*self.offsets.by_group, *self.offsets.pending)):
            if group_id not in self.groups:
                # Offsets without a group record: committed without joining.
                self.groups[group_id] = ClassicGroup(group_id)
            if at % STEP_COST == STEP_COST - 1:
                yield STEP_COST
        changed: list[ClassicGroup] = []
        cost = 0
        for group in list(self.groups.values()):
            if not group.members:
                cost += 1
            elif not isinstance(group, ClassicGroup):
                self.member_lifecycle.resume(group, now_ms)
            elif self.classic.resume(group, now_ms):
                changed.append(group)
            cost += 2 * len(group.members)
            if cost >= 2 * STEP_COST:
                yield cost // 2
                cost = 0
        return changed

    def unload(self) -> list[Reply]:
        """Another broker leads the partition: stop all timers; returns the waiting requests."""
        classic: list[ClassicGroup] = []
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                self.member_lifecycle.unload(group)
            elif group.members or group.pending or group.alarm is not None:
                classic.append(group)
        return self.classic.rebalance.unload(classic)

    # --- groups ---------------------------------------------------------------------------------------------

    def classic_group(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def remove_empty_consumer_group(self, group_id: str) -> None:
        """For a joining classic member: remove a consumer group without members, but not its offsets."""
        group = self.consumer_group(group_id)
        if group is not None and not group.members:
            self.host.schedule(Decision(group.tombstones()))

    def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None, now_ms: int
    ) -> ErrorCode:
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not isinstance(group, ClassicGroup):
            return self.classic_members.heartbeat(group, generation, member_id, instance_id, now_ms)
        return self.classic.heartbeat(group, generation, member_id, instance_id, now_ms)

    def remove_if_unused(self, group: ClassicGroup) -> None:
        """Remove a group that no member joined and that has no offsets."""
        if (
            group.state is State.EMPTY
            and not group.generation
            and not group.pending
            and group.group_id not in self.offsets.by_group
            and group.group_id not in self.offsets.pending
        ):
            self.groups.pop(group.group_id, None)

    # --- offsets --------------------------------------------------------------------------------------------

    def check_commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        now_ms: int,
        *,
        version: int = 0,
        commits: Sequence[Commit] = (),
    ) -> ErrorCode:
        """NONE if the caller may commit these offsets for a group."""
        group = self.groups.get(group_id)
        if group is None:
            if generation < 0:
                return ErrorCode.NONE
            return ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        if isinstance(group, ClassicGroup):
            return self.classic.check_commit(group, generation, member_id, instance_id, now_ms)
        places = [(each.topic_id, each.partition) for each in commits]
        return self.consumer.check_commit(group, member_id, generation, version, places)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int, now_ms: int) -> None:
        """Check that the caller may fetch the offsets of a group; raises Refusal. No check for classic
        groups."""
        group = self.consumer_group(group_id)
        if group is None or (member_id is None and member_epoch < 0):
            return
        code = self.consumer.check_epoch(group, member_id or "", member_epoch, FETCH_WITH_EPOCH)
        if code:
            raise Refusal(code)

    def commit(
        self, group_id: str, commits: Iterable[Commit], expire_ms: int, answer: tuple[Reply, Any]
    ) -> None:
        """Write checked offsets; `expire_ms` is -1 unless the client sets it."""
        self.host.schedule(Decision(self.offset_records(group_id, commits, expire_ms), [answer]))
        if group_id not in self.groups and group_id in self.offsets.by_group:
            self.groups[group_id] = ClassicGroup(group_id)

    def commit_encoded(
        self, group_id: str, records: Sequence[Record], encoded: Sequence[Encoded], answer: tuple[Reply, Any]
    ) -> None:
        """Like `commit`, for very many encoded offsets."""
        for record in records:
            self.replay(record)
        self.host.schedule(Decision(encoded, [answer], is_replayed=True))
        if group_id not in self.groups and group_id in self.offsets.by_group:
            self.groups[group_id] = ClassicGroup(group_id)

    def reserve_offsets(self, group_id: str, commits: Iterable[Commit], now_ms: int) -> bool:
        """Reserve memory for offsets. Offsets that replace others and have no metadata need none."""
        known = self.offsets.by_group.get(group_id) or {}
        count = size = 0
        for topic, partition, _offset, _epoch, text, _topic_id in commits:
            before = known.get((topic, partition))
            if before is None:
                count += 1
                size += len(text)
            elif text:
                size += max(len(text) - len(before.metadata), 0)
        if not count and not size:
            return True
        is_new = group_id not in self.groups
        more = Usage(int(is_new), 0, count, size + len(group_id) * is_new)
        return self.host.budget.reserve(more, now_ms)

    @property
    def usage(self) -> Usage:
        return run(self.usage_in_steps())

    def usage_in_steps(self) -> Steps[Usage]:
        groups = list(self.groups.values())
        members = offsets = size = 0
        for at, group in enumerate(groups):
            members += group.member_count
            size += group.size
            offsets += len(self.offsets.of(group.group_id))
            if at % STEP_COST == STEP_COST - 1:
                yield STEP_COST // 3
        return Usage(
            len(groups), members, offsets + self.offsets.pending_count, size + self.offsets.text_size
        )

    def offset_records(self, group_id: str, commits: Iterable[Commit], expire_ms: int) -> list[Record]:
        wall_ms = self.host.wall_ms
        return [
            Record(
                (OFFSET_COMMIT, group_id, topic, partition),
                Committed(offset, leader_epoch, metadata, wall_ms, expire_ms, topic_id),
            )
            for topic, partition, offset, leader_epoch, metadata, topic_id in commits
        ]

    def check_transactional_commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        commits: Sequence[Commit] | None,
    ) -> ErrorCode:
        """NONE if the caller may commit these offsets for a group in a transaction.

        Two callers are not checked: clients before KIP-447, which send no member, and callers without a
        generation if the group has no members. While `commits` is None, an older epoch is accepted: some
        offsets may belong to it (KIP-1251).
        """
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and (not group.members or (not member_id and instance_id is None)):
            return ErrorCode.NONE
        if isinstance(group, ClassicGroup):
            code = group.check(member_id, instance_id)
            if code or generation == group.generation:
                return code
            return ErrorCode.ILLEGAL_GENERATION
        places = [(each.topic_id, each.partition) for each in commits or ()]
        code = self.consumer.check_commit(group, member_id, generation, FETCH_WITH_EPOCH, places)
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            return ErrorCode.NONE if commits is None else ErrorCode.ILLEGAL_GENERATION
        return code

    def replay_pending(self, producer_id: int, records: Iterable[Record]) -> None:
        """Replay offsets that are pending until the transaction of the producer ends."""
        for key, value in records:
            if key[0] == OFFSET_COMMIT and value is not None:
                if key[1] not in self.groups:
                    self.groups[key[1]] = ClassicGroup(key[1])
                self.offsets.replay_pending(producer_id, key[1], (key[2], key[3]), value)

    def replay_end_marker(self, producer_id: int, commit: bool) -> None:
        """Commit or drop the pending offsets of a transaction."""
        for group_id in self.offsets.replay_end_marker(producer_id, commit):
            if group_id not in self.groups:
                self.groups[group_id] = ClassicGroup(group_id)

    def check_delete(self, group_id: str, topic: str, reply: Reply) -> ErrorCode | None:
        """The error for a deletion of offsets of this topic; None if the reply has been refused already."""
        group = self.groups.get(group_id)
        if group is None:
            reply.refuse(ErrorCode.GROUP_ID_NOT_FOUND)
            return None
        if (
            isinstance(group, ClassicGroup)
            and group.state is not State.EMPTY
            and group.protocol_type != "consumer"
        ):
            reply.refuse(ErrorCode.NON_EMPTY_GROUP)
            return None
        is_read = bool(group.members) and group.is_subscribed(topic)
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE

    def on_topics_deleted(self, topics: Collection[str]) -> Steps[None]:
        """Remove the offsets of deleted topics, in steps."""
        pending = list(self.offsets.pending)
        yield from self._remove_offsets(
            lambda groups: self.offsets.of_topics(
                # A topic with the same name may exist again; then the old offsets are strays.
                [topic for topic in topics if self.host.topic(topic) is None], groups
            ),
            pending,
        )  # fmt: skip

    def _remove_offsets(
        self, find: Callable[[list[str]], list[Record]], more_groups: Iterable[str] = ()
    ) -> Steps[None]:
        """Write the tombstones that `find(groups)` returns, for all groups in steps."""
        offsets = self.offsets
        groups: list[str] = []
        size = 0
        for group_id in [*offsets.by_group, *more_groups]:
            groups.append(group_id)
            size += 1 + len(offsets.of(group_id))
            if size >= _SCANNED_PER_STEP:
                yield self._write_tombstones(find(groups), size)
                groups, size = [], 0
        yield self._write_tombstones(find(groups), size)

    def _write_tombstones(self, records: list[Record], size: int) -> int:
        """Write tombstones; returns the cost of the scan and the write."""
        if records and self.host.is_writable:
            self.host.schedule(Decision(records))
        return size // 8 + 3 * len(records)

    def remove_stray_offsets(self) -> Steps[None]:
        """Remove offsets of topics that were deleted while no records could be written."""

        @cache
        def topic_id(name: str) -> bytes | None:
            topic = self.host.topic(name)
            return None if topic is None else topic.topic_id

        yield from self._remove_offsets(lambda groups: self.offsets.strays(topic_id, groups))

    # --- deletion and expiration ----------------------------------------------------------------------------

    def delete(self, group_id: str, reply: Reply, now_ms: int) -> None:
        """Delete a group without members, and its offsets."""
        self.expire_sessions(group_id, now_ms)
        group = self.groups.get(group_id)
        if group is None:
            return reply.refuse(ErrorCode.GROUP_ID_NOT_FOUND)
        try:
            records = self.tombstones(group)
        except Refusal as refusal:
            return reply.refuse(refusal.code)
        return self._remove(group, records, [(reply, {"group_id": group_id, "error_code": 0})])

    def delete_in_steps(self, group_id: str, reply: Reply) -> Steps[None]:
        """Like `delete`, for very many offsets: tombstones are encoded in steps, and written as one
        decision."""
        known = list(self.offsets.places(group_id))
        encoded: list[Record | Encoded] = []
        for at in range(0, len(known), STEP_COST):
            records = self.offsets.tombstones(group_id, known[at : at + STEP_COST])
            encoded += [Encoded(*encode(record)) for record in records]
            yield STEP_COST
        group = self.groups.get(group_id)
        if group is None or not self.host.is_writable:
            return reply.refuse(
                ErrorCode.NOT_COORDINATOR if group is not None else ErrorCode.GROUP_ID_NOT_FOUND
            )
        try:
            rest = self.tombstones(group, ())
        except Refusal as refusal:
            return reply.refuse(refusal.code)
        # Offsets committed meanwhile.
        now = list(self.offsets.places(group_id))
        left = [] if now == known else self.offsets.tombstones(group_id, set(now).difference(known))
        self.offsets.remove_group(group_id)
        for record in rest:
            self.replay(record)
        if isinstance(group, ClassicGroup):
            group.transition(Event.REMOVED, self.host.wall_ms)
        answer = (reply, {"group_id": group_id, "error_code": 0})
        return self.host.schedule(Decision([*encoded, *left, *rest], [answer], is_replayed=True))

    def has_many_offsets(self, group_id: str) -> bool:
        return len(self.offsets.of(group_id)) > STEP_COST

    def expire_sessions(self, group_id: str, now_ms: int) -> None:
        """Remove members past their session timeout, without waiting for the timers. Timers fire up to 8 ms
        late, or later on a busy broker."""
        group = self.groups.get(group_id)
        if group is None:
            return
        for member in (*group.members.values(), *group.pending.values()):
            if member.bucket >= 0 and member.deadline_ms <= now_ms:
                self.host.timers.cancel(member)
                member.expire(now_ms)

    def tombstones(self, group: Any, places: Iterable[tuple[str, int]] | None = None) -> list[Record]:
        """The tombstones of a group and its offsets, or of these offsets. Raises Refusal if it has
        members."""
        if isinstance(group, ConsumerGroup):
            if group.members:
                raise Refusal(ErrorCode.NON_EMPTY_GROUP)
            return [*self.offsets.tombstones(group.group_id, places), *group.tombstones()]
        if group.state is not State.EMPTY or group.pending:
            raise Refusal(ErrorCode.NON_EMPTY_GROUP)
        return [
            *self.offsets.tombstones(group.group_id, places),
            Record((GROUP_METADATA, group.group_id), None),
        ]

    def _remove(self, group: Any, records: list[Record], answers: Sequence[tuple[Reply, Any]]) -> None:
        if isinstance(group, ClassicGroup):
            group.transition(Event.REMOVED, self.host.wall_ms)
        self.host.schedule(Decision(records, answers))

    def expire_offsets(self, wall_ms: int) -> Steps[None]:
        """Remove expired offsets, and groups without members and offsets (KIP-211)."""
        retention_ms = self.host.config.offsets_retention_minutes * _MINUTE_MS
        # Popped from the end: dropping the whole list would free very many groups at once.
        groups = list(self.groups.values())
        groups.reverse()
        while groups:
            group = groups.pop()
            if not self.host.is_writable:
                return
            places = list(self.offsets.of(group.group_id))
            # A group with very many offsets takes several steps; it is removed with the last ones.
            for at in range(0, len(places) or 1, STEP_COST):
                if self.groups.get(group.group_id) is group:
                    cost = self._expire(group, places[at : at + STEP_COST], retention_ms, wall_ms)
                    yield 1 + min(len(places), STEP_COST) // 8 + cost

    def _expire(self, group: Any, places: Sequence[Place], retention_ms: int, wall_ms: int) -> int:
        """Remove expired offsets, and the group if nothing is left; returns the cost."""
        group_id, since_ms, subscribed = group.group_id, None, None
        if isinstance(group, ConsumerGroup):
            # Offsets expire by commit time; offsets of subscribed topics stay.
            is_empty = not group.members
            subscribed = group.names()
        else:
            is_empty = group.state is State.EMPTY
            if is_empty:
                since_ms = group.since_ms if group.protocol_type and group.since_ms >= 0 else None
            elif group.state is State.STABLE and group.subscribed is not None:
                subscribed = group.subscribed
            else:
                return 0
        records = self.offsets.expired(
            group_id, places, since_ms=since_ms, subscribed=subscribed, retention_ms=retention_ms, wall_ms=wall_ms
        )  # fmt: skip
        is_over = is_empty and not group.pending and len(records) == len(self.offsets.of(group_id))
        if is_over and group_id not in self.offsets.pending:
            if isinstance(group, ConsumerGroup):
                self.host.schedule(Decision([*records, *group.tombstones()]))
            else:
                self._remove(group, [*records, Record((GROUP_METADATA, group_id), None)], ())
            return 5 + 3 * len(records)
        if records:
            self.host.schedule(Decision(records))
        return 3 * len(records)

    # --- describe and list ----------------------------------------------------------------------------------

    def describe(self, group_id: str) -> dict[str, Any] | None:
        """A row of DescribeGroups; None if the classic group does not exist."""
        group = self.classic_group(group_id)
        return None if group is None else self.classic.describe(group)

    def listed(self) -> Iterator[dict[str, str]]:
        """The rows of ListGroups. Groups are listed now; each row is built when it is consumed."""
        for group in list(self.groups.values()):
            yield {
                "group_id": group.group_id, "protocol_type": group.protocol_type or "",
                "group_state": group.state.value, "group_type": group.type,
            }  # fmt: skip
