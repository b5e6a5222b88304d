"""Consumer groups of KIP-848: what each request is told, what it changes, and that a refusal changes nothing."""

from typing import Any

import pytest

from ottla.groups.classic_group import ClassicGroup
from ottla.groups.consumer_group import ConsumerGroup, Phase
from ottla.groups.formats import REGULAR_EXPRESSION, decode
from ottla.groups.shard import Commit
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import run
from tests.groups.clients import REBALANCE_MS, SESSION_MS, Client
from tests.groups.conftest import Heard, World

#: Timers may ring so much late.
TICK_MS = 1000


def group_of(world: World) -> ConsumerGroup:
    group = world.shard.groups["g"]
    assert isinstance(group, ConsumerGroup)
    return group


def refused(client: Client, **fields: Any) -> ErrorCode:
    """The code of a refusal, after which nothing has changed."""
    log = list(client.world.records)
    kept = dict(client.world.shard.groups)
    with pytest.raises(Refusal) as refusal:
        client.beat(**fields)
    assert client.world.records == log
    assert client.world.shard.groups == kept
    assert refusal.value.message
    return refusal.value.code


def settle(*clients: Client) -> None:
    for _ in range(4):
        for client in clients:
            client.beat()


@pytest.fixture
def t(world: World) -> bytes:
    return world.make_topic("t", 4)


# --- the way of partitions --------------------------------------------------------------------------------------


