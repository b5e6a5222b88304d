"""The producer with ottla's broker, which is killed and restarted here. `behaviours.py` has the tests for any
broker.
"""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import ottla
from ottla.client.errors import BufferFull, ClientClosed, DeliveryTimedOut, KafkaError, TopicNotFound
from ottla.client.producer.batches import RecordMetadata
from ottla.client.producer.core import AsyncProducer
from tests.client.producer.behaviours import *  # noqa: F403
from tests.client.producer.behaviours import read_all


def test_a_topic_that_is_not_there_is_made_as_the_broker_allows(
    start_broker: Callable[..., Any], ottla_address: str, topic_name: str
) -> None:
    with ottla.Producer(ottla_address) as producer:
        assert producer.send(topic_name, b"v").result(30).offset == 0
    strict = start_broker(0, "auto.create.topics.enable=false")
    with (
        ottla.Producer(strict.address, max_block_ms=2000) as producer,
        pytest.raises(TopicNotFound, match="ottla topic create"),
    ):
        producer.send("nowhere", b"v")


def test_a_broker_killed_and_started_again_has_every_record_once_and_in_order(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker()
    port, address = broker.port, broker.address
    with ottla.Admin(address) as admin:
        admin.create_topic("t", 1)
    with ottla.Producer(address, retry_backoff_ms=20) as producer:
        futures = []
        for number in range(3000):
            futures.append(producer.send("t", b"%d" % number))
            if number in (1000, 2000):
                broker.kill()
                broker = start_broker(port)
        assert [future.result(60).offset for future in futures] == list(range(3000))
    assert [int(message.value()) for message in read_all(address, "t")[0]] == list(range(3000))


def test_a_broker_that_stays_away_ends_in_a_delivery_time_out(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    with ottla.Producer(broker.address, delivery_timeout_ms=400, retry_backoff_ms=20) as producer:
        producer.send("t", b"1").result(30)
        broker.kill()
        with pytest.raises(
            DeliveryTimedOut, match=r"t-0 were not acknowledged within 0\.4 s.*connection refused"
        ):
            producer.send("t", b"2").result(30)


def test_a_full_buffer_blocks_and_then_says_so(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    address = broker.address
    producer = ottla.Producer(address, buffer_memory=50_000, max_block_ms=200, retry_backoff_ms=20)
    producer.send("t", b"1").result(30)
    broker.kill()

    def fill() -> None:
        for _ in range(100):
            producer.send("t", b"x" * 1000)

    with pytest.raises(BufferFull, match="buffer_memory"):
        fill()
    producer.close(0)


def test_records_left_at_close_fail(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    producer = ottla.Producer(broker.address)
    producer.send("t", b"1").result(30)
    broker.kill()
    left = producer.send("t", b"2")
    producer.close(0.05)
    with pytest.raises(ClientClosed, match="before t-0"):
        left.result(0)


def test_an_asyncio_sender_that_waits_for_room_costs_nothing_and_hears_the_end(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker()

    async def body() -> tuple[float, list[BaseException | None]]:
        async with AsyncProducer(
            broker.address,
            buffer_memory=3000,
            max_block_ms=1000,
            retry_backoff_ms=500,
            retry_backoff_max_ms=500,
        ) as producer:
            await (await producer.send("t", b"1"))
            broker.kill()
            await producer.send("t", b"x" * 2000)
            used_s = time.process_time()
            failed = await asyncio.gather(
                *(producer.send("t", b"x" * 2000) for _ in range(50)), return_exceptions=True
            )
            used_s = time.process_time() - used_s
            await producer.close(0)
            return used_s, [each if isinstance(each, BaseException) else None for each in failed]

    used_s, errors = asyncio.run(body())
    assert {type(error) for error in errors} == {BufferFull}
    assert used_s < 0.5, "it waits for a second"


def test_a_closed_producer_lets_no_sender_wait_for_room(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    producer = ottla.Producer(broker.address, buffer_memory=3000)
    producer.send("t", b"1").result(30)
    broker.kill()
    producer.send("t", b"x" * 2000)
    heard: list[BaseException] = []

    def send() -> None:
        try:
            producer.send("t", b"x" * 2000)
        except KafkaError as error:
            heard.append(error)

    waiting = threading.Thread(target=send)
    waiting.start()
    producer.close(0)
    waiting.join(30)
    assert [type(error) for error in heard] == [ClientClosed]


def test_a_topic_deleted_under_way_ends_in_a_time_out_that_says_so(start_broker: Callable[..., Any]) -> None:
    broker = start_broker(0, "auto.create.topics.enable=false")
    with (
        ottla.Admin(broker.address) as admin,
        ottla.Producer(
            broker.address, delivery_timeout_ms=1500, retry_backoff_ms=20, max_block_ms=200
        ) as producer,
    ):
        admin.create_topic("t", 1)
        producer.send("t", b"1").result(30)
        admin.delete_topics(["t"])
        with pytest.raises(DeliveryTimedOut, match=r"(?i)unknown.topic"):
            producer.send("t", b"2").result(30)
        with pytest.raises(TopicNotFound, match="does not exist"):
            producer.send("t", b"3")
        admin.create_topic("t", 1)
        assert producer.send("t", b"4").result(30).offset == 0


def test_a_topic_that_was_deleted_does_not_come_back_because_it_was_used_once(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker()
    with (
        ottla.Admin(broker.address) as admin,
        ottla.Producer(broker.address, metadata_max_age_ms=20) as producer,
    ):
        producer.send("gone", b"1").result(60)
        admin.delete_topics(["gone"])
        core = producer._core
        for _ in range(3):
            # Each look at the topics that are watched.
            producer._thread.run(core._cluster.changed(), 60)
        assert "gone" not in admin.list_topics()
        # Whoever sends to it wants it.
        assert producer.send("gone", b"2").result(60).offset == 0


def test_a_new_topic_waits_for_a_broker_that_is_away(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    port = broker.port
    with ottla.Producer(broker.address, retry_backoff_ms=20) as producer:
        broker.kill()
        heard: list[int] = []
        waiting = threading.Thread(target=lambda: heard.append(producer.send("new", b"v").result(30).offset))
        waiting.start()
        start_broker(port)
        waiting.join(60)
    assert heard == [0]


def test_without_retries_the_first_failure_is_the_last(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    with ottla.Producer(broker.address, retries=0, acks=1, request_timeout_ms=3000) as producer:
        producer.send("t", b"1").result(30)
        broker.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(
                KafkaError, match=r"did not answer Produce within 3 s|did not answer produce within 3 s"
            ):
                producer.send("t", b"2").result(30)
        finally:
            broker.process.send_signal(signal.SIGCONT)


def test_a_callback_that_waits_for_its_own_producer_is_told_so(ottla_address: str, topic: str) -> None:
    said: list[KafkaError] = []
    with ottla.Producer(ottla_address, buffer_memory=1000, max_block_ms=600_000) as producer:

        def wait(_metadata: RecordMetadata, _error: KafkaError | None) -> None:
            for call in (
                producer.flush,
                lambda: [producer.send(topic, b"x" * 500, partition=1) for _ in range(3)],
            ):
                try:
                    call()
                except KafkaError as error:
                    said.append(error)

        producer.send(topic, b"v", partition=0, on_delivery=wait).result(30)
    assert "own thread" in str(said[0])
    assert isinstance(said[1], BufferFull)


def test_without_acknowledgements_a_slow_broker_fills_the_buffer_and_not_the_memory(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker()
    sent = 1
    with ottla.Producer(
        broker.address, acks=0, buffer_memory=2_000_000, max_block_ms=300, max_request_size=100_000
    ) as producer:
        producer.send("t", b"1").result(30)
        broker.process.send_signal(signal.SIGSTOP)

        def fill() -> None:
            nonlocal sent
            for _ in range(2000):
                producer.send("t", b"x" * 50_000)
                sent += 1

        try:
            with pytest.raises(BufferFull):
                fill()
        finally:
            broker.process.send_signal(signal.SIGCONT)
    # Closing waits until all is out; the broker takes a moment for it.
    deadline_s = time.monotonic() + 30
    while (arrived := len(read_all(broker.address, "t")[0])) < sent and time.monotonic() < deadline_s:
        pass
    assert arrived == sent


def test_a_program_that_forgets_to_close_ends(ottla_address: str, topic: str) -> None:
    program = (
        "import ottla, sys\n"
        "producer = ottla.Producer(sys.argv[1], linger_ms=60000)\n"
        "producer.send(sys.argv[2], b'v', partition=0)\n"
        "print('end')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, ottla_address, topic],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_a_future_that_is_kept_keeps_no_record(ottla_address: str, topic_name: str) -> None:
    key, value = b"k" * 999, b"v" * 1000
    before = sys.getrefcount(key), sys.getrefcount(value)
    with ottla.Producer(ottla_address) as producer:
        sent = producer.send(topic_name, value, key)
        assert sent.result(30).timestamp_ms > 0
        assert (sys.getrefcount(key), sys.getrefcount(value)) == before
