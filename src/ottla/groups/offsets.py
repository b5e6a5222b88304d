"""The committed offsets of the groups of one shard, and their expiration (KIP-211).

Offsets expire `offsets.retention.minutes` after the group became empty. Two kinds expire that long after each
commit: offsets of groups that never had members, and offsets of topics that the group no longer subscribes
to. Old clients could set the time of a commit themselves. Pending offsets of transactions do not expire.

A record without a value is a tombstone. It also drops earlier commits of open transactions: a deleted group
does not come back when they end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from ottla.groups.formats import NO_ID, OFFSET_COMMIT, Committed, Record

Place: TypeAlias = tuple[str, int]


class Offsets:
    __slots__ = ("_by_producer", "_order", "_settled", "by_group", "pending", "text_size")

    def __init__(self) -> None:
        #: Group → (topic, partition) → last committed offset.
        self.by_group: dict[str, dict[Place, Committed]] = {}
        #: Group → (topic, partition) → number of open transactions with a pending offset.
        self.pending: dict[str, dict[Place, int]] = {}
        #: Producer id → pending offsets of its transaction, each with its position among all commits of the
        #: shard.
        self._by_producer: dict[int, dict[tuple[str, Place], tuple[int, Committed]]] = {}
        #: The position of the current commit, for partitions with pending offsets. The later commit wins,
        #: whenever its transaction ends.
        self._settled: dict[tuple[str, Place], int] = {}
        self._order = 0
        #: The characters of the metadata of all offsets, also pending ones.
        self.text_size = 0

    @property
    def pending_count(self) -> int:
        """The number of pending offsets of open transactions."""
        return sum(map(len, self._by_producer.values()))

    def replay(self, group_id: str, topic: str, partition: int, value: Committed | None) -> None:
        if value is not None:
            if self.pending and self.is_unstable(group_id, topic, partition):
                self._order += 1
                self._settled[group_id, (topic, partition)] = self._order
            known = self.by_group.get(group_id)
            if known is None:
                known = self.by_group[group_id] = {}
            before = known.get((topic, partition))
            if before is not None and before.metadata:
                self.text_size -= len(before.metadata)
            if value.metadata:
                self.text_size += len(value.metadata)
            known[topic, partition] = value
            return
        if self.pending and self.is_unstable(group_id, topic, partition):
            self._drop_pending(group_id, (topic, partition))
        known = self.by_group.get(group_id)
        if known is not None:
            before = known.pop((topic, partition), None)
            if before is not None:
                self.text_size -= len(before.metadata)
            if not known:
                del self.by_group[group_id]

    def of(self, group_id: str) -> dict[Place, Committed]:
        return self.by_group.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        known = self.by_group.get(group_id)
        return None if known is None else known.get((topic, partition))

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction may still change this offset (KIP-447)."""
        return (topic, partition) in self.pending.get(group_id, ())

    # --- transactions ---------------------------------------------------------------------------------------

    def replay_pending(self, producer_id: int, group_id: str, place: Place, value: Committed) -> None:
        """Replay a commit of an open transaction."""
        commits = self._by_producer.setdefault(producer_id, {})
        if (group_id, place) not in commits:
            places = self.pending.setdefault(group_id, {})
            places[place] = places.get(place, 0) + 1
        else:
            self.text_size -= len(commits[group_id, place][1].metadata)
        self.text_size += len(value.metadata)
        self._order += 1
        commits[group_id, place] = self._order, value

    def replay_end_marker(self, producer_id: int, commit: bool) -> set[str]:
        """Commit or drop the pending offsets of a producer; returns the groups with changed offsets."""
        changed = set()
        for (group_id, place), (order, value) in self._by_producer.pop(producer_id, {}).items():
            dropped: Committed | None = value
            if commit and order > self._settled.get((group_id, place), 0):
                self._settled[group_id, place] = order
                known = self.by_group.setdefault(group_id, {})
                dropped, known[place] = known.get(place), value
                changed.add(group_id)
            if dropped is not None:
                self.text_size -= len(dropped.metadata)
            self.pending[group_id][place] -= 1
            if not self.pending[group_id][place]:
                self._settle(group_id, place)
        return changed

    def _drop_pending(self, group_id: str, place: Place) -> None:
        """Drop the pending offsets of a partition, whatever the outcome of their transactions."""
        for producer_id, commits in list(self._by_producer.items()):
            dropped = commits.pop((group_id, place), None)
            if dropped is not None:
                self.text_size -= len(dropped[1].metadata)
                if not commits:
                    del self._by_producer[producer_id]
        self._settle(group_id, place)

    def _settle(self, group_id: str, place: Place) -> None:
        """No pending offset is left for this partition."""
        self._settled.pop((group_id, place), None)
        places = self.pending[group_id]
        del places[place]
        if not places:
            del self.pending[group_id]

    # --- removal --------------------------------------------------------------------------------------------

    def tombstones(self, group_id: str, places: Iterable[Place] | None = None) -> list[Record]:
        """The tombstones of these offsets of a group, or of all."""
        known = self.places(group_id)
        return [
            Record((OFFSET_COMMIT, group_id, *place), None)
            for place in (known if places is None else places)
            if place in known
        ]

    def of_topics(self, topics: Collection[str], groups: Iterable[str] | None = None) -> list[Record]:
        """The tombstones of all offsets in these topics, of these groups or of all."""
        return [
            Record((OFFSET_COMMIT, group_id, *place), None)
            for group_id in ({**self.by_group, **self.pending} if groups is None else groups)
            for place in self.places(group_id)
            if place[0] in topics
        ]

    def remove_group(self, group_id: str) -> None:
        """Remove all offsets of a group, like their tombstones."""
        if group_id in self.pending:
            for place in list(self.places(group_id)):
                self.replay(group_id, *place, None)
            return
        known = self.by_group.pop(group_id, {})
        self.text_size -= sum(len(value.metadata) for value in known.values())

    def places(self, group_id: str) -> Collection[Place]:
        """The partitions with a committed or pending offset of a group."""
        pending = self.pending.get(group_id)
        return {**self.of(group_id), **pending} if pending else self.of(group_id)

    def strays(
        self, topic_id: Callable[[str], bytes | None], groups: Iterable[str] | None = None
    ) -> list[Record]:
        """The tombstones of offsets of deleted topics, also if the name is in use again, of these groups or
        of all.

        Partitions with pending offsets are skipped: a transaction may commit for the new topic of that name.
        """
        return [
            Record((OFFSET_COMMIT, group_id, *place), None)
            for group_id in (self.by_group if groups is None else groups)
            for place, value in self.of(group_id).items()
            if value.topic_id not in (NO_ID, topic_id(place[0])) and not self.is_unstable(group_id, *place)
        ]

    def expired(
        self,
        group_id: str,
        places: Iterable[Place],
        *,
        since_ms: int | None,
        subscribed: Collection[str] | None,
        retention_ms: int,
        wall_ms: int,
    ) -> list[Record]:
        """The tombstones of the expired ones of these offsets.

        `since_ms` is when the group became empty; None: offsets expire by their commit time. `subscribed`
        topics stay.
        """
        pending, known = self.pending.get(group_id, {}), self.of(group_id)
        return [
            Record((OFFSET_COMMIT, group_id, *place), None)
            for place in places
            if (value := known.get(place)) is not None
            and place not in pending
            and (subscribed is None or place[0] not in subscribed)
            and wall_ms
            >= (
                value.expire_ms
                if value.expire_ms >= 0
                else (value.commit_ms if since_ms is None else max(since_ms, value.commit_ms)) + retention_ms
            )
        ]
