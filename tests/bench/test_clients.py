"""Comparison of Python clients: the arithmetic of the table, and one small real round of every workload."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import client_loads, clients, ottla
from bench.client_faces import (
    AIOKAFKA,
    CLIENTS,
    CONFLUENT,
    CONFLUENT_TUNED,
    KAFKA_PYTHON,
    OTTLA,
    OTTLA_COLUMNS,
    OTTLA_PURE,
)
from bench.process import Process, free_port
from bench.workloads import WorkloadFailed
from ottla import Admin
from tests.bench.test_table import line


def test_a_comparison_takes_the_shares_within_rounds() -> None:
    # The second round met a slow machine: the medians alone would say 4.
    found: clients.Results = {
        OTTLA: {"produce_messages_s": [600.0, 60.0, 400.0]},
        KAFKA_PYTHON: {"produce_messages_s": [100.0, 10.0, 100.0]},
    }
    assert clients.shares([600.0, 60.0], [100.0, 10.0]) == [6.0, 6.0]
    assert clients.Goal(times=5, than=KAFKA_PYTHON).met(found, "produce_messages_s") is True
    assert clients.Goal(times=7, than=KAFKA_PYTHON).met(found, "produce_messages_s") is False


def test_bounds_are_judged_alone_and_comparisons_need_the_other() -> None:
    found: clients.Results = {OTTLA: {"consume_messages_s": [560_000.0], "p99_ms": [5.0]}}
    assert clients.Goal(least=550_000).met(found, "consume_messages_s") is True
    assert clients.Goal(bound=5).met(found, "p99_ms") is False
    assert clients.Goal(than=AIOKAFKA).met(found, "consume_messages_s") is None
    assert clients.Goal(least=1).met({}, "consume_messages_s") is None


def test_the_table_has_a_column_a_client_and_all_goals_of_a_row() -> None:
    found: clients.Results = {
        OTTLA: {"consume_messages_s": [600_000.0]},
        CONFLUENT: {"consume_messages_s": [700_000.0]},
    }
    text = clients.render(found)
    label = "consume, messages/s"
    assert line(text, label) == [
        label,
        "600,000",
        "700,000",
        "≥ 550,000; ≥ confluent-kafka; ≥ aiokafka",
        "pass; MISS; –",
    ]
    missed = [verdict.label for verdict in clients.verdicts(found) if verdict.met is False]
    assert missed == ["consume, messages/s ≥ confluent-kafka"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory: Path = tmp_path_factory.mktemp("broker")
    process = ottla.start(directory, port=free_port(), settings={"log.flush.policy": "page-cache"})
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()


def job(broker: Process, client: str, work: str, topic: str, **more: object) -> client_loads.Job:
    given = {"messages": 300, "warm": 30, "partitions": 1, **more}
    return client_loads.Job(client, work, broker.address, broker.pid, topic, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_writes_what_it_reads(broker: Process, client: str) -> None:
    topic = f"of-{client}"
    written = asyncio.run(client_loads.produce(job(broker, client, "produce", topic, keyed=True)))
    read = asyncio.run(client_loads.consume(job(broker, client, "consume", topic)))
    assert all(value > 0 for value in (*written.values(), *read.values()))


@pytest.mark.parametrize("way", [OTTLA_PURE, OTTLA_COLUMNS, CONFLUENT_TUNED])
def test_other_ways_to_read(broker: Process, way: str) -> None:
    topic = way.replace(", ", "-")
    asyncio.run(client_loads.produce(job(broker, OTTLA, "produce", topic, keyed=True)))
    read = asyncio.run(client_loads.consume(job(broker, way, "consume", topic)))
    assert all(value > 0 for value in read.values())


def test_a_paced_message_arrives_after_it_was_sent(broker: Process) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("paced", 1, 1)
    with clients.JobProcess(job(broker, OTTLA, "listen", "paced")) as listening:
        listening.wait_ready()
        asyncio.run(client_loads.pace(job(broker, OTTLA, "pace", "paced", rate_s=3000)))
        found = listening.figures()
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["p999_ms"]


def test_work_that_fails_says_why(broker: Process) -> None:
    with pytest.raises(WorkloadFailed, match="nobody"):
        clients.work(job(broker, "nobody", "consume", "paced"))
