"""A standalone Spark cluster of two workers on this machine: what runs locally runs there unchanged, and what comes out is the same."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import HERE, run
from tests.interop.spark_cluster import SparkCluster
from tests.interop.topics import LIMIT_S, QUIET, consumed, create

PARTITIONS = 4
ROWS = 6000
KEYS = 50
PROGRAM = [sys.executable, str(HERE / "spark" / "cluster_program.py")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path, workers=2) as found:
        yield found


def fill(broker: BrokerProcess, topic: str) -> str:
    create(broker.address, topic, PARTITIONS)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, **QUIET})
    for number in range(ROWS):
        producer.produce(topic, str(number), f"key-{number % KEYS}", partition=number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0
    return topic


def arguments(broker: BrokerProcess, topic: str, name: str, folder: Path) -> list[str]:
    """What the program is told behind its master; the topics that it writes to are made here."""
    outputs = [create(broker.address, f"{topic}-{name}-{each}", PARTITIONS) for each in ("copy", "sums")]
    return [broker.address, topic, *outputs, str(folder / f"checkpoint-{name}")]


def check(broker: BrokerProcess, copy: str, sums: str) -> None:
    """Each number once, doubled; and the sums of what the groups have."""
    rows = [(key.decode(), int(value)) for _, key, value, _ in consumed(broker.address, copy, PARTITIONS)]
    assert Counter(rows) == Counter((f"key-{number % KEYS}", 2 * number) for number in range(ROWS))
    wanted: Counter[str] = Counter()
    for key, value in rows:
        wanted[key] += value
    found = [(key.decode(), int(value)) for _, key, value, _ in consumed(broker.address, sums, PARTITIONS)]
    assert sorted(found) == sorted(wanted.items())


def test_a_program_runs_unchanged(
    broker: BrokerProcess, cluster: SparkCluster, topic: str, tmp_path: Path
) -> None:
    fill(broker, topic)
    for name, master in (("local", "local[2]"), ("cluster", cluster.master)):
        given = arguments(broker, topic, name, tmp_path)
        run([*PROGRAM, master, *given])
        check(broker, given[2], given[3])
    # Both had their share.
    assert cluster.finished(0) > 0
    assert cluster.finished(1) > 0


def test_a_worker_is_killed_meanwhile(
    broker: BrokerProcess, cluster: SparkCluster, topic: str, tmp_path: Path
) -> None:
    fill(broker, topic)
    given = arguments(broker, topic, "killed", tmp_path)
    with subprocess.Popen([*PROGRAM, cluster.master, *given], stderr=subprocess.PIPE, text=True) as program:
        deadline = time.monotonic() + LIMIT_S
        while cluster.finished(1) < 2:
            assert program.poll() is None, "it ended before the worker was killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        cluster.workers[1].kill()
        _, errors = program.communicate(timeout=2 * LIMIT_S)
    assert program.returncode == 0, errors
    check(broker, given[2], given[3])
