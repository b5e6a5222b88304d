"""Assignors: every partition is assigned once, to a subscriber; evenly; with few moves; in the right rack, if
racks are known.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.groups.host import TopicView
from ottla.model.assignors import ASSIGNORS, Places, Reader, range_, uniform
from ottla.model.steps import run


def topics_of(**counts: int) -> dict[bytes, TopicView]:
    return {
        name.encode(): TopicView(name, name.encode(), (frozenset[str](),) * count)
        for name, count in counts.items()
    }


def reader(name: str, *topics: str, rack: str | None = None, had: Places = frozenset()) -> Reader:
    return Reader(name, None, rack, frozenset(topic.encode() for topic in topics), had)


def again(readers: Sequence[Reader], shares: Mapping[str, Places]) -> list[Reader]:
    """The same members, with their assignment."""
    return [each._replace(had=shares.get(each.member_id, frozenset())) for each in readers]


def moved(readers: Sequence[Reader], shares: Mapping[str, Places]) -> int:
    """How many partitions the remaining members lose."""
    return sum(len(each.had - shares[each.member_id]) for each in readers)


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Reader], dict[bytes, TopicView]]:
    topics = topics_of(**draw(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 7), min_size=1)))
    names = sorted(topics)
    readers = []
    free = {(topic_id, number) for topic_id, view in topics.items() for number in range(len(view.racks))}
    for at in range(draw(st.integers(1, 6))):
        wants = draw(st.sets(st.sampled_from(names)))
        had = draw(st.sets(st.sampled_from(sorted(free)))) if free else set()
        # Some of its partitions are not subscribed any more, and some do not exist any more.
        readers.append(
            Reader(
                f"m{at}",
                None,
                None,
                frozenset(wants),
                frozenset(had | {(b"gone", at)}),
            )
        )
        free -= had
    return readers, topics


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(group=groups())
def test_every_partition_that_is_read_goes_to_exactly_one_reader_of_it(
    name: str, group: tuple[list[Reader], dict[bytes, TopicView]]
) -> None:
    readers, topics = group
    shares = run(ASSIGNORS[name](readers, topics))
    assert set(shares) == {each.member_id for each in readers}
    given_out = Counter(place for share in shares.values() for place in share)
    wanted = {
        (topic_id, number)
        for each in readers
        for topic_id in each.topics
        for number in range(len(topics[topic_id].racks))
    }
    assert given_out == Counter(wanted)
    for each in readers:
        assert {topic_id for topic_id, _number in shares[each.member_id]} <= each.topics


@given(group=groups())
def test_uniform_is_as_fair_as_the_subscriptions_allow_and_then_rests(
    group: tuple[list[Reader], dict[bytes, TopicView]],
) -> None:
    readers, topics = group
    shares = uniform(readers, topics)
    # Nobody can give a partition to a member with two fewer.
    by_name = {each.member_id: each for each in readers}
    for giver, share in shares.items():
        for taker, other in shares.items():
            if len(share) >= len(other) + 2:
                assert not any(topic_id in by_name[taker].topics for topic_id, _number in share), (
                    giver,
                    taker,
                )
    after = again(readers, shares)
    assert uniform(after, topics) == shares


@given(count=st.integers(0, 40), members=st.integers(1, 9))
def test_uniform_shares_differ_by_one_at_most(count: int, members: int) -> None:
    topics = topics_of(a=count, b=count // 2)
    shares = uniform([reader(f"m{at}", "a", "b") for at in range(members)], topics)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1


@given(count=st.integers(0, 40), members=st.integers(1, 9), data=st.data())
def test_uniform_moves_no_more_than_it_must_when_members_come_and_go(
    count: int, members: int, data: st.DataObject
) -> None:
    topics = topics_of(a=count)
    readers = [reader(f"m{at}", "a") for at in range(members)]
    readers = again(readers, uniform(readers, topics))
    stay = data.draw(st.lists(st.sampled_from(readers), min_size=1, unique=True))
    new = data.draw(st.integers(0, 4))
    after = [*stay, *(reader(f"n{at}", "a") for at in range(new))]
    shares = uniform(after, topics)
    least, extra = divmod(count, len(after))
    # A remaining member above its share loses only the excess; the larger shares go to those with most
    # partitions.
    sizes = sorted((len(each.had) for each in after), reverse=True)
    must = sum(max(0, size - least - (at < extra)) for at, size in enumerate(sizes))
    assert moved(after, shares) == must


def test_uniform_moves_along_chains_where_subscriptions_differ() -> None:
    # c can take only from b, and b only from a: one partition each has to move.
    topics = topics_of(x=4, y=2)
    had_a = frozenset((b"x", number) for number in range(4))
    had_b = frozenset((b"y", number) for number in range(2))
    readers = [reader("a", "x", had=had_a), reader("b", "x", "y", had=had_b), reader("c", "y")]
    shares = uniform(readers, topics)
    assert sorted(map(len, shares.values())) == [2, 2, 2]
    assert shares["c"] == had_b


class Id(bytes):
    """A topic id that counts how often it is used."""

    looks = 0

    def __hash__(self) -> int:
        Id.looks += 1
        return bytes.__hash__(self)


def test_a_large_group_whose_subscriptions_differ_is_not_gone_through_for_each_member() -> None:
    ids = [Id(f"{at:02}".encode()) for at in range(40)]
    topics = {each: TopicView(each.decode(), each, (frozenset[str](),) * 11) for each in ids}
    readers = [
        Reader(
            f"m{at:03}", None, None, frozenset(ids[(at * 7 + step * 3) % 40] for step in range(10 + at % 2))
        )
        for at in range(200)
    ]
    shares = uniform(readers, topics)
    assert {len(share) for share in shares.values()} == {2, 3}
    readers = again(readers, shares)
    Id.looks = 0
    assert uniform(readers, topics) == shares
    # Some lookups for each of their 2,100 subscriptions; and not again for each of the 200.
    assert Id.looks < 40_000


def test_uniform_gives_to_those_in_the_same_rack() -> None:
    racks = tuple(frozenset(rack) for rack in ("a", "b", "c", "a", "b", "c"))
    topics = {b"t": TopicView("t", b"t", racks)}
    readers = [reader(f"m{rack}", "t", rack=rack) for rack in "cba"]
    shares = uniform(readers, topics)
    for name, share in shares.items():
        assert {min(racks[number]) for _topic, number in share} == {name[1]}
    # One member had all partitions; the next one is in another rack, and gets those of its rack.
    alone = uniform(readers[:1], topics)
    pair = uniform(again(readers[:2], alone), topics)
    assert {number for _topic, number in pair["mb"]} >= {1, 4}
    assert {number for _topic, number in pair["mc"]} >= {2, 5}
    # Nothing moves only to be in the right rack.
    foreign = [
        reader("ma", "t", rack="a", had=frozenset((b"t", number) for number in (1, 2, 4))),
        reader("mb", "t", rack="b", had=frozenset((b"t", number) for number in (0, 3, 5))),
    ]
    assert moved(foreign, uniform(foreign, topics)) == 0


def test_uniform_is_fair_whatever_the_racks_are() -> None:
    topics = {b"t": TopicView("t", b"t", (frozenset("a"),) * 7)}
    readers = [reader("m0", "t", rack="a"), reader("m1", "t", rack="b"), reader("m2", "t")]
    assert sorted(map(len, uniform(readers, topics).values())) == [2, 2, 3]


def test_range_gives_the_same_numbers_of_topics_to_one_member() -> None:
    topics = topics_of(x=5, y=5, z=2)
    readers = [reader("b", "x", "y"), reader("a", "x", "y", "z"), reader("c", "z")]
    shares = range_(readers, topics)
    assert shares["a"] == {(b"x", 0), (b"x", 1), (b"x", 2), (b"y", 0), (b"y", 1), (b"y", 2), (b"z", 0)}
    assert shares["b"] == {(b"x", 3), (b"x", 4), (b"y", 3), (b"y", 4)}
    assert shares["c"] == {(b"z", 1)}


def test_range_goes_by_the_names_of_instances() -> None:
    topics = topics_of(x=2)
    readers = [
        Reader("a", "second", None, frozenset({b"x"})),
        Reader("b", "first", None, frozenset({b"x"})),
    ]
    assert range_(readers, topics) == {"b": {(b"x", 0)}, "a": {(b"x", 1)}}


def test_a_large_group_that_doubles_moves_half() -> None:
    topics = topics_of(a=1000)
    readers = [reader(f"m{at:03}", "a") for at in range(500)]
    shares = uniform(readers, topics)
    assert {len(share) for share in shares.values()} == {2}
    grown = [*again(readers, shares), *(reader(f"n{at:03}", "a") for at in range(500))]
    assert moved(grown, uniform(grown, topics)) == 500
