"""Reads of tasks: every codec, transactions, gaps, losses, lost brokers. On real brokers, without Spark."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import ottla
from ottla.client.admin.configs import Resource
from ottla.client.consumer.columns import Columns
from ottla.client.metadata import TopicPartition
from ottla.client.offsets import EARLIEST
from ottla.records.pieces import piece
from ottla.records.record import Record, encode_batch
from ottla.spark.source import reader as reader_module
from ottla.spark.source.arrow import BatchMaker
from ottla.spark.source.batch import arrow_schema
from ottla.spark.source.read_plan import DataLost
from ottla.spark.source.reader import NoProgress
from ottla.spark.source.schema import source_schema
from ottla.spark.source.topic_admin import TopicAdmin
from tests.broker_proxy import FETCH, Proxy
from tests.running_broker import RunningBroker
from tests.spark.source.conftest import batch_reader, rows_of, values_of

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Send = Callable[..., None]


@pytest.mark.parametrize("decoder", ["pure", "compiled"])
def test_every_codec(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send, decoder: str
) -> None:
    name = f"{topic_name}-{decoder}"
    admin.create_topic(name, 1)
    sent = []
    for codec in CODECS:
        values = [f"{codec}-{number}".encode() * 20 for number in range(50)]
        send(name, *values, compression_type=codec)
        sent += values
    reader = batch_reader(ottla_address, subscribe=name, kafka__record__decoder=decoder)
    rows = rows_of(reader, reader.partitions())
    assert [row["value"] for row in rows] == sent
    assert [row["offset"] for row in rows] == list(range(len(sent)))
    assert {(row["topic"], row["partition"], row["timestampType"], row["key"]) for row in rows} == {
        (name, 0, 0, None)
    }


def test_batches_are_as_large_as_spark_likes_them(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, *[b"x" * 100] * 5_000, batch_size=1_000)
    monkeypatch.setattr(reader_module, "ROWS_FIRST", 500)
    monkeypatch.setattr(reader_module, "ROWS_MAX", 2_000)
    reader = batch_reader(ottla_address, subscribe=topic_name)
    [part] = reader.partitions()
    sizes = [batch.num_rows for batch in reader.read(part)]
    assert sum(sizes) == 5_000 and max(sizes) <= 2_000 and sizes[0] <= 500
    # Wide rows make few of them a batch.
    monkeypatch.setattr(reader_module, "BATCH_BYTES", 20_000)
    sizes = [batch.num_rows for batch in reader.read(part)]
    assert sum(sizes) == 5_000 and max(sizes[1:]) < 200


def test_times_of_the_broker_are_marked(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, b"producer's")
    admin.alter_configs(Resource("topic", topic_name), {"message.timestamp.type": "LogAppendTime"})
    send(topic_name, b"broker's")
    reader = batch_reader(ottla_address, subscribe=topic_name)
    rows = rows_of(reader, reader.partitions())
    assert [row["timestampType"] for row in rows] == [0, 1]
    assert rows[0]["timestamp"].timestamp() == 1 < rows[1]["timestamp"].timestamp()


def test_transactions(ottla_address: str, topic_name: str, admin: ottla.Admin) -> None:
    admin.create_topic(topic_name, 1)
    with ottla.Producer(ottla_address, transactional_id=topic_name) as producer:
        for name, ends_well in (("a", True), ("b", False), ("c", True), ("d", False)):
            producer.begin()
            for number in range(3):
                producer.send(topic_name, f"{name}{number}".encode())
            producer.flush()
            producer.commit() if ends_well else producer.abort()
        producer.begin()
        producer.send(topic_name, b"open").result()
        committed = batch_reader(ottla_address, subscribe=topic_name)
        parts = committed.partitions()
        assert values_of(committed, parts) == [b"a0", b"a1", b"a2", b"c0", b"c1", b"c2"]
        # The last records of the range are aborted ones and a marker: the task ends without having seen a record there.
        [part] = parts
        part.start = part.end - 4
        assert values_of(committed, [part]) == []
        everything = batch_reader(
            ottla_address, subscribe=topic_name, kafka__isolation__level="read_uncommitted"
        )
        assert len(values_of(everything, everything.partitions())) == 13
        producer.abort()


def test_a_range_is_cut_at_both_ends(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send
) -> None:
    admin.create_topic(topic_name, 2)
    send(topic_name, *[b"%d" % number for number in range(100)])
    options = {
        "startingOffsets": f'{{"{topic_name}":{{"0":10,"1":-2}}}}',
        "endingOffsets": f'{{"{topic_name}":{{"0":20,"1":-1}}}}',
    }
    reader = batch_reader(ottla_address, subscribe=topic_name, **options)
    assert values_of(reader, reader.partitions()) == [b"%d" % number for number in range(10, 20)]
    in_parts = batch_reader(ottla_address, subscribe=topic_name, minPartitions=3, **options)
    parts = in_parts.partitions()
    assert len(parts) == 3
    assert values_of(in_parts, parts) == [b"%d" % number for number in range(10, 20)]
    short = batch_reader(ottla_address, subscribe=topic_name, maxRecordsPerPartition=30).partitions()
    assert len(short) == 4


def test_times(ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send) -> None:
    admin.create_topic(topic_name, 2)
    send(topic_name, *[b"%d" % number for number in range(10)])
    send(topic_name, b"other", partition=1)
    by_time = batch_reader(
        ottla_address,
        subscribe=topic_name,
        startingTimestamp=1_004,
        endingTimestamp=1_006,
        startingOffsetsByTimestampStrategy="latest",
    )
    assert values_of(by_time, by_time.partitions()) == [b"4", b"5"]
    each = batch_reader(
        ottla_address,
        subscribe=topic_name,
        startingOffsetsByTimestamp=f'{{"{topic_name}":{{"0":1008,"1":1000}}}}',
        endingOffsetsByTimestamp=f'{{"{topic_name}":{{"0":99999,"1":1000}}}}',
    )
    assert values_of(each, each.partitions()) == [b"8", b"9"]
    strict = batch_reader(ottla_address, subscribe=topic_name, startingTimestamp=1_004)
    with pytest.raises(ValueError, match=f"{topic_name}-1 has no record at or after that time"):
        strict.partitions()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"endingOffsets": '{"TOPIC":{"0":-1}}'},
        {"startingTimestamp": 1_000, "endingTimestamp": 1_000},
        {
            "startingTimestamp": 1_001,
            "startingOffsetsByTimestampStrategy": "latest",
            "endingTimestamp": 1_001,
        },
    ],
)
def test_a_topic_that_grows_and_is_trimmed_meanwhile_loses_nothing(
    ottla_address: str,
    topic_name: str,
    admin: ottla.Admin,
    send: Send,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, b"x", b"x")
    asking = TopicAdmin.offsets

    def trimmed(topic_admin: TopicAdmin, times: Any) -> Any:
        send(topic_name, b"x", b"x")
        answers = asking(topic_admin, times)
        begin = asking(topic_admin, dict.fromkeys(times, EARLIEST))
        admin.delete_records({tp: offset + 1 for tp, offset in begin.items()})
        return answers

    monkeypatch.setattr(TopicAdmin, "offsets", trimmed)
    given = {name: str(value).replace("TOPIC", topic_name) for name, value in options.items()}
    batch_reader(ottla_address, subscribe=topic_name, **given).partitions()


def test_choices_of_topics(ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send) -> None:
    for end in ("one", "two"):
        admin.create_topic(f"{topic_name}.{end}", 2)
        send(f"{topic_name}.{end}", end.encode(), partition=1)
    pattern = batch_reader(ottla_address, subscribePattern=rf"{topic_name}\.(one|two)")
    assert values_of(pattern, pattern.partitions()) == [b"one", b"two"]
    assigned = batch_reader(ottla_address, assign=f'{{"{topic_name}.two":[1]}}')
    assert values_of(assigned, assigned.partitions()) == [b"two"]
    for options, words in (
        ({"subscribe": f"{topic_name}.on"}, f"no topic {topic_name}.on: did you mean {topic_name}.one?"),
        ({"subscribe": f"{topic_name}.one,zzz"}, "there is no topic zzz: look with"),
        ({"assign": f'{{"{topic_name}.one":[5]}}'}, "has partitions 0 to 1, not 5"),
        ({"subscribePattern": "nothing-like-it.*"}, "no topic matches 'nothing-like-it"),
        ({"subscribe": f"{topic_name}.one", "startingOffsets": '{"x":{"0":1}}'}, "not read: x-0"),
    ):
        with pytest.raises(ValueError, match=words):
            batch_reader(ottla_address, **options).partitions()


def test_offsets_out_of_range_are_told_before_anything_is_read(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, *[b"%d" % number for number in range(10)])
    admin.delete_records({TopicPartition(topic_name, 0): 4})
    options = {
        "startingOffsets": f'{{"{topic_name}":{{"0":1}}}}',
        "endingOffsets": f'{{"{topic_name}":{{"0":12}}}}',
    }
    where = f"topic {topic_name} partition 0: offsets"
    with pytest.raises(
        DataLost,
        match=rf"{where} 1 to 3 are lost \(at most 3 records.* starts at 4; {where} 10 to 11 .* ends at 10",
    ):
        batch_reader(ottla_address, subscribe=topic_name, **options).partitions()
    lax = batch_reader(ottla_address, subscribe=topic_name, failOnDataLoss="false", **options)
    assert values_of(lax, lax.partitions()) == [b"%d" % number for number in range(4, 10)]


def test_records_that_go_between_planning_and_reading(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, *[b"%d" % number for number in range(10)])
    strict = batch_reader(ottla_address, subscribe=topic_name)
    lax = batch_reader(ottla_address, subscribe=topic_name, failOnDataLoss="false")
    parts = strict.partitions()
    admin.delete_records({TopicPartition(topic_name, 0): 7})
    with pytest.raises(DataLost, match="offsets 0 to 6 are lost"):
        values_of(strict, parts)
    assert values_of(lax, parts) == [b"7", b"8", b"9"]
    admin.delete_topics([topic_name])
    # A consumer that has read it before, and one that never has.
    assert values_of(lax, parts) == []
    with pytest.raises(
        DataLost, match=r"offsets 0 to 9 are lost \(at most 10 records\): the partition was deleted"
    ):
        values_of(batch_reader(ottla_address, subscribe=topic_name, kafka__client__id="new"), parts)


def test_a_kept_consumer_finds_partitions_that_are_new(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, b"first")
    reader = batch_reader(ottla_address, subscribe=topic_name)
    assert values_of(reader, reader.partitions()) == [b"first"]
    admin.create_partitions(topic_name, 2)
    send(topic_name, b"second", partition=1)
    assert values_of(reader, reader.partitions()) == [b"first", b"second"]


def test_a_broker_that_restarts_in_the_middle(
    topic_name: str, start_broker: Callable[..., RunningBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    values = [b"%06d" % number * 20 for number in range(3_000)]
    with ottla.Admin(broker.address) as admin, ottla.Producer(broker.address, batch_size=2_000) as producer:
        admin.create_topic(topic_name, 1)
        for value in values:
            producer.send(topic_name, value)
    monkeypatch.setattr(reader_module, "ROWS_FIRST", 100)
    monkeypatch.setattr(reader_module, "ROWS_MAX", 100)
    # Small fetches, so that most is still to come.
    reader = batch_reader(broker.address, subscribe=topic_name, kafka__max__partition__fetch__bytes=20_000)
    [part] = reader.partitions()
    batches = reader.read(part)
    found = next(batches)["value"].to_pylist()
    port = broker.port
    broker.kill()
    starting = threading.Thread(target=start_broker, args=(port,))
    starting.start()
    for batch in batches:
        found += batch["value"].to_pylist()
    starting.join()
    assert found == values


def test_a_read_without_progress_ends_in_words(
    topic_name: str, start_broker: Callable[..., RunningBroker]
) -> None:
    with Proxy() as proxy:
        start_broker(proxy.target_port, f"advertised.listeners={proxy.advertised}")
        with ottla.Admin(proxy.address) as admin, ottla.Producer(proxy.address) as producer:
            admin.create_topic(topic_name, 1)
            producer.send(topic_name, b"x")
        reader = batch_reader(proxy.address, subscribe=topic_name, kafkaConsumer__pollTimeoutMs=300)
        parts = reader.partitions()
        proxy.hold(FETCH)
        with pytest.raises(
            NoProgress, match=rf"topic {topic_name} partition 0: no records at offset 0 for 0\.[34]"
        ):
            values_of(reader, parts)
        proxy.release(FETCH)
        assert values_of(reader, parts) == [b"x"]


def test_headers(ottla_address: str, topic_name: str, admin: ottla.Admin) -> None:
    admin.create_topic(topic_name, 1)
    headers: list[Any] = [(), (("a", b"1"), ("b", None)), (), (("a", b""),)]
    with ottla.Producer(ottla_address) as producer:
        for each in headers:
            producer.send(topic_name, b"v", headers=each)
    reader = batch_reader(ottla_address, subscribe=topic_name, includeHeaders="true")
    found = [row["headers"] for row in rows_of(reader, reader.partitions())]
    assert found == [[{"key": key, "value": value} for key, value in each] or None for each in headers]


def test_consumers_are_kept(ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send) -> None:
    from ottla.spark import clients

    admin.create_topic(topic_name, 1)
    send(topic_name, b"x")
    reader = batch_reader(ottla_address, subscribe=topic_name, kafka__client__id=topic_name)
    assert values_of(reader, reader.partitions()) == [b"x"]
    [first] = [
        each
        for key, kept in clients._idle.items()
        if topic_name in str(key)
        for each in kept
        if hasattr(each, "poll")
    ]
    # It fetches nothing while nobody reads.
    assert first.assignment() == []
    assert values_of(reader, reader.partitions()) == [b"x"]
    assert [
        each
        for key, kept in clients._idle.items()
        if topic_name in str(key)
        for each in kept
        if hasattr(each, "poll")
    ] == [first]


def test_times_that_have_no_place_in_microseconds_are_the_last_that_have() -> None:
    columns = Columns(
        "t",
        0,
        [piece(encode_batch([Record(0, 2**62, None, b"v"), Record(1, -1, None, b"v")], base_offset=0))],
    )
    schema = arrow_schema(source_schema({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}))
    batch = BatchMaker(schema, "t", 0).batch(columns)
    assert batch["timestamp"].cast("int64").to_pylist() == [(2**63 - 1) // 1000 * 1000, -1000]


def test_gaps_of_compaction(topic_name: str, start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker(0, "log.cleaner.backoff.ms=50")
    configs = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
    with ottla.Admin(broker.address) as admin, ottla.Producer(broker.address, batch_size=1_000) as producer:
        admin.create_topic(topic_name, 1, configs=configs)
        for number in range(600):
            producer.send(topic_name, b"%d" % number * 20, key=b"%d" % (number % 7))
    reader = batch_reader(broker.address, subscribe=topic_name)
    parts = reader.partitions()
    deadline = time.monotonic() + 30
    while len(rows := rows_of(reader, parts)) == 600:
        assert time.monotonic() < deadline, "nothing was compacted"
    offsets = [row["offset"] for row in rows]
    assert offsets == sorted(set(offsets)) and len(offsets) < 600
    newest = {b"%d" % (number % 7): b"%d" % number * 20 for number in range(593, 600)}
    assert {row["key"]: row["value"] for row in rows} == newest
    # Ranges that begin or end in a gap; meanwhile more of them may have come.
    split = batch_reader(broker.address, subscribe=topic_name, minPartitions=9)
    parts = split.partitions()
    found = rows_of(split, parts)
    assert len(parts) == 9 and {row["offset"] for row in found} <= set(offsets)
    assert {row["key"]: row["value"] for row in found} == newest
