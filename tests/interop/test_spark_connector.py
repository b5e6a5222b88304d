"""Spark's own Kafka connector, unmodified (`spark/connector.py`): batches, streams, the real-time mode, both ways."""

import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from bench import spark_official
from bench.kafka import KafkaUnavailable, find_java
from bench.spark_process import SparkFailed, SparkProcess
from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import HERE
from tests.interop.topics import LIMIT_S, QUIET, consumed, create

TIME = 1_700_000_000_000
PARTITIONS = 3
AVAILABLE_NOW = {"availableNow": True}
REAL_TIME_MESSAGES = 2000
#: Several times what it takes here; a broker that lets a fetch wait would take its half second.
REAL_TIME_P50_MS_MAX = 50


def driver(version: str, tmp_path_factory: pytest.TempPathFactory) -> SparkProcess:
    try:
        find_java()
    except KafkaUnavailable:
        pytest.skip("Java 17 is not here")
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not here")
    spark = spark_official.fetch(version)
    folder = tmp_path_factory.mktemp("spark")
    program = [str(spark.python), str(HERE / "spark" / "connector.py")]
    environment = {**spark.environment, "SPARK_WAREHOUSE": str(folder)}
    return SparkProcess(program, environment, folder / "driver.log")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    with driver(spark_official.DEFAULT, tmp_path_factory) as process:
        yield process


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address, **QUIET})


@pytest.fixture
def created(broker: BrokerProcess, topic: str) -> str:
    return create(broker.address, topic, PARTITIONS)


def produce(
    broker: BrokerProcess, topic: str, numbers: range, partitions: int = PARTITIONS, **settings: Any
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, **QUIET, **settings})
    send(producer, topic, numbers, partitions)
    assert producer.flush(LIMIT_S) == 0


def send(producer: Any, topic: str, numbers: range, partitions: int = PARTITIONS) -> None:
    for number in numbers:
        producer.produce(
            topic,
            key=None if number % 10 == 3 else f"key-{number}",
            value=None if number % 10 == 5 else f"value-{number}",
            partition=number % partitions,
            timestamp=TIME + number,
            headers=[(f"header-{each}", str(number)) for each in range(number % 3)],
        )


def expected(topic: str, number: int, offset: int | None = None) -> list[Any]:
    headers = [[f"header-{each}", str(number)] for each in range(number % 3)]
    return [
        None if number % 10 == 3 else f"key-{number}",
        None if number % 10 == 5 else f"value-{number}",
        topic,
        number % PARTITIONS,
        number // PARTITIONS if offset is None else offset,
        TIME + number,
        0,
        # Spark has no list where there are no headers.
        headers or None,
    ]


def all_of(topic: str, numbers: range) -> list[list[Any]]:
    return by_place(expected(topic, number) for number in numbers)


def by_place(rows: Any) -> list[list[Any]]:
    return sorted(rows, key=lambda row: (row[3], row[4]))


def reading(broker: BrokerProcess, topic: str, **more: str) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "includeHeaders": "true"}
    return {**given, "startingOffsets": "earliest", **more}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_of_all_there_is(
    spark: SparkProcess, broker: BrokerProcess, created: str, codec: str
) -> None:
    produce(broker, created, range(3000), **{"compression.type": codec})
    seen = spark.ask("read", options=reading(broker, created))
    assert by_place(seen["rows"]) == all_of(created, range(3000))
    assert seen["partitions"] == PARTITIONS
    # Cut into more parts than the topic has.
    seen = spark.ask("read", options=reading(broker, created, minPartitions="8"))
    assert by_place(seen["rows"]) == all_of(created, range(3000))
    assert seen["partitions"] >= 8


