"""Plans for where replicas should be: even, with the fewest copies, and no partition in fewer racks than before."""

from collections import Counter
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.reassignment_plan import (
    Assignments,
    CannotPlan,
    Place,
    Plan,
    Racks,
    balance,
    change_factor,
    copies,
    drain,
)

NOWHERE: list[str | None] = [None]
RACKS: list[str | None] = ["a", "b", "c"]


@st.composite
def clusters(
    draw: st.DrawFn,
    racks: list[str | None] = NOWHERE,
    joined_max: int = 3,
    factors: tuple[int, ...] = (1, 2, 3),
) -> tuple[dict[int, str | None], dict[Place, tuple[int, ...]], int]:
    """Brokers, some of which hold nothing yet, and partitions that all have the same number of replicas."""
    factor = draw(st.sampled_from(factors))
    old = draw(st.integers(factor, 5))
    joined = draw(st.integers(0, joined_max))
    brokers = {node: draw(st.sampled_from(racks)) for node in range(1, old + joined + 1)}
    partitions = {
        Place(f"topic{number % 3}", number): tuple(
            draw(st.lists(st.integers(1, old), min_size=factor, max_size=factor, unique=True))
        )
        for number in range(draw(st.integers(0, 25)))
    }
    return brokers, partitions, factor


def after(assignments: Assignments, plan: Plan) -> dict[Place, tuple[int, ...]]:
    return {place: tuple(plan.get(place, replicas)) for place, replicas in assignments.items()}


def counts(brokers: Racks, assignments: Assignments) -> dict[int, int]:
    held = Counter(node for replicas in assignments.values() for node in replicas)
    return {node: held[node] for node in brokers}


def check_sound(brokers: Racks, before: Assignments, plan: Plan) -> None:
    for place, replicas in plan.items():
        assert replicas != tuple(before[place])
        assert len(set(replicas)) == len(replicas)
        assert set(replicas) <= brokers.keys()
        # A partition cannot be in more racks than it has replicas.
        known = {brokers[node] for node in before[place] if node in brokers}
        assert len({brokers[node] for node in replicas}) >= min(len(known), len(replicas))


@given(clusters())
def test_balanced_with_the_fewest_copies(cluster: tuple[Racks, Assignments, int]) -> None:
    brokers, before, _factor = cluster
    plan = balance(brokers, before)
    check_sound(brokers, before, plan)
    then = after(before, plan)
    held = counts(brokers, then).values()
    assert max(held) - min(held) <= 1
    leads = Counter(replicas[0] for replicas in then.values())
    assert max(leads[node] for node in brokers) - min(leads[node] for node in brokers) <= 1
    # Whatever is above the ceiling must go, and whatever is missing to the floor must come.
    total, has = sum(counts(brokers, before).values()), counts(brokers, before).values()
    high, low = ceil(total / len(brokers)), floor(total / len(brokers))
    assert copies(before, plan) == max(
        sum(max(0, count - high) for count in has), sum(max(0, low - count) for count in has)
    )


@given(clusters())
def test_what_is_balanced_stays_as_it_is(cluster: tuple[Racks, Assignments, int]) -> None:
    brokers, before, _factor = cluster
    balanced = after(before, balance(brokers, before))
    assert balance(brokers, balanced) == {}


@given(clusters(racks=RACKS))
def test_racks_are_not_given_up_for_balance(cluster: tuple[Racks, Assignments, int]) -> None:
    brokers, before, _factor = cluster
    plan = balance(brokers, before)
    check_sound(brokers, before, plan)
    has, had = counts(brokers, after(before, plan)).values(), counts(brokers, before).values()
    assert max(has) - min(has) <= max(1, max(had) - min(had))


def test_a_fourth_broker_takes_its_share_and_nothing_else_moves() -> None:
    before = {Place("t", n): tuple((n + shift) % 3 + 1 for shift in range(3)) for n in range(12)}
    plan = balance({1: None, 2: None, 3: None, 4: None}, before)
    assert copies(before, plan) == 9
    assert all(set(replicas) - set(before[place]) <= {4} for place, replicas in plan.items())


