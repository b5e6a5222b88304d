"""A clean shutdown while the controller changes: a broker hands over leadership and ends, well before its
limit of 10 s.
"""

import pytest

from testkit.sim.member import Member
from testkit.sim.quiet import Quiet

SEEDS = range(5)
#: The limit of a controlled shutdown is 10 s; these take no more than a session timeout, or a few attempts.
SOON_MS = 3_000


def started(seed: int, count: int = 3) -> Quiet:
    quiet = Quiet(count, seed=seed)
    quiet.create("t", tuple(range(1, count + 1)))
    quiet.write("t", b"one")
    return quiet


def controller(quiet: Quiet) -> int:
    return next(node for node, member in quiet.members.items() if member.broker.controller_driver.is_active)


def stop_at_once(quiet: Quiet, *node_ids: int) -> int:
    """Stop these at the same time; returns how long the last one took."""
    stopped: list[int] = []
    stopping: list[Member] = [quiet.members.pop(node_id) for node_id in node_ids]
    for member in stopping:
        member.stop_later(lambda: stopped.append(1))
    return quiet.until(lambda: len(stopped) == len(stopping))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_broker_stops_right_behind_its_controller(seed: int) -> None:
    """It does not know of that end yet, and there is no other controller."""
    quiet = started(seed, 2)
    first = controller(quiet)
    quiet.stop(first)
    assert stop_at_once(quiet, *quiet.members) < SOON_MS


@pytest.mark.parametrize("seed", SEEDS)
def test_all_brokers_stop_at_once(seed: int) -> None:
    quiet = started(seed)
    assert stop_at_once(quiet, 1, 2, 3) < SOON_MS


@pytest.mark.parametrize("seed", SEEDS)
def test_two_stop_while_the_controller_dies(seed: int) -> None:
    quiet = started(seed)
    dead = controller(quiet)
    quiet.kill(dead)
    assert stop_at_once(quiet, *quiet.members) < SOON_MS


@pytest.mark.parametrize("seed", SEEDS)
def test_a_controller_stops_that_was_deposed_and_does_not_know(seed: int) -> None:
    quiet = started(seed)
    old = controller(quiet)
    quiet.members[old].client.lag_ms = 200
    other = next(node for node in quiet.members if node != old)
    membership = quiet.members[other].broker.lifecycle
    membership.refused(old, quiet.world.now_ms)
    quiet.members[other]._turn()
    assert stop_at_once(quiet, old) < SOON_MS


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_controller", [False, True])
def test_a_broker_stops_whose_session_ended(seed: int, is_controller: bool) -> None:
    """Its session has expired: others have taken over, and there is nothing to request."""
    quiet = started(seed)
    head = controller(quiet)
    node_id = head if is_controller else next(node for node in quiet.members if node != head)
    quiet.members[node_id].client.expire()
    assert stop_at_once(quiet, node_id) < SOON_MS


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_stops_that_was_taken_for_dead(seed: int) -> None:
    quiet = started(seed)
    head = controller(quiet)
    node_id = next(node for node in quiet.members if node != head)
    member = quiet.members[head]
    member.broker.refused(node_id, quiet.world.now_ms)
    member._turn()
    assert stop_at_once(quiet, node_id) < SOON_MS
