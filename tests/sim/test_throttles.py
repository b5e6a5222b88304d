"""Replicas out of sync are copied no faster than the throttle allows; those in sync are not throttled
(KIP-73).
"""

import pytest

from ottla.config.definition import LONG_MAX
from ottla.replication.replication_throttle import Bucket
from testkit.sim.quiet import Quiet

BROKER, TOPIC = 4, 2
VALUE = b"v" * 9_900
RATE = 50_000
#: What broker 3 lacks of each topic.
MISSED = 20


def behind() -> Quiet:
    """Broker 3 was away, and has 200 kB to copy of each of two topics."""
    quiet = Quiet(
        3, settings={"replica.fetch.max.bytes": "20000", "replica.fetch.response.max.bytes": "40000"}
    )
    quiet.create("slow", (1, 2, 3))
    quiet.create("free", (1, 2, 3))
    quiet.stop(3)
    for topic in ("slow", "free"):
        for _ in range(MISSED):
            quiet.write(topic, VALUE)
    return quiet


def copied_ms(quiet: Quiet, topic: str, begin_ms: int) -> int:
    quiet.until(lambda: quiet.all_in_sync(topic))
    return quiet.world.now_ms - begin_ms


def back(quiet: Quiet) -> int:
    quiet.start(3)
    quiet.until(lambda: quiet.members[3].joined)
    return quiet.world.now_ms


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("replicas", ["*", "0:1,0:3"])
def test_a_copy_is_as_slow_as_it_should_be_and_others_are_not(role: str, replicas: str) -> None:
    quiet = behind()
    quiet.configure(BROKER, "", **{f"{role}_replication_throttled_rate": str(RATE)})
    quiet.configure(TOPIC, "slow", **{f"{role}_replication_throttled_replicas": replicas})
    begin_ms = back(quiet)
    assert copied_ms(quiet, "free", begin_ms) < 1500
    took_ms = copied_ms(quiet, "slow", begin_ms)
    # The bucket starts with one second's worth, and the last response may leave it in debt.
    expected_ms = MISSED * 10_000 * 1000 // RATE
    assert expected_ms - 2000 < took_ms < expected_ms + 2000


def test_without_a_limit_nothing_is_slow() -> None:
    quiet = behind()
    quiet.configure(TOPIC, "slow", leader_replication_throttled_replicas="*")
    begin_ms = back(quiet)
    assert copied_ms(quiet, "slow", begin_ms) < 1500


def test_replicas_that_are_not_named_are_not_slow() -> None:
    quiet = behind()
    for role in ("leader", "follower"):
        quiet.configure(BROKER, "", **{f"{role}_replication_throttled_rate": "1"})
        quiet.configure(TOPIC, "slow", **{f"{role}_replication_throttled_replicas": "0:2,1:1,1:3"})
    begin_ms = back(quiet)
    assert copied_ms(quiet, "slow", begin_ms) < 1500


def test_who_is_in_sync_is_never_held_up() -> None:
    quiet = Quiet(3)
    quiet.create("t", (1, 2, 3), min_insync_replicas="3")
    for role in ("leader", "follower"):
        quiet.configure(BROKER, "", **{f"{role}_replication_throttled_rate": "0"})
        quiet.configure(TOPIC, "t", **{f"{role}_replication_throttled_replicas": "*"})
    begin_ms = quiet.world.now_ms
    for _ in range(10):
        quiet.write("t", VALUE)
    assert quiet.world.now_ms - begin_ms < 500


def test_a_limit_that_is_raised_counts_within_a_second() -> None:
    quiet = behind()
    quiet.configure(BROKER, "", follower_replication_throttled_rate="0")
    quiet.configure(TOPIC, "slow", follower_replication_throttled_replicas="*")
    back(quiet)
    quiet.run(5000)
    assert not quiet.all_in_sync("slow")
    quiet.configure(BROKER, "", follower_replication_throttled_rate=str(10**9))
    assert quiet.until(lambda: quiet.all_in_sync("slow")) < 2500


def test_a_bucket_fills_with_time_and_may_be_in_debt() -> None:
    bucket = Bucket()
    assert bucket.wait_ms(1000, 1_000_000) == 0
    bucket.take(3000)
    assert bucket.wait_ms(1000, 1_000_000) == 1000
    assert bucket.wait_ms(1000, 1_001_500) == 501
    assert bucket.wait_ms(1000, 1_002_001) == 0
    assert bucket.wait_ms(0, 1_002_001) > 0
    assert bucket.wait_ms(LONG_MAX, 1_002_001) == 0
