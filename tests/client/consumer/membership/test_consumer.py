"""The KIP-848 membership without a broker: the heartbeats, and the way to a target assignment."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.client.consumer.membership.consumer import ConsumerMember
from ottla.client.consumer.membership.member import Ask, LookUp, MemberSettings
from ottla.client.errors import ConnectionLost
from ottla.client.metadata import Metadata
from ottla.model.errors import ErrorCode

T, U = UUID(int=1), UUID(int=2)
NAMES = {T.bytes: "t", U.bytes: "u"}
TOPICS = frozenset(["t", "u"])


class Coordinated:
    """A member, with a coordinator played by the test; it asks for a heartbeat each second."""

    def __init__(self, instance_id: str | None = None, pattern: str | None = None) -> None:
        self.now_ms = 0.0
        settings = MemberSettings("g", instance_id, "r1", max_poll_interval_ms=10_000)
        self.member = ConsumerMember(settings, "range", "me", 0)
        self.member.subscribe(frozenset() if pattern else TOPICS, pattern, 0)

    def asked(self) -> dict[str, Any]:
        """What the next heartbeat says, without what it leaves out."""
        found = self.member.next(self.now_ms)
        assert isinstance(found, Ask), found
        assert self.member.next(self.now_ms) is None, "one at a time"
        self._asked = found
        return {name: value for name, value in found.body.items() if value is not None and value != -1}

    def answer(
        self,
        epoch: int = 1,
        target: dict[UUID, list[int]] | None = None,
        code: int = 0,
        message: str | None = None,
    ) -> None:
        assignment = target and SimpleNamespace(
            topic_partitions=[
                SimpleNamespace(topic_id=topic_id, partitions=numbers) for topic_id, numbers in target.items()
            ]
        )
        self.member.answered(
            self._asked,
            SimpleNamespace(
                error_code=code, error_message=message, member_id="me", member_epoch=epoch,
                heartbeat_interval=timedelta(seconds=1), assignment=assignment,
            ),
            self.now_ms,
        )  # fmt: skip

    def learn(self, **names: UUID) -> None:
        asked = self.member.next(self.now_ms)
        assert isinstance(asked, LookUp)
        self.member.answered(
            asked, Metadata(names={each.bytes: name for name, each in names.items()}), self.now_ms
        )

    def take_step(self) -> tuple[str, list[str]]:
        step = self.member.step
        assert step is not None
        self.member.step_begins()
        self.member.step_ends(self.now_ms)
        return step.kind, sorted(f"{tp.topic}{tp.partition}" for tp in step.partitions)

    def settle(self, target: dict[UUID, list[int]]) -> None:
        self.asked()
        self.answer(1, target)
        self.learn(t=T, u=U)
        self.take_step()
        self.asked()
        self.answer(1)

    def sleep(self) -> None:
        self.now_ms = self.member.wake_ms()
        self.member.polled(self.now_ms)


def test_a_join_says_all_and_later_heartbeats_what_changed() -> None:
    group = Coordinated()
    assert group.asked() == {
        "group_id": "g", "member_id": "me", "member_epoch": 0, "rack_id": "r1", "rebalance_timeout": 10_000,
        "subscribed_topic_names": ["t", "u"], "server_assignor": "range", "topic_partitions": [],
    }  # fmt: skip
    group.answer(3, {T: [0, 1]})
    group.learn(t=T)
    # While the caller is waited for, heartbeats go on, and say nothing new.
    group.sleep()
    assert group.asked() == {"group_id": "g", "member_id": "me", "member_epoch": 3}
    group.answer(3)
    assert group.take_step() == ("assign", ["t0", "t1"])
    assert group.asked()["topic_partitions"] == [{"topic_id": T.bytes, "partitions": [0, 1]}]
    group.answer(4)
    assert group.member.wake_ms() == group.now_ms + 1000
    group.sleep()
    assert group.asked() == {"group_id": "g", "member_id": "me", "member_epoch": 4}


def test_what_goes_is_given_up_before_what_comes_is_taken() -> None:
    group = Coordinated()
    group.settle({T: [0, 1], U: [4]})
    group.sleep()
    group.asked()
    group.answer(2, {T: [1], U: [5]})
    assert group.take_step() == ("revoke", ["t0", "u4"])
    assert group.take_step() == ("assign", ["u5"])
    assert group.asked()["topic_partitions"] == [
        {"topic_id": T.bytes, "partitions": [1]},
        {"topic_id": U.bytes, "partitions": [5]},
    ]


def test_a_topic_that_is_not_known_by_its_id_waits_and_is_looked_for() -> None:
    group = Coordinated()
    group.asked()
    group.answer(1, {T: [0], U: [0]})
    group.learn(t=T)
    assert group.take_step() == ("assign", ["t0"])
    group.asked()
    group.answer(1)
    group.sleep()
    group.learn(u=U)
    assert group.take_step() == ("assign", ["u0"])


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_fenced_member_has_lost_all_and_joins_again(code: ErrorCode) -> None:
    group = Coordinated()
    group.settle({T: [0]})
    group.sleep()
    group.asked()
    group.answer(code=code)
    assert not group.member.is_in
    group.now_ms += 10_000
    assert group.member.next(group.now_ms) is None, "the caller is told first"
    assert group.take_step() == ("lost", ["t0"])
    said = group.asked()
    assert (said["member_epoch"], said["member_id"], said["topic_partitions"]) == (0, "me", [])
    assert said["subscribed_topic_names"] == ["t", "u"]


def test_after_a_failure_everything_is_said_again() -> None:
    group = Coordinated()
    group.settle({T: [0]})
    group.sleep()
    group.asked()
    group.member.failed(group._asked, ConnectionLost("gone"), group.now_ms)
    assert group.member.next(group.now_ms) is None
    group.sleep()
    said = group.asked()
    assert said["topic_partitions"] == [{"topic_id": T.bytes, "partitions": [0]}]
    assert said["subscribed_topic_names"] == ["t", "u"] and said["member_epoch"] == 1
    group.answer(code=ErrorCode.NOT_COORDINATOR)
    group.sleep()
    assert group.asked()["subscribed_topic_names"] == ["t", "u"]


def test_a_subscription_changes_at_once_and_takes_a_pattern_back() -> None:
    group = Coordinated(pattern="t.*")
    said = group.asked()
    assert (said["subscribed_topic_regex"], said["subscribed_topic_names"]) == ("t.*", [])
    group.member.subscribe(frozenset(["u"]), None, 0)
    group.answer(1)
    said = group.asked()
    assert (said["subscribed_topic_regex"], said["subscribed_topic_names"]) == ("", ["u"])


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("one", -2)])
def test_leaving_and_sleeping_too_long(instance_id: str | None, epoch: int) -> None:
    group = Coordinated(instance_id)
    group.settle({T: [0]})
    asked = group.member.next(10_001)
    assert isinstance(asked, Ask) and asked.body["member_epoch"] == epoch
    assert "raise max_poll_interval_ms" in group.member.notices[0]
    assert group.member.next(20_000) is None
    group.member.polled(30_000)
    assert group.take_step() == ("lost", ["t0"])
    group.now_ms = 30_000
    assert group.asked()["member_epoch"] == 0
    group.answer(7)
    goodbye = group.member.leave()
    assert goodbye is not None and goodbye.body["member_epoch"] == epoch
    assert group.member.next(1e6) is None
    assert Coordinated().member.leave() is None, "who never joined has nobody to tell"


@pytest.mark.parametrize("code", [ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID])
def test_what_cannot_pass_is_the_end(code: ErrorCode) -> None:
    group = Coordinated("one")
    group.asked()
    group.answer(code=code, message="taken")
    assert "taken" in str(group.member.failure) and "group_instance_id" in str(group.member.failure)
    assert group.member.next(1e6) is None


def test_who_leaves_while_it_joins_says_so() -> None:
    """The coordinator may have taken it in, and would keep partitions for it until its session ends."""
    group = Coordinated()
    assert group.member.leave() is None
    group = Coordinated()
    group.asked()
    goodbye = group.member.leave()
    assert goodbye is not None
    assert goodbye.body["member_epoch"] == -1
