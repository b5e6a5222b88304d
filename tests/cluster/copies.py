"""What tests that copy a topic in transactions share: wide topics, and a reader of what was committed, there all the time."""

import time

from confluent_kafka import Consumer, TopicPartition

from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.topics import QUIET, new_topic
from tests.crash.broker_process import LIST_OFFSETS, Wire

READ_UNCOMMITTED, READ_COMMITTED, LATEST = 0, 1, -1
_LEADERS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))


def new_wide_topic(cluster: RunningCluster, partitions: int) -> str:
    """Led by each broker in turn, on all three of them, two of which must have what is acknowledged."""
    replicas = [_LEADERS[number % 3] for number in range(partitions)]
    return new_topic(cluster, *replicas, min_insync_replicas="2")


class Reader:
    """Reads committed records all the time, whenever it has its turn."""

    def __init__(self, cluster: RunningCluster, topic: str, partitions: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap, "group.id": f"read-{topic}", "isolation.level": "read_committed",
                "enable.auto.commit": False, **QUIET,
            }
        )  # fmt: skip
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        #: By partition, in the order in which they came.
        self.values: dict[int, list[bytes]] = {number: [] for number in range(partitions)}

    @property
    def count(self) -> int:
        return sum(map(len, self.values.values()))

    def read_some(self) -> int:
        """Read what comes within a moment; how much there has been in all."""
        for each in self._consumer.consume(2000, 0.2):
            if each.error() is None:
                self.values[each.partition()].append(each.value())
        return self.count

    def read(self, until: int, patience_s: float = 3 * PATIENCE_S) -> None:
        deadline_s = time.monotonic() + patience_s
        while self.count < until and time.monotonic() < deadline_s:
            self.read_some()

    def close(self) -> None:
        self._consumer.close()


def stable_ends(cluster: RunningCluster, topic: str, partitions: int) -> dict[int, tuple[int, int]]:
    """By partition: where it ends, and where what is decided ends."""
    found: dict[int, tuple[int, int]] = {}
    for number, state in cluster.partitions(topic, cluster.running()[0]).items():
        with Wire(cluster.nodes[state.leader].address) as wire:
            uncommitted, committed = (
                _end(wire, topic, number, level) for level in (READ_UNCOMMITTED, READ_COMMITTED)
            )
        found[number] = uncommitted, committed
    assert len(found) == partitions
    return found


def _end(wire: Wire, topic: str, number: int, isolation_level: int) -> int:
    rows = [{"partition_index": number, "timestamp": LATEST, "current_leader_epoch": -1}]
    topics = [{"name": topic, "partitions": rows}]
    answer = wire.ask(LIST_OFFSETS, 4, replica_id=-1, isolation_level=isolation_level, topics=topics)
    row = answer.topics[0].partitions[0]
    if row.error_code.value:
        raise ConnectionError(f"{topic}-{number}: {row.error_code}")
    return int(row.offset)


def wait_stable(cluster: RunningCluster, topic: str, partitions: int) -> None:
    """Until no transaction is open in any partition."""

    def are_stable() -> bool:
        return all(end == stable for end, stable in stable_ends(cluster, topic, partitions).values())

    cluster.wait_until(are_stable, f"the last stable offset of {topic} is its end")
