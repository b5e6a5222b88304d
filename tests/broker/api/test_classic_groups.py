"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: what members hear, and when."""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from tests.broker.api.members import LEAVE, Member, find, settle, subscription

Start = Callable[..., Any]


@pytest.fixture
def driver(drive: Start) -> Any:
    """No waiting for more members."""
    driver = drive(group_initial_rebalance_delay_ms="0")
    find(driver.connect())
    driver.connect().create("t", 4)
    return driver


def state(driver: Any, group: str = "g") -> str:
    return str(driver.connect().ask(15, 5, groups=[group]).groups[0].group_state)


# --- joining --------------------------------------------------------------------------------------------------


def test_a_new_member_is_told_its_id_first(driver: Any) -> None:
    member = Member(driver, "g")
    member.send_join()
    answer = member.joined()
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED and answer.member_id.startswith("test-")
    assert state(driver) == "Empty"
    member.send_join()
    assert not member.joined().error_code and member.generation == 1 and member.is_leader


def test_an_old_client_joins_at_once(driver: Any) -> None:
    member = Member(driver, "g")
    member.send_join(version=3)
    assert not member.joined().error_code and member.generation == 1


def test_an_id_that_is_not_taken_up_is_forgotten(driver: Any) -> None:
    member = Member(driver, "g")
    member.send_join()
    member.joined()
    driver.advance(10_100)
    assert driver.connect().ask(16).groups == ()
    member.send_join()
    assert member.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_was_something_before_stays_when_an_id_is_not_taken_up(driver: Any) -> None:
    member = Member(driver, "had members")
    settle(member)
    member.leave()
    assert Member(driver, "has offsets").commit({("t", 0): 1}) == {("t", 0): 0}
    for name in ("had members", "has offsets"):
        Member(driver, name).send_join()
    driver.advance(10_100)
    found = {row.group_id: row.group_state for row in driver.connect().ask(16).groups}
    assert found == {"had members": "Empty", "has offsets": "Empty"}


def test_the_first_rebalance_waits_for_more_while_they_come(drive: Start) -> None:
    driver = drive(group_initial_rebalance_delay_ms="3000")
    find(driver.connect())
    first, second, third = (Member(driver, "g") for _ in range(3))
    first.begin_join(rebalance_ms=7000)
    driver.advance(2900)
    second.begin_join(rebalance_ms=7000)
    driver.advance(2900)
    assert not first.client.answers
    third.begin_join(rebalance_ms=7000)
    # At most as long as the rebalance time-out: 3 s, again 3 s, and what is left of seven.
    driver.advance(1300)
    assert [member.joined().generation_id for member in (first, second, third)] == [1, 1, 1]
    assert first.is_leader and len(first.members) == 3 and not second.members


def test_without_anybody_new_the_first_rebalance_waits_once(drive: Start) -> None:
    driver = drive(group_initial_rebalance_delay_ms="3000")
    find(driver.connect())
    member = Member(driver, "g")
    member.begin_join()
    driver.advance(2980)
    assert not member.client.answers
    driver.advance(40)
    assert member.joined().generation_id == 1


