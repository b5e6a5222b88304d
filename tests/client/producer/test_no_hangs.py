"""A producer never hangs: callbacks, hanging brokers, cancellation and the end of the program."""

import asyncio
import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ottla
from ottla.client.errors import ClientClosed, DeliveryTimedOut, KafkaError, RequestTimedOut, TopicNotFound
from ottla.client.loop_thread import LoopThread
from ottla.client.producer import transactions
from ottla.client.producer.core import AsyncProducer
from ottla.client.producer.requests import ProduceRequests
from ottla.server.embedded import Broker
from tests.broker_proxy import METADATA, PRODUCE, Proxy
from tests.client.producer.behaviours import read_all

ADD_PARTITIONS = 24
PATIENCE_S = 30
#: Far longer than what is waited for here.
LONG_MS = 60_000


@pytest.fixture(scope="module")
def network() -> Iterator[Proxy]:
    with (
        Proxy() as proxy,
        Broker(port=proxy.target_port, config={"advertised.listeners": proxy.advertised}),
    ):
        yield proxy


@pytest.fixture
def proxy(network: Proxy) -> Iterator[Proxy]:
    network.heal()
    yield network
    network.heal()


def in_callback(producer: ottla.Producer, topic: str, work: Callable[[], object]) -> object:
    """What comes of doing this when a record is acknowledged, on the producer's own thread."""
    outcome: list[object] = []
    heard = threading.Event()

    def on_delivery(_metadata: object, _error: object) -> None:
        try:
            outcome.append(work())
        except KafkaError as error:
            outcome.append(error)
        heard.set()

    producer.send(topic, b"1", on_delivery=on_delivery)
    assert heard.wait(PATIENCE_S)
    return outcome[0]


def test_a_batch_on_its_way_expires_too(proxy: Proxy, topic_name: str) -> None:
    with ottla.Producer(proxy.address, delivery_timeout_ms=200, request_timeout_ms=LONG_MS) as producer:
        producer.send(topic_name, b"1").result(PATIENCE_S)
        proxy.hold(PRODUCE)
        with pytest.raises(DeliveryTimedOut, match="The broker may have written them"):
            producer.send(topic_name, b"2").result(PATIENCE_S)
        proxy.release(PRODUCE)
        # It comes late, under the epoch before; what follows is taken all the same.
        assert producer.send(topic_name, b"3").result(PATIENCE_S).offset == 2


def test_max_block_ms_holds_though_the_broker_stands_still(proxy: Proxy, topic_name: str) -> None:
    with ottla.Producer(proxy.address, max_block_ms=200, request_timeout_ms=LONG_MS) as producer:
        proxy.hold(METADATA)
        with pytest.raises(RequestTimedOut, match=f"metadata of topic '{topic_name}'"):
            producer.send(topic_name, b"1")
        proxy.release(METADATA)
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                producer.send(topic_name, b"1").result(PATIENCE_S)
                break
            except (RequestTimedOut, TopicNotFound):
                # Apache Kafka takes its time to make a topic.
                assert time.monotonic() < deadline_s


def test_a_callback_cannot_wait_for_what_its_own_thread_does(proxy: Proxy, topic_name: str) -> None:
    with ottla.Producer(proxy.address) as producer:
        waited = in_callback(producer, topic_name, lambda: producer.send(topic_name, b"2").result())
        assert "cannot wait on the thread that sends the record" in str(waited)


def test_a_callback_cannot_close_and_others_still_can(proxy: Proxy, topic_name: str) -> None:
    producer = ottla.Producer(proxy.address)
    closed = in_callback(producer, topic_name, producer.close)
    assert "callback" in str(closed)
    left = producer.send(topic_name, b"2")
    producer.close()
    assert left.result(0).offset == 1
    with pytest.raises(ClientClosed):
        producer.flush()


def test_a_callback_that_exits_ends_nothing_but_itself(proxy: Proxy, topic_name: str) -> None:
    with ottla.Producer(proxy.address) as producer:
        producer.send(topic_name, b"1", on_delivery=lambda _metadata, _error: sys.exit(3)).result(PATIENCE_S)
        assert producer.send(topic_name, b"2").result(PATIENCE_S).offset == 1


def test_a_loop_thread_outlives_an_exit_on_it() -> None:
    thread = LoopThread("test")
    thread.loop.call_soon_threadsafe(sys.exit, 3)
    assert thread.run(asyncio.sleep(0, "alive"), PATIENCE_S) == "alive"
    thread.stop()


def test_whoever_waits_when_the_client_is_closed_hears_so(proxy: Proxy, topic_name: str) -> None:
    producer = ottla.Producer(proxy.address)
    heard: list[BaseException] = []
    before = proxy.requests[METADATA]
    proxy.hold(METADATA)

    def send() -> None:
        try:
            producer.send(topic_name, b"1")
        except BaseException as error:
            heard.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    while proxy.requests[METADATA] == before:
        time.sleep(0.01)
    producer.close()
    sending.join(PATIENCE_S)
    assert [type(error) for error in heard] == [ClientClosed]
    with pytest.raises(ClientClosed):
        producer.flush()


def test_a_signal_in_the_middle_of_waking_the_sender_does_not_silence_it(
    proxy: Proxy, topic_name: str
) -> None:
    with ottla.Producer(proxy.address) as producer:
        producer.send(topic_name, b"1").result(PATIENCE_S)
        sender: Any = producer._core._sender
        loop = sender._loop

        class Interrupted:
            def call_soon_threadsafe(self, *_: object) -> None:
                sender._loop = loop
                raise KeyboardInterrupt

        sender._loop = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            producer.send(topic_name, b"2")
        assert producer.send(topic_name, b"3", partition=0).result(PATIENCE_S).offset == 2


