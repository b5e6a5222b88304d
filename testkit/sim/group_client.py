"""How the clients of a group reach its coordinator, commit and ask for offsets; and what all that have to do
with a group know of it.

A client asks any broker who coordinates the group, asks that one until it hears that it is another, and looks
again. What is asked is noted in the group's histories (`checkers/`), and so is what is answered.

A broker that was deposed and has not heard of it yet may still answer what it need not write: heartbeats,
reads. Like Kafka's, it cannot know better. So such an answer counts only if the broker coordinated the group,
in one epoch, from the question to the answer (`is_sure`); what must be written is never answered wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from testkit.checkers.offsets import OffsetHistory
from testkit.checkers.ownership import Commit, Ownership
from testkit.sim.actors import Actor, Common

Place = tuple[bytes, int]

#: After a coordinator that was not found.
AGAIN_MS: Final = 250
#: Joins wait for others.
_TIMEOUT_MS: Final = 6000

#: Somebody else coordinates the group, or soon will.
MOVED: Final = frozenset(
    (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)
)
#: With these a commit was refused before anything was written.
_REFUSED: Final = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
)  # fmt: skip


class Identity(NamedTuple):
    """Who commits. By hand: nobody."""

    who: str = ""
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class GroupStory:
    """A group as all know it together."""

    def __init__(
        self,
        common: Common,
        group_id: str,
        names: tuple[str, ...],
        *,
        session_ms: int,
        rebalance_ms: int,
        tenure: Callable[[str], tuple[int, int]],
    ) -> None:
        self.common = common
        self.group_id = group_id
        #: The topics that its members read.
        self.names = names
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        #: Who coordinates a group, in which epoch, whether or not anybody has heard of it.
        self.tenure = tenure
        self.ownership = Ownership(group_id)
        self.histories: dict[Place, OffsetHistory] = {}
        #: Everything before was read by some member.
        self.covered: dict[Place, int] = {}
        #: Members that there were, with something that they could have committed: their ghosts may try.
        self.ghosts: list[tuple[Identity, Place]] = []
        self._texts = 0
        self.commits = 0
        self.refused = 0

    @property
    def patience_ms(self) -> int:
        """How long after it was last heard of a member is certain to be in the group."""
        return min(self.session_ms, self.rebalance_ms)

    def history(self, place: Place) -> OffsetHistory:
        known = self.histories.get(place)
        if known is None:
            name = f"{self.group_id} {place[0].hex()[:4]}-{place[1]}"
            known = self.histories[place] = OffsetHistory(name)
        return known

    def is_live(self, place: Place) -> bool:
        """Whether the partition is certain to exist: what is committed of others is forgotten."""
        topic = self.common.topics.get(place[0])
        return topic is not None and topic.live

    def text(self, name: str) -> str:
        self._texts += 1
        return f"{name}.{self._texts}"


class GroupClient:
    def __init__(self, actor: Actor, story: GroupStory, purpose: str = "group") -> None:
        self._actor = actor
        self._story = story
        #: What is asked for another purpose has a connection of its own, and need not wait for other answers.
        self._purpose = purpose
        self.coordinator: int | None = None
        #: Of the answer that is being looked at: whether it is that of the group's coordinator.
        self.is_sure = False

    # --- asking -------------------------------------------------------------------------------------------------

    def ask(self, key: int, body: dict[str, Any], answered: Callable[[Any | None], None]) -> None:
        """Ask the coordinator once; None if there is none, or no answer."""
        if self.coordinator is not None:
            self._ask(self.coordinator, key, body, answered)
            return
        group_id = self._story.group_id

        def found(response: Any | None) -> None:
            row = response.coordinators[0] if response is not None else None
            if row is None or row.error_code:
                self._actor.later(AGAIN_MS, lambda: answered(None))
                return
            self.coordinator = row.node_id
            self._ask(row.node_id, key, body, answered)

        request = {"key_type": 0, "coordinator_keys": [group_id]}
        self._actor.ask(self._actor.any_broker(), ApiKey.FIND_COORDINATOR, request, found)

    def _ask(
        self, node_id: int, key: int, body: dict[str, Any], answered: Callable[[Any | None], None]
    ) -> None:
        story = self._story
        before = story.tenure(story.group_id)

        def told(response: Any | None) -> None:
            self.is_sure = before[0] == node_id and story.tenure(story.group_id) == before
            if response is None:
                self.lost(node_id)
            answered(response)

        self._actor.ask(node_id, key, body, told, purpose=self._purpose, timeout_ms=_TIMEOUT_MS)

    def lost(self, node_id: int | None = None) -> None:
        """The coordinator is another, or nobody knows."""
        if node_id is None or self.coordinator == node_id:
            self.coordinator = None

    # --- offsets ------------------------------------------------------------------------------------------------

    def commit(
        self,
        me: Identity,
        offsets: Mapping[Place, int],
        done: Callable[[Mapping[Place, int] | None], None],
    ) -> None:
        """`done` with the error of each partition, or None if there was no answer."""
        story = self._story
        text = story.text(self._actor.name)
        writes = {place: story.history(place).commit(text, offset) for place, offset in offsets.items()}
        noted = story.ownership.commit(me.who, me.member_id, me.generation, offsets) if me.member_id else None
        rows: dict[bytes, list[dict[str, Any]]] = {}
        for (topic_id, number), offset in offsets.items():
            rows.setdefault(topic_id, []).append(
                {"partition_index": number, "committed_offset": offset, "committed_metadata": text}
            )
        body = {
            "group_id": story.group_id, "generation_id_or_member_epoch": me.generation, "member_id": me.member_id,
            "group_instance_id": me.instance_id,
            "topics": [{"topic_id": topic_id, "partitions": each} for topic_id, each in rows.items()],
        }  # fmt: skip

        def answered(response: Any | None) -> None:
            if response is None:
                done(None)
                return
            codes = {
                (topic.topic_id.bytes, row.partition_index): int(row.error_code)
                for topic in response.topics
                for row in topic.partitions
            }
            for place, code in codes.items():
                if not code:
                    story.history(place).counts(writes[place])
                    story.commits += 1
                elif code in _REFUSED and story.is_live(place):
                    story.history(place).is_refused(writes[place])
                    story.refused += 1
            if any(code in MOVED for code in codes.values()):
                self.lost()
            self._check(noted, codes)
            done(codes)

        self._actor.world.tell(f"{self._actor.name}: commit {text} in {me.generation}: {told(offsets)}")
        self.ask(ApiKey.OFFSET_COMMIT, body, answered)

    def _check(self, noted: Commit | None, codes: Mapping[Place, int]) -> None:
        accepted = [place for place, code in codes.items() if not code]
        if noted is not None and accepted:
            owners = {place: noted.owners[place] for place in accepted if place in noted.owners}
            self._story.ownership.counts(noted._replace(owners=owners))

    def fetch(
        self, me: Identity, places: list[Place], done: Callable[[Mapping[Place, int] | int | None], None]
    ) -> None:
        """`done` with the offsets that are known (-1: none is committed), an error, or None if there was no
        answer.
        """
        story = self._story
        asked = {place: story.history(place).ask() for place in places}
        rows: dict[bytes, list[int]] = {}
        for topic_id, number in places:
            rows.setdefault(topic_id, []).append(number)
        group = {
            "group_id": story.group_id, "member_id": me.member_id or None, "member_epoch": me.generation,
            "topics": [{"topic_id": topic_id, "partition_indexes": each} for topic_id, each in rows.items()],
        }  # fmt: skip

        def answered(response: Any | None) -> None:
            if response is None:
                done(None)
                return
            row = response.groups[0]
            if row.error_code:
                if row.error_code in MOVED:
                    self.lost()
                done(int(row.error_code))
                return
            found = {}
            for topic in row.topics:
                for each in topic.partitions:
                    place = (topic.topic_id.bytes, each.partition_index)
                    if each.error_code:
                        continue
                    found[place] = offset = each.committed_offset
                    if story.is_live(place) and self.is_sure:
                        text = None if offset < 0 else each.metadata
                        story.history(place).saw(asked[place], text, offset)
            self._actor.world.tell(f"{self._actor.name}: {story.group_id} has committed {told(found)}")
            done(found)

        self.ask(ApiKey.OFFSET_FETCH, {"groups": [group], "require_stable": True}, answered)


def told(offsets: Mapping[Place, int]) -> str:
    """As a trace tells it."""
    return ", ".join(
        f"{topic_id.hex()[:4]}-{number}: {offset}" for (topic_id, number), offset in offsets.items()
    )
