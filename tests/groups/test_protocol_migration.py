"""Groups in which members of both protocols meet: how a group changes its protocol, what classic members are told meanwhile, and
that a refusal changes nothing (KIP-848)."""

from typing import Any

import pytest

from ottla.groups.classic import Join, Sync
from ottla.groups.classic_group import ClassicGroup, State
from ottla.groups.consumer_group import ConsumerGroup, Phase
from ottla.groups.formats import CONSUMER_GROUP_MEMBER, GROUP_METADATA, Encoded, Record, decode
from ottla.groups.shard import Commit
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import run
from ottla.records.consumer_protocol import read_assignment
from tests.groups.clients import (
    CLASSIC_SESSION_MS,
    REBALANCE_MS,
    SESSION_MS,
    ClassicClient,
    Client,
    settle,
    subscription,
)
from tests.groups.conftest import Heard, World

#: Timers may ring so much late.
TICK_MS = 1000


@pytest.fixture
def t(world: World) -> bytes:
    return world.make_topic("t", 4)


def consumer_group(world: World) -> ConsumerGroup:
    group = world.shard.groups["g"]
    assert isinstance(group, ConsumerGroup)
    return group


def classic_group(world: World) -> ClassicGroup:
    group = world.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    return group


def check_shared(*clients: Client | ClassicClient, count: int = 4) -> None:
    held = sorted(number for client in clients for number in client.numbers)
    assert held == list(range(count)), [client.numbers for client in clients]


def last(world: World) -> dict[Any, Any]:
    """What a compacted log would hold."""
    found: dict[Any, Any] = {}
    for each in world.records:
        record = decode(*each)
        assert record is not None
        found[record.key] = record.value
    return {key: value for key, value in found.items() if value is not None}


# --- up ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cooperative", "version"), [(False, 0), (False, 1), (False, 3), (True, 1), (True, 2), (True, 3)]
)
def test_a_group_goes_all_the_way_up_and_down(
    world: World, t: bytes, cooperative: bool, version: int
) -> None:
    one, two = (ClassicClient(world, "t", cooperative=cooperative, version=version) for _ in range(2))
    settle(world, one, two)
    check_shared(one, two)
    generation = classic_group(world).generation
    three = Client(world, "three", "t").beat()
    assert three.epoch == generation + 1 and three.numbers == []
    settle(world, one, two, three)
    check_shared(one, two, three)
    assert consumer_group(world).state is Phase.STABLE
    assert one.generation == two.generation == three.epoch
    # The last classic one goes, and another of the new protocol comes: the group has forgotten that it was ever classic.
    assert one.leave() is ErrorCode.NONE
    settle(world, two, three)
    check_shared(two, three)
    two.leave()
    settle(world, three)
    check_shared(three)
    # And back.
    back = [ClassicClient(world, "t", cooperative=cooperative, version=version) for _ in range(2)]
    settle(world, *back, three)
    check_shared(*back, three)
    three.beat(member_epoch=-1)
    assert classic_group(world).state is State.PREPARING_REBALANCE
    settle(world, *back)
    check_shared(*back)
    assert classic_group(world).state is State.STABLE
    assert classic_group(world).generation > generation


def test_the_records_say_what_the_group_is(world: World, t: bytes) -> None:
    one = ClassicClient(world, "t", protocols=("range", "roundrobin"))
    settle(world, one)
    assert (GROUP_METADATA, "g") in last(world)
    two = Client(world, "two", "t").beat()
    written = last(world)
    assert (GROUP_METADATA, "g") not in written
    member = written[CONSUMER_GROUP_MEMBER, "g", one.member_id]
    classic = member["classic_member_metadata"]
    assert classic["session_timeout_ms"] == CLASSIC_SESSION_MS
    assert [row["name"] for row in classic["supported_protocols"]] == ["range", "roundrobin"]
    assert written[CONSUMER_GROUP_MEMBER, "g", "two"]["classic_member_metadata"] is None
    settle(world, one, two)
    two.beat(member_epoch=-1)
    assert set(last(world)) == {(GROUP_METADATA, "g")}
    settle(world, one)
    check_shared(one)
    assert set(last(world)) == {(GROUP_METADATA, "g")}