def test_ranges_by_offset_and_by_time(spark: SparkProcess, broker: BrokerProcess, created: str) -> None:
    produce(broker, created, range(300))
    rows = all_of(created, range(300))

    def read(**options: str) -> list[list[Any]]:
        return by_place(spark.ask("read", options=reading(broker, created, **options))["rows"])

    offsets = (
        f'{{"{created}": {{"0": 10, "1": -2, "2": 90}}}}',
        f'{{"{created}": {{"0": 20, "1": -1, "2": 90}}}}',
    )
    assert read(startingOffsets=offsets[0], endingOffsets=offsets[1]) == [
        row for row in rows if (row[3] == 0 and 10 <= row[4] < 20) or row[3] == 1
    ]
    assert read(startingTimestamp=str(TIME + 150), endingTimestamp=str(TIME + 200)) == [
        row for row in rows if TIME + 150 <= row[5] < TIME + 200
    ]
    by_time = [
        f'{{"{created}": {{"0": {first}, "1": {first}, "2": {first}}}}}' for first in (TIME + 30, TIME + 60)
    ]
    assert read(startingOffsetsByTimestamp=by_time[0], endingOffsetsByTimestamp=by_time[1]) == [
        row for row in rows if TIME + 30 <= row[5] < TIME + 60
    ]
    # Later than all: an error unless it is told to take the end.
    late = str(TIME + 10_000)
    assert read(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(SparkFailed, match="No offset matched"):
        read(startingTimestamp=late)


def test_topics_by_pattern_and_partitions_by_name(
    spark: SparkProcess, broker: BrokerProcess, topic: str
) -> None:
    for name in ("a", "b", "other"):
        create(broker.address, f"{topic}.{name}", PARTITIONS)
        produce(broker, f"{topic}.{name}", range(30))
    options = reading(broker, topic)
    del options["subscribe"]
    seen = spark.ask("read", options={**options, "subscribePattern": rf"{topic}\.[ab]"})
    assert by_place(row for row in seen["rows"] if row[2] == f"{topic}.a") == all_of(f"{topic}.a", range(30))
    assert len(seen["rows"]) == 60
    seen = spark.ask("read", options={**options, "assign": f'{{"{topic}.other": [1]}}'})
    assert by_place(seen["rows"]) == [row for row in all_of(f"{topic}.other", range(30)) if row[3] == 1]


def test_only_what_is_committed(spark: SparkProcess, broker: BrokerProcess, created: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "transactional.id": created, **QUIET}
    )
    producer.init_transactions()
    for number in range(10):
        producer.begin_transaction()
        send(producer, created, range(number * 30, number * 30 + 30))
        producer.flush(LIMIT_S)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    # Each transaction ends with a marker in every partition, which takes an offset.
    rows = [
        expected(created, number, number // 3 + number // 30)
        for number in range(300)
        if number // 30 % 2 == 0
    ]
    committed = reading(broker, created, **{"kafka.isolation.level": "read_committed"})
    assert by_place(spark.ask("read", options=committed)["rows"]) == by_place(rows)
    assert len(spark.ask("read", options=reading(broker, created))["rows"]) == 300

    # One that is open is not there until it is committed; nor is what others sent behind it.
    producer.begin_transaction()
    send(producer, created, range(300, 330))
    producer.flush(LIMIT_S)
    assert len(spark.ask("read", options=committed)["rows"]) == 150
    producer.commit_transaction()
    assert len(spark.ask("read", options=committed)["rows"]) == 180


def test_a_stream_is_stopped_and_resumed(
    spark: SparkProcess, broker: BrokerProcess, created: str, tmp_path: Path
) -> None:
    asked = {
        "options": reading(broker, created, maxOffsetsPerTrigger="300"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "output": str(tmp_path / "output"),
        "trigger": AVAILABLE_NOW,
    }
    produce(broker, created, range(900))
    first = spark.ask("stream", **asked)
    assert first["rows"] == all_of(created, range(900))
    assert [batch for batch in first["batches"] if batch] == [300, 300, 300]
    # Nothing is new.
    assert spark.ask("stream", **asked)["rows"] == first["rows"]
    produce(broker, created, range(900, 1500))
    resumed = spark.ask("stream", **asked)
    assert resumed["rows"] == all_of(created, range(1500))
    assert [batch for batch in resumed["batches"] if batch] == [300, 300]


def test_a_stream_that_goes_on_finds_new_partitions(
    spark: SparkProcess, broker: BrokerProcess, admin: AdminClient, created: str, tmp_path: Path
) -> None:
    table = created.replace("-", "_")
    options = reading(broker, created, **{"kafka.metadata.max.age.ms": "200"})
    spark.ask(
        "begin",
        options=options,
        checkpoint=str(tmp_path),
        query=table,
        trigger={"processingTime": "0 seconds"},
    )
    produce(broker, created, range(90))
    assert spark.ask("await_rows", query=table, number=90) == all_of(created, range(90))
    produce(broker, created, range(90, 180))
    assert spark.ask("await_rows", query=table, number=180) == all_of(created, range(180))
    admin.create_partitions([NewPartitions(created, PARTITIONS + 1)])[created].result(LIMIT_S)
    produce(broker, created, range(40), PARTITIONS + 1)
    found = spark.ask("await_rows", query=table, number=220)
    assert [row[1] for row in found if row[3] == PARTITIONS] == [
        None if number % 10 == 5 else f"value-{number}" for number in range(3, 40, 4)
    ]
    spark.ask("stop", query=table)


def test_a_stream_whose_data_was_deleted_says_so(
    spark: SparkProcess, broker: BrokerProcess, admin: AdminClient, created: str, tmp_path: Path
) -> None:
    asked = {
        "options": reading(broker, created),
        "checkpoint": str(tmp_path / "checkpoint"),
        "output": str(tmp_path / "output"),
        "trigger": AVAILABLE_NOW,
    }
    produce(broker, created, range(90))
    spark.ask("stream", **asked)
    produce(broker, created, range(90, 300))
    gone = confluent_kafka.TopicPartition(created, 0, 50)
    admin.delete_records([gone])[gone].result(LIMIT_S)
    with pytest.raises(SparkFailed, match="failOnDataLoss"):
        spark.ask("stream", **asked)
    asked["options"]["failOnDataLoss"] = "false"
    rows = [row for row in all_of(created, range(300)) if row[3] != 0 or row[4] < 30 or row[4] >= 50]
    assert spark.ask("stream", **asked)["rows"] == rows


def written(numbers: range) -> dict[int, list[tuple[Any, ...]]]:
    """As `spark/connector.py` writes them, by partition."""
    rows = defaultdict(list)
    for number in numbers:
        key = None if number % 7 == 3 else f"key-{number}".encode()
        partition = number % PARTITIONS
        rows[partition].append(
            (partition, key, f"value-{number}".encode(), [("number", str(number).encode())])
        )
    return {partition: sorted(found, key=repr) for partition, found in rows.items()}


def by_partition(rows: list[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    return {each: sorted((row for row in rows if row[0] == each), key=repr) for each in range(PARTITIONS)}


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_batch_is_written(spark: SparkProcess, broker: BrokerProcess, created: str, codec: str) -> None:
    options = {
        "kafka.bootstrap.servers": broker.address,
        "topic": created,
        "includeHeaders": "true",
        "kafka.compression.type": codec,
    }
    spark.ask("write", options=options, first=0, end=3000, partitions=PARTITIONS)
    assert by_partition(consumed(broker.address, created, PARTITIONS)) == written(range(3000))


def test_a_stream_is_written_and_resumed(
    spark: SparkProcess, broker: BrokerProcess, created: str, tmp_path: Path
) -> None:
    target = create(broker.address, f"{created}-copy", PARTITIONS)
    sink = {"kafka.bootstrap.servers": broker.address, "topic": target, "includeHeaders": "true"}
    source = reading(broker, created, maxOffsetsPerTrigger="300")
    for first in (0, 900):
        options = {**sink, "topic": created}
        spark.ask("write", options=options, first=first, end=first + 900, partitions=PARTITIONS)
        spark.ask("copy", source=source, sink=sink, checkpoint=str(tmp_path))
    assert by_partition(consumed(broker.address, target, PARTITIONS)) == written(range(1800))


def test_the_real_time_mode(
    broker: BrokerProcess,
    topic: str,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> None:
    """A message is through within milliseconds, in either half of a pause that the mode makes between its long batches."""
    for name in (topic, f"{topic}-copy"):
        # Each of its tasks has a core of its own from the beginning to the end.
        create(broker.address, name, 2)
    sink = {"kafka.bootstrap.servers": broker.address, "topic": f"{topic}-copy", "includeHeaders": "true"}
    sink |= {"kafka.linger.ms": "0"}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.address, "group.id": f"{topic}-reader", "fetch.wait.max.ms": 10, **QUIET}
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "linger.ms": 0, **QUIET})
    with driver(spark_official.REAL_TIME, tmp_path_factory) as spark:
        consumer.assign([confluent_kafka.TopicPartition(f"{topic}-copy", each, 0) for each in range(2)])
        asked = {"source": reading(broker, topic), "sink": sink, "checkpoint": str(tmp_path)}
        spark.ask("real_time", query="real time", **asked)
        took_ms = []
        for number in range(REAL_TIME_MESSAGES):
            began = time.perf_counter_ns()
            producer.produce(
                topic, value=str(number), partition=number % 2, headers=[("number", str(number))]
            )
            producer.flush(LIMIT_S)
            message = consumer.poll(LIMIT_S)
            took_ms.append((time.perf_counter_ns() - began) / 1e6)
            assert message is not None
            assert message.error() is None
            assert (message.value(), message.headers()) == (
                str(number).encode(),
                [("number", str(number).encode())],
            )
        # Nothing twice.
        assert consumer.poll(0.1) is None
        spark.ask("stop", query="real time")
    consumer.close()
    took_ms.sort()
    print(
        f"real-time mode of Spark {spark.version}: p50 {median(took_ms):.1f} ms, p99 {took_ms[-len(took_ms) // 100]:.1f} ms"
    )
    assert median(took_ms) < REAL_TIME_P50_MS_MAX
