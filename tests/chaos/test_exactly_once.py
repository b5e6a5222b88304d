"""A hundred thousand messages are copied in transactions of 750 while brokers and copiers are killed at random: each is there once.

Three brokers, three replicas, and a reader of what is committed that is there all the time. Two programs copy
(`copier.py`), with whichever of the three libraries; they are killed and started again, and one stands still, is replaced, and goes
on later without knowing it.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.runtime.local_zookeeper import LocalZookeeper, find_program, free_ports
from tests.chaos.copier import FENCED, SIZE, STUCK
from tests.cluster.copies import Reader, new_wide_topic, wait_stable
from tests.cluster.running_cluster import RunningCluster
from tests.killed_consumers import Consumers

MESSAGES = 100_000
PARTITIONS = 6
ALL = (1, 2, 3)
BROKER_KILLS, COPIER_KILLS = 15, 12
#: A copier that hangs ends itself after less, and whoever comes after it has to be let in.
PATIENCE_S = 150.0


class Copiers(Consumers):
    """Those who end by themselves are started again; how they ended is counted."""

    def __init__(self, command: list[str], reader: Reader, dice: random.Random) -> None:
        super().__init__(command, reader.read_some, dice)
        self.ends: Counter[int | None] = Counter()
        #: The longest time for which the reader saw nothing.
        self.stall_s = 0.0

    def resume(self) -> None:
        """Whoever stood still goes on beside the one that replaced it, until either is fenced."""
        for process in self._paused:
            process.send_signal(signal.SIGCONT)

    def count_zombies(self) -> None:
        for process in self._paused:
            self.ends[process.poll()] += 1

    def wait_for(self, count: int) -> None:
        before, since_s = self.progress(), time.monotonic()
        while before < count:
            progress = self.progress()
            waited_s = time.monotonic() - since_s
            self.stall_s = max(self.stall_s, waited_s)
            if progress > before:
                before, since_s = progress, time.monotonic()
            assert waited_s < PATIENCE_S, f"{progress} of {count} were copied"
            for name, process in self._running.items():
                if process.poll() is not None:
                    self.ends[process.returncode] += 1
                    self._start(name)


def fill(cluster: RunningCluster, topic: str) -> dict[int, list[bytes]]:
    """By partition: what was written."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5, "log_level": 0}
    )
    values: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    for number in range(MESSAGES):
        value = b"message %d" % number
        values[number % PARTITIONS].append(value)
        producer.produce(topic, value, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return values


def restart(cluster: RunningCluster, node: int, topics: list[str], *, is_patient: bool) -> None:
    cluster.restart(node)
    for topic in topics if is_patient else ():
        cluster.wait_in_sync(topic, node, ALL, range(PARTITIONS))


def disturb(cluster: RunningCluster, copiers: Copiers, topics: list[str], dice: random.Random) -> None:
    """Kill brokers and copiers, in any order, at any time until everything is copied."""

    def kill_broker() -> None:
        node = dice.choice(ALL)
        cluster.kill(node)
        if dice.random() < 0.3:
            copiers.kill_one()
        # Some restart at once, some are missed for a while.
        copiers.wait_for(min(MESSAGES, copiers.progress() + dice.randrange(0, 2 * SIZE)))
        # Now and then the next one dies before this one has caught up.
        restart(cluster, node, topics, is_patient=dice.random() < 0.75)

    acts: list[Callable[[], None]] = [kill_broker] * BROKER_KILLS + [copiers.kill_one] * COPIER_KILLS
    dice.shuffle(acts)
    # The one that stands still does so for a third of the time.
    acts.insert(len(acts) // 3, copiers.pause_one)
    acts.insert(2 * len(acts) // 3, copiers.resume)
    for target, act in zip(sorted(dice.sample(range(MESSAGES), len(acts))), acts, strict=True):
        copiers.wait_for(target)
        act()


@pytest.mark.timeout(900)
def test_a_hundred_thousand_messages_are_copied_once_whatever_dies(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    zookeeper = LocalZookeeper(find_program(), tmp_path / "zookeeper", free_ports(1)[0])
    zookeeper.start()
    try:
        with RunningCluster(tmp_path, zookeeper.address) as cluster:
            cluster.start(*ALL)
            copy_all(cluster, random.Random(seed))
    finally:
        zookeeper.stop()


def copy_all(cluster: RunningCluster, dice: random.Random) -> None:
    source, target = new_wide_topic(cluster, PARTITIONS), new_wide_topic(cluster, PARTITIONS)
    values = fill(cluster, source)
    reader = Reader(cluster, target, PARTITIONS)
    command = ["-m", "tests.chaos.copier", cluster.bootstrap, source, target, str(PARTITIONS)]
    begun_s = time.monotonic()
    with Copiers(command, reader, dice) as copiers:
        disturb(cluster, copiers, [source, target], dice)
        copiers.wait_for(MESSAGES)
        copied_s = time.monotonic() - begun_s
        copiers.count_zombies()
    cluster.heal()
    wait_stable(cluster, target, PARTITIONS)
    # Whatever should not be there would be behind the rest.
    reader.read(MESSAGES + 1, patience_s=5)
    reader.close()
    assert reader.values == values
    fresh = Reader(cluster, target, PARTITIONS)
    fresh.read(MESSAGES)
    fresh.close()
    assert fresh.values == values
    print(
        f"{MESSAGES} messages in {copied_s:.0f} s; {BROKER_KILLS} brokers and {copiers.kills} copiers killed, "
        f"{copiers.ends[FENCED]} fenced, {copiers.ends[STUCK]} stuck in their library; nothing was read for "
        f"{copiers.stall_s:.1f} s at most"
    )
