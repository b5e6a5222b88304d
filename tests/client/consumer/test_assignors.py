"""Assignors: each partition once, balanced, with few moves, with Kafka's results, and no partition assigned
too early.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.consumer.assignors.assignor import Assignor, Shares, Subscriber
from ottla.client.consumer.assignors.names import ASSIGNORS, assignors_of, is_cooperative
from ottla.client.errors import SettingError
from ottla.client.metadata import TopicPartition

RANGE, ROUNDROBIN = ASSIGNORS["range"], ASSIGNORS["roundrobin"]
STICKY, COOPERATIVE = ASSIGNORS["sticky"], ASSIGNORS["cooperative-sticky"]

Group = tuple[dict[str, int], dict[str, Subscriber]]


def subscribers(**topics: str) -> dict[str, Subscriber]:
    return {name: Subscriber(frozenset(wanted)) for name, wanted in topics.items()}


def named(shares: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: [f"{tp.topic}{tp.partition}" for tp in share] for name, share in shares.items()}


def again(
    assignor: Assignor, members: Mapping[str, Subscriber], shares: Shares, generation: int
) -> dict[str, Subscriber]:
    """The same members as they join the next time."""
    return {
        name: member._replace(
            owned=frozenset(shares[name]) if assignor.cooperative else frozenset(),
            generation=generation,
            user_data=assignor.user_data(shares[name], generation),
        )
        for name, member in members.items()
    }


@st.composite
def groups(draw: st.DrawFn) -> Group:
    partitions = draw(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 7), min_size=1))
    wishes = st.frozensets(st.sampled_from("abcde"))
    names = draw(st.lists(st.sampled_from(["m1", "m2", "m3", "m4", "m5"]), min_size=1, unique=True))
    members = {
        name: Subscriber(draw(wishes), instance_id=draw(st.sampled_from([None, f"i-{name}"])))
        for name in names
    }
    return partitions, members


def check_whole(partitions: Mapping[str, int], members: Mapping[str, Subscriber], shares: Shares) -> None:
    """Everything that somebody reads goes to exactly one who does."""
    given_out = Counter(tp for share in shares.values() for tp in share)
    read = {topic for member in members.values() for topic in member.topics}
    assert given_out == Counter(
        TopicPartition(topic, number)
        for topic in partitions
        if topic in read
        for number in range(partitions[topic])
    )
    for name, share in shares.items():
        assert {tp.topic for tp in share} <= members[name].topics


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=40)
@given(group=groups())
def test_every_partition_goes_to_exactly_one_who_reads_it(name: str, group: Group) -> None:
    partitions, members = group
    shares = ASSIGNORS[name].assign(partitions, members)
    check_whole(partitions, members, {name: list(share) for name, share in shares.items()})
    assert shares.keys() == members.keys()


@pytest.mark.parametrize("name", ["roundrobin", "sticky", "cooperative-sticky"])
@settings(max_examples=40)
@given(
    partitions=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9), min_size=1),
    count=st.integers(1, 6),
)
def test_equal_subscriptions_get_equal_shares(name: str, partitions: dict[str, int], count: int) -> None:
    members = {f"m{number}": Subscriber(frozenset(partitions)) for number in range(count)}
    sizes = [len(list(share)) for share in ASSIGNORS[name].assign(partitions, members).values()]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("assignor", [STICKY, COOPERATIVE], ids=lambda each: each.name)
@settings(max_examples=40)
@given(group=groups())
def test_what_can_stay_stays(assignor: Assignor, group: Group) -> None:
    partitions, members = group
    first = {name: list(share) for name, share in assignor.assign(partitions, members).items()}
    same = assignor.assign(partitions, again(assignor, members, first, 1))
    assert {name: set(share) for name, share in same.items()} == {
        name: set(share) for name, share in first.items()
    }
    if len(members) > 1:
        # One leaves: whoever stays keeps all that it had, and its share is dealt out.
        gone = max(members)
        left = {name: member for name, member in again(assignor, members, first, 1).items() if name != gone}
        if all(member.topics == members[gone].topics for member in left.values()):
            after = assignor.assign(partitions, left)
            for name in left:
                assert set(first[name]) <= set(after[name])


@settings(max_examples=40)
@given(group=groups(), newcomer=st.frozensets(st.sampled_from("abcd")))
def test_cooperative_members_hand_over_in_two_rebalances(group: Group, newcomer: frozenset[str]) -> None:
    partitions, members = group
    owned = {name: list(share) for name, share in COOPERATIVE.assign(partitions, members).items()}
    members = {**members, "zz": Subscriber(newcomer)}
    owned["zz"] = []
    for generation in range(1, 4):
        joined = again(COOPERATIVE, members, owned, generation)
        shares = {name: list(share) for name, share in COOPERATIVE.assign(partitions, joined).items()}
        for name, share in shares.items():
            for other, had in owned.items():
                # Nobody gets what another still has.
                assert name == other or not set(share) & set(had)
        if shares == owned:
            break
        owned = shares
    check_whole(partitions, members, owned)


def test_ranges_as_kafka_cuts_them() -> None:
    partitions = {"a": 3, "b": 3, "c": 2}
    assert named(RANGE.assign(partitions, subscribers(m1="ab", m2="ab"))) == {
        "m1": ["a0", "a1", "b0", "b1"],
        "m2": ["a2", "b2"],
    }
    assert named(RANGE.assign(partitions, subscribers(m1="ac", m2="abc", m3="c"))) == {
        "m1": ["a0", "a1", "c0"],
        "m2": ["a2", "b0", "b1", "b2", "c1"],
        "m3": [],
    }


def test_cards_as_kafka_deals_them() -> None:
    partitions = {"a": 1, "b": 2, "c": 3}
    assert named(ROUNDROBIN.assign(partitions, subscribers(m1="a", m2="ab", m3="abc"))) == {
        "m1": ["a0"],
        "m2": ["b0"],
        "m3": ["b1", "c0", "c1", "c2"],
    }


def test_static_members_come_first_in_the_order_of_their_instances() -> None:
    wish = frozenset("a")
    members = {
        "m1": Subscriber(wish), "m2": Subscriber(wish, instance_id="z"), "m3": Subscriber(wish, instance_id="b"),
    }  # fmt: skip
    for assignor in (RANGE, ROUNDROBIN):
        assert named(assignor.assign({"a": 3}, members)) == {"m3": ["a0"], "m2": ["a1"], "m1": ["a2"]}


def test_a_newer_generation_is_believed_and_two_claims_of_one_are_not() -> None:
    a0, a1 = TopicPartition("a", 0), TopicPartition("a", 1)
    wish = frozenset("a")
    back = Subscriber(wish, frozenset([a0, a1]), 3)
    stayed = Subscriber(wish, frozenset([a0]), 5)
    shares = COOPERATIVE.assign({"a": 2}, {"back": back, "stayed": stayed})
    # a0 is the one's who stayed; a1 nobody else claims. The one that was away still has a0 to give up.
    assert named(shares) == {"back": ["a1"], "stayed": []}
    twins = {"m1": Subscriber(wish, frozenset([a0]), 5), "m2": Subscriber(wish, frozenset([a0]), 5)}
    assert named(COOPERATIVE.assign({"a": 1}, twins)) == {"m1": [], "m2": []}


def test_user_data_as_kafka_writes_it() -> None:
    a = [TopicPartition("a", 1), TopicPartition("a", 0)]
    assert STICKY.user_data(a, 7) == (
        b"\0\0\0\1" b"\0\1a" b"\0\0\0\2\0\0\0\0\0\0\0\1" b"\0\0\0\7"
    )  # fmt: skip
    assert COOPERATIVE.user_data(a, 7) == struct.pack(">i", 7)
    # An old member says no generation, a broken one nothing.
    old = Subscriber(frozenset("a"), user_data=STICKY.user_data(a, 7)[:-4])
    assert named(STICKY.assign({"a": 2}, {"new": Subscriber(frozenset("a")), "old": old}))["old"]
    broken = Subscriber(frozenset("a"), user_data=b"\xff" * 9)
    assert named(STICKY.assign({"a": 2}, {"m": broken})) == {"m": ["a0", "a1"]}


def test_names_and_assignors_of_ones_own() -> None:
    class Mine(Assignor):
        name = "mine"

        def assign(self, partitions: Any, members: Any) -> Any:
            return {}

    assert assignors_of("sticky") == (STICKY,)
    mine = Mine()
    assert assignors_of(["range", mine]) == (RANGE, mine)
    assert assignors_of(mine) == (mine,)
    assert is_cooperative([COOPERATIVE]) and not is_cooperative([RANGE, COOPERATIVE])
    for wrong in ("nearest", [], ["range", "range"], [object()]):
        with pytest.raises(SettingError, match="partition_assignment_strategy"):
            assignors_of(wrong)  # type: ignore[arg-type]