def test_what_a_classic_member_reads_is_not_given_away_before_it_has_joined_again(
    world: World, t: bytes
) -> None:
    one = ClassicClient(world, "t")
    settle(world, one)
    two = Client(world, "two", "t").beat()
    for _ in range(3):
        assert two.beat().numbers == []
    assert one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    one.join()
    assert len(one.numbers) == 2, "an eager member has given up everything before"
    check_shared(one, two.beat())


def test_a_cooperative_member_keeps_its_generation_until_it_has_given_up(world: World, t: bytes) -> None:
    one = ClassicClient(world, "t", cooperative=True)
    settle(world, one)
    generation = one.generation
    two = Client(world, "two", "t").beat()
    assert one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    one.join()
    assert one.generation == generation and len(one.parts) == 2 and one.must_join
    assert two.beat().numbers == [], "it has not said yet that it has given up"
    assert one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    one.join()
    assert one.generation == two.epoch and not one.must_join
    check_shared(one, two.beat())
    assert one.heartbeat() is ErrorCode.NONE


def test_a_classic_member_joins_again_when_all_that_it_waits_for_is_free(world: World, t: bytes) -> None:
    one = Client(world, "one", "t").beat()
    two = ClassicClient(world, "t").join()
    assert two.numbers == [] and two.heartbeat() is ErrorCode.NONE, "all is held by the other"
    one.beat()
    assert two.heartbeat() is ErrorCode.NONE, "which still gives it up"
    one.beat()
    assert two.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    two.join()
    check_shared(one, two)


@pytest.mark.parametrize("synced", [False, True])
def test_members_in_the_middle_of_a_rebalance_are_told_to_join_again(
    world: World, t: bytes, synced: bool
) -> None:
    one = ClassicClient(world, "t", cooperative=True)
    settle(world, one)
    two = ClassicClient(world, "t", cooperative=True)
    two.go_on()
    assert two.joining is not None and not two.joining.is_answered
    if synced:
        # All have joined, nobody has synced: only the leader's claim tells what it reads.
        one.must_join = True
        heard = Heard()
        one.world.shard.classic.join(_join(one), heard, world.now_ms)
        assert classic_group(world).state is State.COMPLETING_REBALANCE
        one.answer, one.generation = heard.response or {}, classic_group(world).generation
        two.go_on()
        assert two.syncing is not None and not two.syncing.is_answered
    three = Client(world, "three", "t").beat()
    assert three.numbers == []
    waiting = two.syncing if synced else two.joining
    assert waiting is not None and waiting.error == ErrorCode.REBALANCE_IN_PROGRESS
    settle(world, one, two, three)
    check_shared(one, two, three)


def _join(client: ClassicClient) -> Join:
    metadata = subscription(client.topics, client.parts, client.version)
    return Join(
        "g", client.member_id, client.instance, "c", "/h", client.session_ms, REBALANCE_MS, "consumer",
        (("range", metadata),), True, True,
    )  # fmt: skip


def test_partitions_that_a_member_claims_and_nobody_was_assigned_are_its_own(world: World, t: bytes) -> None:
    """The middle of a cooperative rebalance: the leader has assigned less than the member reads, which has not synced yet."""
    one = ClassicClient(world, "t", cooperative=True)
    settle(world, one)
    group = classic_group(world)
    member = group.members[one.member_id]
    member.protocols = (("range", subscription(("t",), one.parts)),)
    member.assignment = b""
    three = Client(world, "three", "t").beat()
    assert three.numbers == [] and len(consumer_group(world).owners) == 4


