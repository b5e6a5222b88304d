"""Requests of group clients: finding the coordinator, committing and fetching offsets; and the shared state
of a group.

A client asks any broker for the coordinator, uses it until it is told to look again, and then repeats that.
Requests and responses are recorded in the histories of the group (`checkers/`).

A deposed coordinator that does not know it yet may still answer requests that it need not write: heartbeats
and reads. Kafka's does the same. So such a response is used only if the broker coordinated the group, in one
epoch, from request to response (`is_sure`). Requests that must be written are never answered wrongly.
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

#: Delay after the coordinator was not found.
AGAIN_MS: Final = 250
#: Joins wait for other members.
_TIMEOUT_MS: Final = 6000

#: Another broker coordinates the group, or soon will.
MOVED: Final = frozenset(
    (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)
)
#: Errors after which a commit was refused before anything was written.
_REFUSED: Final = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
)  # fmt: skip


class Identity(NamedTuple):
    """The identity of a commit. By hand: none."""

    who: str = ""
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class GroupStory:
    """The state of a group that all its clients share."""

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
        #: The topics of its members.
        self.names = names
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        #: The coordinator of a group and its epoch, whether or not brokers know it yet.
        self.tenure = tenure
        self.ownership = Ownership(group_id)
        self.histories: dict[Place, OffsetHistory] = {}
        #: Everything below was read by some member.
        self.covered: dict[Place, int] = {}
        #: Former members with something to commit: their ghosts may try.
        self.ghosts: list[tuple[Identity, Place]] = []
        self._texts = 0
        self.commits = 0
        self.refused = 0

    @property
    def patience_ms(self) -> int:
        """How long after its last contact a member is certainly in the group."""
        return min(self.session_ms, self.rebalance_ms)

    def history(self, place: Place) -> OffsetHistory:
        known = self.histories.get(place)
        if known is None:
            name = f"{self.group_id} {place[0].hex()[:4]}-{place[1]}"
            known = self.histories[place] = OffsetHistory(name)
        return known

    def is_live(self, place: Place) -> bool:
        """Whether the partition certainly exists: offsets of others are deleted."""
        topic = self.common.topics.get(place[0])
        return topic is not None and topic.live

    def text(self, name: str) -> str:
        self._texts += 1
        return f"{name}.{self._texts}"


class GroupClient:
    def __init__(self, actor: Actor, story: GroupStory, purpose: str = "group") -> None:
        self._actor = actor
        self._story = story
        #: Requests of another purpose have their own connection, and need not wait for other responses.
        self._purpose = purpose
        self.coordinator: int | None = None
        #: Whether the current response is from the coordinator of the group.
        self.is_sure = False

    # --- asking -------------------------------------------------------------------------------------------------

    def ask(self, key: int, body: dict[str, Any], answered: Callable[[Any | None], None]) -> None:
        """Ask the coordinator once; None if there is none, or no response."""
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
        """The coordinator has changed, or is unknown."""
        if node_id is None or self.coordinator == node_id:
            self.coordinator = None

    # --- offsets ------------------------------------------------------------------------------------------------

    def commit(
        self,
        me: Identity,
        offsets: Mapping[Place, int],
        done: Callable[[Mapping[Place, int] | None], None],
    ) -> None:
        """`done` with the error of each partition, or None without a response."""
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

        self._actor.world.log(f"{self._actor.name}: commit {text} in {me.generation}: {told(offsets)}")
        self.ask(ApiKey.OFFSET_COMMIT, body, answered)

    def _check(self, noted: Commit | None, codes: Mapping[Place, int]) -> None:
        accepted = [place for place, code in codes.items() if not code]
        if noted is not None and accepted:
            owners = {place: noted.owners[place] for place in accepted if place in noted.owners}
            self._story.ownership.counts(noted._replace(owners=owners))

    def fetch(
        self, me: Identity, places: list[Place], done: Callable[[Mapping[Place, int] | int | None], None]
    ) -> None:
        """`done` with the offsets (-1: none), an error, or None without a response."""
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
            self._actor.world.log(f"{self._actor.name}: {story.group_id} has committed {told(found)}")
            done(found)

        self.ask(ApiKey.OFFSET_FETCH, {"groups": [group], "require_stable": True}, answered)


def told(offsets: Mapping[Place, int]) -> str:
    """As shown in a trace."""
    return ", ".join(
        f"{topic_id.hex()[:4]}-{number}: {offset}" for (topic_id, number), offset in offsets.items()
    )
