"""One produce, one fetch and one offset commit through the core alone: no socket, no event loop, a real disk.

    python -m bench.boundary

It shows the cost of the boundary between core and runtime: the whole of `Broker.receive` for a one-message
produce, and for its fetch, in microseconds of CPU. Commits come fifty per turn, from one group, and share a
batch.
"""

import shutil
import struct
import tempfile
import time
from collections.abc import Callable

from bench.members import FIND_COORDINATOR, OFFSET_COMMIT, frame
from bench.raw import produce_frame
from ottla.broker.core import Broker
from ottla.config.broker import BrokerConfig
from ottla.model.api_key import ApiKey
from ottla.ports.effects import PROPOSE, SEND
from ottla.runtime.disk import SystemDisk
from ottla.runtime.entropy import SystemEntropy
from ottla.wire.encode import request_encoder

TOPIC = "boundary"
PRODUCES = 50_000
FETCHES = 20_000
COMMITS = 20_000
COMMITS_IN_A_TURN = 50


def request(api_key: int, version: int, body: bytes) -> memoryview:
    return memoryview(struct.pack(">hhih", api_key, version, 1, -1) + b"\0" + body)


def started(directory: str, policy: str) -> Broker:
    config = BrokerConfig.from_properties({"log.dirs": directory, "log.flush.policy": policy})
    broker = Broker(config, SystemDisk(), SystemEntropy())
    broker.committed(broker.start([], 0), 0)
    broker.proposed = broker.image
    topics = [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}]
    body = request_encoder(ApiKey.CREATE_TOPICS, 7)({"topics": topics, "timeout": 1000})
    propose(broker, request(ApiKey.CREATE_TOPICS, 7, body))
    return broker


def propose(broker: Broker, made: memoryview) -> None:
    """Send a request that changes metadata, and commit the change."""
    broker.receive(broker.connected("bench"), made, now_ms())
    for effect in [effect for effect in broker.outbox if effect[0] == PROPOSE]:
        broker.committed(effect[1], now_ms())
        effect[2](None)
    while broker.settle(now_ms()):
        pass
    broker.outbox.clear()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def per_call_us(call: Callable[[], None], times: int) -> float:
    best = float("inf")
    for _ in range(5):
        before = time.process_time_ns()
        for _ in range(times // 5):
            call()
        best = min(best, (time.process_time_ns() - before) / (times // 5) / 1000)
    return best


def measure(policy: str) -> dict[str, float]:
    directory = tempfile.mkdtemp(prefix="ottla-boundary-")
    try:
        broker = started(directory, policy)
        connection = broker.connected("bench")
        frame = memoryview(produce_frame(TOPIC, b"x" * 100))[4:]

        def produce() -> None:
            broker.receive(connection, frame, now_ms())
            broker.settle(0)
            broker.outbox.clear()
            connection.waiting.clear()

        figures = {"produce": per_call_us(produce, PRODUCES)}
        if policy == "page-cache":
            partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            body = request_encoder(ApiKey.FETCH, 12)(
                {
                    "topics": [{"topic": TOPIC, "partitions": [partition]}],
                    "max_wait": 100,
                    "min_bytes": 1,
                    "max_bytes": 1 << 20,
                    "session_epoch": -1,
                }
            )
            fetch_frame = request(ApiKey.FETCH, 12, body)

            def fetch() -> None:
                broker.receive(connection, fetch_frame, now_ms())
                assert broker.outbox[-1][0] == SEND
                broker.outbox.clear()

            figures["fetch"] = per_call_us(fetch, FETCHES)
            figures["commit"] = commit_us(broker)
        return figures
    finally:
        shutil.rmtree(directory)


def commit_us(broker: Broker) -> float:
    propose(broker, memoryview(frame(FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": ["group"]}))[4:])
    row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 0, "committed_metadata": ""}
    fields = {
        "group_id": "group", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": TOPIC, "partitions": [row]}],
    }  # fmt: skip
    commit_frame = memoryview(frame(OFFSET_COMMIT, fields))[4:]
    connections = [broker.connected("bench") for _ in range(COMMITS_IN_A_TURN)]

    def turn() -> None:
        for connection in connections:
            broker.receive(connection, commit_frame, now_ms())
            broker.settle(0, is_last=False)
        broker.settle(0)
        assert len(broker.outbox) == len(connections)
        broker.outbox.clear()

    return per_call_us(turn, COMMITS // COMMITS_IN_A_TURN) / COMMITS_IN_A_TURN


def report() -> list[str]:
    return [
        f"one {name} through the core alone, {policy}: {us:.1f} µs of CPU"
        for policy in ("page-cache", "durable")
        for name, us in measure(policy).items()
    ]


if __name__ == "__main__":
    print("\n".join(report()))
