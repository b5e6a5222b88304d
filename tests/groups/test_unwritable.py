"""While too few replicas are in sync nothing can be written: members are refused then, and that is not held against them."""

import pytest

from tests.groups.clients import CLASSIC_SESSION_MS, REBALANCE_MS, SESSION_MS, ClassicClient, Client
from tests.groups.conftest import World

TICK_MS = 1000


def settled(world: World, kind: str) -> Client | ClassicClient:
    world.make_topic("t", 2)
    client = Client(world, "m", "t") if kind == "consumer" else ClassicClient(world, "t")
    for _ in range(4):
        client.go_on()
    assert client.numbers == [0, 1]
    return client


@pytest.mark.parametrize(("kind", "session_ms"), [("consumer", SESSION_MS), ("classic", CLASSIC_SESSION_MS)])
def test_members_outlive_a_time_in_which_nothing_can_be_written(kind: str, session_ms: int) -> None:
    world = World(group_initial_rebalance_delay_ms="0")
    client = settled(world, kind)
    log = list(world.records)
    world.is_writable = False
    world.advance(3 * session_ms)
    assert world.records == log
    world.is_writable = True
    client.go_on()
    assert client.numbers == [0, 1] and len(world.shard.groups["g"].members) == 1
    world.advance(session_ms + TICK_MS)
    assert not world.shard.groups["g"].members


def test_who_owes_something_still_owes_it_afterwards() -> None:
    world = World()
    first = settled(world, "consumer")
    assert isinstance(first, Client)
    second = Client(world, "n", "t").beat()
    # It is told to give up a partition, and does not say that it has.
    first.beat(owned=None)
    world.is_writable = False
    world.advance(2 * REBALANCE_MS)
    world.is_writable = True
    assert set(world.shard.groups["g"].members) == {"m", "n"}
    for _ in range(REBALANCE_MS // TICK_MS + 1):
        world.advance(TICK_MS)
        second.beat()
        if "m" in world.shard.groups["g"].members:
            first.beat(owned=None)
    assert set(world.shard.groups["g"].members) == {"n"}
    assert second.numbers == [0, 1]
