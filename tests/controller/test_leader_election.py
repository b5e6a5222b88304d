"""The rules by which a leader is elected, each with the cases that tell it from its neighbours."""

from typing import Any

import pytest

from ottla.controller.leader_election import Rules, as_one, min_isr_of, rules_of, settle
from tests.controller.making import CONFIG, PAGE_CACHE, after, cluster, part, state


def live(*nodes: int) -> Any:
    return set(nodes).__contains__


# before (replicas 1 2 3, min ISR 2), who is live, the new ISR → leader, ISR, eligible, growth of the epochs
CASES = {
    "nothing changes": (part(), (1, 2, 3), (1, 2, 3), (1, (1, 2, 3), ()), (0, 0)),
    "E6 the first live replica of the ISR leads": (part(), (2, 3), (2, 3), (2, (2, 3), ()), (1, 1)),
    "E6 in the order of the replicas, not of their ids": (
        part((3, 2, 1)), (1, 2), (1, 2), (2, (2, 1), ()), (1, 1),
    ),
    "a leader that lives stays, preferred or not": (
        part(leader=3), (2, 3), (2, 3), (3, (2, 3), ()), (1, 1),
    ),
    "R7 who leaves a small ISR is eligible": (part(isr=(1, 2)), (2, 3), (2,), (2, (2,), (1,)), (1, 1)),
    "R7 the last of the ISR too, and nobody leads": (
        part(isr=(1,), eligible=(2,)), (3,), (), (-1, (), (1, 2)), (1, 1),
    ),
    "R7 an eligible one leads when the ISR is gone": (
        part(isr=(), eligible=(1, 2)), (2,), (), (2, (2,), (1,)), (1, 1),
    ),
    "R7 but not while the ISR has somebody": (
        part(isr=(3,), eligible=(1,)), (1, 3), (3,), (3, (3,), (1,)), (0, 0),
    ),
    "R7 nobody is eligible beside an ISR of sufficient size": (
        part(isr=(1,), eligible=(2,)), (1, 3), (1, 3), (1, (1, 3), ()), (0, 1),
    ),
    "R7 eligible beside a sufficient ISR is void: the setting was lowered and raised": (
        part(isr=(1, 3), eligible=(2,)), (2,), (), (-1, (), (1, 3)), (1, 1),
    ),
    "one that is about to stop leads while nobody else is in sync": (
        part(isr=(1,)), (2, 3), (1,), (1, (1,), ()), (0, 0),
    ),
    "and also takes over from another such one": (part(isr=(1, 2)), (3,), (2,), (2, (2,), (1,)), (1, 1)),
}  # fmt: skip


@pytest.mark.parametrize(("old", "alive", "isr", "expected", "growth"), CASES.values(), ids=CASES.keys())
def test_elections(old: Any, alive: Any, isr: Any, expected: Any, growth: Any) -> None:
    new = settle(old, PAGE_CACHE, live(*alive), isr=isr)
    assert state(new) == expected
    assert after(old, new) == growth
    assert (new is old) == (growth == (0, 0))


# before, who is live, who lost what was not flushed → leader, ISR, eligible
LOST = {
    "R7 leaves the ISR": (part(), (1, 2, 3), (2,), (1, (1, 3), ())),
    "R7 and leads no more": (part(), (1, 2, 3), (1,), (2, (2, 3), ())),
    "R7 leaves the eligible": (part(isr=(1,), eligible=(2, 3)), (1, 2), (2,), (1, (1,), (3,))),
    "R7 is not eligible though the ISR is small": (part(isr=(1, 2)), (1, 2), (2,), (1, (1,), ())),
    "R7 waits for somebody who has everything": (
        part(isr=(), eligible=(1, 2)), (1,), (1,), (-1, (), (2,)),
    ),
    "R7 the last of all is elected all the same": (part(isr=(), eligible=(2,)), (1, 2), (2,), (2, (2,), ())),
    "R7 of several the one who led last": (
        part(isr=(), eligible=(1, 2, 3), last_leader=3), (1, 2, 3), (1, 2, 3), (3, (3,), ()),
    ),
    "R7 but not one that had left before": (
        part(isr=(), eligible=(2,), last_leader=1), (1, 2), (1, 2), (2, (2,), ()),
    ),
    "R7 the only replica": (part((1,), isr=(), eligible=()), (1,), (1,), (1, (1,), ())),
}  # fmt: skip


