"""What a consumer group shall be like next: its patterns, its epoch, its target assignment. Looked at when somebody comes, goes
or wants something else, and when topics have changed.

The target of a large group takes milliseconds. When a thousand members come at once it is not computed for each of them: the next is
due after a while, and the first heartbeat from then on has it computed for all who have come (KIP-1263 does alike). Meanwhile
who comes has the present target's epoch and nothing to read. A group of a few hundred always has its target at once.

Called by `membership.py`, which replays each record before it takes the next: the generators here go on from what that made.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ottla.groups.matching import Matching
from ottla.model.assignors import ASSIGNORS, NOTHING, Reader

if TYPE_CHECKING:
    from ottla.groups.consumer_group import ConsumerGroup
    from ottla.groups.formats import Record
    from ottla.groups.host import Host, TopicView

#: For each so many members and partitions together, the next target is due so much later: some hundredths of the loop's time.
_DUE_FOR_EACH: Final = 1000
_DUE_MS: Final = 50


class Targeting:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._matching = Matching(host)

    def refreshed(
        self, group: ConsumerGroup, is_changed: bool, *, is_one_more: bool, now_ms: int
    ) -> Iterator[Record]:
        """The records that bring a group up to date after a member or, maybe, the topics have changed.

        `is_one_more`: the change is that somebody came who wants what others want. It can wait for its part. Who wants something
        else is told at once; also, what its target makes of the group may be more than can be written, and then it must not come.
        """
        version = self._host.topics_version
        if is_changed or group.topics_version != version:
            is_current = yield from self._patterns(group, now_ms, all_anew=group.topics_version != version)
            metadata_hash = self._hash(group)
            if is_changed or metadata_hash != group.metadata_hash:
                yield group.record(group.epoch + 1, metadata_hash)
            # What takes longer to find out is asked for again at the next heartbeat.
            group.topics_version = version if is_current else -1
        is_urgent = is_changed and not is_one_more
        if group.epoch > group.assignment_epoch and (is_urgent or now_ms >= group.target_due_ms):
            yield from self._target(group, now_ms)

    def without(self, group: ConsumerGroup) -> Iterator[Record]:
        """The records after a member has gone: the next heartbeat of another will find the epoch higher."""
        yield from self._unused(group)
        yield group.record(group.epoch + 1, self._hash(group))

    def _unused(self, group: ConsumerGroup) -> Iterator[Record]:
        used = group.regexes()
        for pattern in [pattern for pattern in group.patterns if pattern not in used]:
            yield group.pattern_record(pattern, None, 0, 0)

    def _patterns(
        self, group: ConsumerGroup, now_ms: int, *, all_anew: bool
    ) -> Generator[Record, None, bool]:  # fmt: skip
        """What the members' patterns have come to mean; False if that is not known of all of them yet."""
        yield from self._unused(group)
        version, wall_ms = self._host.topics_version, self._host.wall_ms
        is_current = True
        for pattern in sorted(group.regexes()):
            if not all_anew and pattern in group.patterns:
                continue
            topics, is_known = self._matching.find(pattern, now_ms)
            is_current = is_current and is_known
            if topics is not None and topics != group.patterns.get(pattern):
                yield group.pattern_record(pattern, topics, max(version, 0), wall_ms)
        return is_current

    def _topics(self, group: ConsumerGroup) -> dict[str, TopicView]:
        """The topics that its members read and that exist."""
        views = {name: self._host.topic(name) for name in sorted(group.names())}
        return {name: view for name, view in views.items() if view is not None}

    def _hash(self, group: ConsumerGroup) -> int:
        """A number that tells whether the topics are those that the last epoch was made with; 0 for none."""
        topics = self._topics(group)
        if not topics:
            return 0
        digest = blake2b(digest_size=8)
        for view in topics.values():
            racks = [sorted(each) for each in view.racks] if any(view.racks) else len(view.racks)
            digest.update(repr((view.name, view.topic_id, racks)).encode())
        return int.from_bytes(digest.digest(), "big", signed=True)

    def _target(self, group: ConsumerGroup, now_ms: int) -> Iterator[Record]:
        topics = self._topics(group)
        size = len(group.members) + sum(len(view.racks) for view in topics.values())
        group.target_due_ms = now_ms + size // _DUE_FOR_EACH * _DUE_MS
        ids = {name: view.topic_id for name, view in topics.items()}
        # Most members want the same, and then share one set.
        reading = {
            wish: frozenset(ids[name] for name in group.names_of(wish) if name in ids)
            for wish in group.wishes
        }
        readers = [
            Reader(
                member_id, member.said.instance_id, member.said.rack_id, reading[member.said.wish],
                group.targets.get(member_id, NOTHING),
            )
            for member_id, member in group.members.items()
        ]  # fmt: skip
        assign = ASSIGNORS[group.assignor(self._host.config.group_consumer_assignors[0])]
        target = assign(readers, {view.topic_id: view for view in topics.values()})
        for member_id, places in target.items():
            before = group.targets.get(member_id)
            if before is not places and before != places:
                yield group.target_record(member_id, places)
        yield group.assignment_record(self._host.wall_ms)
