"""Builds the next state of a consumer group: matched patterns, group epoch, target assignment.

It runs when a member joins, leaves or changes its subscription, and when topics have changed.

- The target of a large group takes milliseconds. When a thousand members join at once, it is not computed for
  each. The next one is due after a pause, and the first heartbeat after it computes the target for all (like
  KIP-1263). Meanwhile a new member has the epoch of the current target and no partitions. Groups of a few
  hundred members get their target at once.
- A target of more than a few thousand partitions is computed in slices (`GroupHost.compute`), from the state
  of the group at the beginning, for that epoch. Members that have left or changed their subscription
  meanwhile are skipped. If the epoch has grown, the next heartbeat computes the next target. A join or a
  changed subscription is answered when the target is computed.

Called by `member_lifecycle.py`, which replays each record before it takes the next: the generators continue
from the replayed state.
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

#: The next target is due `_DUE_MS` later per `_DUE_FOR_EACH` members and partitions: a few percent of the
#: loop's time.
_DUE_FOR_EACH: Final = 1000
_DUE_MS: Final = 50
#: Members and partitions of a target that is computed at once: some milliseconds.
_AT_ONCE_MAX: Final = 3000
#: The size of the topic cache, and the smallest set of names in it.
_TOPIC_CACHE_MAX: Final = 2
_TOPIC_CACHE_NAMES_MIN: Final = 100


class TargetAssignmentBuilder:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = host = shard.host
        self._pattern_matcher = PatternMatcher(host)
        #: By the set of subscribed names: the existing topics and their hash, for one `topics_version`.
        self._topic_cache: dict[frozenset[str], tuple[dict[str, TopicView], int]] = {}
        self._topic_cache_version = -1

    def update(
        self, group: ConsumerGroup, is_changed: bool, *, is_one_more: bool, now_ms: int
    ) -> Iterator[Record]:
        """The records that update a group after a change of a member or, possibly, of topics.

        `is_one_more`: a new member has the same preferences as others, and can wait for its target. Other
        changes are computed at once. Their target may be too large for a record; then the request is refused.
        """
        version = self._host.topics_version
        if is_changed or group.topics_version != version:
            is_current = yield from self._update_patterns(
                group, now_ms, rematch_all=group.topics_version != version
            )
            metadata_hash = self._hash(group)
            if is_changed or metadata_hash != group.metadata_hash:
                yield group.record(group.epoch + 1, metadata_hash)
            # Patterns that are still being matched are checked again at the next heartbeat.
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
        """The records after a member has left: the next heartbeat of another member sees the higher epoch."""
        yield from self._remove_unused_patterns(group)
        yield group.record(group.epoch + 1, self._hash(group))

    def _remove_unused_patterns(self, group: ConsumerGroup) -> Iterator[Record]:
        used = group.regexes()
        for pattern in [pattern for pattern in group.patterns if pattern not in used]:
            yield group.pattern_record(pattern, None, 0, 0)

    def _update_patterns(
        self, group: ConsumerGroup, now_ms: int, *, rematch_all: bool
    ) -> Generator[Record, None, bool]:  # fmt: skip
        """Match the patterns of members again; False if some are still being matched."""
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
        """The existing topics that its members subscribe to."""
        return self._topics_and_hash(group)[0]

    def _hash(self, group: ConsumerGroup) -> int:
        """A hash of the subscribed topics, to detect changes; 0 for no topics."""
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
        # Most members have equal preferences, and share one set.
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

    # --- in slices ------------------------------------------------------------------------------------------

    def _compute(self, group: ConsumerGroup, topics: Mapping[str, TopicView]) -> Steps[None]:
        """Compute a target and write its records. Raises Refusal if one is too large."""
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
        # From here on in one step.
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
