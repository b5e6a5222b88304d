"""Waiting clients use no CPU, and closed clients leave no threads, descriptors, memory or tasks."""

import gc
import threading
import time
import tracemalloc
from collections.abc import Callable

import ottla
from tests.sdk.reading import PATIENCE_S, descriptors, eventually


def use_all(address: str, topic: str) -> None:
    with (
        ottla.Producer(address) as producer,
        ottla.Consumer(address, auto_offset_reset="earliest") as consumer,
        ottla.Admin(address) as admin,
    ):
        producer.send(topic, b"value", partition=0).result(PATIENCE_S)
        consumer.assign([(topic, 0)])
        eventually(lambda: consumer.poll(100), "a record comes")
        admin.list_topics()


def test_closed_clients_leave_no_thread_and_no_descriptor(
    server: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(server)
    use_all(server, topic)
    threads, open_before = threading.active_count(), descriptors()
    for _ in range(10):
        use_all(server, topic)
    gc.collect()
    assert threading.active_count() == threads
    assert descriptors() <= open_before


def test_an_idle_consumer_and_an_idle_producer_use_no_cpu(
    server: str, make_topic: Callable[..., str]
) -> None:
    """`make bench` has the exact figure; here a bound that a busy machine keeps and a busy loop does not."""
    topic = make_topic(server)
    with ottla.Producer(server) as producer, ottla.Consumer(server) as consumer:
        producer.send(topic, b"", partition=0).result(PATIENCE_S)
        consumer.assign([(topic, 0)])
        consumer.poll(500)
        began, used_s = time.monotonic(), time.process_time()
        assert consumer.poll(3_000) == {}
        assert (time.process_time() - used_s) / (time.monotonic() - began) < 0.05


def test_records_that_are_read_and_acknowledged_are_let_go(
    server: str, make_topic: Callable[..., str]
) -> None:
    """Six rounds of 2,000 records; the memory of the last is that of the third."""
    topic = make_topic(server)
    with (
        ottla.Producer(server) as producer,
        ottla.Consumer(server, auto_offset_reset="earliest") as consumer,
    ):
        producer.partitions_for(topic)
        consumer.assign([(topic, 0)])

        def round_trip() -> int:
            for _ in range(2_000):
                producer.send(topic, b"." * 100, partition=0)
            producer.flush(PATIENCE_S)
            left = 2_000
            deadline = time.monotonic() + PATIENCE_S
            while left:
                assert time.monotonic() < deadline
                left -= sum(len(records) for records in consumer.poll(200).values())
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start(1)
        try:
            sizes = [round_trip() for _ in range(6)]
        finally:
            tracemalloc.stop()
    # 2,000 records are a third of a megabyte and more.
    assert sizes[-1] - sizes[2] < 150_000, sizes
