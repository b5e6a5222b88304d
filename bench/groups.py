"""Consumer groups: time until a large group settles, cost of heartbeats, rate of offset commits.

The members are `bench.group_loads`, in a separate process. The measurement runs from its `ready` to its
figures: the time as seen by the members, and the broker's CPU. Commits are measured in the page cache and
durable (ottla's default; on Kafka `flush.messages=1`), by settings of the topic `__consumer_offsets`. Each is
measured with members of one group, whose commits go to one partition of that topic, and with as many groups
of one member, whose commits go to most of its partitions.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from bench.measure import Span, Stretch
from bench.process import Brokers
from bench.workloads import Figures, WorkloadFailed

TOPIC = "bench-groups"
OFFSETS_TOPIC = "__consumer_offsets"
#: No initial rebalance delay, and members of the consumer protocol notice changes within 0.5 s.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}
#: Limits that ottla has and Kafka lacks.
OTTLA_SETTINGS = {"max.connections.per.ip": "20000", "max.connection.creation.rate": "1000000"}
HEARTBEAT_INTERVAL_S = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work; the rows of the table name these numbers."""

    members: int = 1000
    partitions: int = 1000
    #: With two members each.
    groups: int = 5000
    heartbeats_s: float = 12.0
    connections: int = 50
    commits_s: float = 2.0

    @property
    def descriptors(self) -> int:
        """Open files that the broker and its clients need."""
        return 2 * self.groups + 1000


def prepare(broker: Brokers, sizes: Sizes) -> None:
    """Create the topic that the members subscribe to."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = NewTopic(TOPIC, num_partitions=sizes.partitions, replication_factor=broker.replicas)
    admin.create_topics([topic])[TOPIC].result(60)
    deadline = time.monotonic() + 60
    while len(admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions) < sizes.partitions:
        if time.monotonic() > deadline:
            raise WorkloadFailed(f"{broker.name} created {TOPIC} but did not show it within 60 s")
        time.sleep(0.1)


def work(broker: Brokers, name: str, *arguments: object) -> tuple[Figures, Span]:
    """One workload in another process: its figures, and the broker's cost."""
    port = broker.leader_port(TOPIC)
    command = [sys.executable, "-m", "bench.group_loads", str(port), name, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as members:
        assert members.stdin is not None and members.stdout is not None and members.stderr is not None
        is_ready = members.stdout.readline() == "ready\n"
        line = ""
        with Stretch(broker.pids) as stretch:
            if is_ready:
                members.stdin.write("go\n")
                members.stdin.flush()
                line = members.stdout.readline()
        if not line:
            raise WorkloadFailed(f"{broker.name}: {name} failed: {members.stderr.read().strip()[-500:]}")
    figures: Figures = json.loads(line)
    return figures, stretch.span


def settle(broker: Brokers, sizes: Sizes, number: int) -> Figures:
    """A thousand members join a new group at once, with each of the protocols."""
    classic, classic_span = work(broker, "settle-classic", f"classic-{number}", TOPIC, sizes.members)
    consumer, consumer_span = work(
        broker, "settle-consumer", f"consumer-{number}", TOPIC, sizes.members, sizes.partitions
    )
    return {
        "settle_classic_s": classic["seconds"],
        "settle_classic_cpu_s": classic_span.cpu_ns / 1e9,
        "settle_consumer_s": consumer["seconds"],
        "settle_consumer_cpu_s": consumer_span.cpu_ns / 1e9,
    }


def commit(broker: Brokers, sizes: Sizes, number: int, prefix: str = "") -> Figures:
    """One-partition commits, with one request in flight per connection."""
    figures: Figures = {}
    for label, groups in (("", 1), ("spread_", sizes.connections)):
        name = f"{prefix}{label}commits-{number}"
        found, span = work(broker, "commits", name, TOPIC, groups, sizes.connections, sizes.commits_s)
        figures |= {
            f"{prefix}{label}commits_s": found["commits"] / found["seconds"],
            f"{prefix}{label}commit_p50_ms": found["p50_ms"],
            f"{prefix}{label}commit_p99_ms": found["p99_ms"],
            f"{prefix}{label}commit_cpu_us": span.cpu_ns / found["commits"] / 1000,
        }
    return figures


def heartbeat(broker: Brokers, sizes: Sizes) -> Figures:
    """Many small groups that only send heartbeats."""
    found, span = work(
        broker, "heartbeats", "beating", TOPIC, sizes.groups, HEARTBEAT_INTERVAL_S, sizes.heartbeats_s
    )
    return {
        "heartbeats_s": found["heartbeats"] / found["seconds"],
        "heartbeat_core_percent": 100 * span.cpu_ns / 1e9 / found["seconds"],
        "heartbeat_cpu_us": span.cpu_ns / found["heartbeats"] / 1000,
    }


def round_of(broker: Brokers, sizes: Sizes, number: int, durable: Mapping[str, str]) -> Figures:
    """All group workloads except heartbeats. `durable` are topic settings with and without durability."""
    figures = settle(broker, sizes, number)
    figures |= commit(broker, sizes, number)
    alter(broker, durable, AlterConfigOpType.SET)
    try:
        figures |= commit(broker, sizes, number, "durable_")
    finally:
        alter(broker, durable, AlterConfigOpType.DELETE)
    return figures


def alter(broker: Brokers, settings: Mapping[str, str], operation: AlterConfigOpType) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    resource = ConfigResource(ResourceType.TOPIC, OFFSETS_TOPIC)
    for name, value in settings.items():
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=operation))
    admin.incremental_alter_configs([resource])[resource].result(30)
