"""Patterns against many topics: the answer is right, and nobody waits for it longer than a slice takes."""

from ottla.groups.topic_patterns import PatternMatcher
from tests.groups.clients import Client
from tests.groups.conftest import World

#: Its states are too many for RE2's fast way: each name takes milliseconds.
HOSTILE = "([ab]{1,99}a){1,9}c|ab.*1"


def crowded(count: int = 300) -> tuple[World, frozenset[str]]:
    world = World()
    names = [f"ab{number:05}{'ab' * 58}{number % 10}" for number in range(count)]
    for name in names:
        world.make_topic(name, 1)
    return world, frozenset(name for name in names if name.endswith("1"))


def test_what_is_quick_is_found_at_once() -> None:
    world, expected = crowded()
    assert PatternMatcher(world).find("ab.*1", world.now_ms) == (expected, True)
    assert PatternMatcher(world).find("(", world.now_ms) == (frozenset(), True)
    assert world.timers.next_ms is None


def test_what_takes_longer_is_found_in_slices() -> None:
    world, expected = crowded()
    matcher = PatternMatcher(world)
    assert matcher.find(HOSTILE, world.now_ms) == (None, False)
    slices = 0
    while (deadline := world.timers.next_ms) is not None:
        world.now_ms = deadline
        world.timers.expire(deadline)
        slices += 1
        assert slices < 1000
    assert slices > 10
    assert matcher.find(HOSTILE, world.now_ms) == (expected, True)


def test_topics_that_come_meanwhile_are_looked_at_afterwards() -> None:
    world, expected = crowded()
    matcher = PatternMatcher(world)
    matcher.find(HOSTILE, world.now_ms)
    world.make_topic("ab-late-1", 1)
    world.advance(10_000)
    assert matcher.find(HOSTILE, world.now_ms) == (expected, False)
    world.advance(10_000)
    assert matcher.find(HOSTILE, world.now_ms) == (expected | {"ab-late-1"}, True)


def test_several_are_found_in_turns_and_not_all_are_kept() -> None:
    world, expected = crowded(100)
    matcher = PatternMatcher(world)
    patterns = [f"{HOSTILE}|x{number}" for number in range(70)]
    for pattern in patterns:
        assert not matcher.find(pattern, world.now_ms).is_current
    world.advance(60_000)
    kept = [pattern for pattern in patterns if pattern in matcher._found]
    assert len(kept) == 64
    assert all(matcher.find(pattern, world.now_ms) == (expected, True) for pattern in kept)


def test_a_member_with_such_a_pattern_gets_its_topics_later() -> None:
    world, expected = crowded()
    slow = Client(world, "slow", names=None, regex=HOSTILE).beat()
    quick = Client(world, "quick", "t")
    assert slow.epoch > 0 and not slow.owned
    for _ in range(20):
        world.advance(1000)
        quick.beat()
        slow.beat()
    ids = {world.topics[name].topic_id for name in expected}
    assert {topic_id for topic_id, _number in slow.owned} == ids
    # It is not looked for again at each heartbeat.
    log = list(world.records)
    slow.beat()
    assert world.records == log
