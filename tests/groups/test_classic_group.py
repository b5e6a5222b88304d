"""The table of states, and what a group makes of its members' protocols and subscriptions."""

from collections import deque

import pytest

from ottla.groups.classic_group import TRANSITIONS, ClassicGroup, ClassicMember, Event, State
from ottla.groups.formats import encode


def member(name: str, *protocols: str) -> ClassicMember:
    return ClassicMember(
        name, None, client_id="c", client_host="/h", session_timeout_ms=10_000, rebalance_timeout_ms=60_000,
        protocols=tuple((each, b"") for each in protocols),
    )  # fmt: skip


def test_every_state_can_be_reached_and_only_dead_is_the_end() -> None:
    reached, line = {State.EMPTY}, deque([State.EMPTY])
    while line:
        state = line.popleft()
        for (begin, _event), end in TRANSITIONS.items():
            if begin is state and end not in reached:
                reached.add(end)
                line.append(end)
    assert reached == set(State)
    assert {state for state in State if not any(begin is state for begin, _event in TRANSITIONS)} == {
        State.DEAD
    }


def test_every_event_is_somewhere_in_the_table() -> None:
    assert {event for _state, event in TRANSITIONS} == set(Event)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_what_is_not_in_the_table_does_not_happen(state: State, event: Event) -> None:
    group = ClassicGroup("g")
    group.state = state
    if (state, event) in TRANSITIONS:
        group.transition(event, 5)
        assert (group.previous, group.state, group.since_ms) == (state, TRANSITIONS[state, event], 5)
    else:
        with pytest.raises(KeyError):
            group.transition(event, 5)
        assert group.state is state


def test_votes_decide_between_what_all_have() -> None:
    group = ClassicGroup("g")
    for at, protocols in enumerate((("a", "b", "c"), ("c", "b"), ("b", "c", "a"), ("b", "c"))):
        group.add(member(str(at), *protocols), "consumer")
    assert group.choose_protocol() == "b"
    group.add(member("4", "c", "b"), "consumer")
    # Two each, since nobody has all of a: what the first member prefers.
    group.members["0"].protocols = (("b", b""), ("c", b""))
    group.add(member("5", "c", "b"), "consumer")
    assert group.choose_protocol() == "b"


def test_most_votes_beat_the_first_member() -> None:
    group = ClassicGroup("g")
    for at, protocols in enumerate((("a", "b"), ("b", "a"), ("b", "a"))):
        group.add(member(str(at), *protocols), "consumer")
    assert group.choose_protocol() == "b"


def test_after_the_last_generation_the_first_comes_again() -> None:
    group = ClassicGroup("g")
    group.add(member("0", "a"), "consumer")
    group.state, group.generation = State.PREPARING_REBALANCE, 2**31 - 1
    group.begin_generation(5)
    assert group.generation == 1
    encode(group.record())


@pytest.mark.parametrize(("leader", "found"), [("1", "1"), ("0", "0"), ("gone", None), (None, None)])
def test_who_led_leads_after_a_restart(leader: str | None, found: str | None) -> None:
    group = ClassicGroup("g")
    for name in ("0", "1"):
        group.add(member(name, "a"), "consumer")
    group.leader_id = leader
    again = ClassicGroup.replayed("g", group.record().value)
    assert again.leader_id == found and list(again.members) == ["0", "1"]


def test_an_old_record_without_a_rebalance_timeout_has_that_of_the_session() -> None:
    group = ClassicGroup("g")
    group.add(member("0", "a"), "consumer")
    value = group.record().value
    assert ClassicGroup.replayed("g", value).rebalance_timeout_ms == 60_000
    value["members"][0]["rebalance_timeout"] = -1
    assert ClassicGroup.replayed("g", value).rebalance_timeout_ms == 10_000


class Name(str):
    """The name of a protocol that counts how often it is looked at."""

    __slots__ = ()
    looks = 0

    def __eq__(self, other: object) -> bool:
        Name.looks += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Name.looks += 1
        return str.__hash__(self)


def test_many_protocols_cost_no_more_than_their_number() -> None:
    # A request of a megabyte has a hundred thousand of them; whoever compared all with all would stop everybody.
    count = 400
    group = ClassicGroup("g")
    group.add(member("0", *(Name(f"a{at}") for at in range(count)), Name("z")), "consumer")
    group.state = State.STABLE
    others = tuple((Name(f"b{at}"), b"") for at in range(count))
    Name.looks = 0
    assert not group.supports("consumer", others)
    assert group.supports("consumer", (*others, (Name("z"), b"")))
    group.add(member("1", *(name for name, _metadata in others), Name("z")), "consumer")
    assert group.choose_protocol() == "z"
    assert Name.looks < 40 * count


def test_the_leader_is_the_first_and_then_the_next() -> None:
    group = ClassicGroup("g")
    first, second = member("1", "a"), member("2", "a")
    group.add(first, "consumer")
    group.add(second, "consumer")
    assert group.leader_id == "1"
    group.remove(first)
    assert group.leader_id == "2"
    group.remove(second)
    assert group.leader_id is None
