"""A reader that is a member of a group: the common part of classic members and those of KIP-848.

It reads its partitions from the committed offsets, commits its positions now and then, and stops when a
partition is revoked. A member must start at an offset that others have reached: the group skips nothing
(poll-skip).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping

from testkit.checkers.partition import Anomaly
from testkit.sim.clients import Topic
from testkit.sim.cluster_reader import ClusterReader
from testkit.sim.group_client import AGAIN_MS, GroupClient, GroupStory, Identity, Place, told


class GroupReader(ClusterReader, ABC):
    def __init__(self, story: GroupStory, name: str, life: int, instance_id: str | None) -> None:
        super().__init__(story.common, name, pause_ms=1200, wait_ms=0)
        self.story = story
        self.instance_id = instance_id
        self.label = f"{name}/{life}"
        #: Its name in the histories of the group.
        self.who = instance_id or self.label
        self.client = GroupClient(self, story)
        #: Its partitions, and those with a known position.
        self.owned: dict[Place, None] = {}
        self.reading: dict[Place, None] = {}
        self._committed: dict[Place, int] = {}
        self._is_committing = False
        #: Another process has its instance id: it has ended.
        self.is_fenced = False
        self._commit_pause_ms = 1000 + self.world.below(4000)

    # --- what the protocols say ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def me(self) -> Identity: ...

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether it is in the group and has its target assignment."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group, and end."""

    # --- life -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        super().begin()
        self._commit_later()

    def log(self, text: str) -> None:
        self.world.log(f"{self.label}: {text}")

    def until_ms(self, sent_ms: int) -> int:
        return sent_ms + self.story.patience_ms

    def killed(self) -> None:
        """It stops reading; but a commit may be in flight."""
        self.story.ghosts += [(self.me, place) for place in self.owned]
        self.story.ownership.release(self.who)
        self.die()

    # --- owning -----------------------------------------------------------------------------------------------------

    def take(self, places: Iterable[Place], sent_ms: int) -> None:
        """These partitions are its own, by the response to a request that was sent then."""
        fresh = [place for place in places if place not in self.owned]
        # The response may be stale: from a former coordinator, or to a process that was paused.
        now_ms, until_ms = self.world.now_ms, self.until_ms(sent_ms)
        if self.client.is_sure and until_ms > now_ms:
            self.story.ownership.take(self.who, self.me.member_id, fresh, now_ms, until_ms)
        else:
            self.story.ownership.unsure(fresh)
        for place in fresh:
            self.owned[place] = None
        if fresh:
            self._find_positions(fresh)

    def give_up(self, places: Iterable[Place] | None = None) -> None:
        for place in list(self.owned if places is None else places):
            if place in self.owned:
                del self.owned[place]
                self.reading.pop(place, None)
                self.positions.pop(place, None)
                self._committed.pop(place, None)
                self.story.ghosts.append((self.me, place))
        self.story.ownership.release(self.who, places)

    def _find_positions(self, places: list[Place]) -> None:
        wanted = [place for place in places if place in self.owned and place not in self.reading]
        if not wanted:
            return
        me = self.me

        def found(offsets: Mapping[Place, int] | int | None) -> None:
            if isinstance(offsets, Mapping):
                for place in wanted:
                    if place in offsets and place in self.owned and place not in self.reading:
                        self._read_from(place, max(offsets[place], 0))
            if any(place in self.owned and place not in self.reading for place in wanted):
                self.later(AGAIN_MS, lambda: self._find_positions(wanted))

        self.client.fetch(me, wanted, found)

    def _read_from(self, place: Place, offset: int) -> None:
        covered = self.story.covered.get(place, 0)
        if offset > covered and self.story.is_live(place):
            raise Anomaly(
                "poll-skip",
                f"{self.label} begins at {offset} of {told({place: offset})}, read up to {covered}",
            )
        self.reading[place] = None
        self.positions[place] = self._committed[place] = offset

    def wanted(self) -> list[tuple[Topic, int]]:
        topics = self.common.topics
        return [
            (topics[topic_id], number)
            for topic_id, number in self.reading
            if topic_id in topics and topics[topic_id].live and number < len(topics[topic_id].partitions)
        ]

    # --- committing -------------------------------------------------------------------------------------------------

    @property
    def uncommitted(self) -> dict[Place, int]:
        return {
            place: self.positions[place]
            for place in self.reading
            if self.positions[place] > self._committed[place]
        }

    def _commit_later(self) -> None:
        def go_on() -> None:
            self.commit(lambda: None)
            self._commit_later()

        self.later(1 + self.world.below(self._commit_pause_ms), go_on)

    def commit(self, then: Callable[[], None]) -> None:
        """Commit what is not committed; `then()` when that is answered, or at once if there is nothing."""
        offsets = self.uncommitted
        if not offsets or self._is_committing:
            then()
            return
        covered = self.story.covered
        for place, offset in offsets.items():
            covered[place] = max(covered.get(place, 0), offset)
        self._is_committing = True

        def done(codes: Mapping[Place, int] | None) -> None:
            self._is_committing = False
            for place, code in (codes or {}).items():
                if not code and place in self._committed:
                    self._committed[place] = offsets[place]
            then()

        self.client.commit(self.me, offsets, done)
