"""The target of a very large group is computed in slices, while members come, go and change."""

from ottla.groups.consumer import Heartbeat
from ottla.groups.consumer_group import ConsumerGroup
from ottla.model.errors import ErrorCode
from tests.groups.clients import Client, settle
from tests.groups.conftest import Heard, World

PARTITIONS = 4000


def group_of(world: World) -> ConsumerGroup:
    group = world.shard.consumer_group("g")
    assert group is not None
    return group


class Waiting:
    """A member whose join waits for the target."""

    def __init__(self, world: World, name: str, *topics: str) -> None:
        self.client = Client(world, name, *topics)
        self.heard = Heard()
        self.error: Exception | None = None
        self.is_called = False
        request = Heartbeat(
            "g", name, 0, rebalance_timeout_ms=5000, names=frozenset(topics), owned=frozenset()
        )
        world.shard.consumer.heartbeat(request, self.heard, world.now_ms, self.again)

    def again(self, error: Exception | None) -> None:
        self.error, self.is_called = error, True


def test_who_joins_is_answered_when_the_target_is_there(world: World) -> None:
    world.make_topic("big", PARTITIONS)
    world.are_computations_held = True
    one = Waiting(world, "one", "big")
    assert not one.heard.is_answered and group_of(world).computing
    world.compute_now()
    assert one.is_called and one.error is None
    one.client.beat()
    assert (one.client.epoch, len(one.client.owned)) == (1, PARTITIONS)
    # Another coordinator finds the same in the log.
    before = group_of(world).targets
    world.begin()
    assert group_of(world).targets == before


def test_members_that_come_and_go_meanwhile_are_in_the_next_target(world: World) -> None:
    world.make_topic("big", PARTITIONS)
    world.make_topic("other", 2)
    world.are_computations_held = True
    one, two = Waiting(world, "one", "big"), Waiting(world, "two", "big")
    steps, _done = world._computations[0]
    next(steps)
    three = Waiting(world, "three", "big", "other")
    leaving = Heartbeat("g", "two", -1)
    world.shard.consumer.heartbeat(leaving, Heard(), world.now_ms)
    world.compute_now()
    group = group_of(world)
    assert all(each.is_called for each in (one, two, three))
    assert set(group.targets) == {"one"} and group.assignment_epoch < group.epoch
    # Whoever heartbeats next has the target of the present epoch computed.
    world.are_computations_held = False
    world.advance(1000)
    settle(world, one.client, three.client)
    assert group.assignment_epoch == group.epoch
    assert len(one.client.owned) + len(three.client.owned) == PARTITIONS + 2
    assert not one.client.owned & three.client.owned


def test_a_target_that_is_not_written_any_more_changes_nothing(world: World) -> None:
    world.make_topic("big", PARTITIONS)
    world.are_computations_held = True
    one = Waiting(world, "one", "big")
    written = len(world.records)
    world.is_writable = False
    world.compute_now()
    assert one.is_called and len(world.records) == written
    assert (group_of(world).assignment_epoch, group_of(world).targets) == (0, {})


def test_a_member_whose_target_is_too_large_to_be_written_does_not_come(world: World) -> None:
    world.make_topic("big", PARTITIONS)
    world.are_computations_held = True
    one = Waiting(world, "one", "big")
    world.fits = lambda record: len(record.value or b"") < 4 * PARTITIONS  # type: ignore[method-assign,assignment]
    [(steps, done)], world._computations = world._computations, []
    try:
        for _ in steps:
            pass
    except Exception as error:
        done(None, error)
    assert getattr(one.error, "code", None) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert group_of(world).members == {}
