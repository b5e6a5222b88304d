"""A broker of a cluster loses one of its log directories, or finds a damaged log: others lead, and no
committed record is lost (R12).
"""

import pytest

from ottla.broker.storage.partitions import LocalPartitions
from ottla.model.errors import ErrorCode
from testkit.sim.node import DATA_DIR, OTHER_DIR
from testkit.sim.quiet import Quiet

METADATA = 3


def with_directories(**settings: str) -> Quiet:
    """Partition 0 is in another directory of broker 1 than partition 1; broker 1 leads both, and broker 2
    leads 2 and 3.
    """
    both = {node: {"log.dirs": f"{DATA_DIR},{OTHER_DIR}"} for node in (1, 2, 3)}
    quiet = Quiet(3, own=both, settings={"replica.lag.time.max.ms": "20000"})
    quiet.create("t", (1, 2, 3), (1, 2, 3), (2, 1, 3), (2, 1, 3), min_insync_replicas="2", **settings)
    for number in range(4):
        quiet.write("t", b"%d" % number, number=number)
    quiet.until(
        lambda: all(quiet.replica(node, "t", at).high_watermark == 1 for node in (1, 2, 3) for at in range(4))
    )
    return quiet


def home(quiet: Quiet, number: int, node: int = 1) -> str:
    return quiet.replica(node, "t", number).log.parent


def fail(quiet: Quiet, path: str) -> None:
    broker = quiet.members[1].broker
    directory = broker.directories.at(path)
    assert directory is not None
    broker.go_offline(directory, "the device is gone")
    quiet.members[1]._turn()


def test_a_directory_that_fails_takes_no_partition_with_it() -> None:
    quiet = with_directories()
    failed = home(quiet, 0)
    lost = [number for number in range(4) if home(quiet, number) == failed]
    kept = [number for number in range(4) if number not in lost]
    led, followed = [n for n in lost if n < 2], [n for n in lost if n >= 2]
    assert led and followed and kept
    epochs = {number: quiet.partition("t", number).leader_epoch for number in range(4)}
    fail(quiet, failed)
    took_ms = quiet.until(lambda: all(1 not in quiet.partition("t", number).isr for number in lost))
    assert took_ms < 500
    for number in led:
        assert quiet.leader("t", number) == 2
    for number in followed:
        # The leader continues in its epoch, without this member.
        assert (quiet.leader("t", number), quiet.partition("t", number).leader_epoch) == (2, epochs[number])
    for number in kept:
        assert quiet.partition("t", number).isr in ((1, 2, 3), (2, 1, 3))
        assert quiet.partition("t", number).leader_epoch == epochs[number]
    for number in range(4):
        quiet.until(
            lambda number=number: quiet.replica(quiet.leader("t", number), "t", number).leading is not None
        )
        assert quiet.write("t", b"more", number=number) == 1
    # Requests to this broker are refused.
    quiet.until(
        lambda: quiet.members[1].broker.image.partition(quiet.partition("t").topic_id, lost[0]).leader == 2
    )
    row = quiet.fetch(1, "t", 0, number=lost[0])
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert row.current_leader.leader_id == 2
    answer = quiet.call(1, METADATA, 12, {"topics": None})
    offline = {each.partition_index: tuple(each.offline_replicas) for each in answer.topics[0].partitions}
    assert offline == {number: (1,) if number in lost else () for number in range(4)}


def test_after_a_restart_with_a_new_disk_everything_is_fetched_anew() -> None:
    quiet = with_directories()
    failed = home(quiet, 0)
    fail(quiet, failed)
    quiet.until(lambda: 1 not in quiet.partition("t").isr)
    quiet.kill(1)
    quiet.disks[1].remove_dir(failed)
    quiet.start(1)
    quiet.until(lambda: all(quiet.all_in_sync("t", number) for number in range(4)))
    for number in range(4):
        assert quiet.values(quiet.fetch(1, "t", 0, number=number)) == [b"%d" % number]


@pytest.mark.parametrize("policy", ["durable", "page-cache"])
def test_a_disk_that_was_replaced_while_the_broker_was_down_does_not_lead(policy: str) -> None:
    """Nobody noticed the failure: without a check of the directories an empty log would lead, and others
    would truncate theirs.
    """
    quiet = with_directories(flush_policy=policy)
    failed = home(quiet, 0)
    # It is gone and back before it was removed from the ISR.
    quiet.kill(1)
    quiet.disks[1].remove_dir(failed)
    quiet.start(1)
    quiet.until(lambda: quiet.members[1].joined)
    assert 1 not in quiet.partition("t").isr
    quiet.until(lambda: all(quiet.all_in_sync("t", number) for number in range(4)))
    quiet.run(1000)
    for number in range(4):
        leader = quiet.leader("t", number)
        assert quiet.values(quiet.fetch(leader, "t", 0, number=number)) == [b"%d" % number]
        assert quiet.values(quiet.fetch(1, "t", 0, number=number)) == [b"%d" % number]


