"""The classic membership without a broker: its requests, its reactions to responses, and when it revokes
partitions.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client.consumer.assignors.names import assignors_of
from ottla.client.consumer.membership.classic import ClassicMember, State
from ottla.client.consumer.membership.member import Ask, LookUp, MemberSettings
from ottla.client.errors import ConnectionLost, NotAuthorized
from ottla.client.metadata import Metadata, PartitionInfo, TopicInfo, TopicPartition
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.records.consumer_protocol import Wanted, read_assignment, read_subscription, write_assignment

TOPICS = frozenset(["t"])
SETTINGS = MemberSettings(
    "g", max_poll_interval_ms=10_000, heartbeat_interval_ms=1000, session_timeout_ms=5000
)


def metadata(**counts: int) -> Metadata:
    return Metadata(
        topics={
            name: TopicInfo(name, None, False, {n: PartitionInfo(n, 1, 0, (1,), (1,)) for n in range(count)})
            for name, count in counts.items()
        }
    )


def places(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", number) for number in numbers)


class Coordinated:
    """A member, with a coordinator played by the test; the clock stands still unless it is set."""

    def __init__(self, strategy: str = "range", settings: MemberSettings = SETTINGS) -> None:
        self.now_ms = 0.0
        self.member = ClassicMember(settings, assignors_of(strategy), 0)
        self.member.subscribe(TOPICS, None, 0)

    def asked(self, api_key: int) -> Ask:
        found = self.member.next(self.now_ms)
        assert isinstance(found, Ask) and found.api_key == api_key, (found, self.member.state)
        assert self.member.next(self.now_ms) is None, "one at a time"
        return found

    def answer(self, asked: Ask | LookUp, code: int = 0, **fields: Any) -> None:
        self.member.answered(asked, SimpleNamespace(error_code=code, **fields), self.now_ms)

    def join(self, generation: int = 1, *, leader: str = "other", **more: Any) -> Ask:
        asked = self.asked(ApiKey.JOIN_GROUP)
        self.answer(
            asked, member_id="me", generation_id=generation, protocol_name="range", leader=leader, skip_assignment=False,
            members=(), **more,
        )  # fmt: skip
        return asked

    def sync(self, *numbers: int) -> Ask:
        asked = self.asked(ApiKey.SYNC_GROUP)
        self.answer(asked, assignment=write_assignment(3, places(*numbers)))
        return asked

    def take_step(self) -> tuple[str, set[int]]:
        step = self.member.step
        assert step is not None
        self.member.step_begins()
        self.member.step_ends(self.now_ms)
        return step.kind, {tp.partition for tp in step.partitions}

    def settle(self, *numbers: int, generation: int = 1) -> None:
        """Become a stable member that owns these."""
        self.join(generation)
        self.sync(*numbers)
        self.take_step()
        assert self.member.state is State.STABLE

    def beat(self, code: int = 0) -> None:
        self.now_ms = max(self.now_ms, self.member.wake_ms())
        self.member.polled(self.now_ms)
        self.answer(self.asked(ApiKey.HEARTBEAT), code)


def test_a_member_joins_under_the_id_it_is_given_and_beats() -> None:
    group = Coordinated()
    first = group.asked(ApiKey.JOIN_GROUP)
    assert (first.body["member_id"], first.held) == ("", True)
    assert read_subscription(first.body["protocols"][0]["metadata"]) == Wanted(TOPICS)
    group.answer(first, ErrorCode.MEMBER_ID_REQUIRED, member_id="me")
    assert group.join(4).body["member_id"] == "me"
    assert group.sync(0, 2).body["generation_id"] == 4
    assert group.member.next(group.now_ms) is None
    assert group.take_step() == ("assign", {0, 2})
    assert group.member.wake_ms() == 1000
    group.beat()
    assert group.member.wake_ms() == 2000
    assert (group.member.member_id, group.member.generation_id) == ("me", 4)


def test_the_leader_looks_up_counts_and_assigns_to_all() -> None:
    group = Coordinated()
    theirs = b"\0\0\0\0\0\1\0\1u\xff\xff\xff\xff"
    mine = group.asked(ApiKey.JOIN_GROUP)
    members = [
        SimpleNamespace(
            member_id="me", group_instance_id=None, metadata=mine.body["protocols"][0]["metadata"]
        ),
        SimpleNamespace(member_id="you", group_instance_id=None, metadata=theirs),
        SimpleNamespace(member_id="broken", group_instance_id=None, metadata=b"\xff"),
    ]
    group.answer(
        mine, member_id="me", generation_id=1, protocol_name="range", leader="me", skip_assignment=False,
        members=members,
    )  # fmt: skip
    wanted = group.member.next(0)
    assert isinstance(wanted, LookUp) and wanted.topics == {"t", "u"}
    group.member.answered(wanted, metadata(t=2, u=1), 0)
    asked = group.asked(ApiKey.SYNC_GROUP)
    shares = {row["member_id"]: read_assignment(row["assignment"])[0] for row in asked.body["assignments"]}
    assert shares == {"me": places(0, 1), "you": {("u", 0)}, "broken": frozenset()}
    group.answer(asked, assignment=write_assignment(3, places(0, 1)))
    group.take_step()
    # It watches the partitions of everybody's topics.
    group.member.partition_counts({"t": 2, "u": 1, "more": 9}, 0)
    assert group.member.state is State.STABLE
    group.member.partition_counts({"t": 2, "u": 5}, 0)
    assert group.take_step() == ("revoke", {0, 1})
    assert group.asked(ApiKey.JOIN_GROUP).body["reason"] == "the partitions of topics changed"


def test_an_eager_member_gives_all_up_before_it_joins_and_beats_meanwhile() -> None:
    group = Coordinated()
    group.settle(0, 1)
    group.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert group.member.state is State.PREPARING
    group.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert group.member.next(group.now_ms) is None
    assert group.take_step() == ("revoke", {0, 1})
    assert read_subscription(group.join(2).body["protocols"][0]["metadata"]).owned == frozenset()
    group.sync(1)
    assert group.take_step() == ("assign", {1})


def test_a_cooperative_member_gives_up_what_moves_and_joins_again() -> None:
    group = Coordinated("cooperative-sticky")
    group.settle(0, 1, 2)
    group.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    join = group.join(2)
    assert read_subscription(join.body["protocols"][0]["metadata"])[1:4] == (places(0, 1, 2), None, 1)
    group.sync(0)
    assert group.take_step() == ("revoke", {1, 2})
    assert group.member.next(group.now_ms) is None
    assert group.take_step() == ("assign", set())
    join = group.join(3)
    assert join.body["reason"] == "partitions were given up"
    assert read_subscription(join.body["protocols"][0]["metadata"])[1:4] == (places(0), None, 2)
    group.sync(0, 3)
    assert group.take_step() == ("assign", {3})
    assert group.member.state is State.STABLE


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_member_that_is_out_has_lost_its_partitions(strategy: str, code: ErrorCode) -> None:
    group = Coordinated(strategy)
    group.settle(0, 1)
    group.beat(code)
    assert not group.member.is_in
    assert group.member.next(group.now_ms) is None, "the caller is told before others are waited for"
    assert group.take_step() == ("lost", {0, 1})
    group.now_ms += 1000
    asked = group.asked(ApiKey.JOIN_GROUP)
    assert asked.body["member_id"] == ("" if code == ErrorCode.UNKNOWN_MEMBER_ID else "me")


def test_what_is_lost_while_the_caller_takes_a_step_is_told_after_it() -> None:
    group = Coordinated("cooperative-sticky")
    group.join()
    group.sync(0, 1)
    group.member.step_begins()
    group.now_ms = 1000
    group.answer(group.asked(ApiKey.HEARTBEAT), ErrorCode.UNKNOWN_MEMBER_ID)
    assert group.member.step is not None and group.member.step.kind == "assign"
    group.member.step_ends(group.now_ms)
    assert group.take_step() == ("lost", {0, 1})
    assert group.member.state is State.JOINING


def test_an_assignment_that_nobody_took_is_dropped_when_the_member_is_out() -> None:
    group = Coordinated()
    group.join()
    group.sync(0, 1)
    group.now_ms = 1000
    group.answer(group.asked(ApiKey.HEARTBEAT), ErrorCode.UNKNOWN_MEMBER_ID)
    assert group.member.step is None
    assert group.member.state is State.JOINING


def test_a_fenced_instance_is_the_end() -> None:
    group = Coordinated()
    group.settle(0)
    group.beat(ErrorCode.FENCED_INSTANCE_ID)
    assert group.member.failure is not None
    assert "group_instance_id" in str(group.member.failure)
    assert group.member.next(group.now_ms + 1e6) is None


def test_failures_that_pass_are_tried_again_after_a_while() -> None:
    group = Coordinated()
    waits = []
    for code in (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_COORDINATOR,
    ):
        group.answer(group.asked(ApiKey.JOIN_GROUP), code)
        waits.append(group.member.wake_ms() - group.now_ms)
        assert group.member.next(group.now_ms) is None
        group.now_ms = group.member.wake_ms()
    group.member.failed(group.asked(ApiKey.JOIN_GROUP), ConnectionLost("gone"), group.now_ms)
    group.now_ms = group.member.wake_ms()
    assert waits == [100, 200, 400]
    group.member.failed(group.asked(ApiKey.JOIN_GROUP), NotAuthorized("no"), group.now_ms)
    assert isinstance(group.member.failure, NotAuthorized)


def test_a_sync_that_a_rebalance_overtakes_joins_again() -> None:
    group = Coordinated()
    group.join(1)
    group.answer(group.asked(ApiKey.SYNC_GROUP), ErrorCode.REBALANCE_IN_PROGRESS)
    assert group.join(2).body["member_id"] == "me"


def test_a_subscription_that_changes_during_a_join_is_said_in_the_next() -> None:
    group = Coordinated("cooperative-sticky")
    group.join()
    group.member.subscribe(frozenset(["u"]), None, 0)
    group.sync(0)
    group.take_step()
    # What is not wanted any more is given up first.
    assert group.take_step() == ("revoke", {0})
    assert read_subscription(group.asked(ApiKey.JOIN_GROUP).body["protocols"][0]["metadata"]).topics == {"u"}


def test_a_caller_that_does_not_poll_leaves_and_comes_back() -> None:
    group = Coordinated()
    group.settle(0, 1)
    group.member.polled(500)
    group.now_ms = 10_501
    asked = group.member.next(group.now_ms)
    assert isinstance(asked, Ask) and asked.api_key == ApiKey.LEAVE_GROUP
    assert asked.body["members"][0]["member_id"] == "me"
    assert "raise max_poll_interval_ms" in group.member.notices[0]
    group.member.polled(500)
    assert group.member.next(20_000) is None and group.member.overslept
    group.member.polled(30_000)
    group.answer(asked)
    assert group.take_step() == ("lost", {0, 1})
    group.now_ms = 30_000
    assert group.asked(ApiKey.JOIN_GROUP).body["member_id"] == ""


def test_a_static_member_does_not_say_that_it_leaves() -> None:
    settings = MemberSettings("g", "one", max_poll_interval_ms=10_000)
    group = Coordinated(settings=settings)
    group.settle(0)
    assert group.member.next(20_000) is None
    assert group.member.overslept
    assert group.member.leave() is None
    other = Coordinated()
    other.settle(0)
    goodbye = other.member.leave()
    assert goodbye is not None and goodbye.api_key == ApiKey.LEAVE_GROUP
    assert other.member.next(1e6) is None


def test_an_answer_that_was_overtaken_comes_to_nothing() -> None:
    group = Coordinated()
    asked = group.asked(ApiKey.JOIN_GROUP)
    group.member.leave()
    group.answer(
        asked, member_id="me", generation_id=1, protocol_name="range", leader="you", skip_assignment=False, members=()
    )  # fmt: skip
    group.member.failed(asked, NotAuthorized("no"), 0)
    assert (group.member.state, group.member.generation_id, group.member.failure) == (State.OUT, -1, None)
