"""Three brokers of each kind, replication factor 3: their cost, and the outage after a killed leader.

A `Cluster` replaces the single broker in a workload: its CPU and memory are the sums over all three. ottla's
ZooKeeper has its own row for memory. Kafka's three nodes are brokers and controllers, as in a small cluster.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import measure, ottla
from bench.limits import CpuLimit
from bench.process import BrokerFailed, Process, free_port
from bench.workloads import Figures, WorkloadFailed
from ottla.runtime.local_zookeeper import LocalZookeeper, find_program

BROKERS = 3
BROKER_SHARE = 0.2
FAILOVER_TOPIC = "bench-failover"
FAILOVER_S_MAX = 120.0


class Cluster:
    """Three brokers, in place of one in the workloads."""

    replicas = BROKERS

    def __init__(
        self, name: str, brokers: Sequence[Process], zookeeper: LocalZookeeper | None = None
    ) -> None:
        self.name = name
        self.brokers = list(brokers)
        self.zookeeper = zookeeper

    @property
    def address(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(broker.pid for broker in self.brokers if broker.alive())

    def leader_port(self, topic: str) -> int:
        """The port of the leader of the topic's first partition."""
        metadata = AdminClient({"bootstrap.servers": self.address}).list_topics(topic, timeout=30)
        port: int = metadata.brokers[metadata.topics[topic].partitions[0].leader].port
        return port

    def wait_ready(self) -> float:
        """Wait until all brokers know each other. Returns seconds since the first start."""
        seconds = max(broker.wait_ready() for broker in self.brokers)
        deadline = time.monotonic() + 60
        admin = AdminClient({"bootstrap.servers": self.address})
        while len(admin.list_topics(timeout=30).brokers) < BROKERS:
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{self.name}: not all brokers found each other within 60 s")
            time.sleep(0.05)
        return seconds

    def alive(self) -> bool:
        return all(broker.alive() for broker in self.brokers)

    def log_tail(self) -> str:
        return "\n".join(broker.log_tail() for broker in self.brokers)

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()
        if self.zookeeper is not None:
            self.zookeeper.stop()


def start_ottla(directory: Path, settings: Mapping[str, str], checkout: Path | None = None) -> Cluster:
    program, environment = ottla.command(checkout)
    zookeeper = LocalZookeeper(find_program(), directory / "zookeeper", free_port())
    zookeeper.start()
    brokers = []
    for node in range(1, BROKERS + 1):
        home, port = directory / f"broker-{node}", free_port()
        home.mkdir(parents=True, exist_ok=True)
        given = {"node.id": str(node), "zookeeper.connect": zookeeper.address, **settings}
        arguments = ["up", "--listen", f"127.0.0.1:{port}", "--data-dir", str(home / "data")]
        for name, value in given.items():
            arguments += ["--set", f"{name}={value}"]
        command, log = [*program, *arguments], home / "ottla.log"
        brokers.append(Process(f"ottla {node}", command, port=port, log=log, environment=environment))
    return Cluster("ottla", brokers, zookeeper)


