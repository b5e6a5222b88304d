"""A consumer of librdkafka, and one of the SDK, with `client.rack` reads from the replica in its rack, at once, and from another when that one dies (KIP-392)."""

import json
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import ottla
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster


class Reader:
    """A consumer of one partition that tells from whom it reads."""

    def __init__(self, cluster: RunningCluster, rack: str) -> None:
        self.source = -1
        self.leader = -1
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.auto.commit": False,
                "client.rack": rack, "statistics.interval.ms": 100, "stats_cb": self._told,
                "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "error_cb": lambda _error: None,
            }
        )  # fmt: skip
        self._consumer.assign([TopicPartition("t", 0, 0)])

    def _told(self, text: str) -> None:
        topic = json.loads(text)["topics"].get("t")
        if topic is not None:
            self.source = topic["partitions"]["0"]["broker"]
            self.leader = topic["partitions"]["0"]["leader"]

    def read(self, count: int) -> list[int]:
        values: list[int] = []
        while len(values) < count:
            [message] = self._consumer.consume(1, PATIENCE_S) or [None]
            assert message is not None, f"only {values} came"
            assert message.error() is None, message.error()
            values.append(int(message.value()))
        return values

    def wait_for_source(self, wanted: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.source != wanted:
            assert time.monotonic() < deadline, f"it reads from {self.source}, not from {wanted}"
            self._consumer.poll(0.05)

    def close(self) -> None:
        self._consumer.close()


class SdkReader:
    """The same, of the SDK."""

    def __init__(self, cluster: RunningCluster, rack: str) -> None:
        self._consumer = ottla.Consumer(cluster.bootstrap, client_rack=rack, retry_backoff_ms=20)
        self._consumer.assign([("t", 0)])
        self._consumer.seek(("t", 0), 0)

    def read(self, count: int) -> list[int]:
        values: list[int] = []
        while len(values) < count:
            polled = self._consumer.poll(PATIENCE_S * 1000)
            assert polled, f"only {values} came"
            values += [int(record.value) for records in polled.values() for record in records]
        return values

    def wait_for_source(self, wanted: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        fetcher = self._consumer._core._fetcher
        (partition,) = fetcher.buffer.partitions.values()
        while (source := fetcher._node(partition, time.monotonic() * 1000)) is None or source.id != wanted:
            assert time.monotonic() < deadline, f"it reads from {source}, not from {wanted}"
            self._consumer.poll(50)

    def close(self) -> None:
        self._consumer.close()


def test_a_consumer_reads_in_its_rack(tmp_path: Path, zookeeper_connect: str) -> None:
    settings = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with RunningCluster(tmp_path, zookeeper_connect, settings) as cluster:
        for number, rack in ((1, "a"), (2, "b"), (3, "c")):
            cluster.add(number, broker_rack=rack)
        for node in cluster.nodes.values():
            node.wait_for(" listens on ")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic("t", 1, replica_assignment=[[1, 2, 3]], config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["t"].result(PATIENCE_S)
        cluster.wait_in_sync("t", 1, (1, 2, 3))
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
        reader = Reader(cluster, "b")
        ours = SdkReader(cluster, "b")

        def write(values: range) -> None:
            failed: list[Any] = []
            for value in values:
                producer.produce(
                    "t", str(value), partition=0, on_delivery=lambda error, _: failed.append(error)
                )
            assert producer.flush(PATIENCE_S) == 0
            assert not any(failed)

        write(range(10))
        assert reader.read(10) == list(range(10))
        reader.wait_for_source(2)
        assert reader.leader == 1
        assert ours.read(10) == list(range(10))
        ours.wait_for_source(2)
        # It does not wait for the follower's next fetch, which would be half a second.
        latencies = []
        for value in range(10, 30):
            write(range(value, value + 1))
            begin = time.monotonic()
            assert reader.read(1) == [value]
            latencies.append(time.monotonic() - begin)
        assert sorted(latencies)[10] < 0.2, latencies
        # The replica in its rack dies: it reads on elsewhere.
        cluster.kill(2)
        write(range(30, 40))
        assert reader.read(10) == list(range(30, 40))
        reader.wait_for_source(1)
        reader.close()
        assert ours.read(30) == list(range(10, 40))
        ours.wait_for_source(1)
        ours.close()
