"""What a leader may make of its ISR."""

from typing import Any

import pytest

from ottla.controller.isr import ANY_EPOCH, Wish, alter_isr
from ottla.model.errors import ErrorCode, Refusal
from tests.controller.making import PAGE_CACHE, after, cluster, only, part, state


def wish(isr: Any, *, leader: int = 1, leader_epoch: int = 5, partition_epoch: int = 9) -> Wish:
    members = isr if isinstance(isr, dict) else {node: node for node in isr}
    return Wish(leader, leader_epoch, partition_epoch, members)


def test_a_leader_shrinks_and_grows_its_isr_in_its_epoch() -> None:
    image = cluster(part())
    small = alter_isr(image, PAGE_CACHE, only(image), wish((1,)))
    assert (state(small), after(only(image), small)) == ((1, (1,), (2, 3)), (0, 1))
    grown = alter_isr(image, PAGE_CACHE, small, wish((1, 3), partition_epoch=10))
    assert (state(grown), after(small, grown)) == ((1, (1, 3), ()), (0, 1))


def test_asked_for_what_is_nothing_changes() -> None:
    image = cluster(part())
    assert alter_isr(image, PAGE_CACHE, only(image), wish((3, 2, 1))) is only(image)


REFUSED = {
    "R4 an older leader": (wish((1,), leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
    "R4 decided on another state": (wish((1,), partition_epoch=8), ErrorCode.INVALID_UPDATE_VERSION),
    "not the leader": (wish((1, 2), leader=2), ErrorCode.INVALID_REQUEST),
    "ahead in the leader's epoch": (wish((1,), leader_epoch=6), ErrorCode.NOT_CONTROLLER),
    "ahead in the partition's epoch": (wish((1,), partition_epoch=10), ErrorCode.NOT_CONTROLLER),
    "nobody": (wish(()), ErrorCode.INVALID_REQUEST),
    "without its leader and anybody who was in sync": (wish((5,)), ErrorCode.INVALID_REQUEST),
    "somebody who is no replica": (wish((1, 4)), ErrorCode.INVALID_REQUEST),
    "R5 a member in another life": (wish({1: 1, 2: 77}), ErrorCode.INELIGIBLE_REPLICA),
    "R5 a member that is fenced": (wish((1, 5)), ErrorCode.INELIGIBLE_REPLICA),
    "R5 a member that is about to stop": (wish((1, 6)), ErrorCode.INELIGIBLE_REPLICA),
    "R5 the same without epochs": (wish({1: ANY_EPOCH, 5: ANY_EPOCH}), ErrorCode.INELIGIBLE_REPLICA),
    "a member that is forgotten": (wish((1, 7)), ErrorCode.INELIGIBLE_REPLICA),
}


@pytest.mark.parametrize(("asked", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(asked: Wish, code: ErrorCode) -> None:
    image = cluster(
        part((1, 2, 3, 5, 6, 7), isr=(1, 2, 3)), brokers=(1, 2, 3, 4, 5, 6), fenced=(5,), stopping=(6,)
    )
    with pytest.raises(Refusal) as caught:
        alter_isr(image, PAGE_CACHE, only(image), asked)
    assert caught.value.code == code


def test_a_leader_about_to_stop_is_let_go_as_soon_as_another_is_in_sync() -> None:
    image = cluster(part((1, 2), isr=(1,)), stopping=(1,))
    new = alter_isr(image, PAGE_CACHE, only(image), wish((1, 2)))
    assert (new.leader, new.isr) == (2, (1, 2))
    assert after(only(image), new) == (1, 1)


def test_the_last_of_those_added_completes_a_reassignment() -> None:
    """1 2 3 → 1 3 4: one change, and the leader's epoch grows since 2 is taken away."""
    image = cluster(part((1, 3, 4, 2), isr=(1, 2, 3), adding=(4,), removing=(2,)))
    new = alter_isr(image, PAGE_CACHE, only(image), wish((1, 2, 3, 4)))
    assert (new.replicas, new.adding, new.removing) == ((1, 3, 4), (), ())
    assert (state(new), after(only(image), new)) == ((1, (1, 3, 4), ()), (1, 1))


def test_a_leader_that_goes_with_it_hands_over() -> None:
    image = cluster(part((3, 4, 1), isr=(1, 3), adding=(4,), removing=(1,), leader=1))
    new = alter_isr(image, PAGE_CACHE, only(image), wish((1, 3, 4)))
    assert (new.leader, new.isr, new.replicas) == (3, (3, 4), (3, 4))
    assert after(only(image), new) == (1, 1)


def test_a_leader_whose_log_directory_failed_gives_up() -> None:
    """It is not eligible either, though the ISR is small: it has nothing to lead with."""
    image = cluster(part(isr=(1, 2)))
    new = alter_isr(image, PAGE_CACHE, only(image), wish((2,)))
    assert (state(new), after(only(image), new)) == ((2, (2,), ()), (1, 1))
    # One that is about to stop has all of it until then.
    image = cluster(part(isr=(1, 2)), stopping=(2,))
    assert alter_isr(image, PAGE_CACHE, only(image), wish((2,))).leader == 2


def test_a_member_that_lost_its_log_leaves_whether_it_leads_or_not() -> None:
    """R12"""
    image = cluster(part())
    new = alter_isr(image, PAGE_CACHE, only(image), wish((1, 2), leader=3))
    assert (state(new), after(only(image), new)) == ((1, (1, 2), ()), (0, 1))
    # Nobody takes others along.
    for isr in ((1,), (2,), ()):
        with pytest.raises(Refusal):
            alter_isr(image, PAGE_CACHE, only(image), wish(isr, leader=3))


def test_who_is_eligible_takes_over_from_the_last_in_sync() -> None:
    image = cluster(part(isr=(1,), eligible=(3,)))
    new = alter_isr(image, PAGE_CACHE, only(image), wish(()))
    assert state(new) == (3, (3,), ())
    image = cluster(part(isr=(1,), eligible=(3,)), fenced=(3,))
    with pytest.raises(Refusal):
        alter_isr(image, PAGE_CACHE, only(image), wish(()))
