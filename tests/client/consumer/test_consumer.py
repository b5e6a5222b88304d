import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

import ottla
from ottla.client.consumer.fetched import ConsumerRecord
from ottla.client.errors import ClientClosed, OffsetOutOfRange, TopicNotFound
from ottla.client.metadata import TopicPartition

START_MS = 1_700_000_000_000


@pytest.fixture
def filled(ottla_address: str, topic_name: str) -> str:
    """A topic of two partitions with 100 records each, one a second, written by another client."""
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 2)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": ottla_address, "linger.ms": 2, "batch.num.messages": 7}
    )
    for number in range(100):
        for partition in (0, 1):
            producer.produce(
                topic_name,
                b"%d" % number,
                b"k%d" % number,
                partition,
                timestamp=START_MS + number * 1000,
                headers=[("n", b"%d" % number), ("null", None)],
            )
    assert producer.flush(30) == 0
    return topic_name


def take(consumer: ottla.Consumer, count: int) -> list[ConsumerRecord]:
    """Exactly so many records, however they come."""
    found: list[ConsumerRecord] = []
    while len(found) < count:
        polled = consumer.poll(30_000, count - len(found))
        assert polled, f"only {len(found)} of {count} came"
        for records in polled.values():
            found += records
    return found


def test_everything_from_the_beginning_in_order(ottla_address: str, filled: str) -> None:
    with ottla.Consumer(ottla_address, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_for(filled))
        records = take(consumer, 200)
        assert consumer.poll(0) == {}
    for partition in (0, 1):
        mine = [record for record in records if record.partition == partition]
        assert [record.offset for record in mine] == list(range(100))
        assert [record.value for record in mine] == [b"%d" % n for n in range(100)]
        assert mine[3] == ConsumerRecord(
            filled, partition, 3, START_MS + 3000, b"k3", b"3", (("n", b"3"), ("null", None)), "CreateTime"
        )


def test_from_an_offset_in_the_middle_of_a_batch(ottla_address: str, filled: str) -> None:
    with ottla.Consumer(ottla_address) as consumer:
        consumer.assign([(filled, 0)])
        for offset in (5, 50, 3, 99):
            consumer.seek((filled, 0), offset)
            assert take(consumer, 1)[0].offset == offset
            assert consumer.position((filled, 0)) == offset + 1


def test_from_a_time_and_from_both_ends(ottla_address: str, filled: str) -> None:
    tps = [TopicPartition(filled, 0), TopicPartition(filled, 1)]
    with ottla.Consumer(ottla_address) as consumer:
        consumer.assign(tps)
        consumer.seek_to_time(START_MS + 41_500)
        assert {record.offset for record in take(consumer, 2)} <= {42, 43}
        consumer.seek_to_time(START_MS + 10_000_000)
        assert consumer.position(tps[0]) == 100
        consumer.seek_to_beginning()
        assert consumer.position(tps[1]) == 0
        consumer.seek_to_end([tps[0]])
        assert (consumer.position(tps[0]), consumer.position(tps[1])) == (100, 0)
        assert consumer.beginning_offsets(tps) == dict.fromkeys(tps, 0)
        assert consumer.end_offsets(tps) == dict.fromkeys(tps, 100)
        assert consumer.offsets_for_times({tps[0]: START_MS + 7000, tps[1]: START_MS + 10_000_000}) == {
            tps[0]: 7,
            tps[1]: None,
        }


def test_without_a_seek_the_reset_decides(ottla_address: str, filled: str) -> None:
    with ottla.Consumer(ottla_address, auto_offset_reset="latest") as consumer:
        consumer.assign([(filled, 0)])
        assert consumer.position((filled, 0)) == 100
    with ottla.Consumer(ottla_address, auto_offset_reset="none") as consumer:
        consumer.assign([(filled, 0)])
        with pytest.raises(OffsetOutOfRange, match="auto_offset_reset"):
            consumer.poll(30_000)
        consumer.seek((filled, 0), 98)
        assert [record.offset for record in take(consumer, 2)] == [98, 99]


def test_an_offset_out_of_range_is_reset_or_told(ottla_address: str, filled: str) -> None:
    with ottla.Consumer(ottla_address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(filled, 0)])
        consumer.seek((filled, 0), 5000)
        assert take(consumer, 1)[0].offset == 0
    with ottla.Consumer(ottla_address, auto_offset_reset="none") as consumer:
        consumer.assign([(filled, 0)])
        consumer.seek((filled, 0), 5000)
        with pytest.raises(OffsetOutOfRange, match="offset 5000"):
            consumer.poll(30_000)