REFUSED = {
    "disabled": "online upgrade is disabled", "connect": "does not use the consumer embedded protocol",
    "large": "exceeds the consumer group maximum size", "malformed": "malformed", "custom": "custom assignor",
    "assignment": "malformed",
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_a_group_that_cannot_become_a_consumer_group_stays_what_it_is(why: str) -> None:
    settings = {"group_initial_rebalance_delay_ms": "0"}
    if why == "disabled":
        settings["group_consumer_migration_policy"] = "Downgrade"
    if why == "large":
        settings["group_consumer_max_size"] = "1"
    world = World(**settings)
    world.make_topic("t", 4)
    one, two = ClassicClient(world, "t", protocols=("mine",)), ClassicClient(world, "t", protocols=("mine",))
    settle(world, one, two)
    group = classic_group(world)
    member = group.members[one.member_id]
    if why == "connect":
        group.protocol_type = "connect"
    elif why == "malformed":
        member.protocols = (("mine", b"\0"),)
    elif why == "custom":
        member.assignment = b"\0\0\0\0\0\0\0\0\0\1x"
    elif why == "assignment":
        member.assignment = b"\0"
    log = list(world.records)
    with pytest.raises(Refusal, match=REFUSED[why]) as refusal:
        Client(world, "three", "t").beat()
    assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.records == log and world.shard.groups["g"] is group
    assert one.heartbeat() is two.heartbeat() is ErrorCode.NONE


def test_what_a_known_assignor_has_added_is_lost_without_loss(world: World, t: bytes) -> None:
    one = ClassicClient(world, "t", protocols=("cooperative-sticky",), cooperative=True)
    settle(world, one)
    member = classic_group(world).members[one.member_id]
    member.assignment = member.assignment[:-4] + b"\0\0\0\1x"
    two = Client(world, "two", "t").beat()
    settle(world, one, two)
    check_shared(one, two)


def test_an_empty_group_changes_whatever_the_policy_is(t: bytes) -> None:
    world = World(group_initial_rebalance_delay_ms="0", group_consumer_migration_policy="disabled")
    world.make_topic("t", 4)
    one = ClassicClient(world, "t")
    settle(world, one)
    one.leave()
    two = Client(world, "two", "t").beat()
    check_shared(two)
    two.beat(member_epoch=-1)
    settle(world, one)
    check_shared(one)


def test_an_id_that_was_given_out_by_a_group_of_the_other_kind_is_unknown_not_wrong(
    world: World, t: bytes
) -> None:
    one = Client(world, "one", "t").beat()
    two = ClassicClient(world, "t")
    heard = Heard()
    world.shard.classic.join(_join(two), heard, world.now_ms)
    assert heard.error == ErrorCode.MEMBER_ID_REQUIRED and heard.response is not None
    two.member_id = heard.response["member_id"]
    one.beat(member_epoch=-1)
    settle(world, two)
    check_shared(two)


# --- down -------------------------------------------------------------------------------------------------------


def test_the_last_consumer_member_may_be_lost_as_well(world: World, t: bytes) -> None:
    one, two = ClassicClient(world, "t"), Client(world, "two", "t")
    settle(world, one, two)
    for _ in range(SESSION_MS // 1000 + 5):
        world.advance(1000)
        one.go_on()
    assert classic_group(world).state is State.STABLE
    check_shared(one)
    with pytest.raises(Refusal) as refusal:
        two.beat()
    assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_or_sent_away(world: World, t: bytes) -> None:
    one, two = ClassicClient(world, "t"), Client(world, "two", "t", instance_id="i")
    settle(world, one, two)
    assert world.shard.classic.leave("g", [("", "i")], world.now_ms) == [ErrorCode.NONE]
    settle(world, one)
    check_shared(one)
    assert classic_group(world).state is State.STABLE


@pytest.mark.parametrize("policy", ["upgrade", "disabled"])
def test_without_downgrades_classic_members_stay_in_the_consumer_group(policy: str) -> None:
    world = World(group_initial_rebalance_delay_ms="0", group_consumer_migration_policy=policy)
    world.make_topic("t", 4)
    two = Client(world, "two", "t").beat()
    one = ClassicClient(world, "t")
    settle(world, one, two)
    check_shared(one, two)
    two.beat(member_epoch=-1)
    settle(world, one)
    check_shared(one)
    assert consumer_group(world).state is Phase.STABLE
    three = ClassicClient(world, "t")
    settle(world, one, three)
    check_shared(one, three)


def test_a_group_too_large_for_a_classic_one_stays(t: bytes) -> None:
    world = World(group_initial_rebalance_delay_ms="0", group_max_size="1")
    world.make_topic("t", 4)
    three = Client(world, "three", "t").beat()
    one, two = ClassicClient(world, "t"), ClassicClient(world, "t")
    settle(world, one, two, three)
    three.beat(member_epoch=-1)
    settle(world, one, two)
    check_shared(one, two)
    assert consumer_group(world).state is Phase.STABLE


def test_after_a_downgrade_a_coordinator_that_moves_still_rebalances(world: World, t: bytes) -> None:
    one, two, three = ClassicClient(world, "t"), ClassicClient(world, "t"), Client(world, "three", "t")
    settle(world, one, two, three)
    check_shared(one, two, three)
    three.beat(member_epoch=-1)
    # Nobody has joined yet, and only the record is left of what has happened.
    world.begin()
    assert classic_group(world).state is State.PREPARING_REBALANCE
    settle(world, one, two)
    check_shared(one, two)
    generation, joins = classic_group(world).generation, one.joins
    world.begin()
    settle(world, one, two)
    assert classic_group(world).generation == generation and one.joins == joins, "now it is led"


# --- static members ---------------------------------------------------------------------------------------------


def test_a_static_member_changes_its_protocol_and_keeps_what_it_has(world: World, t: bytes) -> None:
    one, two = ClassicClient(world, "t", instance="i"), ClassicClient(world, "t", instance="j")
    settle(world, one, two)
    had, other = one.owned, two.numbers
    # The process of the first is replaced by one of the new protocol, under the same instance.
    back = Client(world, "back", "t", instance_id="i").beat()
    assert back.owned == had
    assert one.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    settle(world, two, back)
    assert two.numbers == other
    check_shared(two, back)
    # And back again: the last of the new protocol, so that the group is a classic one, and nobody else notices.
    joins = two.joins
    again = ClassicClient(world, "t", instance="i").join()
    assert again.owned == had and classic_group(world).state is State.STABLE
    settle(world, two, again)
    assert two.joins == joins
    check_shared(two, again)
    with pytest.raises(Refusal):
        back.beat()
    world.begin()
    settle(world, two, again)
    check_shared(two, again)
    assert two.joins == joins


def test_a_static_member_that_wants_something_else_leads_to_a_rebalance(world: World, t: bytes) -> None:
    world.make_topic("u", 2)
    one, two = ClassicClient(world, "t"), Client(world, "two", "t", instance_id="i")
    settle(world, one, two)
    back = ClassicClient(world, "t", "u", instance="i").join()
    assert classic_group(world).state is State.PREPARING_REBALANCE
    settle(world, one, back)
    assert sorted(one.parts | back.parts) == [("t", 0), ("t", 1), ("t", 2), ("t", 3), ("u", 0), ("u", 1)]


def test_a_static_member_alone_comes_back_with_the_other_protocol(world: World, t: bytes) -> None:
    one = Client(world, "one", "t", instance_id="i").beat()
    back = ClassicClient(world, "t", instance="i").join()
    check_shared(back)
    with pytest.raises(Refusal):
        one.beat()
    assert classic_group(world).state is State.STABLE


def test_a_static_classic_member_is_fenced_by_its_next_life(world: World, t: bytes) -> None:
    one, two = ClassicClient(world, "t", instance="i"), Client(world, "two", "t")
    settle(world, one, two)
    had, epoch = one.owned, consumer_group(world).epoch
    back = ClassicClient(world, "t", instance="i").join()
    assert back.owned == had and consumer_group(world).epoch == epoch
    assert one.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    heard = Heard()
    world.shard.classic.join(_join(one), heard, world.now_ms)
    assert heard.error == ErrorCode.FENCED_INSTANCE_ID


# --- what classic members hear ----------------------------------------------------------------------------------


@pytest.fixture
def mixed(world: World, t: bytes) -> tuple[ClassicClient, Client]:
    one, two = ClassicClient(world, "t"), Client(world, "two", "t", instance_id="i")
    settle(world, one, two)
    check_shared(one, two)
    return one, two


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({}, ErrorCode.NONE),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "two"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "i"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"generation": 99}, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_heartbeats_and_syncs_are_those_of_a_classic_member_in_its_generation(
    world: World, mixed: tuple[ClassicClient, Client], other: dict[str, Any], code: ErrorCode
) -> None:
    one, _two = mixed
    fields = {"generation": one.generation, "member_id": one.member_id, "instance_id": None, **other}
    assert world.shard.heartbeat("g", **fields, now_ms=world.now_ms) is code
    one.syncing = None
    heard = _sync(one, **other)
    assert heard.error == code


def _sync(client: ClassicClient, **other: Any) -> Heard:
    fields: dict[str, Any] = {
        "group_id": "g", "generation": client.generation, "member_id": client.member_id, "instance_id": None,
        "protocol_type": "consumer", "protocol_name": "range", "assignments": {},
    }  # fmt: skip
    heard = Heard()
    client.world.shard.classic.sync(Sync(**(fields | other)), heard, client.world.now_ms)
    return heard


@pytest.mark.parametrize("version", [0, 1, 3, 7])
def test_an_assignment_is_in_the_version_that_its_reader_speaks(world: World, t: bytes, version: int) -> None:
    Client(world, "two", "t").beat()
    one = ClassicClient(world, "t", version=version).join()
    heard = _sync(one)
    assert heard.response is not None
    data = heard.response["assignment"]
    assert data[:2] == bytes((0, min(version, 3)))
    assert read_assignment(data)[0] == one.parts
    assert heard.response["protocol_name"] == "range"


def test_a_sync_names_the_protocol_of_the_join(world: World, mixed: tuple[ClassicClient, Client]) -> None:
    one, _two = mixed
    assert _sync(one, protocol_type="connect").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert _sync(one, protocol_name="sticky").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert _sync(one, protocol_type=None, protocol_name=None).error == 0


def test_a_sync_is_refused_when_the_epoch_has_grown(
    world: World, mixed: tuple[ClassicClient, Client]
) -> None:
    one, _two = mixed
    Client(world, "three", "t").beat()
    assert _sync(one).error == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.shard.classic_members.heartbeat(
        consumer_group(world), one.generation, one.member_id, None, world.now_ms
    ) is ErrorCode.REBALANCE_IN_PROGRESS  # fmt: skip


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("roundrobin", subscription("t")),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("range", b"\0"),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "two"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "new", "instance_id": "j"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "new", "instance_id": "i"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"member_id": "new"}, ErrorCode.GROUP_MAX_SIZE_REACHED),
    ],
)
def test_a_join_that_is_refused_changes_nothing(other: dict[str, Any], code: ErrorCode) -> None:
    size_max = "2" if code is ErrorCode.GROUP_MAX_SIZE_REACHED else "3"
    world = World(group_initial_rebalance_delay_ms="0", group_consumer_max_size=size_max)
    world.make_topic("t", 4)
    one, two = ClassicClient(world, "t"), Client(world, "two", "t", instance_id="i")
    settle(world, one, two)
    log, heard = list(world.records), Heard()
    new = ClassicClient(world, "t")
    world.shard.classic.join(_join(new)._replace(**other), heard, world.now_ms)
    assert heard.error == code
    assert world.records == log
    settle(world, one, two)
    assert world.records == log
    check_shared(one, two)