def test_the_last_one_in_sync_waits_for_who_is_eligible() -> None:
    quiet = with_directories(flush_policy="durable")
    for node in (2, 3):
        quiet.kill(node)
    quiet.until(lambda: quiet.partition("t").isr == (1,))
    # The replicas that were in sync when the ISR became too small have all committed records.
    assert quiet.partition("t").eligible == (3,)
    fail(quiet, home(quiet, 0))
    quiet.run(2000)
    # No replica can lead it.
    assert quiet.partition("t").isr == (1,)
    assert quiet.fetch(1, "t", 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    quiet.start(3)
    quiet.until(lambda: quiet.leader("t") == 3)
    assert quiet.partition("t").isr == (3,)
    quiet.until(lambda: quiet.replica(3, "t").leading is not None)
    assert quiet.values(quiet.fetch(3, "t", 0)) == [] and quiet.replica(3, "t").log.next_offset == 1


def test_r12_a_log_that_is_cut_below_its_recovery_point_does_not_lead() -> None:
    """Its registration says so: it leaves the ISR of durable topics too, and fetches what it lacks."""
    quiet = with_directories(flush_policy="durable")
    leader = quiet.leader("t")
    assert leader == 1
    directory = quiet.replica(1, "t").log.directory
    for member in quiet.members.values():
        member.broker.log_maintenance.flush(member.broker.partitions.by_name["t"].replicas[0])
        member._turn()
    quiet.run(1000)
    for node in (1, 2, 3):
        quiet.kill(node)
    disk = quiet.disks[1]
    file = disk.open(f"{directory}/{'0' * 20}.log")
    disk.truncate(file, 0)
    disk.sync(file)
    # The damaged one is there first.
    quiet.start(1)
    quiet.until(lambda: quiet.members[1].started)
    quiet.start(2)
    quiet.start(3)
    quiet.until(lambda: all(member.joined for member in quiet.members.values()))
    assert 1 not in quiet.partition("t").isr
    quiet.until(lambda: all(quiet.all_in_sync("t", number) for number in range(4)))
    quiet.run(1000)
    for node in (1, 2, 3):
        assert quiet.values(quiet.fetch(node, "t", 0)) == [b"0"]


@pytest.mark.parametrize("when", ["before it registers", "after that"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_r12_damage_that_shows_when_a_log_is_first_needed(
    damage: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a clean shutdown logs are opened late: the broker may already serve, and lead."""
    quiet = with_directories()
    log = quiet.replica(1, "t").log
    for node in (3, 2, 1):
        quiet.stop(node)
    assert (quiet.partition("t").isr, quiet.partition("t").eligible) == ((1,), (2,))
    disk = quiet.disks[1]
    if damage == "cut":
        file = disk.open(f"{log.directory}/{'0' * 20}.log")
        disk.truncate(file, 0)
        disk.sync(file)
    else:
        disk.remove(f"{log.directory}/{'0' * 20}.log")
    if when == "after that":
        # As with ten thousand partitions: only requested logs are opened.
        monkeypatch.setattr(LocalPartitions, "create_logs", lambda _self: False)
    # The former leader is back first, and does not lead: broker 2 has everything.
    quiet.start(1)
    quiet.until(lambda: quiet.members[1].joined)
    rows = quiet.produce(1, "t", b"never", acks=1)
    quiet.until(lambda: bool(rows))
    assert rows[0].error_code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    quiet.run(1000)
    assert quiet.replica(1, "t").leading is None
    quiet.start(2)
    quiet.until(lambda: quiet.leader("t") == 2)
    quiet.until(lambda: quiet.replica(1, "t").high_watermark == 1)
    for node in (1, 2):
        assert quiet.values(quiet.fetch(node, "t", 0)) == [b"0"]


def test_r12_where_nobody_has_more_what_is_left_is_led() -> None:
    quiet = Quiet(2)
    quiet.create("t", (1, 2))
    quiet.write("t", b"a")
    directory = quiet.replica(1, "t").log.directory
    quiet.stop(2)
    quiet.until(lambda: quiet.partition("t").isr == (1,))
    quiet.write("t", b"b")
    quiet.stop(1)
    disk = quiet.disks[1]
    file = disk.open(f"{directory}/{'0' * 20}.log")
    disk.truncate(file, disk.size(file) // 2)
    disk.sync(file)
    quiet.start(1)
    quiet.until(lambda: quiet.members[1].joined and quiet.replica(1, "t").leading is not None)
    assert quiet.values(quiet.fetch(1, "t", 0)) == [b"a"]
    assert any("DAMAGED" in line for line in quiet.world.trace)


def test_a_topic_that_was_made_anew_meanwhile_is_no_damage() -> None:
    """The checkpoints have partitions by name: the missing log is of another topic."""
    quiet = with_directories()
    quiet.create("other", (3, 1), (1, 3))
    for member in quiet.members.values():
        for replica in member.broker.partitions.replicas():
            member.broker.log_maintenance.flush(replica)
        member._turn()
    quiet.run(1000)
    quiet.stop(1)
    quiet.call(2, 20, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout": 1000})
    quiet.until(lambda: "t" not in quiet.ensemble.image.topics)
    quiet.create("t", (2, 1, 3))
    quiet.start(1)
    quiet.until(lambda: quiet.members[1].joined)
    assert not quiet.members[1].broker.partitions.is_damaged
    assert not any("is gone" in line for line in quiet.world.trace)
