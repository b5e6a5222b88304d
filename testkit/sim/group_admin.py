"""An admin client of groups: commits by hand, deletes offsets and groups, reads committed offsets; and ghosts
of members.

A ghost is a request that a member may have sent before it left the group, and that arrives late. It commits
with the old member id and generation, and must be refused once they are over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from testkit.sim.actors import Actor, Common
from testkit.sim.group_client import GroupClient, GroupStory, Identity, Place

_PAUSE_MS: Final = 3500
_OFFSET_MAX: Final = 1000
#: Errors after which nothing was deleted.
_REFUSED: Final = frozenset(
    (
        ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
)  # fmt: skip


class GroupAdmin(Actor):
    def __init__(self, common: Common, by_hand: GroupStory, stories: list[GroupStory]) -> None:
        super().__init__(common, "hand")
        #: The group without members, and those with members.
        self._by_hand = by_hand
        self._stories = stories
        self._clients = {story.group_id: GroupClient(self, story) for story in (by_hand, *stories)}
        self._eyes = {story.group_id: GroupClient(self, story, "look") for story in (by_hand, *stories)}

    def begin(self) -> None:
        self._next()

    def create(self, name: str, count: int) -> None:
        """Create `__consumer_offsets` with segments so small that it is compacted all the time. If that
        fails, brokers create it.
        """
        configs = {
            "cleanup.policy": "compact", "segment.bytes": str(600 + self.world.below(2000)),
            "min.cleanable.dirty.ratio": "0.1",
        }  # fmt: skip
        topic = {
            "name": name, "num_partitions": count, "replication_factor": min(3, len(self.common.brokers)), "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }  # fmt: skip

        def answered(response: Any | None) -> None:
            if response is not None:
                self.world.log(f"hand: {name}: {response.topics[0].error_code!r} {configs}")

        self.ask(self.any_broker(), ApiKey.CREATE_TOPICS, {"topics": [topic]}, answered)

    def _next(self) -> None:
        def act() -> None:
            if self.common.is_open:
                self._act()

        self.world.later(300 + self.world.below(_PAUSE_MS), act)

    def _any_story(self) -> GroupStory:
        return self._stories[self.world.below(len(self._stories))]

    def _act(self) -> None:
        choice = self.world.below(20)
        if choice < 6:
            self._commit()
        elif choice < 9:
            self.look(self._by_hand, self._next)
        elif choice < 12:
            self.look(self._any_story(), self._next)
        elif choice < 17:
            self._haunt(self._any_story())
        elif choice < 18:
            self._delete_group()
        else:
            self._delete_offset(self._by_hand if choice < 19 else self._any_story())

    def _commit(self) -> None:
        """Commit by hand: to the group without members, or to another, which is allowed while it has none."""
        story = self._by_hand if self.world.chance(0.8) else self._any_story()
        if story is self._by_hand:
            places = [
                (topic.topic_id, number)
                for topic in self.common.live()
                for number in range(len(topic.partitions))
            ]
        else:
            places = [place for place in story.covered if story.is_live(place)]
        if not places:
            self._next()
            return
        place = places[self.world.below(len(places))]
        # Never beyond what its members have read.
        offset_max = _OFFSET_MAX if story is self._by_hand else story.covered[place]
        offsets = {place: self.world.below(offset_max + 1)}
        self._clients[story.group_id].commit(Identity(), offsets, lambda _codes: self._next())
        if self.world.chance(0.7):
            # While it is written.
            self.world.later(1 + self.world.below(400), lambda: self.look(story, lambda: None))

    def look(self, story: GroupStory, then: Callable[[], None]) -> None:
        """Fetch every offset that was ever committed for existing partitions."""
        places = [place for place in story.histories if story.is_live(place)]
        if not places:
            then()
            return
        self._eyes[story.group_id].fetch(Identity(), places, lambda _found: then())

    def _haunt(self, story: GroupStory) -> None:
        ghosts = [(who, place) for who, place in story.ghosts if who.member_id and story.is_live(place)]
        if not ghosts:
            self._next()
            return
        # The latest are the most dangerous.
        who, place = ghosts[-1 - self.world.below(min(len(ghosts), 6))]
        offset = self.world.below(story.covered.get(place, 0) + 1)
        self._clients[story.group_id].commit(who, {place: offset}, lambda _codes: self._next())

    # --- forgetting ---------------------------------------------------------------------------------------------

    def _remove(self, story: GroupStory, places: list[Place]) -> Callable[[int | None], None]:
        """Note that these offsets are about to be deleted; call the result with the outcome."""
        writes = [(story.history(place), story.history(place).remove()) for place in places]

        def answered(code: int | None) -> None:
            for history, write in writes:
                if code == 0:
                    history.counts(write)
                elif code in _REFUSED:
                    history.is_refused(write)
            self._next()

        return answered

    def _delete_group(self) -> None:
        story = self._by_hand
        self.world.log(f"hand: delete the group {story.group_id}")
        done = self._remove(story, list(story.histories))

        def answered(response: Any | None) -> None:
            done(None if response is None else int(response.results[0].error_code))

        client = self._clients[story.group_id]
        client.ask(ApiKey.DELETE_GROUPS, {"groups_names": [story.group_id]}, answered)

    def _delete_offset(self, story: GroupStory) -> None:
        places = [place for place in story.histories if story.is_live(place)]
        if not places:
            self._next()
            return
        topic_id, number = places[self.world.below(len(places))]
        name = self.common.topics[topic_id].name
        # By name: any topic that has it then.
        same = [
            place
            for place in story.histories
            if place[1] == number and place[0] in self.common.topics and self.common.topics[place[0]].name == name
        ]  # fmt: skip
        self.world.log(f"hand: delete the offset of {name}-{number} in {story.group_id}")
        done = self._remove(story, same)

        def answered(response: Any | None) -> None:
            if response is None or response.error_code:
                done(None if response is None else int(response.error_code))
            else:
                done(int(response.topics[0].partitions[0].error_code))

        body = {
            "group_id": story.group_id,
            "topics": [{"name": name, "partitions": [{"partition_index": number}]}],
        }
        self._clients[story.group_id].ask(ApiKey.OFFSET_DELETE, body, answered)
