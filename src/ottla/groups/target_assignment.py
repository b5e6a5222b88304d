"""What a consumer group shall be like next: its patterns, its epoch, its target assignment. Looked at when somebody comes, goes
or wants something else, and when topics have changed.

The target of a large group takes milliseconds. When a thousand members come at once it is not computed for each of them: the next is
due after a while, and the first heartbeat from then on has it computed for all who have come (KIP-1263 does alike). Meanwhile
who comes has the present target's epoch and nothing to read. A group of a few hundred always has its target at once.

The target of more than a few thousand partitions is computed in slices (`Host.compute`), from the group as it was at the beginning, and
is then the target of that epoch. Who has left meanwhile, or reads something else now, is left out. If the epoch has grown meanwhile,
the next heartbeat has the next target computed. Who joins, or changes its subscription, is answered when the target is there.

Called by `membership.py`, which replays each record before it takes the next: the generators here go on from what that made.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ottla.groups.consumer_group import rows_in_steps
from ottla.groups.draft import too_large
from ottla.groups.formats import TARGET_ASSIGNMENT_MEMBER, Encoded, Record, encode_in_steps
from ottla.groups.topic_patterns import PatternMatcher
from ottla.model.assignors import ASSIGNORS, NOTHING, Places, Reader
from ottla.model.errors import Refusal
from ottla.model.steps import Steps, run
from ottla.ports.coordination import Decision

if TYPE_CHECKING:
    from ottla.groups.consumer_group import ConsumerGroup
    from ottla.groups.host import TopicView
    from ottla.groups.shard import Shard

#: For each so many members and partitions together, the next target is due so much later: some hundredths of the loop's time.
_DUE_FOR_EACH: Final = 1000
_DUE_MS: Final = 50
#: Members and partitions of a group whose target is computed at once: some milliseconds.
_AT_ONCE_MAX: Final = 3000
#: How many sets of topic names are remembered with their topics, and from which size on.
_TOPIC_CACHE_MAX: Final = 2
_TOPIC_CACHE_NAMES_MIN: Final = 100


class TargetAssignmentBuilder:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = host = shard.host
        self._pattern_matcher = PatternMatcher(host)
        #: By the names that somebody reads: the topics that exist, and their hash; of one version of the topics.
        self._topic_cache: dict[frozenset[str], tuple[dict[str, TopicView], int]] = {}
        self._topic_cache_version = -1

    def update(
        self, group: ConsumerGroup, is_changed: bool, *, is_one_more: bool, now_ms: int
    ) -> Iterator[Record]:
        """The records that bring a group up to date after a member or, maybe, the topics have changed.

        `is_one_more`: the change is that somebody came who wants what others want. It can wait for its part. Who wants something
        else is told at once; also, what its target makes of the group may be more than can be written, and then it must not come.
        """
        version = self._host.topics_version
        if is_changed or group.topics_version != version:
            is_current = yield from self._update_patterns(
                group, now_ms, rematch_all=group.topics_version != version
            )
            metadata_hash = self._hash(group)
            if is_changed or metadata_hash != group.metadata_hash:
                yield group.record(group.epoch + 1, metadata_hash)
            # What takes longer to find out is asked for again at the next heartbeat.
            group.topics_version = version if is_current else -1
        is_urgent = is_changed and not is_one_more
        if group.epoch > group.assignment_epoch and (is_urgent or now_ms >= group.target_due_ms):
            topics = self._topics(group)
            size = len(group.members) + sum(len(view.racks) for view in topics.values())
            group.target_due_ms = now_ms + size // _DUE_FOR_EACH * _DUE_MS
            if size <= _AT_ONCE_MAX:
                yield from self._target(group, topics)
            elif group.computing is None:
                group.computing = []
                self._host.compute(self._compute(group, topics), partial(self._computed, group))

    def after_removal(self, group: ConsumerGroup) -> Iterator[Record]:
        """The records after a member has gone: the next heartbeat of another will find the epoch higher."""
        yield from self._remove_unused_patterns(group)
        yield group.record(group.epoch + 1, self._hash(group))

    def _remove_unused_patterns(self, group: ConsumerGroup) -> Iterator[Record]:
        used = group.regexes()
        for pattern in [pattern for pattern in group.patterns if pattern not in used]:
            yield group.pattern_record(pattern, None, 0, 0)

    def _update_patterns(
        self, group: ConsumerGroup, now_ms: int, *, rematch_all: bool
    ) -> Generator[Record, None, bool]:  # fmt: skip
        """What the members' patterns have come to mean; False if that is not known of all of them yet."""
        yield from self._remove_unused_patterns(group)
        version, wall_ms = self._host.topics_version, self._host.wall_ms
        is_current = True
        for pattern in sorted(group.regexes()):
            if not rematch_all and pattern in group.patterns:
                continue
            topics, is_known = self._pattern_matcher.find(pattern, now_ms)
            is_current = is_current and is_known
            if topics is not None and topics != group.patterns.get(pattern):
                yield group.pattern_record(pattern, topics, max(version, 0), wall_ms)
        return is_current

    def _topics(self, group: ConsumerGroup) -> dict[str, TopicView]:
        """The topics that its members read and that exist."""
        return self._topics_and_hash(group)[0]

    def _hash(self, group: ConsumerGroup) -> int:
        """A number that tells whether the topics are those that the last epoch was made with; 0 for none."""
        return self._topics_and_hash(group)[1]

    def _topics_and_hash(self, group: ConsumerGroup) -> tuple[dict[str, TopicView], int]:
        if self._topic_cache_version != self._host.topics_version:
            self._topic_cache.clear()
            self._topic_cache_version = self._host.topics_version
        names = group.names()
        found = self._topic_cache.get(names)
        if found is None:
            views = {name: self._host.topic(name) for name in sorted(names)}
            topics = {name: view for name, view in views.items() if view is not None}
            found = topics, _hashed(topics)
            if len(names) >= _TOPIC_CACHE_NAMES_MIN:
                while len(self._topic_cache) >= _TOPIC_CACHE_MAX:
                    del self._topic_cache[next(iter(self._topic_cache))]
                self._topic_cache[names] = found
        return found

    def _target(self, group: ConsumerGroup, topics: Mapping[str, TopicView]) -> Iterator[Record]:
        target = run(self._assigned(group, topics))
        for member_id, places in target.items():
            before = group.targets.get(member_id)
            if before is not places and before != places:
                yield group.target_record(member_id, places)
        yield group.assignment_record(self._host.wall_ms)

    def _assigned(
        self, group: ConsumerGroup, topics: Mapping[str, TopicView]
    ) -> Steps[dict[str, Places]]:  # fmt: skip
        ids = {name: view.topic_id for name, view in topics.items()}
        # Most members want the same, and then share one set.
        reading = {
            preferences: frozenset(ids[name] for name in group.names_of(preferences) if name in ids)
            for preferences in group.preference_counts
        }
        readers = [
            Reader(
                member_id, member.subscription.instance_id, member.subscription.rack_id, reading[member.subscription.preferences],
                group.targets.get(member_id, NOTHING),
            )
            for member_id, member in group.members.items()
        ]  # fmt: skip
        yield len(readers) + len(ids) // 4
        assign = ASSIGNORS[group.assignor(self._host.config.group_consumer_assignors[0])]
        return (yield from assign(readers, {view.topic_id: view for view in topics.values()}))

    # --- in slices ----------------------------------------------------------------------------------------------

    def _compute(self, group: ConsumerGroup, topics: Mapping[str, TopicView]) -> Steps[None]:
        """Compute a target and write it down. Raises Refusal if it cannot be written."""
        epoch = group.epoch
        wishes = {member_id: member.subscription.preferences for member_id, member in group.members.items()}
        target = yield from self._assigned(group, topics)
        found: list[tuple[str, Places, Encoded]] = []
        for member_id, places in target.items():
            before = group.targets.get(member_id)
            if before is places or before == places:
                yield 1 + len(places) // 20
                continue
            value = {"topic_partitions": (yield from rows_in_steps(places))}
            key = (TARGET_ASSIGNMENT_MEMBER, group.group_id, member_id)
            record = yield from encode_in_steps(Record(key, value))
            if not self._host.fits(record):
                raise too_large()
            found.append((member_id, places, record))
            yield 1
        # From here on in one go.
        is_here = self._shard.groups.get(group.group_id) is group and group.epoch >= epoch
        if not is_here or not self._host.is_writable:
            return
        records: list[Record | Encoded] = []
        for member_id, places, record in found:
            member = group.members.get(member_id)
            if member is not None and member.subscription.preferences == wishes[member_id]:
                group.targets[member_id] = places
                records.append(record)
        group.assignment_epoch = epoch
        records.append(group.assignment_record(self._host.wall_ms, epoch))
        self._host.schedule(Decision(records, is_replayed=True))

    def _computed(self, group: ConsumerGroup, _result: None, error: Exception | None) -> None:
        waiting, group.computing = group.computing or [], None
        for again in waiting:
            again(error)
        if error is not None and not isinstance(error, Refusal):
            raise error


def _hashed(topics: Mapping[str, TopicView]) -> int:
    if not topics:
        return 0
    digest = blake2b(digest_size=8)
    for view in topics.values():
        racks = [sorted(each) for each in view.racks] if any(view.racks) else len(view.racks)
        digest.update(repr((view.name, view.topic_id, racks)).encode())
    return int.from_bytes(digest.digest(), "big", signed=True)
