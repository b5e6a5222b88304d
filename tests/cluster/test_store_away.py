"""Real brokers whose ZooKeeper does not answer: every request is answered within its time-out, and so is what is behind it.

ZooKeeper is stopped with SIGSTOP, so that its connections stay open. Time-outs are measured from outside, with a slack that a
loaded machine needs: what this is about hung for ever.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.model.limits import COMMIT_WAIT_MS
from ottla.runtime.local_zookeeper import LocalZookeeper
from ottla.wire.schema import version_range
from tests.cluster.running_cluster import RunningCluster
from tests.crash.broker_process import CREATE_TOPICS, METADATA, Wire
from tests.mutations import BY_CONTROLLER, TOPIC, changes_nothing, error_codes

INIT_PRODUCER_ID = 22
SLACK_S = 10.0
REQUESTS: dict[int, dict[str, Any]] = {
    **BY_CONTROLLER,
    METADATA: {"topics": [{"name": "auto", "topic_id": None}], "allow_auto_topic_creation": True},
    INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": 60_000},
}


@contextmanager
def paused(zookeeper: LocalZookeeper) -> Iterator[None]:
    os.kill(zookeeper.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(zookeeper.pid, signal.SIGCONT)


class Asked(threading.Thread):
    """A request and a Metadata behind it on one connection; both answers and when the last came."""

    def __init__(self, address: str, key: int) -> None:
        super().__init__(daemon=True)
        self.key = key
        self.limit_s = REQUESTS[key].get("timeout", COMMIT_WAIT_MS) / 1000 + SLACK_S
        self.answers: list[Any] = []
        self.took_s = 0.0
        self._address = address
        self.start()

    def run(self) -> None:
        versions = version_range(self.key)
        assert versions is not None
        begin = time.monotonic()
        with Wire(self._address, timeout_s=60) as wire:
            wire.send(self.key, versions[1], **REQUESTS[self.key])
            wire.send(METADATA, 12, topics=[], allow_auto_topic_creation=False)
            self.answers = [wire.receive(), wire.receive()]
        self.took_s = time.monotonic() - begin


@pytest.mark.timeout(180)
def test_every_change_is_answered_within_its_time_out(
    start_cluster: Callable[..., RunningCluster], zookeeper: LocalZookeeper
) -> None:
    cluster = start_cluster(3, connect=zookeeper.address)
    row = {"name": TOPIC, "num_partitions": 1, "replication_factor": 3}
    with Wire(cluster.nodes[1].address) as wire:
        assert wire.ask(CREATE_TOPICS, 7, topics=[row], timeout=30_000).topics[0].error_code.value == 0
    for node in (1, 2, 3):
        cluster.wait_in_sync(TOPIC, node, (1, 2, 3))
    with paused(zookeeper):
        asked = [Asked(node.address, key) for node in cluster.nodes.values() for key in sorted(REQUESTS)]
        for each in asked:
            each.join(each.limit_s)
            assert len(each.answers) == 2, f"API {each.key} has no answer:\n{cluster.said()}"
            assert each.took_s < each.limit_s
            # A broker with producer ids left gives one; anything else cannot have succeeded.
            if not changes_nothing(each.key) and each.key != INIT_PRODUCER_ID:
                assert set(error_codes(each.answers[0])) != {0}, each.key
        cluster.nodes[1].wait_for("the cluster store cannot be reached")
    # What was proposed before anybody noticed may have been made; the cluster goes on either way.
    fresh = {**row, "name": "afterwards"}

    def is_made() -> bool:
        with Wire(cluster.nodes[2].address, timeout_s=30) as wire:
            [made] = wire.ask(CREATE_TOPICS, 7, topics=[fresh], timeout=10_000).topics
            return made.error_code.value in (0, ErrorCode.TOPIC_ALREADY_EXISTS)

    cluster.wait_until(is_made, "topics can be created again")


def test_an_oversized_change_harms_nobody_else(start_cluster: Callable[..., RunningCluster]) -> None:
    """Bug: whatever else was under way got the error of the one that was too large."""
    cluster = start_cluster(1)
    address = cluster.nodes[1].address
    pairs = ",".join(f"{number}:1" for number in range(34_000))
    configs = [
        {"name": f"{role}.replication.throttled.replicas", "value": pairs} for role in ("leader", "follower")
    ]
    small = {"num_partitions": 1, "replication_factor": 1}
    with Wire(address, timeout_s=60) as attacker, Wire(address, timeout_s=60) as other:
        for turn in range(10):
            attacker.send(
                CREATE_TOPICS,
                7,
                topics=[{"name": f"large-{turn}", "configs": configs, **small, "num_partitions": 1_000}],
                timeout=30_000,
            )
            other.send(CREATE_TOPICS, 7, topics=[{"name": f"innocent-{turn}", **small}], timeout=30_000)
        for _turn in range(10):
            [row] = attacker.receive().topics
            assert row.error_code == ErrorCode.POLICY_VIOLATION and "bytes" in row.error_message
            [row] = other.receive().topics
            assert row.error_code == 0, row.error_message