def test_a_classic_member_has_its_own_session_time_out(
    world: World, mixed: tuple[ClassicClient, Client]
) -> None:
    one, two = mixed
    for _ in range(CLASSIC_SESSION_MS // 1000):
        assert len(two.beat().numbers) == 2
        world.advance(1000)
    world.advance(TICK_MS)
    two.beat()
    check_shared(two)
    assert one.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    settle(world, one, two)
    check_shared(one, two)


@pytest.mark.parametrize("owes", ["a join", "a sync"])
def test_a_classic_member_that_does_not_come_in_time_is_lost_though_it_heartbeats(
    world: World, mixed: tuple[ClassicClient, Client], owes: str
) -> None:
    one, two = mixed
    three = Client(world, "three", "t").beat()
    member_id, generation = one.member_id, one.generation
    if owes == "a sync":
        heard = Heard()
        world.shard.classic.join(_join(one), heard, world.now_ms)
        assert heard.response is not None
        generation = heard.response["generation_id"]
    code = ErrorCode.NONE
    for _ in range((REBALANCE_MS + TICK_MS) // 1000 + 1):
        code = world.shard.heartbeat("g", generation, member_id, None, world.now_ms)
        two.beat()
        three.beat()
        world.advance(1000)
    assert code is ErrorCode.UNKNOWN_MEMBER_ID
    settle(world, two, three)
    check_shared(two, three)


def test_sessions_of_classic_members_begin_rebuild_after_a_load(
    world: World, mixed: tuple[ClassicClient, Client]
) -> None:
    one, two = mixed
    before = run(world.shard.consumer.describe(consumer_group(world)))
    world.advance(CLASSIC_SESSION_MS - 1000)
    world.begin()
    assert run(world.shard.consumer.describe(consumer_group(world))) == before
    world.advance(CLASSIC_SESSION_MS - 1000)
    settle(world, one, two)
    check_shared(one, two)
    assert run(world.shard.consumer.describe(consumer_group(world))) == before, "nobody has noticed"
    world.begin()
    world.advance(CLASSIC_SESSION_MS + TICK_MS)
    assert one.member_id not in consumer_group(world).members


def test_both_kinds_are_told_apart(world: World, mixed: tuple[ClassicClient, Client]) -> None:
    described = run(world.shard.consumer.describe(consumer_group(world)))
    one, _two = mixed
    assert {row["member_id"]: row["member_type"] for row in described["members"]} == {
        one.member_id: 0,
        "two": 1,
    }
    assert [row["group_type"] for row in list(world.shard.listed())] == ["consumer"]
    assert world.shard.describe("g") is None


def test_both_kinds_commit_in_their_epochs_and_go_on_from_there(
    world: World, mixed: tuple[ClassicClient, Client]
) -> None:
    one, two = mixed
    check, now = world.shard.check_commit, world.now_ms
    assert check("g", one.generation, one.member_id, None, now, version=2) is ErrorCode.NONE
    assert check("g", one.generation - 1, one.member_id, None, now, version=8) is ErrorCode.ILLEGAL_GENERATION
    assert check("g", two.epoch, "two", None, now, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert check("g", two.epoch, "two", None, now, version=9) is ErrorCode.NONE
    assert check("g", -1, "", None, now, version=9) is ErrorCode.UNKNOWN_MEMBER_ID
    commit = [Commit("t", 0, 7, 0, "", bytes(16))]
    world.shard.commit("g", commit, -1, (Heard(), {"error_code": 0}))
    two.beat(member_epoch=-1)
    settle(world, one)
    world.begin()
    found = world.shard.offsets.get("g", "t", 0)
    assert found is not None and found.offset == 7
    assert check("g", one.generation, one.member_id, None, now) is ErrorCode.NONE


def test_a_shard_that_ends_leaves_no_timers(world: World, mixed: tuple[ClassicClient, Client]) -> None:
    Client(world, "three", "t").beat()
    mixed[0].heartbeat()
    world.shard.unload()
    assert world.timers.next_ms is None


# --- records that are too large ---------------------------------------------------------------------------------


class Narrow(World):
    """Nothing of more than so many partitions, or topics, can be written."""

    places_max = 1 << 30

    def fits(self, record: Record | Encoded) -> bool:
        known = decode(*record) if isinstance(record, Encoded) else record
        value = (known and known.value) or {}
        rows = [*value.get("topic_partitions", ()), *value.get("assigned_partitions", ())]
        if known is not None and known.key[0] == GROUP_METADATA:
            rows = [{"partitions": [0] * len(value["members"])}]
        return sum(len(row["partitions"]) for row in rows) <= self.places_max


def snapshot(world: World) -> Any:
    group = world.shard.groups.get("g")
    if not isinstance(group, ConsumerGroup):
        return group
    names = (
        group.epoch,
        group.assignment_epoch,
        group.metadata_hash,
        group.patterns,
        group.static,
        group.owners,
    )
    return (
        names,
        group.targets,
        {name: (each.subscription, each.current) for name, each in group.members.items()},
    )


def refused(world: World, client: Client, **fields: Any) -> None:
    log, before = list(world.records), snapshot(world)
    with pytest.raises(Refusal) as refusal:
        client.beat(**fields)
    assert refusal.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.records == log and snapshot(world) == before


def test_a_target_that_cannot_be_written_refuses_the_request_and_changes_nothing() -> None:
    world = Narrow()
    world.make_topic("t", 4)
    world.places_max = 3
    refused(world, Client(world, "one", "t"))
    assert not world.shard.groups, "a group that nobody could join is not there"
    world.places_max = 4
    one, two = Client(world, "one", "t"), Client(world, "two", regex="t", names=None)
    settle(world, one, two)
    # More comes than one can have: its request is refused as often as it asks, and nothing is lost.
    world.make_topic("t", 12)
    for _ in range(3):
        refused(world, one)
    three = Client(world, "three", "t").beat()
    assert three.epoch == 3
    settle(world, one, two, three)
    check_shared(one, two, three, count=12)


def test_a_static_member_whose_return_cannot_be_written_is_still_away() -> None:
    world = Narrow()
    world.make_topic("t", 2)
    one = Client(world, "one", "t", instance_id="i").beat()
    one.beat(member_epoch=-2)
    world.make_topic("t", 4)
    world.places_max = 2
    refused(world, Client(world, "back", "t", instance_id="i"))
    world.advance(SESSION_MS + TICK_MS)
    assert consumer_group(world).state is Phase.EMPTY, "its session goes on, and ends"


def test_an_upgrade_that_cannot_be_written_leaves_the_classic_group() -> None:
    world = Narrow(group_initial_rebalance_delay_ms="0")
    world.make_topic("t", 4)
    one = ClassicClient(world, "t")
    settle(world, one)
    world.places_max = 3
    refused(world, Client(world, "two", "t"))
    assert one.heartbeat() is ErrorCode.NONE
    check_shared(one)


def test_a_downgrade_that_cannot_be_written_does_not_happen() -> None:
    world = Narrow(group_initial_rebalance_delay_ms="0")
    world.make_topic("t", 2)
    three = Client(world, "three", "t", instance_id="i")
    clients = [ClassicClient(world, "t") for _ in range(3)]
    settle(world, three, *clients)
    world.places_max = 2
    three.beat(member_epoch=-1)
    settle(world, *clients)
    check_shared(*clients, count=2)
    assert consumer_group(world).state is Phase.STABLE


def test_a_join_of_a_classic_member_that_cannot_be_written_is_refused() -> None:
    world = Narrow(group_initial_rebalance_delay_ms="0")
    world.make_topic("t", 4)
    one = Client(world, "one", "t").beat()
    world.make_topic("t", 12)
    world.places_max = 4
    log, before, heard = list(world.records), snapshot(world), Heard()
    two = ClassicClient(world, "t")
    two.member_id = "x"
    world.shard.classic.join(_join(two), heard, world.now_ms)
    assert heard.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.records == log and snapshot(world) == before
    refused(world, one)