def test_a_second_member_makes_the_first_join_again(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.begin_join()
    assert not second.client.answers
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert state(driver) == "PreparingRebalance"
    first.send_join()
    assert first.joined().generation_id == second.joined().generation_id == 2
    assert first.is_leader and sorted(first.members) == sorted([first.member_id, second.member_id])
    assert not second.is_leader and second.members == []


def test_a_rebalance_waits_for_those_who_have_just_been_told_their_ids(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.send_join()
    second.joined()
    first.send_join()
    assert not first.client.answers
    second.send_join()
    assert first.joined().generation_id == second.joined().generation_id == 2
    assert len(first.members) == 2


def test_who_does_not_join_in_time_is_out(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    first.begin_join(rebalance_ms=4000)
    first.joined()
    first.send_sync()
    first.synced()
    second.begin_join(rebalance_ms=3000)
    driver.advance(3500)
    assert not second.client.answers
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    driver.advance(700)
    assert second.joined().generation_id == 2 and second.is_leader and second.members == [second.member_id]
    assert first.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_lost_the_answer_hears_it_again_and_a_leader_gets_a_rebalance(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.begin_join()
    first.send_join()
    first.joined(), second.joined()
    for member in (first, second):
        member.send_join()
        assert member.joined().generation_id == 2
    for member in (first, second):
        member.send_sync()
    first.synced(), second.synced()
    second.send_join()
    assert second.joined().generation_id == 2 and state(driver) == "Stable"
    first.send_join()
    assert not first.client.answers and state(driver) == "PreparingRebalance"
    second.send_join()
    assert first.joined().generation_id == second.joined().generation_id == 3


def test_a_join_that_is_repeated_ends_the_older_one(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.begin_join()
    again = Member(driver, "g")
    again.member_id = second.member_id
    again.send_join()
    assert second.joined().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    first.send_join()
    assert again.joined().generation_id == 2


def test_the_protocol_that_all_have_and_most_want_is_chosen(driver: Any) -> None:
    first, second, third = (Member(driver, "g") for _ in range(3))
    settle(first)
    first.send_join("a", "b", "c", "range")
    first.joined()
    second.begin_join("c", "b", "range")
    third.begin_join("b", "c")
    first.send_join("a", "b", "c", "range")
    # b has two votes of three: the first's favourite is not everybody's.
    assert {member.joined().protocol_name for member in (first, second, third)} == {"b"}


@pytest.mark.parametrize(
    ("protocols", "protocol_type"), [(("other",), "consumer"), (("range",), "connect"), (("range",), "")]
)
def test_who_has_nothing_in_common_does_not_come_in(
    driver: Any, protocols: tuple[str, ...], protocol_type: str
) -> None:
    settle(Member(driver, "g"))
    stranger = Member(driver, "g")
    stranger.begin_join(*protocols, protocol_type=protocol_type)
    assert stranger.joined().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert state(driver) == "Stable"


@pytest.mark.parametrize("session_ms", [0, 5999, 1_800_001, -1])
def test_sessions_have_bounds(driver: Any, session_ms: int) -> None:
    member = Member(driver, "g")
    member.send_join(session_ms=session_ms)
    assert member.joined().error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_group_needs_a_name_and_a_member_its_own(driver: Any) -> None:
    nameless = Member(driver, "")
    nameless.send_join()
    assert nameless.joined().error_code == ErrorCode.INVALID_GROUP_ID
    nameless.group = "x" * 9000
    nameless.send_join()
    assert nameless.joined().error_code == ErrorCode.INVALID_GROUP_ID
    stranger = Member(driver, "g")
    stranger.member_id = "invented"
    stranger.send_join()
    assert stranger.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    settle(Member(driver, "g"))
    stranger.send_join()
    assert stranger.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_has_a_largest_size(drive: Start) -> None:
    driver = drive(group_initial_rebalance_delay_ms="0", group_max_size="2")
    find(driver.connect())
    first, second, third = (Member(driver, "g") for _ in range(3))
    settle(first)
    second.begin_join()
    first.send_join()
    first.joined(), second.joined()
    third.send_join()
    assert third.joined().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    first.send_sync(), second.send_sync()
    assert not first.synced().error_code and not second.synced().error_code


def test_who_joins_again_while_a_full_group_is_waited_for_stays_in_it(drive: Start) -> None:
    driver = drive(group_initial_rebalance_delay_ms="3000", group_max_size="2")
    find(driver.connect())
    first, second, third = (Member(driver, "g") for _ in range(3))
    first.begin_join(), second.begin_join()
    first.send_join()
    assert first.joined().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    third.begin_join()
    assert third.joined().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.advance(6100)
    assert first.joined().generation_id == second.joined().generation_id == 1


# --- the assignment -------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_assignment(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.begin_join()
    first.send_join()
    first.joined(), second.joined()
    second.send_sync()
    assert not second.client.answers and state(driver) == "CompletingRebalance"
    first.send_sync(**{first.member_id: b"one", second.member_id: b"two"})
    assert first.synced().assignment == b"one" and second.synced().assignment == b"two"
    assert state(driver) == "Stable"
    # Once more, for whoever lost it.
    second.send_sync()
    assert second.synced().assignment == b"two"


def test_an_assignment_counts_when_it_is_written(drive: Start) -> None:
    driver = drive(group_initial_rebalance_delay_ms="0", log_flush_policy="durable")
    find(driver.connect())
    member = Member(driver, "g")
    member.begin_join()
    member.joined()
    driver.are_syncs_held = True
    member.send_sync()
    assert not member.client.answers
    # Neither does anybody else hear of it.
    other = driver.connect()
    other.send(15, 5, groups=["g"])
    assert not other.answers
    driver.sync()
    driver.turn()
    assert member.synced().assignment == member.member_id.encode()
    assert other.answers[0].groups[0].group_state == "Stable"


def test_a_generation_is_over_when_the_next_begins(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.begin_join()
    first.send_sync()
    assert first.synced().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    first.send_join()
    first.joined(), second.joined()
    first.generation = 1
    first.send_sync()
    assert first.synced().error_code == ErrorCode.ILLEGAL_GENERATION
    assert first.heartbeat() == ErrorCode.ILLEGAL_GENERATION
    stranger = Member(driver, "g")
    stranger.generation, stranger.member_id = 2, "invented"
    stranger.send_sync()
    assert stranger.synced().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.heartbeat(group_id="nobody's") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_may_name_the_protocol_and_must_be_right(driver: Any) -> None:
    member = Member(driver, "g")
    settle(member)
    fields = {"group_id": "g", "generation_id": 1, "member_id": member.member_id, "assignments": []}
    for type_, name, code in (
        ("consumer", "range", 0), ("connect", "range", 23), ("consumer", "sticky", 23), (None, None, 0),
    ):  # fmt: skip
        answer = member.client.ask(14, 5, **fields, protocol_type=type_, protocol_name=name)
        assert answer.error_code == code


def test_a_join_in_between_has_those_who_wait_join_again(driver: Any) -> None:
    first, second, third = (Member(driver, "g") for _ in range(3))
    settle(first)
    second.begin_join()
    first.send_join()
    first.joined(), second.joined()
    second.send_sync()
    third.begin_join()
    assert second.synced().error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_who_joins_and_never_syncs_is_out(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.begin_join(rebalance_ms=5000)
    first.send_join(rebalance_ms=5000, session_ms=30_000)
    first.joined(), second.joined()
    first.send_sync()
    first.synced()
    driver.advance(5100)
    assert second.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_assignment_too_large_to_be_written_is_refused_and_changes_nothing(driver: Any) -> None:
    member, other = Member(driver, "g"), Member(driver, "other")
    member.begin_join()
    member.joined()
    member.send_sync(**{member.member_id: bytes(3 << 20)})
    assert member.synced().error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    member.send_join()
    member.joined()
    member.send_sync()
    assert not member.synced().error_code
    settle(other)


# --- sessions -------------------------------------------------------------------------------------------------


def test_a_member_that_falls_silent_is_lost_and_one_that_speaks_is_not(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.begin_join()
    first.send_join()
    first.joined(), second.joined()
    first.send_sync(), second.send_sync()
    first.synced(), second.synced()
    for _ in range(4):
        driver.advance(3000)
        code = first.heartbeat()
    assert code == ErrorCode.REBALANCE_IN_PROGRESS
    first.send_join()
    assert first.joined().generation_id == 3 and first.members == [first.member_id]
    assert second.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_member_lost_leaves_an_empty_group(driver: Any) -> None:
    settle(Member(driver, "g"))
    driver.advance(10_100)
    assert state(driver) == "Empty"
    again = Member(driver, "g")
    settle(again)
    assert again.generation == 3


def test_a_member_that_waits_for_others_is_not_lost(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.begin_join(rebalance_ms=30_000)
    for _ in range(8):
        driver.advance(3000)
        assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    first.send_join()
    assert second.joined().generation_id == 2


def test_a_new_member_whose_client_may_be_gone_is_not_waited_for_for_ever(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.begin_join(rebalance_ms=3_600_000)
    for _ in range(59):
        driver.advance(5000)
        assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.client.answers
    driver.advance(6000)
    assert second.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    first.send_join()
    assert first.joined().generation_id == 2 and first.members == [first.member_id]


# --- leaving --------------------------------------------------------------------------------------------------


def test_leaving_is_heard_at_once(driver: Any) -> None:
    first, second = Member(driver, "g"), Member(driver, "g")
    settle(first)
    second.begin_join()
    first.send_join()
    first.joined(), second.joined()
    first.send_sync(), second.send_sync()
    first.synced(), second.synced()
    assert [int(row.error_code) for row in second.leave().members] == [0]
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert [int(row.error_code) for row in second.leave().members] == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert second.leave(version=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert first.leave(version=0).error_code == 0
    assert state(driver) == "Empty"


@pytest.mark.parametrize("version", [2, 5])
def test_the_last_has_left_when_that_is_written(drive: Start, version: int) -> None:
    driver = drive(group_initial_rebalance_delay_ms="0", log_flush_policy="durable")
    find(driver.connect())
    member = Member(driver, "g")
    settle(member)
    driver.are_syncs_held = True
    member.client.send(
        LEAVE, version, group_id="g", member_id=member.member_id,
        members=[{"member_id": member.member_id, "group_instance_id": None, "reason": None}],
    )  # fmt: skip
    assert not member.client.answers
    driver.sync()
    driver.turn()
    assert not member.client.answers.pop().error_code
    assert state(driver) == "Empty"


def test_many_leave_at_once_each_with_its_own_outcome(driver: Any) -> None:
    members = [Member(driver, "g", f"i{at}") for at in range(3)]
    settle(members[0])
    for member in members[1:]:
        member.begin_join()
    members[0].send_join()
    for member in members:
        member.joined()
    rows = [
        {"member_id": "", "group_instance_id": "i0", "reason": None},
        {"member_id": "invented", "group_instance_id": "i1", "reason": None},
        {"member_id": members[2].member_id, "group_instance_id": "i2", "reason": None},
        {"member_id": "", "group_instance_id": "i9", "reason": None},
        {"member_id": "", "group_instance_id": None, "reason": None},
    ]
    answer = driver.connect().ask(LEAVE, 5, group_id="g", members=rows)
    unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
    assert [int(row.error_code) for row in answer.members] == [0, fenced, 0, unknown, unknown]
    described = driver.connect().ask(15, 5, groups=["g"]).groups[0]
    assert [member.group_instance_id for member in described.members] == ["i1"]


# --- static members -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [8, 9])
def test_a_static_member_comes_back_without_a_rebalance(driver: Any, version: int) -> None:
    first, second = Member(driver, "g", "i1"), Member(driver, "g", "i2")
    settle(first)
    second.begin_join()
    first.send_join()
    first.joined(), second.joined()
    first.send_sync(**{first.member_id: b"one", second.member_id: b"two"})
    second.send_sync()
    first.synced(), second.synced()
    for old, part in ((second, b"two"), (first, b"one")):
        back = Member(driver, "g", old.instance)
        back.send_join(version=version)
        answer = back.joined()
        assert not answer.error_code and answer.generation_id == 2 and answer.member_id != old.member_id
        if part == b"one" and version >= 9:
            # It leads, and is told not to assign again (KIP-814).
            assert answer.leader == answer.member_id and answer.skip_assignment and len(answer.members) == 2
        else:
            assert answer.leader != answer.member_id and not answer.members
        back.is_leader = False
        back.send_sync()
        assert back.synced().assignment == part
        # Its old self is fenced, whatever it does.
        assert old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
        assert set(old.commit({("t", 0): 1}).values()) == {ErrorCode.FENCED_INSTANCE_ID}
        old.send_join()
        assert old.joined().error_code == ErrorCode.FENCED_INSTANCE_ID
        assert back.heartbeat() == 0
    assert state(driver) == "Stable"


def test_a_static_member_that_waits_is_fenced_by_the_one_that_comes(driver: Any) -> None:
    first, second = Member(driver, "g", "i1"), Member(driver, "g", "i2")
    settle(first)
    second.begin_join()
    twin = Member(driver, "g", "i2")
    twin.send_join()
    assert second.joined().error_code == ErrorCode.FENCED_INSTANCE_ID
    first.send_join()
    assert twin.joined().generation_id == 2
    third = Member(driver, "g", "i2")
    third.send_join()
    # In the middle of a rebalance the leader may already have counted with the old one.
    assert state(driver) == "PreparingRebalance"
    assert twin.heartbeat() == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_with_another_protocol_makes_a_rebalance(driver: Any) -> None:
    first = Member(driver, "g", "i1")
    first.begin_join("range", "sticky")
    first.joined()
    first.send_sync()
    first.synced()
    back = Member(driver, "g", "i1")
    back.begin_join("sticky")
    assert back.joined().generation_id == 2 and back.is_leader


def test_static_members_are_kept_over_a_rebalance_that_they_miss_until_their_session_ends(
    driver: Any,
) -> None:
    first, second = Member(driver, "g", "i1"), Member(driver, "g")
    first.begin_join(session_ms=60_000, rebalance_ms=6000)
    first.joined()
    first.send_sync()
    first.synced()
    second.begin_join(rebalance_ms=6000)
    driver.advance(6100)
    assert second.joined().generation_id == 2
    assert second.is_leader and sorted(second.members) == sorted([first.member_id, second.member_id])


# --- restarts -------------------------------------------------------------------------------------------------


def test_a_subscription_that_makes_no_sense_is_passed_on_all_the_same(driver: Any) -> None:
    member = Member(driver, "g")
    for metadata in (b"", b"\0", b"\0\0\x7f\xff\xff\xff", subscription("t")[:-5], b"\0\0\0\0\0\1\xff\xff"):
        member.client.send(
            11, 3, group_id="g", session_timeout=10_000, rebalance_timeout=10_000, member_id=member.member_id,
            protocol_type="consumer", protocols=[{"name": "range", "metadata": metadata}],
        )  # fmt: skip
        answer = member.joined()
        assert not answer.error_code and answer.members[0].metadata == metadata