def failover(cluster: Cluster, partitions: int) -> Figures:
    """Kill -9 the leader of a third of the partitions.

    Measures the time until all of them accept records again, and the longest wait of a producer that writes
    to one of them.
    """
    admin = AdminClient({"bootstrap.servers": cluster.address})
    topic = NewTopic(FAILOVER_TOPIC, num_partitions=partitions, replication_factor=BROKERS)
    admin.create_topics([topic])[FAILOVER_TOPIC].result(60)
    by_port = {broker.port: broker for broker in cluster.brokers}
    led: dict[int, list[int]] = {}
    deadline = time.monotonic() + 60
    while True:
        metadata = admin.list_topics(FAILOVER_TOPIC, timeout=30)
        found = metadata.topics[FAILOVER_TOPIC].partitions.values()
        led = {}
        for partition in found:
            led.setdefault(partition.leader, []).append(partition.id)
        if len(found) == partitions and -1 not in led:
            break
        if time.monotonic() > deadline:
            raise WorkloadFailed(f"{cluster.name}: {partitions} partitions had no leaders within 60 s")
        time.sleep(0.1)
    leader = max(led, key=lambda node: len(led[node]))
    victim = by_port[metadata.brokers[leader].port]
    acknowledged: list[float] = []
    reached: set[int] = set()

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.append(time.perf_counter())

    def arrived(error: KafkaError | None, message: Message) -> None:
        number = message.partition()
        if error is None and number is not None:
            reached.add(number)

    settings = {"bootstrap.servers": cluster.address, "acks": "all", "enable.idempotence": True}
    watch = Producer({**settings, "linger.ms": 0})
    everywhere = Producer({**settings, "linger.ms": 0})
    for number in led[leader]:
        # Warm up: the producer has metadata and sequence numbers of all partitions.
        everywhere.produce(FAILOVER_TOPIC, b"before", partition=number, on_delivery=arrived)
    everywhere.flush(60)
    if len(reached) < len(led[leader]):
        raise WorkloadFailed(f"{cluster.name}: not all partitions took a record before the failover")
    reached.clear()
    begin = time.perf_counter()
    killed = 0.0
    recovered = 0.0
    asked = False
    while time.perf_counter() - begin < FAILOVER_S_MAX:
        now = time.perf_counter()
        watch.produce(FAILOVER_TOPIC, b"x", partition=led[leader][0], on_delivery=delivered)
        watch.poll(0.005)
        if not killed and now - begin > 2:
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            killed = time.perf_counter()
        if killed and not asked:
            asked = True
            for number in led[leader]:
                everywhere.produce(FAILOVER_TOPIC, b"after", partition=number, on_delivery=arrived)
        everywhere.poll(0)
        if asked and not recovered and len(reached) == len(led[leader]):
            recovered = time.perf_counter()
        if recovered and acknowledged[-1] > killed + 1:
            break
    else:
        raise WorkloadFailed(f"{cluster.name}: partitions did not come back within {FAILOVER_S_MAX:.0f} s")
    watch.flush(30)
    stall = max(later - earlier for earlier, later in pairwise(acknowledged))
    return {"failover_s": recovered - killed, "failover_stall_s": stall}


#: One client: waits for a line on its standard input, then produces.
_CLIENT = """
import sys
from bench.raw import RawProducer
port, topic, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with RawProducer(port, topic, 100) as producer:
    producer.pipeline(200, 20)
    print("ready", flush=True)
    sys.stdin.readline()
    producer.pipeline(count, 20)
"""


def scaling(cluster: Cluster, requests: int) -> Figures:
    """H3: three clients on three partitions of one broker, and on three brokers with one each; replication 1.

    Each broker gets a fifth of a core. On one machine all share the cores, so more brokers would gain nothing
    otherwise.
    """
    with CpuLimit(cluster.pids, BROKER_SHARE) as limited:
        if limited.reason is not None:
            print(f"bench: scaling is skipped: {limited.reason}", file=sys.stderr, flush=True)
            return {}
        return _scaling(cluster, requests)


def _scaling(cluster: Cluster, requests: int) -> Figures:
    admin = AdminClient({"bootstrap.servers": cluster.address})
    nodes = sorted(admin.list_topics(timeout=30).brokers)
    figures: Figures = {}
    for figure, places in (("one_broker_requests_s", [nodes[0]] * 3), ("three_brokers_requests_s", nodes)):
        names = [f"{figure}-{number}".replace("_", "-") for number in range(3)]
        topics = [
            NewTopic(name, num_partitions=1, replica_assignment=[[node]])
            for name, node in zip(names, places, strict=True)
        ]
        for made in admin.create_topics(topics).values():
            made.result(30)
        for name in names:
            while not admin.list_topics(name, timeout=30).topics[name].partitions:
                time.sleep(0.05)
        clients = [
            subprocess.Popen(
                [sys.executable, "-c", _CLIENT, str(cluster.leader_port(name)), name, str(requests)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in names
        ]
        for client in clients:
            assert client.stdout is not None and client.stdin is not None
            client.stdout.readline()
        begin = time.perf_counter()
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        if any(client.wait() for client in clients):
            raise WorkloadFailed(f"{cluster.name}: a client of {figure} failed")
        figures[figure] = 3 * requests / (time.perf_counter() - begin)
    return figures


def memory(cluster: Cluster) -> Figures:
    figures = {"cluster_rss_mb": measure.resident_bytes_peak(*cluster.pids) / 1e6}
    if cluster.zookeeper is not None:
        figures["zookeeper_rss_mb"] = measure.resident_bytes_peak(cluster.zookeeper.pid) / 1e6
    return figures