def test_the_first_member_has_everything_at_once(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    assert (one.epoch, one.numbers) == (1, [0, 1, 2, 3])
    assert one.answer["heartbeat_interval"] == 5000
    assert one.beat().answer["assignment"] is None, "nothing has changed"
    assert group_of(world).state is Phase.STABLE


def test_a_partition_is_given_up_before_it_is_given_away(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    two = Client(world, "two", "t").beat()
    assert (two.epoch, two.numbers) == (2, []), "all is still held"
    had = one.owned
    one.beat()
    assert len(one.numbers) == 2 and one.epoch == 1, "it has to give up two, and keeps its epoch until then"
    assert two.beat().numbers == []
    one.beat(owned=had)
    assert one.epoch == 1 and two.beat().numbers == [], "it still owns them"
    one.beat()
    assert one.epoch == 2
    two.beat()
    assert sorted(one.numbers + two.numbers) == [0, 1, 2, 3]
    assert group_of(world).state is Phase.STABLE


def test_who_leaves_sets_its_partitions_free(world: World, t: bytes) -> None:
    one, two = Client(world, "one", "t"), Client(world, "two", "t")
    settle(one, two)
    one.beat(member_epoch=-1)
    assert one.answer["member_epoch"] == -1
    assert two.beat().numbers == [0, 1, 2, 3]
    two.beat(member_epoch=-1)
    assert group_of(world).state is Phase.EMPTY
    assert not group_of(world).owners


def test_a_silent_member_is_lost_after_its_session(world: World, t: bytes) -> None:
    one, two = Client(world, "one", "t"), Client(world, "two", "t")
    settle(one, two)
    for _ in range(8):
        world.advance(SESSION_MS // 8)
        two.beat()
    world.advance(TICK_MS)
    assert two.beat().numbers == [0, 1, 2, 3]
    assert refused(one) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_give_up_in_time_is_lost_though_it_heartbeats(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    two = Client(world, "two", "t").beat()
    had = one.owned
    one.beat()
    for _ in range(3):
        world.advance(REBALANCE_MS // 3)
        one.beat(owned=had)
    world.advance(2000)
    assert refused(one, owned=had) is ErrorCode.UNKNOWN_MEMBER_ID
    assert two.beat().numbers == [0, 1, 2, 3]


def test_who_has_given_up_in_time_stays(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    two = Client(world, "two", "t").beat()
    one.beat()
    for _ in range(6):
        world.advance(REBALANCE_MS // 3)
        one.beat(), two.beat()
    assert one.numbers and sorted(one.numbers + two.numbers) == [0, 1, 2, 3]


def test_heartbeats_look_at_topics_when_these_have_changed(
    world: World, t: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Client(world, "one", "t").beat()
    look, looks = world.topic, list[str]()

    def topic(name: str) -> Any:
        looks.append(name)
        return look(name)

    monkeypatch.setattr(world, "topic", topic)
    one.beat(), one.beat()
    assert not looks
    world.make_topic("t", 5)
    assert one.beat().numbers == [0, 1, 2, 3, 4] and looks
    looks.clear()
    one.beat()
    assert not looks


def test_who_says_everything_is_told_everything(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    assert one.beat().answer["assignment"] is None
    assert one.beat(**one.subscription).answer["assignment"]["topic_partitions"]
    for less in ({"names": None}, {"rebalance_timeout_ms": -1}, {"owned": None}):
        assert one.beat(**one.subscription | less).answer["assignment"] is None


def test_an_epoch_long_past_is_not_one_whose_answer_was_lost(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    for count in (5, 6):
        world.make_topic("t", count)
        one.beat()
    assert one.epoch == 3
    assert refused(one, member_epoch=1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert one.beat(member_epoch=2).epoch == 3


def test_an_answer_that_was_lost_is_told_again(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    Client(world, "two", "t").beat()
    one.beat()
    owned = one.owned
    one.beat()
    assert one.epoch == 2
    # It never heard that: it comes with the epoch before, and with what it owned then.
    one.beat(member_epoch=1, owned=owned)
    assert one.epoch == 2 and one.answer["assignment"] is not None
    assert refused(one, member_epoch=1, owned=None) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(one, member_epoch=1, owned=frozenset({(t, 0), (t, 1), (t, 2), (t, 3)})) is (
        ErrorCode.FENCED_MEMBER_EPOCH
    )


def test_a_member_that_joins_again_owns_nothing_and_is_told_everything(world: World, t: bytes) -> None:
    one, two = Client(world, "one", "t"), Client(world, "two", "t")
    settle(one, two)
    before, epoch = one.owned, one.epoch
    one.epoch = 0
    one.beat()
    assert (one.owned, one.epoch) == (before, epoch)


# --- topics -----------------------------------------------------------------------------------------------------


def test_new_partitions_new_topics_and_topics_that_go_lead_to_new_targets(world: World, t: bytes) -> None:
    one, two = Client(world, "one", "t", "u"), Client(world, "two", "t", "u")
    settle(one, two)
    epoch = group_of(world).epoch
    world.make_topic("other", 3)
    settle(one, two)
    assert group_of(world).epoch == epoch, "a topic that nobody reads changes nothing"
    world.make_topic("t", 6)
    settle(one, two)
    assert sorted(one.numbers + two.numbers) == [0, 1, 2, 3, 4, 5]
    u = world.make_topic("u", 2)
    settle(one, two)
    assert {(u, 0), (u, 1)} <= one.owned | two.owned
    assert len(one.owned) == len(two.owned) == 4
    world.remove_topic("t")
    settle(one, two)
    assert one.owned | two.owned == {(u, 0), (u, 1)}


def test_a_member_may_want_something_else(world: World, t: bytes) -> None:
    u = world.make_topic("u", 1)
    one = Client(world, "one", "t").beat()
    one.beat(names=frozenset({"u"}))
    assert one.owned == frozenset()
    one.beat()
    assert one.owned == {(u, 0)}


def test_a_large_group_is_not_assigned_anew_for_each_of_many_who_come_at_once(world: World) -> None:
    big, u = world.make_topic("big", 2000), world.make_topic("u", 1)
    one = Client(world, "one", "big").beat()
    assert len(one.owned) == 2000
    two, three = Client(world, "two", "big").beat(), Client(world, "three", "big").beat()
    group = group_of(world)
    assert (group.epoch, group.assignment_epoch, group.state) == (3, 1, Phase.ASSIGNING)
    # They are members of the present assignment, in which there is nothing for them.
    assert [(each.epoch, each.owned) for each in (two, three)] == [(1, frozenset())] * 2
    assert one.beat().epoch == 1, "nor for whoever heartbeats meanwhile"
    world.advance(1000)
    settle(one, two, three)
    assert sorted(len(each.owned) for each in (one, two, three)) == [666, 667, 667]
    assert (group.assignment_epoch, group.state) == (3, Phase.STABLE)
    # After a while the next who comes is given its part at once, and who wants something else always is.
    world.advance(1000)
    Client(world, "four", "big").beat()
    assert group.assignment_epoch == 4
    two.beat(names=frozenset({"u"}))
    Client(world, "five", "big", "u").beat()
    assert group.assignment_epoch == 6
    world.advance(1000)
    settle(one, two, three)
    assert two.owned == {(u, 0)}
    assert {topic for topic, _number in one.owned} == {big}


def test_a_pattern_follows_the_topics(world: World, t: bytes) -> None:
    one = Client(world, "one", regex="t.*", names=None).beat()
    assert one.numbers == [0, 1, 2, 3]
    t2 = world.make_topic("t2", 1)
    one.beat()
    assert (t2, 0) in one.owned
    world.remove_topic("t")
    settle(one)
    assert one.owned == {(t2, 0)}
    kinds = [decode(*record).key for record in world.records]  # type: ignore[union-attr]
    assert (REGULAR_EXPRESSION, "g", "t.*") in kinds
    world.begin()
    one.beat()
    assert group_of(world).patterns == {"t.*": {"t2"}}
    one.beat(regex="", names=frozenset({"t2"}))
    assert group_of(world).patterns == {}
    assert one.owned == {(t2, 0)}


def test_names_and_a_pattern_together_are_both_read(world: World, t: bytes) -> None:
    u = world.make_topic("u", 1)
    one = Client(world, "one", "u", regex="t").beat()
    assert one.owned == {(t, 0), (t, 1), (t, 2), (t, 3), (u, 0)}


def test_most_members_decide_on_the_assignor(world: World) -> None:
    for name in ("x", "y"):
        world.make_topic(name, 3)
    one = Client(world, "one", "x", "y", server_assignor="range")
    two = Client(world, "two", "x", "y")
    settle(one, two)
    assert one.numbers == [0, 0, 1, 1]
    assert run(world.shard.consumer.describe(group_of(world)))["assignor_name"] == "range"
    one.beat(server_assignor="uniform")
    settle(one, two)
    assert len(one.owned) == len(two.owned) == 3


# --- static members ---------------------------------------------------------------------------------------------


def test_a_static_member_finds_what_it_had_when_it_is_back(world: World, t: bytes) -> None:
    one = Client(world, "one", "t", instance_id="i")
    two = Client(world, "two", "t")
    settle(one, two)
    epoch, had = group_of(world).epoch, one.owned
    one.beat(member_epoch=-2)
    assert one.answer["member_epoch"] == -2
    assert two.beat().owned.isdisjoint(had)
    back = Client(world, "one-again", "t", instance_id="i").beat()
    assert (back.owned, back.epoch) == (had, epoch)
    assert group_of(world).epoch == epoch, "nobody else has noticed"
    assert refused(one, member_epoch=epoch) is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_has_not_heard_the_answer_to_its_join_asks_again(world: World, t: bytes) -> None:
    one = Client(world, "one", "t", instance_id="i").beat()
    epoch, had = one.epoch, one.owned
    one.epoch, one.owned = 0, frozenset()
    one.beat()
    assert (one.epoch, one.owned) == (epoch, had)
    # Another process with its name is another matter.
    assert refused(Client(world, "two", "t", instance_id="i")) is ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_member_that_joins_under_another_instance_is_not_the_former_one_any_more(
    world: World, t: bytes
) -> None:
    one = Client(world, "one", "t", instance_id="i").beat()
    one.epoch, one.subscription["instance_id"] = 0, "j"
    one.beat()
    assert group_of(world).static == {"j": "one"}
    assert world.shard.classic.leave("g", [("", "i")], world.now_ms) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert Client(world, "two", "t", instance_id="i").beat().epoch == one.epoch + 1


def test_a_static_member_may_be_away_longer_than_it_had_to_give_up_something(world: World, t: bytes) -> None:
    one = Client(world, "one", "t", instance_id="i").beat()
    two = Client(world, "two", "t").beat()
    one.beat()
    one.beat(member_epoch=-2)
    for _ in range(3):
        world.advance(REBALANCE_MS // 2)
        two.beat()
    assert group_of(world).state is Phase.STABLE
    epoch = group_of(world).epoch
    back = Client(world, "back", "t", instance_id="i").beat()
    assert len(back.numbers) == 2 and group_of(world).epoch == epoch


def test_a_static_member_comes_back_to_a_full_group() -> None:
    world = World(group_consumer_max_size="2")
    world.make_topic("t", 4)
    one, two = Client(world, "one", "t", instance_id="i"), Client(world, "two", "t")
    settle(one, two)
    had = one.owned
    one.beat(member_epoch=-2)
    assert Client(world, "back", "t", instance_id="i").beat().owned == had
    assert refused(Client(world, "three", "t")) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_static_member_that_stays_away_is_lost(world: World, t: bytes) -> None:
    one = Client(world, "one", "t", instance_id="i").beat()
    one.beat(member_epoch=-2)
    two = Client(world, "two", "t").beat()
    assert two.numbers == [], "it may be back"
    for _ in range(9):
        world.advance(SESSION_MS // 8)
        two.beat()
    assert two.numbers == [0, 1, 2, 3]


def test_what_a_static_member_had_is_free_when_it_is_back_and_was_given_to_another(
    world: World, t: bytes
) -> None:
    one = Client(world, "one", "t", instance_id="i").beat()
    one.beat(member_epoch=-2)
    two = Client(world, "two", "t").beat()
    back = Client(world, "back", "t", instance_id="i").beat()
    assert len(back.numbers) == 2
    assert sorted(back.numbers + two.beat().numbers) == [0, 1, 2, 3]


def test_an_administrator_sends_members_away(world: World, t: bytes) -> None:
    one, two, three = (
        Client(world, "one", "t", instance_id="i"),
        Client(world, "two", "t"),
        Client(world, "three", "t", instance_id="j"),
    )
    settle(one, two, three)
    leaving = [("", "i"), ("two", None), ("", "nobody"), ("", None), ("other", "j")]
    gone, unknown = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID
    assert world.shard.classic.leave("g", leaving, world.now_ms) == [
        gone, gone, unknown, unknown, ErrorCode.FENCED_INSTANCE_ID,
    ]  # fmt: skip
    assert three.beat().numbers == [0, 1, 2, 3]
    assert refused(one) is unknown and refused(two) is unknown


# --- refusals ---------------------------------------------------------------------------------------------------

JOIN = {"member_epoch": 0, "owned": frozenset(), "names": frozenset({"t"}), "rebalance_timeout_ms": 1}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        (JOIN | {"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        (JOIN | {"owned": None}, ErrorCode.INVALID_REQUEST),
        (JOIN | {"owned": frozenset({(bytes(16), 1)})}, ErrorCode.INVALID_REQUEST),
        (JOIN | {"names": None}, ErrorCode.INVALID_REQUEST),
        (JOIN | {"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        (JOIN | {"regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (JOIN | {"regex": "((a{100}){100}){100}"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (JOIN | {"member_id": "third"}, ErrorCode.GROUP_MAX_SIZE_REACHED),
        (JOIN | {"member_id": "third", "instance_id": "i"}, ErrorCode.UNRELEASED_INSTANCE_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody", "member_epoch": -2}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "i"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"instance_id": "i", "member_epoch": -1}, ErrorCode.FENCED_INSTANCE_ID),
        ({"member_epoch": 9}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"member_epoch": 1}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"group_id": "nothing"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"group_id": "classic"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"group_id": "nothing", "member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_what_is_refused_changes_nothing(fields: dict[str, Any], code: ErrorCode) -> None:
    world = World(group_consumer_max_size="2")
    t = world.make_topic("t", 4)
    one, two = Client(world, "one", "t", instance_id="i"), Client(world, "two", "t")
    settle(one, two)
    # Two epochs more, so that the first one is long past.
    world.make_topic("t", 5)
    settle(one, two)
    world.make_topic("t", 6)
    settle(one, two)
    world.shard.groups["classic"] = ClassicGroup("classic")
    assert t and two.epoch == 4
    assert refused(two, **{"owned": None, **fields}) is code
    settle(one, two)
    assert sorted(one.numbers + two.numbers) == [0, 1, 2, 3, 4, 5]


# --- the log ----------------------------------------------------------------------------------------------------


def test_a_coordinator_that_moves_takes_everything_along(world: World, t: bytes) -> None:
    one, two, three = (Client(world, name, "t", rack_id="r") for name in ("one", "two", "three"))
    settle(one, two)
    three.beat()
    one.beat()
    before = run(world.shard.consumer.describe(group_of(world)))
    world.begin()
    assert run(world.shard.consumer.describe(group_of(world))) == before
    settle(one, two, three)
    assert sorted(one.numbers + two.numbers + three.numbers) == [0, 1, 2, 3]


def test_sessions_and_revocations_begin_rebuild_after_a_load(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    two = Client(world, "two", "t").beat()
    had = one.owned
    one.beat()
    world.begin()
    for _ in range(6):
        world.advance(2000)
        two.beat()
    assert refused(one, owned=had) is ErrorCode.UNKNOWN_MEMBER_ID
    world.begin()
    world.advance(SESSION_MS + TICK_MS)
    assert group_of(world).state is Phase.EMPTY


def test_a_shard_that_ends_leaves_no_timers(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    Client(world, "two", "t").beat()
    # And one that is told to give something up.
    one.beat()
    world.shard.unload()
    assert world.timers.next_ms is None


# --- settings, offsets, the ends of groups ----------------------------------------------------------------------


def test_a_group_may_have_settings_of_its_own(world: World, t: bytes) -> None:
    world.own_settings["g"] = {
        "consumer.session.timeout.ms": "50000",
        "consumer.heartbeat.interval.ms": "7000",
    }
    one = Client(world, "one", "t").beat()
    assert one.answer["heartbeat_interval"] == 7000
    world.advance(SESSION_MS + TICK_MS)
    one.beat()
    world.advance(50_000 + TICK_MS)
    assert refused(one) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("member_id", "epoch", "version", "code"),
    [
        ("one", 1, 9, ErrorCode.NONE),
        ("one", 1, 8, ErrorCode.UNSUPPORTED_VERSION),
        ("one", 0, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("one", 2, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("other", 1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_only_a_member_in_its_epoch_commits_and_asks_for_offsets(
    world: World, t: bytes, member_id: str, epoch: int, version: int, code: ErrorCode
) -> None:
    Client(world, "one", "t").beat()
    assert world.shard.check_commit("g", epoch, member_id, None, world.now_ms, version=version) is code
    if version >= 9 and code:
        with pytest.raises(Refusal) as refusal:
            world.shard.check_fetch("g", member_id, epoch, world.now_ms)
        assert refusal.value.code is code
    world.shard.check_fetch("g", None, -1, world.now_ms)


@pytest.mark.parametrize("is_moved", [False, True])
def test_who_is_behind_its_epoch_commits_what_it_has_had_since(
    world: World, t: bytes, is_moved: bool
) -> None:
    """KIP-1251: the answer that told it of its epoch may be on its way, or lost."""
    one = Client(world, "one", "t").beat()
    two = Client(world, "two", "t").beat()
    settle(one, two)
    assert (one.epoch, two.epoch) == (2, 2)
    if is_moved:
        world.begin()

    def outcome(client: Client, epoch: int, *numbers: int) -> ErrorCode:
        commits = [Commit("t", number, 1, 0, "", t) for number in numbers]
        return world.shard.check_commit(
            "g", epoch, client.name, None, world.now_ms, version=9, commits=commits
        )

    assert outcome(one, 1, *one.numbers) is ErrorCode.NONE
    assert outcome(one, 1, one.numbers[0], two.numbers[0]) is ErrorCode.STALE_MEMBER_EPOCH
    assert outcome(one, 0, *one.numbers) is ErrorCode.STALE_MEMBER_EPOCH, "it had nothing then"
    assert outcome(one, 3, *one.numbers) is ErrorCode.STALE_MEMBER_EPOCH
    assert outcome(two, 1, *two.numbers) is ErrorCode.STALE_MEMBER_EPOCH, "they were another's"
    assert outcome(one, 1) is ErrorCode.STALE_MEMBER_EPOCH

    def in_transaction(epoch: int, *numbers: int) -> ErrorCode:
        commits = [Commit("t", number, 1, 0, "", t) for number in numbers]
        return world.shard.check_transactional_commit("g", epoch, "one", None, commits)

    assert in_transaction(1, *one.numbers) is ErrorCode.NONE
    assert in_transaction(1, *two.numbers) is ErrorCode.ILLEGAL_GENERATION
    assert in_transaction(3, *one.numbers) is ErrorCode.ILLEGAL_GENERATION
    with pytest.raises(Refusal):
        world.shard.check_fetch("g", "one", 1, world.now_ms)


def commit(world: World, offset: int) -> None:
    world.shard.commit("g", [Commit("t", 0, offset, 0, "", bytes(16))], -1, (Heard(), {"error_code": 0}))


def test_an_empty_group_of_either_kind_gives_way_to_the_other_and_leaves_its_offsets(
    world: World, t: bytes
) -> None:
    commit(world, 7)
    assert world.shard.groups["g"].type == "classic"
    one = Client(world, "one", "t").beat()
    assert world.shard.groups["g"].type == "consumer"
    one.beat(member_epoch=-1)
    world.shard.remove_empty_consumer_group("g")
    assert "g" not in world.shard.groups
    world.begin()
    found = world.shard.offsets.get("g", "t", 0)
    assert found is not None and found.offset == 7
    assert world.shard.groups["g"].type == "classic"


def test_a_group_is_deleted_when_it_has_no_members(world: World, t: bytes) -> None:
    one = Client(world, "one", regex="t", names=None).beat()
    commit(world, 7)
    heard = Heard()
    world.shard.delete("g", heard, world.now_ms)
    assert heard.code is ErrorCode.NON_EMPTY_GROUP
    one.beat(member_epoch=-1)
    heard = Heard()
    world.shard.delete("g", heard, world.now_ms)
    assert heard.error == 0
    assert not world.shard.groups
    last = dict(world.records)
    assert not any(last.values()), "nothing of it is left in a compacted log"


def test_offsets_of_topics_that_members_read_stay_and_others_expire(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    commit(world, 7)
    world.shard.commit("g", [Commit("u", 0, 1, 0, "", bytes(16))], -1, (Heard(), {"error_code": 0}))
    week_ms = 10_080 * 60_000
    run(world.shard.expire_offsets(world.wall_ms + week_ms + 1))
    assert set(world.shard.offsets.of("g")) == {("t", 0)}
    one.beat(member_epoch=-1)
    run(world.shard.expire_offsets(world.wall_ms + week_ms + 1))
    assert not world.shard.groups and not world.shard.offsets.by_group


def test_groups_are_listed_with_their_kind(world: World, t: bytes) -> None:
    Client(world, "one", "t").beat()
    assert list(world.shard.listed()) == [
        {"group_id": "g", "protocol_type": "consumer", "group_state": "Stable", "group_type": "consumer"}
    ]
    assert world.shard.describe("g") is None
