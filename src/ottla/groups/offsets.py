"""Committed offsets of the groups of one shard, and when they are forgotten (KIP-211).

A group's offsets are kept while it has members that might come back to them: they expire `offsets.retention.minutes` after the
group became empty. Those of a group that never had members (who commits by hand) expire so long after each commit, and so do those
of topics that a group of consumers does not read any more. An old client could name the time itself. Tombstones are records
without a value; the log's compaction takes what they are about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from ottla.groups.formats import NO_ID, OFFSET_COMMIT, Committed, Record

Place: TypeAlias = tuple[str, int]


class Offsets:
    __slots__ = ("by_group", "pending")

    def __init__(self) -> None:
        #: Group → (topic, partition) → what was committed last.
        self.by_group: dict[str, dict[Place, Committed]] = {}
        #: Group → where a transaction has offsets that are neither committed nor aborted yet → by how many.
        self.pending: dict[str, dict[Place, int]] = {}

    def replay(self, group_id: str, topic: str, partition: int, value: Committed | None) -> None:
        if value is not None:
            known = self.by_group.get(group_id)
            if known is None:
                known = self.by_group[group_id] = {}
            known[topic, partition] = value
            return
        known = self.by_group.get(group_id)
        if known is not None:
            known.pop((topic, partition), None)
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

    # --- forgetting ---------------------------------------------------------------------------------------------

    def tombstones(self, group_id: str, places: Iterable[Place] | None = None) -> list[Record]:
        """The records that forget these offsets of a group, or all."""
        known = self.of(group_id)
        return [
            Record((OFFSET_COMMIT, group_id, topic, partition), None)
            for topic, partition in (known if places is None else places)
            if (topic, partition) in known
        ]

    def of_topics(self, topics: Collection[str]) -> list[Record]:
        """The records that forget all offsets in these topics."""
        return [
            Record((OFFSET_COMMIT, group_id, *place), None)
            for group_id, known in self.by_group.items()
            for place in known
            if place[0] in topics
        ]

    def strays(self, topic_id: Callable[[str], bytes | None]) -> list[Record]:
        """The records that forget offsets of topics that are gone, whatever has their names now."""
        return [
            Record((OFFSET_COMMIT, group_id, *place), None)
            for group_id, known in self.by_group.items()
            for place, value in known.items()
            if value.topic_id not in (NO_ID, topic_id(place[0]))
        ]

    def expired(
        self,
        group_id: str,
        *,
        since_ms: int | None,
        subscribed: Collection[str] | None,
        retention_ms: int,
        wall_ms: int,
    ) -> list[Record]:
        """The records that forget what has expired.

        `since_ms` is when the group became empty; None: each commit counts by itself. What is `subscribed` stays.
        """
        pending = self.pending.get(group_id, {})
        return [
            Record((OFFSET_COMMIT, group_id, *place), None)
            for place, value in self.of(group_id).items()
            if place not in pending
            and (subscribed is None or place[0] not in subscribed)
            and wall_ms
            >= (
                value.expire_ms
                if value.expire_ms >= 0
                else (value.commit_ms if since_ms is None else max(since_ms, value.commit_ms)) + retention_ms
            )
        ]