@pytest.mark.parametrize(("old", "alive", "lost", "expected"), LOST.values(), ids=LOST.keys())
def test_who_lost_what_was_not_flushed(old: Any, alive: Any, lost: Any, expected: Any) -> None:
    assert state(settle(old, PAGE_CACHE, live(*alive), isr=old.isr, lost=lost)) == expected


def test_unclean_election_takes_anybody_who_lives_but_only_then() -> None:
    old = part(isr=(), eligible=(1,), last_leader=1)
    assert state(settle(old, PAGE_CACHE, live(3), isr=())) == (-1, (), (1,))
    unclean = PAGE_CACHE._replace(unclean=True)
    new = settle(old, unclean, live(3), isr=())
    assert (new.leader, new.isr, new.last_leader) == (3, (3,), -1)
    assert state(settle(old, unclean, live(1, 3), isr=()))[0] == 1


def test_who_led_last_is_remembered_while_nobody_does() -> None:
    gone = settle(part(isr=(2,)), PAGE_CACHE, live(), isr=())
    assert (gone.leader, gone.last_leader, gone.leader_epoch) == (-1, 2, 6)
    still = settle(gone, PAGE_CACHE, live(1), isr=())
    assert still is gone
    back = settle(gone, PAGE_CACHE, live(2), isr=())
    assert (back.leader, back.last_leader, back.leader_epoch) == (2, -1, 7)


def test_a_leader_keeps_its_epoch_when_it_asks_itself_and_not_when_members_are_taken() -> None:
    """The old leader's acknowledgements on behalf of the old ISR are cut off."""
    old = part()
    assert after(old, settle(old, PAGE_CACHE, live(1, 2, 3), isr=(1, 2), by_leader=True)) == (0, 1)
    assert after(old, settle(old, PAGE_CACHE, live(1, 2, 3), isr=(1, 2))) == (1, 1)
    # Another life of the leader is another leader.
    assert after(old, settle(old, PAGE_CACHE, live(1, 2, 3), isr=old.isr, anew=True)) == (1, 1)


def test_the_preferred_one_leads_only_if_it_may() -> None:
    assert settle(part(leader=2), PAGE_CACHE, live(1, 2, 3), isr=(1, 2, 3), prefer=True).leader == 1
    for alive, isr in (((2, 3), (1, 2, 3)), ((1, 2, 3), (2, 3))):
        assert settle(part(isr=isr, leader=3), PAGE_CACHE, live(*alive), isr=isr, prefer=True).leader == 3


def test_no_more_are_needed_in_sync_than_there_are_replicas() -> None:
    assert [min_isr_of(PAGE_CACHE, replicas) for replicas in ((1,), (1, 2), (1, 2, 3))] == [1, 2, 2]


def test_the_rules_are_the_topics_settings_over_the_brokers() -> None:
    image = cluster(settings={"unclean.leader.election.enable": "true", "flush.policy": "durable"})
    assert rules_of(image, CONFIG, "t") == Rules(2, unclean=True, durable=True)
    assert rules_of(image, CONFIG, "other") == Rules(
        1, unclean=False, durable=False, durable_everywhere=False
    )


def test_steps_of_one_record_are_one_change() -> None:
    old = part()
    new = old._replace(leader_epoch=8, partition_epoch=12, leader=2)
    assert after(old, as_one(old, new)) == (1, 1)
    assert as_one(old, old) is old