def test_poll_holds_for_its_time_and_wakes_for_a_record(ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1)
    with (
        ottla.Consumer(ottla_address, fetch_max_wait_ms=20_000) as consumer,
        ottla.Producer(ottla_address) as producer,
    ):
        consumer.assign([(topic_name, 0)])
        consumer.seek_to_beginning()
        before = time.monotonic()
        assert consumer.poll(300) == {}
        assert 0.29 <= time.monotonic() - before < 10
        producer.send(topic_name, b"now")
        before = time.monotonic()
        assert take(consumer, 1)[0].value == b"now"
        # The broker held the fetch and answered it: nobody waited for the 20 s to pass.
        assert time.monotonic() - before < 10


def test_an_idle_consumer_costs_no_cpu(ottla_address: str, filled: str) -> None:
    with ottla.Consumer(ottla_address) as consumer:
        consumer.assign(consumer.partitions_for(filled))
        consumer.seek_to_end()
        consumer.poll(100)
        before = time.process_time()
        assert consumer.poll(2000) == {}
        assert time.process_time() - before < 0.1


def test_max_records_bounds_a_poll_and_loses_nothing(ottla_address: str, filled: str) -> None:
    with ottla.Consumer(ottla_address, auto_offset_reset="earliest", max_poll_records=30) as consumer:
        consumer.assign([(filled, 0)])
        seen: list[int] = []
        while len(seen) < 100:
            polled = consumer.poll(30_000)
            assert 0 < sum(map(len, polled.values())) <= 30
            seen += [record.offset for records in polled.values() for record in records]
        assert seen == list(range(100))


def test_a_paused_partition_waits_and_goes_on_where_it_was(ottla_address: str, filled: str) -> None:
    paused = TopicPartition(filled, 1)
    with ottla.Consumer(ottla_address, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_for(filled))
        consumer.pause(paused)
        assert {record.partition for record in take(consumer, 100)} == {0}
        assert consumer.poll(200) == {}
        consumer.resume(paused)
        assert [record.offset for record in take(consumer, 100)] == list(range(100))


def test_small_fetches_still_bring_everything(ottla_address: str, filled: str) -> None:
    with ottla.Consumer(
        ottla_address, auto_offset_reset="earliest", max_partition_fetch_bytes=200, fetch_max_bytes=300
    ) as consumer:
        consumer.assign(consumer.partitions_for(filled))
        records = take(consumer, 200)
    assert sorted((record.partition, record.offset) for record in records) == [
        (partition, offset) for partition in (0, 1) for offset in range(100)
    ]


def test_a_record_of_a_megabyte(ottla_address: str, topic_name: str) -> None:
    value = bytes(range(256)) * 3900
    with ottla.Producer(ottla_address) as producer:
        producer.send(topic_name, value).result(30)
    with ottla.Consumer(
        ottla_address, auto_offset_reset="earliest", max_partition_fetch_bytes=1000
    ) as consumer:
        consumer.assign([(topic_name, 0)])
        assert take(consumer, 1)[0].value == value


def test_iteration_gives_record_after_record(ottla_address: str, filled: str) -> None:
    with ottla.Consumer(ottla_address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(filled, 1)])
        records = iter(consumer)
        assert [next(records).offset for _ in range(10)] == list(range(10))


def test_a_broker_that_restarts_is_found_again(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    port, address = broker.port, broker.address
    with ottla.Producer(address, retry_backoff_ms=20) as producer:
        producer.send("t", b"0").result(30)
        with ottla.Consumer(address, auto_offset_reset="earliest", retry_backoff_ms=20) as consumer:
            consumer.assign([("t", 0)])
            assert take(consumer, 1)[0].value == b"0"
            broker.stop()
            assert consumer.poll(100) == {}
            start_broker(port)
            producer.send("t", b"1").result(30)
            assert take(consumer, 1)[0].value == b"1"


def test_what_is_not_there_is_named(ottla_address: str, filled: str) -> None:
    with ottla.Consumer(ottla_address) as consumer:
        with pytest.raises(TopicNotFound, match="no-such-topic"):
            consumer.assign([("no-such-topic", 0)])
        with pytest.raises(TopicNotFound, match="0 to 1, not 7"):
            consumer.assign([(filled, 7)])
        with pytest.raises(TopicNotFound):
            consumer.partitions_for("no-such-topic")


def test_after_close_a_poll_is_refused(ottla_address: str, filled: str) -> None:
    consumer = ottla.Consumer(ottla_address)
    consumer.assign([(filled, 0)])
    consumer.close()
    consumer.close()
    with pytest.raises(ClientClosed):
        consumer.poll(0)
