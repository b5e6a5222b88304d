"""A reader that is a member of a consumer group (KIP-848).

It commits and revokes partitions first, at once or late; only then it takes new ones, and reports them. When
it is fenced, its partitions are lost and it rejoins. `consumer_member.py` makes the decisions.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from testkit.checkers.partition import Anomaly
from testkit.sim.consumer_member import JOINING, ConsumerMember
from testkit.sim.group_client import AGAIN_MS, MOVED, GroupStory, Identity
from testkit.sim.group_reader import GroupReader

_HEARTBEAT_MS: Final = 900


class ConsumerReader(GroupReader):
    def __init__(
        self, story: GroupStory, name: str, life: int, instance_id: str | None, *, regex: str | None
    ) -> None:
        super().__init__(story, name, life, instance_id)
        names = () if regex is not None else story.names
        self._member = ConsumerMember(story.group_id, self.label, instance_id, names, regex)
        #: The number of the next heartbeat: earlier ones are cancelled.
        self._turn = 0
        self._is_asking = False
        #: The next heartbeat follows at once.
        self._is_hurried = False
        self._is_revoking = False
        #: The earliest time at which the coordinator began to wait for a revocation.
        self._told_ms: int | None = None
        #: When the first unanswered heartbeat was sent: its response may have been lost.
        self._unanswered_ms: int | None = None

    @property
    def me(self) -> Identity:
        member = self._member
        return Identity(self.who, member.member_id, member.epoch, self.instance_id)

    @property
    def is_settled(self) -> bool:
        member = self._member
        return member.epoch > JOINING and member.owned == member.told

    def until_ms(self, sent_ms: int) -> int:
        until_ms = super().until_ms(sent_ms)
        return until_ms if self._told_ms is None else min(until_ms, self._told_ms + self.story.rebalance_ms)

    def begin(self) -> None:
        super().begin()
        self._heartbeat_after(0)

    def _heartbeat_after(self, delay_ms: int) -> None:
        """Send the next heartbeat then, instead of the planned one; only one is in flight at a time."""
        if self._is_asking:
            self._is_hurried = True
            return
        self._turn += 1
        turn = self._turn
        self.later(delay_ms, lambda: self._heartbeat(turn))

    def _heartbeat(self, turn: int) -> None:
        if turn != self._turn:
            return
        member, sent_ms = self._member, self.world.now_ms
        said = member.owned
        self._is_asking, self._is_hurried = True, False
        if self._unanswered_ms is None:
            self._unanswered_ms = sent_ms

        def answered(response: Any | None) -> None:
            if turn != self._turn:
                return
            code = None if response is None else response.error_code
            if response is not None and not code:
                self._heard(response, said, sent_ms)
                self._is_asking = False
                self._heartbeat_after(0 if self._is_hurried else _HEARTBEAT_MS)
            else:
                self._is_asking = False
                self._failed(code)

        self.client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, member.request(self.story.rebalance_ms), answered)

    def _heard(self, answer: Any, said: Any, sent_ms: int) -> None:
        member = self._member
        before = member.told
        changes = member.heard(answer, said)
        if member.told != before:
            self.log(f"epoch {member.epoch}: is told {[(t.hex()[:4], n) for t, n in sorted(member.told)]}")
        if not member.revoking:
            self._told_ms = None
        elif self._told_ms is None:
            self._told_ms = self._unanswered_ms
        self._unanswered_ms = None
        if self.client.is_sure:
            self.story.ownership.heard(self.who, self.world.now_ms, self.until_ms(sent_ms))
        if not changes or self._is_revoking:
            return
        if member.revoking:
            self._is_revoking = True
            late_ms = self.world.below(2 * self.story.rebalance_ms) if self.world.chance(0.15) else 0
            if late_ms:
                self.later(late_ms, lambda: self.commit(self._revoked))
            else:
                self.commit(self._revoked)
        else:
            self._take_all(sent_ms)

    def _revoked(self) -> None:
        """The revoked partitions are committed, or cannot be."""
        self._is_revoking = False
        member = self._member
        gone = member.revoking
        self.give_up(gone)
        member.owned &= member.told
        self._told_ms = None
        self._heartbeat_after(0)

    def _take_all(self, sent_ms: int) -> None:
        member = self._member
        gained = member.gaining
        member.owned |= member.told
        self.take(gained, sent_ms)
        self._heartbeat_after(0)

    def _failed(self, code: int | None) -> None:
        member = self._member
        delay_ms = AGAIN_MS
        if code is None or code in MOVED or code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            member.unheard()
            if code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self.client.lost()
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.log(f"hears {code!r}")
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.story.ownership.is_out(self.who, self.world.now_ms, repr(code))
            self.give_up()
            self._told_ms = self._unanswered_ms = None
            member.begin_again()
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID and member.epoch == JOINING:
            # The previous process ended without leaving.
            delay_ms = _HEARTBEAT_MS
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.log("is fenced")
            self.give_up()
            self.is_fenced = True
            return
        else:
            raise Anomaly("unexpected-error", f"{self.label} in epoch {member.epoch}: {ErrorCode(code)!r}")
        self._heartbeat_after(delay_ms)

    def leave(self) -> None:
        self._turn += 1
        self._is_asking = True
        self.give_up()
        if self._member.epoch == JOINING:
            self.die()
            return
        body = self._member.farewell(is_back_soon=self.instance_id is not None)
        self.client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, body, lambda _response: self.die())
