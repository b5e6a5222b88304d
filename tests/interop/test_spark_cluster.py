"""A standalone Spark cluster of two workers on this machine: what runs locally runs there unchanged, and what comes out is the same."""

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import HERE, run
from tests.interop.spark_cluster import SparkCluster
from tests.interop.topics import LIMIT_S, QUIET, consumed, create
from tests.spark.pipeline.examples import FOLDER, generator, records

PARTITIONS = 4
ROWS = 6000
KEYS = 50
PIPELINE = [sys.executable, "-m", "ottla.cli", "pipeline", "run"]
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


def test_a_pipeline_file_runs_unchanged(
    start_broker: Callable[..., BrokerProcess], cluster: SparkCluster, tmp_path: Path
) -> None:
    """The first half of the lines is counted here, the other one on the cluster: it goes on from the same checkpoint."""
    broker = start_broker()
    lines = records("lines", 2000)
    generator().make_topics(broker.address, "lines")
    counts: Counter[str] = Counter()
    told: list[tuple[str, str]] = []
    for part, where in ((lines[:1000], []), (lines[1000:], ["--master", cluster.master])):
        generator().send(broker.address, iter(part))
        settings = ["--set", f"BROKERS={broker.address}", "--set", f"CHECKPOINTS={tmp_path}"]
        run([*PIPELINE, str(FOLDER / "wordcount.py"), "--once", *settings, *where])
        for line in part:
            counts.update(re.findall(r"\w+", line.value.decode().lower()))
        partitions = len(
            AdminClient({"bootstrap.servers": broker.address, **QUIET})
            .list_topics("counts")
            .topics["counts"]
            .partitions
        )
        told = [
            (key.decode(), value.decode())
            for _, key, value, _ in consumed(broker.address, "counts", partitions)
        ]
        assert dict(told) == {word: str(count) for word, count in counts.items()}
    # Each half is one batch, and tells each of its words once.
    assert len(told) == sum(
        len({word for line in part for word in re.findall(r"\w+", line.value.decode().lower())})
        for part in (lines[:1000], lines[1000:])
    )
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
