"""A network that is slow, silent or broken: clients behave as documented, and nothing hangs."""

import itertools
import threading
import time
from collections.abc import Callable

import pytest

import ottla
from ottla.client.errors import BrokerUnreachable, BufferFull, DeliveryTimedOut, KafkaError, RequestTimedOut
from tests.broker_proxy import FETCH, METADATA, PRODUCE, Proxy
from tests.sdk.reading import PATIENCE_S, contents, eventually, values, within


def test_a_slow_network_delays_everything_and_breaks_nothing(
    proxy: Proxy, make_topic: Callable[..., str]
) -> None:
    """25 to 50 ms each way: what is in flight at the same time hides most of it, and order stays."""
    topic = make_topic(proxy.address, 2)
    proxy.delay_s, proxy.jitter_s = 0.025, 0.025
    with ottla.Producer(proxy.address, batch_size=2_000) as producer:
        futures = [producer.send(topic, b"%d" % n, partition=n % 2) for n in range(1_000)]
        with within(PATIENCE_S, at_least_s=0.05):
            producer.flush(PATIENCE_S)
        assert [future.result(0).offset for future in futures] == [n // 2 for n in range(1_000)]
    for partition, records in contents(proxy.address, topic).items():
        assert [int(record.value) for record in records] == list(range(partition, 1_000, 2))


def test_connections_that_are_cut_again_and_again_lose_and_repeat_nothing(
    proxy: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(proxy.address)
    ended = threading.Event()

    def cut() -> None:
        while not ended.wait(0.05):
            proxy.cut()

    proxy.delay_s = 0.002
    cutter = threading.Thread(target=cut)
    with ottla.Producer(
        proxy.address, batch_size=500, retry_backoff_ms=5, retry_backoff_max_ms=20
    ) as producer:
        cutter.start()
        try:
            futures = [producer.send(topic, b"%d" % n, partition=0) for n in range(3_000)]
            for future in futures:
                future.result(PATIENCE_S)
        finally:
            ended.set()
            cutter.join()
    assert [int(value) for value in values(proxy.address, topic)] == list(range(3_000))


def test_a_consumer_whose_connections_are_cut_reads_everything_once(
    proxy: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(proxy.address)
    with ottla.Producer(proxy.address, batch_size=500) as producer:
        for number in range(3_000):
            producer.send(topic, b"%d" % number, partition=0)
    with ottla.Consumer(
        proxy.address,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=2_000,
        retry_backoff_ms=5,
        retry_backoff_max_ms=20,
    ) as consumer:
        consumer.assign([(topic, 0)])
        read: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        cuts = 0
        while len(read) < 3_000:
            assert time.monotonic() < deadline
            for records in consumer.poll(100, max_records=100).values():
                read += [int(record.value) for record in records]
            if len(read) // 500 > cuts:
                cuts += 1
                proxy.cut()
    assert read == list(range(3_000)) and cuts > 3


def test_records_that_nobody_answers_expire_and_those_behind_them_go_on(
    proxy: Proxy, make_topic: Callable[..., str]
) -> None:
    """The network is silent for longer than `delivery_timeout_ms`: the error says what is known of the records."""
    topic = make_topic(proxy.address)
    with ottla.Producer(
        proxy.address, delivery_timeout_ms=600, request_timeout_ms=200, linger_ms=0, retry_backoff_ms=10
    ) as producer:
        producer.send(topic, b"0", partition=0).result(PATIENCE_S)
        proxy.pause()
        with within(30, at_least_s=0.5):
            futures = [producer.send(topic, b"lost", partition=0) for _ in range(10)]
            for future in futures:
                error = future.exception(PATIENCE_S)
                assert isinstance(error, DeliveryTimedOut)
                assert (error.topic, error.partition) == (topic, 0) and topic in str(error)
        with within(30):
            producer.flush(20)
        proxy.resume()
        assert producer.send(topic, b"after", partition=0).exception(PATIENCE_S) is None
    assert values(proxy.address, topic)[0] == b"0" and values(proxy.address, topic)[-1] == b"after"


def test_a_full_buffer_makes_the_caller_wait_and_goes_on_when_there_is_room(
    proxy: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(proxy.address)
    with ottla.Producer(proxy.address, buffer_memory=10_000, max_block_ms=30_000) as producer:
        producer.send(topic, b"", partition=0).result(PATIENCE_S)
        proxy.hold(PRODUCE)
        for _ in range(8):
            producer.send(topic, b"." * 1_000, partition=0)
        went_on = threading.Event()

        def send() -> None:
            for _ in range(8):
                producer.send(topic, b"." * 1_000, partition=0)
            went_on.set()

        sender = threading.Thread(target=send)
        sender.start()
        assert not went_on.wait(0.3)
        proxy.release(PRODUCE)
        assert went_on.wait(PATIENCE_S)
        sender.join()
    assert len(values(proxy.address, topic)) == 17


def test_a_full_buffer_is_told_after_max_block_ms(proxy: Proxy, make_topic: Callable[..., str]) -> None:
    topic = make_topic(proxy.address)
    with ottla.Producer(proxy.address, buffer_memory=2_000, max_block_ms=200) as producer:
        producer.send(topic, b"", partition=0).result(PATIENCE_S)
        proxy.hold(PRODUCE)
        producer.send(topic, b"." * 1_500, partition=0)
        with within(30, at_least_s=0.19), pytest.raises(BufferFull, match="buffer_memory"):
            producer.send(topic, b"." * 1_500, partition=0)
        proxy.release(PRODUCE)


def test_close_with_a_time_ends_within_it_though_nobody_answers(
    proxy: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(proxy.address)
    producer = ottla.Producer(proxy.address)
    consumer = ottla.Consumer(proxy.address)
    admin = ottla.Admin(proxy.address)
    producer.send(topic, b"", partition=0).result(PATIENCE_S)
    consumer.assign([(topic, 0)])
    consumer.poll(100)
    proxy.pause()
    future = producer.send(topic, b"", partition=0)
    with within(20, at_least_s=0.2):
        producer.close(0.2)
    assert isinstance(future.exception(0), KafkaError)
    with within(20):
        consumer.close()
    with within(20):
        admin.close()


def test_a_silent_broker_does_not_hold_poll_longer_than_its_time(
    proxy: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(proxy.address)
    with ottla.Consumer(proxy.address, auto_offset_reset="earliest", request_timeout_ms=500) as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.poll(100) == {}
        proxy.pause()
        for _ in range(5):
            with within(5, at_least_s=0.29):
                assert consumer.poll(300) == {}
        proxy.resume()
        with ottla.Producer(proxy.address) as producer:
            producer.send(topic, b"after", partition=0).result(PATIENCE_S)
        eventually(lambda: consumer.poll(200), "it goes on by itself")


def test_who_cannot_start_says_so_within_the_time_for_connections(proxy: Proxy) -> None:
    """Nobody listens; somebody listens and is silent; somebody listens and hangs up."""
    settings = {"socket_connection_setup_timeout_ms": 500, "request_timeout_ms": 20_000}
    for break_it in (proxy.pause, lambda: setattr(proxy, "is_refusing", True)):
        proxy.heal()
        break_it()
        for kind in (ottla.Producer, ottla.Consumer, ottla.Admin):
            with within(10), pytest.raises((BrokerUnreachable, RequestTimedOut), match=proxy.address):
                kind(proxy.address, **settings)
    before = threading.active_count()
    with within(10), pytest.raises(BrokerUnreachable, match="connection refused"):
        ottla.Producer("127.0.0.1:1")
    assert threading.active_count() == before


def test_metadata_that_fails_is_asked_for_with_a_back_off(
    proxy: Proxy, make_topic: Callable[..., str]
) -> None:
    """The leader's connection breaks each time: neither requests nor connections come in a rush."""
    topic = make_topic(proxy.address)
    with (
        ottla.Producer(proxy.address, retry_backoff_ms=50, retry_backoff_max_ms=200) as producer,
        ottla.Consumer(proxy.address, retry_backoff_ms=50, retry_backoff_max_ms=200) as consumer,
    ):
        producer.send(topic, b"", partition=0).result(PATIENCE_S)
        consumer.assign([(topic, 0)])
        consumer.poll(100)
        proxy.is_refusing = True
        proxy.cut()
        proxy.forget()
        made = proxy.connections_made
        future = producer.send(topic, b"later", partition=0)
        assert consumer.poll(1_500) == {}
        assert proxy.connections_made == made
        used_s = time.process_time()
        assert consumer.poll(1_000) == {}
        assert time.process_time() - used_s < 0.4
        proxy.is_refusing = False
        future.result(PATIENCE_S)
        eventually(lambda: consumer.poll(200), "the record comes")
    assert proxy.requests[METADATA] < 60 and proxy.requests[FETCH] < 60


def test_a_broker_that_asks_for_a_pause_is_given_it(proxy: Proxy, make_topic: Callable[..., str]) -> None:
    """`throttle_time_ms` in an answer (KIP-219): the client sends nothing to that broker until the time is over."""
    topic = make_topic(proxy.address)
    asked_at: list[float] = []

    def throttle(api_key: int, version: int, answer: bytes) -> bytes:
        if api_key != PRODUCE or version < 9:
            return answer
        asked_at.append(time.monotonic())
        # The last field of the answer, before its (empty) tags.
        assert answer[-5:] == b"\0\0\0\0\0"
        return answer[:-5] + (300).to_bytes(4, "big") + b"\0"

    with ottla.Producer(proxy.address) as producer:
        producer.send(topic, b"", partition=0).result(PATIENCE_S)
        proxy.rewrite = throttle
        with within(PATIENCE_S, at_least_s=0.85):
            for _ in range(4):
                producer.send(topic, b"", partition=0).result(PATIENCE_S)
    waits = [after - before for before, after in itertools.pairwise(asked_at)]
    assert len(waits) == 3 and min(waits) > 0.29
