"""Replicas that move: KIP-455's cases."""

from typing import Any

import pytest

from ottla.controller.reassignment import cancel, complete, is_running, reassign, running, target_of
from ottla.metadata import records as r
from ottla.model.errors import ErrorCode, Refusal
from tests.controller.making import PAGE_CACHE, after, cluster, part, state


def moved(old: r.Partition, target: Any, image: Any = None, **more: Any) -> r.Partition:
    image = image or cluster(old, brokers=(1, 2, 3, 4, 5))
    return reassign(image, PAGE_CACHE, old, target, **more)


def sets(partition: r.Partition) -> tuple[Any, Any, Any]:
    return partition.replicas, partition.adding, partition.removing


# before → the target → replicas, adding, removing
CASES = {
    "one is replaced": (part(), (1, 2, 4), ((1, 2, 4, 3), (4,), (3,))),
    "all are": (part(), (4, 5), ((4, 5, 1, 2, 3), (4, 5), (1, 2, 3))),
    "one more": (part((1, 2)), (1, 2, 3), ((1, 2, 3), (3,), ())),
    "another goal than was begun: who was added and is not in sync goes at once": (
        part((1, 2, 4, 3), isr=(1, 2, 3), adding=(4,), removing=(3,)), (1, 2, 5), ((1, 2, 5, 3), (5,), (3,)),
    ),
    "but one that is in sync only when it is done": (
        part((1, 2, 4, 5, 3), isr=(1, 2, 4), adding=(4, 5), removing=(3,)), (1, 2, 5), ((1, 2, 5, 4, 3), (5,), (4, 3)),
    ),
    "who is still being added is not taken for one that was there": (
        part((1, 2, 4, 3), isr=(1, 2, 3), adding=(4,), removing=(3,)), (4, 2), ((4, 2, 1, 3), (4,), (1, 3)),
    ),
    "back to what it was": (
        part((1, 2, 4, 3), isr=(1, 2, 3), adding=(4,), removing=(3,)), (1, 2, 3), ((1, 2, 3), (), ()),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "target", "expected"), CASES.values(), ids=CASES.keys())
def test_a_reassignment_begins_without_taking_anybody_out_of_sync(
    old: Any, target: Any, expected: Any
) -> None:
    new = moved(old, target)
    assert sets(new) == expected
    assert set(new.isr) == set(old.isr) and new.leader == old.leader
    assert after(old, new) == (0, 1)


def test_fewer_or_in_another_order_is_done_at_once() -> None:
    fewer = moved(part(), (2, 3))
    assert (sets(fewer), state(fewer)) == (((2, 3), (), ()), (2, (2, 3), ()))
    assert after(part(), fewer) == (1, 1)
    turned = moved(part(), (3, 2, 1))
    assert (sets(turned), turned.leader, after(part(), turned)) == (((3, 2, 1), (), ()), 1, (0, 1))
    old = part()
    assert moved(old, (1, 2, 3)) is old


def test_it_is_not_done_while_too_few_would_be_in_sync() -> None:
    """min ISR 2: 1 and 3 are wanted and 3 is away. 2 stays until it is back."""
    old = part((1, 2, 3), isr=(1, 2))
    begun = moved(old, (1, 3))
    assert (sets(begun), begun.isr) == (((1, 3, 2), (), (2,)), (1, 2))
    image = cluster(begun)
    assert complete(begun, PAGE_CACHE, image.is_live) is begun
    assert sets(complete(begun._replace(isr=(1, 3, 2)), PAGE_CACHE, image.is_live)) == ((1, 3), (), ())
    # If it is too small anyhow, it gets no smaller.
    assert complete(begun._replace(isr=(1,)), PAGE_CACHE, image.is_live).replicas == (1, 3)
    assert complete(begun._replace(isr=(2,)), PAGE_CACHE, image.is_live).replicas == (1, 3, 2)


REFUSED = {
    "nobody": ((), {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "one twice": ((1, 1), {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "one who is not there": ((1, 9), {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "a negative one": ((1, -1), {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "another factor": ((1, 2), {"may_change_factor": False}, ErrorCode.INVALID_REPLICATION_FACTOR),
}


@pytest.mark.parametrize(("target", "more", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(target: Any, more: Any, code: ErrorCode) -> None:
    with pytest.raises(Refusal) as caught:
        moved(part(), target, **more)
    assert caught.value.code == code


def test_the_factor_is_that_of_the_goal() -> None:
    old = part((1, 2, 4, 3), isr=(1, 2, 3), adding=(4,), removing=(3,))
    assert moved(old, (1, 2, 5), may_change_factor=False).adding == (5,)


def test_a_cancelled_one_leaves_what_was_there() -> None:
    old = part((4, 1, 2, 3), isr=(4, 1, 2), adding=(4,), removing=(3,), leader=4)
    new = cancel(cluster(old), PAGE_CACHE, old)
    assert (sets(new), state(new)) == (((1, 2, 3), (), ()), (1, (1, 2), ()))
    assert after(old, new) == (1, 1)
    assert is_running(old) and not is_running(new)


def test_what_cannot_be_cancelled() -> None:
    for old, code in (
        (part(), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (part((4, 1), isr=(4,), adding=(4,), removing=(1,)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ):
        with pytest.raises(Refusal) as caught:
            cancel(cluster(old), PAGE_CACHE, old)
        assert caught.value.code == code
    new = cancel(cluster(old), PAGE_CACHE._replace(unclean=True), old)
    assert state(new) == (1, (1,), ())


def test_those_that_run_are_listed() -> None:
    image = cluster(part(), part((1, 4, 2), isr=(1, 2), adding=(4,), removing=(2,)))
    assert [(name, each.partition, target_of(each)) for name, each in running(image)] == [("t", 1, (1, 4))]