def test_a_producer_that_was_not_started_says_so(proxy: Proxy, topic_name: str) -> None:
    async def body() -> None:
        await AsyncProducer(proxy.address).send(topic_name, b"1")

    with pytest.raises(KafkaError, match="not started"):
        asyncio.run(body())


def test_closing_that_is_cancelled_leaves_nothing_behind(proxy: Proxy, topic_name: str) -> None:
    async def body() -> None:
        producer = AsyncProducer(proxy.address)
        await producer.start()
        await (await producer.send(topic_name, b"1"))
        proxy.hold(PRODUCE)
        left = await producer.send(topic_name, b"2")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.close()
        with pytest.raises(ClientClosed):
            left.result(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(body())


def test_interceptors_are_closed_once(proxy: Proxy) -> None:
    class Counting:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    counting = Counting()

    async def body() -> None:
        async with AsyncProducer(proxy.address, interceptors=[counting]) as producer:
            await producer.close()

    asyncio.run(body())
    assert counting.closed == 1


def test_a_topic_that_cannot_be_named_does_not_spoil_the_metadata_of_others(
    proxy: Proxy, topic_name: str
) -> None:
    async def body() -> None:
        async with AsyncProducer(proxy.address) as producer:
            await (await producer.send(topic_name, b"1"))
            with pytest.raises(UnicodeEncodeError):
                await producer.send("\udc80", b"1")
            changed = asyncio.create_task(producer._cluster.changed())
            await asyncio.sleep(0)
            producer._cluster.refresh_soon()
            await asyncio.wait_for(changed, PATIENCE_S)

    asyncio.run(body())


def test_an_answer_is_understood_though_the_topic_was_forgotten_meanwhile(
    proxy: Proxy, topic_name: str
) -> None:
    """Without idempotence a batch that is sent again is there twice."""

    async def body() -> int:
        async with AsyncProducer(proxy.address, acks=1) as producer:
            await (await producer.send(topic_name, b"1"))
            proxy.hold(PRODUCE)
            sent = await producer.send(topic_name, b"2")
            before = proxy.requests[PRODUCE]
            while proxy.requests[PRODUCE] == before:  # noqa: ASYNC110 (a proxy in another thread)
                await asyncio.sleep(0.01)
            cluster = producer._cluster
            cluster.metadata = dataclasses.replace(cluster.metadata, topics={}, names={})
            proxy.release(PRODUCE)
            return (await sent).offset

    assert asyncio.run(body()) == 1
    assert len(read_all(proxy.address, topic_name)[0]) == 2


def test_a_commit_that_is_cancelled_before_it_is_told_can_be_aborted(proxy: Proxy, topic_name: str) -> None:
    async def body() -> None:
        async with AsyncProducer(proxy.address, transactional_id=topic_name) as producer:
            async with producer.transaction():
                await producer.send(topic_name, b"1")
            proxy.hold(PRODUCE)
            await producer.begin()
            await producer.send(topic_name, b"2")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await producer.commit()
            proxy.release(PRODUCE)
            await producer.abort()
            async with producer.transaction():
                await producer.send(topic_name, b"3")

    asyncio.run(body())
    assert [message.value() for message in read_all(proxy.address, topic_name)[0]] == [b"1", b"3"]


def test_a_transaction_that_the_coordinator_may_have_begun_is_ended(
    proxy: Proxy, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to AddPartitions does not come within `max_block_ms`: without more ado the transaction would stay open until it times out."""
    monkeypatch.setattr(transactions, "IMPLICIT_LEVEL", 99)
    with ottla.Producer(proxy.address, transactional_id=topic_name, max_block_ms=LONG_MS) as producer:
        with producer.transaction():
            producer.send(topic_name, b"1")
        producer.begin()
        proxy.hold(ADD_PARTITIONS)
        core = producer._core
        assert core._transactions is not None
        core._transactions._settings = dataclasses.replace(core._settings, max_block_ms=200)
        producer.send(topic_name, b"2")
        while not core._transactions.states.gap:
            time.sleep(0.01)
        core._transactions._settings = core._settings
        aborting = threading.Thread(target=producer.abort)
        aborting.start()
        aborting.join(0.2)
        proxy.release(ADD_PARTITIONS)
        aborting.join(PATIENCE_S)
        with ottla.Admin(proxy.address) as admin:
            while (state := admin.describe_transactions([topic_name])[topic_name].state) == "PrepareAbort":
                time.sleep(0.01)
        assert state != "Ongoing"


def test_a_program_that_forgets_to_close_sends_what_it_sent(ottla_address: str, topic_name: str) -> None:
    program = (
        "import sys, ottla\n"
        "producer = ottla.Producer(sys.argv[1], linger_ms=30_000)\n"
        "producer.send(sys.argv[2], b'1')\n"
    )
    subprocess.run([sys.executable, "-c", program, ottla_address, topic_name], check=True, timeout=PATIENCE_S)
    assert len(read_all(ottla_address, topic_name)[0]) == 1


def test_an_answer_that_cannot_be_read_leaves_nobody_waiting(
    address: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("a fault of the client's own")

    with ottla.Producer(address) as producer:
        producer.send(topic_name, b"fine").result(PATIENCE_S)
        with monkeypatch.context() as patch:
            patch.setattr(ProduceRequests, "_settle", fault)
            error = producer.send(topic_name, b"lost").exception(PATIENCE_S)
        assert isinstance(error, KafkaError) and isinstance(error.__cause__, ZeroDivisionError)
        producer.send(topic_name, b"fine again").result(PATIENCE_S)
