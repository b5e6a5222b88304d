"""A member of a classic group: it joins, assigns as leader, syncs, and sends heartbeats until it must rejoin.

Eager members revoke everything before they join. Cooperative members keep their partitions, revoke what the
assignment takes from them, and rejoin. The leader rejoins when the topics have changed. Some members are slow
to join.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from testkit.checkers.partition import Anomaly
from testkit.sim.group_client import AGAIN_MS, MOVED, GroupStory, Identity, Place
from testkit.sim.group_member import (
    Named,
    Subscription,
    cooperative,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    range_like,
)
from testkit.sim.group_reader import GroupReader

_HEARTBEAT_MS: Final = 900
_LOOK_MS: Final = 4000
_EAGER: Final = "range-like"
_COOPERATIVE: Final = "cooperative"


class ClassicReader(GroupReader):
    def __init__(
        self, story: GroupStory, name: str, life: int, instance_id: str | None, *, is_cooperative: bool
    ) -> None:
        super().__init__(story, name, life, instance_id)
        self._is_cooperative = is_cooperative
        self._member_id = ""
        self._generation = -1
        #: The generation of its last assignment.
        self._owned_generation = -1
        self._is_stable = False
        #: The number of the current join: responses to earlier ones are ignored.
        self._attempt = 0
        self._assigned: tuple[Named, ...] = ()
        #: As leader: the topics of its assignment.
        self._made_for: dict[str, tuple[bytes, int]] | None = None

    @property
    def me(self) -> Identity:
        return Identity(self.who, self._member_id, self._generation, self.instance_id)

    @property
    def is_settled(self) -> bool:
        return self._is_stable and self.owned.keys() == dict.fromkeys(self._resolved()).keys()

    def begin(self) -> None:
        super().begin()
        self._join_when_known()
        self._look_later()

    def _join_when_known(self) -> None:
        """The leader must know the topics."""
        self.refresh(self._join)

    # --- joining ------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        if self.is_fenced:
            return
        self._is_stable = False
        self._attempt += 1
        attempt = self._attempt
        if not self._is_cooperative:
            self.give_up()
        names = {topic_id: name for name, topic_id in self.ids.items()}
        owned = tuple((names[topic_id], number) for topic_id, number in self.owned if topic_id in names)
        said = Subscription(self.story.names, owned, self._owned_generation)
        body = {
            "group_id": self.story.group_id, "session_timeout": self.story.session_ms,
            "rebalance_timeout": self.story.rebalance_ms, "member_id": self._member_id,
            "group_instance_id": self.instance_id, "protocol_type": "consumer", "reason": None,
            "protocols": [
                {"name": _COOPERATIVE if self._is_cooperative else _EAGER, "metadata": encode_subscription(said)}
            ],
        }  # fmt: skip
        self.log(f"joins as {self._member_id or 'somebody new'}")

        def answered(response: Any | None) -> None:
            if attempt == self._attempt:
                self._joined(response)

        self.client.ask(ApiKey.JOIN_GROUP, body, answered)

    def _joined(self, response: Any | None) -> None:
        code = None if response is None else response.error_code
        if response is not None and not code:
            self._member_id, self._generation = response.member_id, response.generation_id
            self._sync(response)
        elif response is not None and code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
            self._join()
        elif code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            raise Anomaly("unexpected-error", f"{self.label}: all members support the same, yet {code!r}")
        else:
            self._failed(code)

    def _failed(self, code: int | None) -> None:
        """Start again, with the state that the error leaves."""
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.log("is fenced")
            self.give_up()
            self.is_fenced = True
            return
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.give_up()
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id, self._generation = "", -1
        elif code in MOVED:
            self.client.lost()
        self._is_stable = False
        self._attempt += 1
        attempt = self._attempt
        self.later(AGAIN_MS, lambda: self._join() if attempt == self._attempt else None)

    # --- the assignment -----------------------------------------------------------------------------------------

    def _topics(self) -> dict[str, tuple[bytes, int]]:
        """The existing topics of the group, as far as this process knows."""
        found = {}
        for name in self.story.names:
            topic_id = self.ids.get(name)
            if topic_id is not None:
                count = sum(1 for key in self.leaders if key[0] == topic_id)
                found[name] = (topic_id, count)
        return found

    def _sync(self, joined: Any) -> None:
        rows = []
        self._made_for = None
        if joined.leader == self._member_id:
            topics = self._topics()
            # The assignment of another leader may be for other topics: the member makes a new one when it
            # notices.
            self._made_for = {} if joined.skip_assignment else topics
            if not joined.skip_assignment:
                counts = {name: count for name, (_topic_id, count) in topics.items()}
                members = {each.member_id: decode_subscription(each.metadata) for each in joined.members}
                assign = cooperative if self._is_cooperative else range_like
                given = assign(members, counts)
                rows = [
                    {"member_id": member_id, "assignment": encode_assignment(places)}
                    for member_id, places in given.items()
                ]
                self.log(f"assigns in {self._generation}: {given}")
        attempt, sent_ms, asked = self._attempt, self.world.now_ms, self.story.ownership.generation
        body = {
            "group_id": self.story.group_id, "generation_id": self._generation, "member_id": self._member_id,
            "group_instance_id": self.instance_id, "protocol_type": "consumer", "protocol_name": joined.protocol_name,
            "assignments": rows,
        }  # fmt: skip

        def answered(response: Any | None) -> None:
            if attempt != self._attempt:
                return
            if response is None or response.error_code:
                self._failed(None if response is None else response.error_code)
            else:
                self._synced(decode_assignment(response.assignment), sent_ms, asked)

        self.client.ask(ApiKey.SYNC_GROUP, body, answered)

    def _synced(self, assigned: tuple[Named, ...], sent_ms: int, asked: int) -> None:
        self.log(f"has in {self._generation}: {assigned}")
        if self.client.is_sure:
            self.story.ownership.synced(self.who, asked, self._generation, assigned)
        self._is_stable = True
        self._assigned, self._owned_generation = assigned, self._generation
        lost = self._resolve(sent_ms)
        if lost and self._is_cooperative:
            # Other members wait for what it has revoked.
            self._join()
            return
        self._heartbeat_later(self._attempt)

    def _resolved(self) -> list[Place]:
        return [(self.ids[name], number) for name, number in self._assigned if name in self.ids]

    def _resolve(self, sent_ms: int) -> bool:
        """Own the partitions of the assignment; returns whether something had to be revoked."""
        places = dict.fromkeys(self._resolved())
        lost = [place for place in self.owned if place not in places]
        if lost:
            self.give_up(lost)
        self.take(places, sent_ms)
        return bool(lost)

    # --- being there --------------------------------------------------------------------------------------------

    def _heartbeat_later(self, attempt: int) -> None:
        self.later(_HEARTBEAT_MS, lambda: self._heartbeat(attempt))

    def _heartbeat(self, attempt: int) -> None:
        if attempt != self._attempt:
            return
        body = {
            "group_id": self.story.group_id, "generation_id": self._generation, "member_id": self._member_id,
            "group_instance_id": self.instance_id,
        }  # fmt: skip
        sent_ms = self.world.now_ms

        def answered(response: Any | None) -> None:
            if attempt != self._attempt:
                return
            code = None if response is None else response.error_code
            if code == 0:
                if self.client.is_sure:
                    self.story.ownership.heard(self.who, self.world.now_ms, self.until_ms(sent_ms))
                self._heartbeat_later(attempt)
            elif code is None or code in MOVED:
                self.client.lost()
                self._heartbeat_later(attempt)
            elif code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._rejoin(attempt)
            else:
                self.log(f"hears {code!r}")
                if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                    self.story.ownership.is_out(self.who, self.world.now_ms, repr(code))
                self._failed(code)

        self.client.ask(ApiKey.HEARTBEAT, body, answered)

    def _rejoin(self, attempt: int) -> None:
        """It has to rejoin; it commits first, and some members are slow."""

        def join() -> None:
            if attempt == self._attempt:
                self._join()

        delay_ms = self.world.below(2000) if self.world.chance(0.2) else 0
        if delay_ms:
            self.later(delay_ms, lambda: self.commit(join))
        else:
            self.commit(join)

    def _look_later(self) -> None:
        def looked() -> None:
            if self._is_stable:
                now_ms = self.world.now_ms
                self.client.is_sure = False
                self._resolve(now_ms)
                if self._made_for is not None and self._made_for != self._topics():
                    self.log("leads, and the topics have changed")
                    self._join()
            self._look_later()

        self.later(_LOOK_MS, lambda: self.refresh(looked))

    def leave(self) -> None:
        """A static member stays a member: it will be back."""
        if self.instance_id is not None or not self._member_id:
            self.give_up()
            self.die()
            return
        self._attempt += 1
        row = {"member_id": self._member_id, "group_instance_id": None, "reason": None}
        body = {"group_id": self.story.group_id, "members": [row]}
        self.give_up()
        self._is_stable = False
        self.client.ask(ApiKey.LEAVE_GROUP, body, lambda _response: self.die())