def test_racks_of_equal_size_are_balanced_too() -> None:
    """Each partition in both racks; a broker joined in each."""
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "a", 4: "b"}
    before = {Place("t", n): (1, 2) if n % 2 else (2, 1) for n in range(10)}
    plan = balance(racks, before)
    check_sound(racks, before, plan)
    assert sorted(counts(racks, after(before, plan)).values()) == [5, 5, 5, 5]
    assert copies(before, plan) == 10


def test_a_detour_is_taken_where_racks_close_the_direct_way() -> None:
    """Broker 1 has too much and 4 nothing, but what is on 1 may not go to 4's rack: over 2, which has what may."""
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b"}
    before = {
        Place("t", 0): (1, 3), Place("t", 1): (1, 3), Place("t", 2): (1, 3), Place("u", 0): (2,), Place("u", 1): (2,),
    }  # fmt: skip
    plan = balance(racks, before)
    check_sound(racks, before, plan)
    assert sorted(counts(racks, after(before, plan)).values()) == [2, 2, 2, 2]


def test_brokers_that_are_gone_are_emptied() -> None:
    before = {Place("t", n): (1, 9) for n in range(4)}
    plan = balance({1: None, 2: None, 3: None}, before)
    held = counts({1: None, 2: None, 3: None, 9: None}, after(before, plan))
    assert held[9] == 0
    assert max(held[node] for node in (1, 2, 3)) - min(held[node] for node in (1, 2, 3)) <= 1


@given(clusters(racks=RACKS, joined_max=2), st.data())
def test_a_broker_is_drained_with_a_copy_for_each_replica(
    cluster: tuple[Racks, Assignments, int], data: st.DataObject
) -> None:
    brokers, before, factor = cluster
    leaving = data.draw(st.sampled_from(sorted(brokers)))
    left = {node: rack for node, rack in brokers.items() if node != leaving}
    held = [place for place, replicas in before.items() if leaving in replicas]
    if len(left) < factor and held:
        with pytest.raises(CannotPlan, match=r"cannot be emptied|no broker"):
            drain(brokers, before, leaving)
        return
    if not left:
        return
    plan = drain(brokers, before, leaving)
    check_sound(left, before, plan)
    assert sorted(plan) == sorted(held)
    assert copies(before, plan) == len(held)


def test_what_is_drained_is_spread() -> None:
    before = {Place("t", n): (1,) for n in range(9)}
    plan = drain(dict.fromkeys((1, 2, 3, 4)), before, 1)
    assert sorted(counts({2: None, 3: None, 4: None}, plan).values()) == [3, 3, 3]


@given(clusters(racks=RACKS), st.integers(1, 4))
def test_the_factor_is_changed_with_no_copy_too_many(
    cluster: tuple[Racks, Assignments, int], factor: int
) -> None:
    brokers, before, old = cluster
    if factor > len(brokers) and before:
        with pytest.raises(CannotPlan, match="cannot have"):
            change_factor(brokers, before, factor)
        return
    plan = change_factor(brokers, before, factor)
    then = after(before, plan)
    assert all(len(set(replicas)) == factor for replicas in then.values())
    assert all(replicas[0] == before[place][0] for place, replicas in then.items())
    assert copies(before, plan) == max(0, factor - old) * len(before)
    check_sound(brokers, before, plan)


def test_no_broker_can_hold_nothing() -> None:
    with pytest.raises(CannotPlan):
        balance({}, {})


def test_thousands_of_partitions_are_planned_in_seconds() -> None:
    before = {Place(f"t{n % 50}", n): tuple((n + shift) % 3 + 1 for shift in range(3)) for n in range(4_000)}
    plan = balance(dict.fromkeys((1, 2, 3, 4)), before)
    assert copies(before, plan) == 3_000
