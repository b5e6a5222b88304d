"""End to end with every part of the SDK: here on ottla; `tests/interop` runs the same on Apache Kafka."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

import ottla
import ottla.aio
from ottla import TopicPartition
from ottla.client.errors import KafkaError, MessageTooLarge, TopicExists, TopicNotFound
from tests.sdk.members import QUICKLY, Member, wait_shared
from tests.sdk.reading import PATIENCE_S, contents, eventually, values

_NUMBERS = itertools.count(time.time_ns() // 1_000_000)
NOW_MS = 1_700_000_000_000


@pytest.fixture
def group() -> str:
    return f"group-{next(_NUMBERS)}"


# --- records there and back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_were_sent(server: str, make_topic: Callable[..., str], codec: Any) -> None:
    """Keys, values, tombstones, empty ones, headers that repeat or are null, timestamps; large and small, in every codec."""
    topic = make_topic(server)
    sent: list[tuple[Any, ...]] = [
        (b"key", b"value", (), NOW_MS),
        (None, None, (), NOW_MS + 1),
        (b"", b"", (), NOW_MS + 2),
        (b"tombstone", None, (("why", b"deleted"),), NOW_MS + 3),
        (None, b"x" * 300_000, (("a", b"1"), ("a", b"2"), ("null", None), ("", b"")), NOW_MS + 4),
        ("ключ".encode(), "значение".encode(), (("имя", "да".encode()),), NOW_MS - 5),
    ]
    with ottla.Producer(server, compression_type=codec, linger_ms=20) as producer:
        futures = [
            producer.send(topic, value, key=key, partition=0, headers=headers, timestamp_ms=stamp)
            for key, value, headers, stamp in sent
        ]
        for number, future in enumerate(futures):
            at = future.result(PATIENCE_S)
            assert tuple(at)[:4] == (topic, 0, number, sent[number][3])
    records = contents(server, topic)[0]
    assert [(r.key, r.value, tuple(r.headers), r.timestamp) for r in records] == sent
    assert [r.offset for r in records] == list(range(len(sent)))
    assert {(r.topic, r.partition, r.timestamp_type) for r in records} == {(topic, 0, "CreateTime")}


def test_the_broker_may_stamp_records_itself(server: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(server, message_timestamp_type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000
    with ottla.Producer(server) as producer:
        stamp = producer.send(topic, b"", timestamp_ms=NOW_MS).result(PATIENCE_S).timestamp_ms
    [record] = contents(server, topic)[0]
    assert record.timestamp == stamp >= before_ms - 60_000 and record.timestamp_type == "LogAppendTime"


def test_objects_are_serialized_and_come_back(server: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(server)
    with ottla.Producer(server, key_serializer="int", value_serializer="json") as producer:
        for number in range(3):
            producer.send(topic, {"number": number, "имя": "Ω"}, key=number, partition=0)
        producer.send(topic, None, key=9, partition=0)
    records = contents(server, topic, key_deserializer="int", value_deserializer="json")[0]
    assert [(r.key, r.value) for r in records] == [
        *((number, {"number": number, "имя": "Ω"}) for number in range(3)),
        (9, None),
    ]


def test_poison_records_are_told_of_skipped_or_replaced(server: str, make_topic: Callable[..., str]) -> None:
    """The records before one come first; the refusal stays until the caller seeks past it."""
    topic = make_topic(server)
    place = TopicPartition(topic, 0)
    with ottla.Producer(server) as producer:
        for value in (b"1", b"{", b"3"):
            producer.send(topic, value, partition=0)
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "value_deserializer": "json"}
    with ottla.Consumer(server, **settings) as consumer:
        consumer.assign([place])
        assert [record.value for record in consumer.poll(30_000)[place]] == [1]
        for _ in range(2):
            with pytest.raises(ottla.PoisonRecord, match="offset 1") as raised:
                consumer.poll(30_000)
            assert raised.value.raw == b"{" and consumer.position(place) == 1
        consumer.seek(place, 2)
        assert [record.value for record in consumer.poll(30_000)[place]] == [3]
    assert values(server, topic, value_deserializer="json", on_poison="skip") == [1, 3]
    replacing = {"on_poison": lambda poison: poison.record._replace(value="broken")}
    assert values(server, topic, value_deserializer="json", **replacing) == [1, "broken", 3]


def test_columns_hold_what_records_do(server: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(server)
    with ottla.Producer(server, compression_type="lz4") as producer:
        for number in range(2_000):
            producer.send(
                topic,
                b"%d" % number if number % 7 else None,
                key=b"k%d" % number,
                partition=0,
                timestamp_ms=NOW_MS + number,
            )
    place = TopicPartition(topic, 0)
    found: list[tuple[int, int, bytes | None, bytes | None]] = []
    with ottla.Consumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < 2_000:
            assert time.monotonic() < deadline
            for columns in consumer.poll_columns(500).values():
                found += zip(
                    (int(each) for each in columns.offsets),
                    (int(each) for each in columns.timestamps),
                    columns.keys,
                    columns.values,
                    strict=True,
                )
        assert consumer.position(place) == 2_000
    assert found == [(n, NOW_MS + n, b"k%d" % n, b"%d" % n if n % 7 else None) for n in range(2_000)]


# --- places ---------------------------------------------------------------------------------------------------


def test_a_consumer_goes_to_any_place(server: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(server)
    place = TopicPartition(topic, 0)
    with ottla.Producer(server) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=NOW_MS + number * 1_000)
    with ottla.Consumer(server, auto_offset_reset="earliest", max_poll_records=1) as consumer:
        consumer.assign([place])

        def next_value() -> int:
            [[record]] = consumer.poll(PATIENCE_S * 1_000).values()
            return int(record.value)

        assert next_value() == 0
        consumer.seek(place, 42)
        assert next_value() == 42 and consumer.position(place) == 43
        consumer.seek_to_time(NOW_MS + 66_500)
        assert next_value() == 67
        consumer.seek_to_beginning()
        assert next_value() == 0
        consumer.seek_to_end()
        assert consumer.poll(200) == {} and consumer.position(place) == 100
        assert consumer.beginning_offsets([place]) == {place: 0}
        assert consumer.end_offsets([place]) == {place: 100}
        assert consumer.offsets_for_times({place: NOW_MS + 1}) == {place: 1}
        assert consumer.lag([place]) == {place: 0}
        consumer.seek(place, 90)
        next_value()
        assert consumer.lag() == {place: 9}


# --- groups ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_shares_commits_and_goes_on(
    server: str, make_topic: Callable[..., str], group: str, protocol: str
) -> None:
    topic = make_topic(server, 4)
    with ottla.Producer(server) as producer:
        for number in range(400):
            producer.send(topic, b"%d" % number, partition=number % 4)
    everything = [(topic, number) for number in range(4)]
    settings = {"group": group, "group_protocol": protocol}
    with Member(server, topic, **settings) as one:
        with Member(server, topic, **settings) as other:
            wait_shared([one, other], *everything, each_has=2)
        wait_shared([one], *everything)
        eventually(lambda: len({*one.seen, *other.seen}) == 400, "all is read")
    with ottla.Consumer(server, group_id=group, group_protocol=protocol) as consumer:
        committed = consumer.committed([TopicPartition(*part) for part in everything])
        assert {getattr(each, "offset", each) for each in committed.values()} == {100}
    with Member(server, topic, **settings) as third:
        wait_shared([third], *everything)
        with ottla.Producer(server) as producer:
            producer.send(topic, b"last", partition=3)
        eventually(lambda: third.values == [b"last"], "it goes on where they stopped")
    with ottla.Admin(server) as admin:
        eventually(lambda: not admin.describe_group(group).members, "nobody is left")
        assert admin.group_offsets(group)[TopicPartition(topic, 3)] == 101


def test_commits_by_hand_asynchronous_ones_and_their_callbacks(
    server: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(server)
    place = TopicPartition(topic, 0)
    with ottla.Producer(server) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0)
    heard: list[Any] = []
    settings: dict[str, Any] = {**QUICKLY, "group_id": group, "enable_auto_commit": False}
    with ottla.Consumer(server, max_poll_records=4, **settings) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(100), "four come")
        consumer.commit()
        eventually(lambda: consumer.poll(100), "four more come")
        consumer.commit_async(on_commit=lambda *told: heard.append(told))
        eventually(lambda: (consumer.poll(20), heard)[1], "the callback is called")
    with ottla.Consumer(server, **settings) as consumer:
        consumer.subscribe([topic])
        first: list[Any] = []

        def has_come() -> bool:
            for records in consumer.poll(100).values():
                first.extend(records)
            return bool(first)

        eventually(has_come, "the next one goes on")
        assert first[0].offset == 8
        consumer.commit({place: 3})
        [committed] = consumer.committed([place]).values()
        assert getattr(committed, "offset", committed) == 3


# --- transactions ---------------------------------------------------------------------------------------------


def test_transactions_and_the_offsets_in_them_are_all_or_nothing(
    server: str, make_topic: Callable[..., str], group: str
) -> None:
    source, target = make_topic(server), make_topic(server)
    place = TopicPartition(source, 0)
    with ottla.Producer(server) as producer:
        for number in range(6):
            producer.send(source, b"%d" % number, partition=0)
    settings: dict[str, Any] = {**QUICKLY, "group_id": group, "enable_auto_commit": False}
    with (
        ottla.Producer(server, transactional_id=group) as producer,
        ottla.Consumer(server, max_poll_records=2, isolation_level="read_committed", **settings) as consumer,
        ottla.Admin(server) as admin,
    ):
        consumer.subscribe([source])
        for what in ("commit", "abort", "commit"):
            batch: dict[TopicPartition, list[Any]] = {}
            eventually(lambda batch=batch: batch.update(consumer.poll(100)) or batch, "two come")
            producer.begin()
            for record in batch[place]:
                producer.send(target, record.value, partition=0)
            producer.send_offsets({place: batch[place][-1].offset + 1}, consumer.group_metadata())
            if what == "commit":
                producer.commit()
            else:
                producer.abort()
                consumer.seek(place, batch[place][0].offset)
        assert admin.group_offsets(group)[place] == 4
    assert values(server, target, isolation_level="read_committed") == [b"0", b"1", b"2", b"3"]
    assert values(server, target) == [b"0", b"1", b"2", b"3", b"2", b"3"]


def test_the_older_of_two_producers_with_one_id_is_fenced(
    server: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(server)
    older = ottla.Producer(server, transactional_id=group)
    older.begin()
    older.send(topic, b"older", partition=0).result(PATIENCE_S)
    with ottla.Producer(server, transactional_id=group) as newer, newer.transaction():
        newer.send(topic, b"newer", partition=0)
    with pytest.raises(KafkaError):
        older.commit()
    older.close(1)
    assert values(server, topic, isolation_level="read_committed") == [b"newer"]


# --- refusals, administration, asyncio ------------------------------------------------------------------------


def test_what_the_server_refuses_is_named(server: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(server, max_message_bytes="1000")
    with ottla.Producer(server) as producer:
        with pytest.raises(MessageTooLarge, match=topic):
            producer.send(topic, b"." * 5_000, partition=0).result(PATIENCE_S)
        # What is behind it goes on.
        producer.send(topic, b"small", partition=0).result(PATIENCE_S)
    with ottla.Admin(server) as admin:
        with pytest.raises(TopicExists, match=topic):
            admin.create_topic(topic, 1)
        with pytest.raises(TopicNotFound, match="nowhere"):
            admin.delete_topics(["nowhere"])
    with ottla.Consumer(server) as consumer, pytest.raises(TopicNotFound, match="not 7"):
        consumer.assign([(topic, 7)])
    compacted = make_topic(server, cleanup_policy="compact")
    with ottla.Producer(server) as producer, pytest.raises(KafkaError, match=compacted):
        producer.send(compacted, b"without a key", partition=0).result(PATIENCE_S)


def test_topics_are_made_altered_emptied_and_deleted(server: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(server, 2, retention_ms="3600000")
    place = TopicPartition(topic, 0)
    with ottla.Admin(server) as admin, ottla.Producer(server) as producer:
        assert len(admin.describe_topics([topic])[topic].partitions) == 2
        admin.create_partitions(topic, 3)
        eventually(lambda: len(admin.describe_topics([topic])[topic].partitions) == 3, "three")
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush(PATIENCE_S)
        assert admin.delete_records({place: 3}) == {place: 3}
        assert values(server, topic) == [b"3", b"4"]
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.list_topics(), "gone")


def test_the_same_with_asyncio(server: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic(server, 2)

    async def run() -> list[bytes]:
        async with (
            ottla.aio.Producer(server) as producer,
            ottla.aio.Consumer(server, **{**QUICKLY, "group_id": group}) as consumer,
            ottla.aio.Admin(server) as admin,
        ):
            assert topic in await admin.list_topics()
            sent = [await producer.send(topic, b"%d" % number, partition=number % 2) for number in range(20)]
            assert [(await each).offset for each in sent] == [number // 2 for number in range(20)]
            await consumer.subscribe([topic])
            found: list[bytes] = []
            while len(found) < 20:
                for records in (await consumer.poll(1_000)).values():
                    found += [record.value for record in records]
            await consumer.commit()
            return found

    async def bounded() -> list[bytes]:
        return await asyncio.wait_for(run(), PATIENCE_S)

    assert sorted(map(int, asyncio.run(bounded()))) == list(range(20))
