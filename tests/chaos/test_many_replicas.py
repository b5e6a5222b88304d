"""Ten thousand partitions with three replicas on three brokers: made, idle, and without their controller."""

import os
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.measure import cpu_ns
from ottla.runtime.local_zookeeper import LocalZookeeper, find_program, free_ports
from tests.cluster.running_cluster import RunningCluster

TOPICS, PARTITIONS = 10, 1000
ALL = (1, 2, 3)
IDLE_S = 10
IDLE_SHARE_MAX = 0.05


def test_ten_thousand_partitions_on_three_brokers(tmp_path: Path) -> None:
    """Made within 60 s, idle at less than 5 % of a core a broker, led anew within 5 s of the controller's end."""
    zookeeper = LocalZookeeper(find_program(), tmp_path / "zookeeper", free_ports(1)[0])
    zookeeper.start()
    try:
        with RunningCluster(tmp_path, zookeeper.address) as cluster:
            cluster.start(*ALL)
            names = [f"t{number}" for number in range(TOPICS)]
            begun = time.monotonic()
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            made = admin.create_topics(
                [NewTopic(name, PARTITIONS, 3) for name in names], request_timeout=60, operation_timeout=60
            )
            for answer in made.values():
                answer.result(60)

            def led(via: int, but: int = 0) -> int:
                return sum(
                    row.leader_id not in (-1, but)
                    for topic in cluster.metadata(via, *names).topics
                    for row in topic.partitions
                )

            for node in ALL:
                cluster.wait_until(lambda node=node: led(node) == TOPICS * PARTITIONS, "all are led")
            answered_s = time.monotonic() - begun

            def folders() -> int:
                return sum(
                    name.startswith("t") for node in ALL for name in os.listdir(cluster.nodes[node].data_dir)
                )

            deadline = begun + 120
            while folders() < 3 * TOPICS * PARTITIONS and time.monotonic() < deadline:
                time.sleep(0.2)
            made_s = time.monotonic() - begun

            def shares(seconds: float) -> list[float]:
                """What each broker takes of a core, over a stretch of time."""
                before = [cpu_ns(cluster.nodes[node].pid) for node in ALL]
                time.sleep(seconds)
                after = [cpu_ns(cluster.nodes[node].pid) for node in ALL]
                return [(b - a) / 1e9 / seconds for a, b in zip(before, after, strict=True)]

            # Once the fetch sessions have settled nothing happens.
            cluster.wait_until(lambda: max(shares(1)) < IDLE_SHARE_MAX, "the brokers come to rest")
            idle = shares(IDLE_S)

            controller = cluster.controller(1)
            left = [node for node in ALL if node != controller]
            begun = time.monotonic()
            cluster.kill(controller)
            for node in left:
                cluster.wait_until(
                    lambda node=node: (
                        cluster.controller(node) in left and led(node, controller) == TOPICS * PARTITIONS
                    ),
                    "others lead and control",
                )
            failover_s = time.monotonic() - begun
    finally:
        zookeeper.stop()
    print(
        f"answered after {answered_s:.1f} s, all logs made after {made_s:.1f} s; idle at "
        f"{', '.join(f'{share:.1%}' for share in idle)} of a core; led anew after {failover_s:.1f} s"
    )
    assert made_s < 60
    assert max(idle) < IDLE_SHARE_MAX
    assert failover_s < 5
