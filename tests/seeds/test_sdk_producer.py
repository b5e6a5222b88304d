"""What the notes say of the producer, claim by claim (A1, C1 to C6), with `ottla.Producer`.

Loss, duplicates and another order are made visible: brokers are killed and paused, and a proxy loses answers.
"""

# ruff: noqa: N802 (a test bears the id of its claim)

import contextlib
import dataclasses
import itertools
import os
import signal
import socket
import stat
import threading
import time
from collections import Counter
from typing import Any

import pytest

import ottla
from ottla.client.errors import BufferFull, DeliveryTimedOut, KafkaError
from ottla.model.errors import ErrorCode
from tests.broker_proxy import METADATA, PRODUCE, Proxy, refuse_produces
from tests.cluster.running_cluster import RunningCluster
from tests.cluster.topics import new_topic, state_of
from tests.crash.broker_process import BrokerProcess
from tests.sdk.reading import PATIENCE_S, contents, eventually, values, within

_NUMBERS = itertools.count()
NOT_IDEMPOTENT: dict[str, Any] = {"enable_idempotence": False, "retry_backoff_ms": 10}


@pytest.fixture
def topic(proxy: Proxy) -> str:
    """Of three partitions."""
    name = f"orders-{next(_NUMBERS)}"
    with ottla.Admin(proxy.address) as admin:
        admin.create_topic(name, 3)
    return name


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


# --- A1 -------------------------------------------------------------------------------------------------------


def test_A1_a_producer_learns_the_cluster_from_any_broker_and_learns_anew(cluster: RunningCluster) -> None:
    """It knows one address and no ZooKeeper; each record goes to its partition's leader, also after that one's death."""
    topic = new_topic(cluster, (1, 2, 3), (2, 3, 1), (3, 1, 2))
    via = cluster.nodes[2].address
    with ottla.Producer(via, metadata_max_age_ms=200) as producer:
        assert sorted(producer.partitions_for(topic)) == [0, 1, 2]
        for partition in range(3):
            assert producer.send(topic, b"0", partition=partition).result(PATIENCE_S).offset == 0
        # On failure.
        cluster.kill(1)
        assert producer.send(topic, b"1", partition=0).result(PATIENCE_S).offset == 1
        # As time passes: partitions that are added are used without any failure.
        with ottla.Admin(via) as admin:
            admin.create_partitions(topic, 4)
        used: set[int] = set()
        sent = itertools.count()

        def reaches_the_fourth() -> bool:
            used.add(producer.send(topic, b"", key=b"%d" % next(sent)).result(PATIENCE_S).partition)
            return 3 in used

        eventually(reaches_the_fourth, "the partition that was added is used")


# --- C1 -------------------------------------------------------------------------------------------------------


class Watching:
    """An interceptor that writes down what it sees, and adds a header."""

    def __init__(self, steps: list[Any]) -> None:
        self._steps = steps

    def on_send(self, record: Any) -> Any:
        self._steps.append(("interceptor", record.value))
        return dataclasses.replace(record, headers=[*record.headers, ("seen", b"yes")])

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self._steps.append(("acknowledged", metadata.partition, metadata.offset, error))

    def close(self) -> None:
        self._steps.append("closed")


def test_C1_a_record_goes_through_interceptors_serializers_partitioner_and_accumulator_to_its_broker(
    proxy: Proxy, topic: str
) -> None:
    steps: list[Any] = []

    def serialize(where: str, thing: Any) -> bytes:
        steps.append(("serializer", where, thing))
        return repr(thing).encode()

    def partitioner(where: str, key: Any, key_bytes: Any, value: Any, partitions: tuple[int, ...]) -> int:
        steps.append(("partitioner", where, key, key_bytes, value, partitions))
        return 2

    with ottla.Producer(
        proxy.address,
        interceptors=[Watching(steps)],
        key_serializer="str",
        value_serializer=serialize,
        partitioner=partitioner,
        linger_ms=50,
    ) as producer:
        future = producer.send(topic, {"amount": 1}, key="k", on_delivery=lambda *_: steps.append("callback"))
        # What the caller's thread does is done; the rest is the sender's.
        assert steps == [
            ("interceptor", {"amount": 1}),
            ("serializer", topic, {"amount": 1}),
            ("partitioner", topic, "k", b"k", {"amount": 1}, (0, 1, 2)),
        ]
        assert not future.done()
        assert future.result(PATIENCE_S)[:3] == (topic, 2, 0)
        eventually(lambda: len(steps) == 5, "whoever waits for the acknowledgement hears of it")
        assert sorted(steps[3:], key=str) == [("acknowledged", 2, 0, None), "callback"]
    assert steps[-1] == "closed"
    [record] = contents(proxy.address, topic)[2]
    assert (record.key, record.value, tuple(record.headers)) == (b"k", b"{'amount': 1}", (("seen", b"yes"),))


def test_C1_one_sender_thread_serves_all_threads_that_share_a_producer(proxy: Proxy, topic: str) -> None:
    def senders() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("ottla-producer")]

    with ottla.Producer(proxy.address) as producer:

        def send(name: int) -> None:
            for number in range(200):
                producer.send(topic, b"%d %d" % (name, number), partition=number % 3)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        producer.flush(PATIENCE_S)
        assert len(senders()) == 1
    assert senders() == []
    for partition, records in contents(proxy.address, topic).items():
        sent = [tuple(map(int, record.value.split())) for record in records]
        assert len(sent) == len(set(sent))
        for name in range(8):
            assert [number for who, number in sent if who == name] == list(range(partition, 200, 3))


def test_C1_what_fails_is_sent_again_from_the_buffer_which_is_free_when_it_is_acknowledged(
    proxy: Proxy, topic: str
) -> None:
    with ottla.Producer(proxy.address, retry_backoff_ms=10, linger_ms=5, buffer_memory=200_000) as producer:
        proxy.hold(PRODUCE)
        futures = [producer.send(topic, b"%d" % n + b"." * 100, partition=0) for n in range(500)]
        eventually(lambda: proxy.requests[PRODUCE] > 0, "the first batch is on its way")
        proxy.cut()
        proxy.release(PRODUCE)
        assert [future.result(PATIENCE_S).offset for future in futures] == list(range(500))
        # Fifteen times as much as there is room for.
        for number in range(15):
            producer.send(topic, b"." * 190_000, partition=1 + number % 2)
        producer.flush(PATIENCE_S)
    assert [int(value.strip(b".")) for value in values(proxy.address, topic)] == list(range(500))


# --- C2 -------------------------------------------------------------------------------------------------------


def test_C2_the_given_partition_then_the_hash_of_the_key(proxy: Proxy, topic: str) -> None:
    """murmur2, as Java's producer computes it: numbers from Kafka's own tests, modulo three."""
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    with ottla.Producer(proxy.address) as producer:
        for key, java in hashes.items():
            assert producer.send(topic, b"", key=key).result(PATIENCE_S).partition == (java & 0x7FFFFFFF) % 3
            for partition in range(3):
                sent = producer.send(topic, b"", key=key, partition=partition)
                assert sent.result(PATIENCE_S).partition == partition


def test_C2_without_a_key_round_robin_from_a_random_start(proxy: Proxy, topic: str) -> None:
    starts = set()
    for _ in range(25):
        with ottla.Producer(proxy.address, partitioner="round_robin", linger_ms=1) as producer:
            futures = [producer.send(topic, b"") for _ in range(7)]
            went = [future.result(PATIENCE_S).partition for future in futures]
        assert went == [(went[0] + step) % 3 for step in range(7)]
        starts.add(went[0])
    # That one of three is left out by all of twenty-five happens once in eight thousand runs.
    assert starts == {0, 1, 2}


def test_C2_without_a_key_batches_stick_to_a_partition(proxy: Proxy, topic: str) -> None:
    """The modern default: a partition gets a whole batch, then another one does. Fewer requests, the same spread."""
    with ottla.Producer(proxy.address, batch_size=4_000, linger_ms=10_000) as producer:
        futures = [producer.send(topic, b"." * 100) for _ in range(300)]
        producer.flush(PATIENCE_S)
        went = [future.result(0).partition for future in futures]
    runs = [len(list(run)) for _, run in itertools.groupby(went)]
    assert set(went) == {0, 1, 2}
    assert len(runs) < 20 and min(runs[:-1]) > 20


# --- C3 -------------------------------------------------------------------------------------------------------


def test_C3_acks_0_loses_what_the_caller_was_told_is_sent(broker: BrokerProcess) -> None:
    """The broker stands still and dies: whatever was in its socket is gone, and nobody hears of it."""
    with ottla.Producer(broker.address, acks=0, retry_backoff_ms=10) as producer:
        for value in numbers(5):
            assert producer.send("orders", value, partition=0).result(PATIENCE_S).offset == -1
        eventually(lambda: len(values(broker.address, "orders")) == 5, "all is well so far")
        broker.signal(signal.SIGSTOP)
        futures = [producer.send("orders", value, partition=0) for value in numbers(5, 5)]
        assert [future.exception(PATIENCE_S) for future in futures] == [None] * 5
        broker.kill()
        broker.start()
        # The producer itself goes on.
        eventually(
            lambda: (
                producer.send("orders", b"after", partition=0).exception(PATIENCE_S) is None
                and b"after" in values(broker.address, "orders")
            ),
            "it has found the broker again",
        )
    assert set(values(broker.address, "orders")) == {*numbers(5), b"after"}


def pause_followers(cluster: RunningCluster, topic: str) -> None:
    """From now on the leader, broker 1, is alone with what it is sent."""
    for follower in (2, 3):
        cluster.pause(follower)
    # This goes out to those whose fetches wait already; for the next one nobody has asked.
    with ottla.Producer(cluster.nodes[1].address, acks=1) as producer:
        producer.send(topic, b"last", partition=0).result(PATIENCE_S)


def lose_leader(cluster: RunningCluster, topic: str) -> None:
    cluster.kill(1)
    for follower in (2, 3):
        cluster.resume(follower)
    cluster.wait_until(lambda: state_of(cluster, topic, 2).leader in (2, 3), "another leads")


def test_C3_acks_1_loses_what_only_the_dead_leader_had(cluster: RunningCluster) -> None:
    topic = new_topic(cluster, (1, 2, 3))
    with ottla.Producer(cluster.nodes[1].address, acks=1) as producer:
        producer.send(topic, b"before", partition=0).result(PATIENCE_S)
        cluster.wait_until(lambda: b"before" in cluster.log_bytes(3, topic), "followers have it")
        pause_followers(cluster, topic)
        assert producer.send(topic, b"acknowledged", partition=0).result(PATIENCE_S).offset == 2
    lose_leader(cluster, topic)
    left = values(cluster.bootstrap, topic)
    assert left[0] == b"before" and b"acknowledged" not in left


def test_C3_acks_all_loses_nothing_and_repeats_nothing(cluster: RunningCluster) -> None:
    """What is not on the followers is not acknowledged; it is sent to the next leader. With idempotence it is there once."""
    topic = new_topic(cluster, (1, 2, 3))
    with ottla.Producer(cluster.bootstrap, retry_backoff_ms=20) as producer:
        producer.send(topic, b"before", partition=0).result(PATIENCE_S)
        pause_followers(cluster, topic)
        future = producer.send(topic, b"acknowledged", partition=0)
        with pytest.raises(TimeoutError):
            future.result(0.3)
        lose_leader(cluster, topic)
        future.result(PATIENCE_S)
    assert Counter(values(cluster.bootstrap, topic))[b"acknowledged"] == 1


@pytest.mark.parametrize(("settings", "copies"), [(NOT_IDEMPOTENT, 2), ({"retry_backoff_ms": 10}, 1)])
def test_C3_acks_all_repeats_what_was_written_if_the_answer_is_lost_unless_idempotent(
    proxy: Proxy, topic: str, settings: dict[str, Any], copies: int
) -> None:
    with ottla.Producer(proxy.address, **settings) as producer:
        producer.send(topic, b"first", partition=0).result(PATIENCE_S)
        proxy.lose_answers(PRODUCE)
        producer.send(topic, b"order", partition=0).result(PATIENCE_S)
    assert values(proxy.address, topic) == [b"first"] + [b"order"] * copies


# --- C4 -------------------------------------------------------------------------------------------------------


def requests_for(proxy: Proxy, topic: str, count: int = 100, **settings: Any) -> Counter[int]:
    """Produce requests that so many records of 100 bytes made while the network was slow."""
    with ottla.Producer(proxy.address, **settings) as producer:
        proxy.forget()
        for _ in range(count):
            producer.send(topic, b"." * 100, partition=0)
        producer.flush(PATIENCE_S)
    return Counter(proxy.requests)


def test_C4_batch_size_and_linger_decide_how_many_requests_there_are(proxy: Proxy, topic: str) -> None:
    small = requests_for(proxy, topic, batch_size=500, linger_ms=5)[PRODUCE]
    large = requests_for(proxy, topic, batch_size=100_000, linger_ms=500)[PRODUCE]
    assert (small >= 25, large) == (True, 1)
    with ottla.Producer(proxy.address, linger_ms=250) as producer, within(PATIENCE_S, at_least_s=0.24):
        producer.send(topic, b"alone", partition=0).result(PATIENCE_S)


def fill(producer: ottla.Producer, topic: str) -> int:
    """How many records of 1,000 bytes fit; the next one waits for `max_block_ms`, here 100."""
    sent, began = 0, time.monotonic()
    with contextlib.suppress(BufferFull):
        while sent < 1_000:
            began = time.monotonic()
            producer.send(topic, b"." * 1_000, partition=0)
            sent += 1
    assert 0.09 < time.monotonic() - began < PATIENCE_S
    return sent


def test_C4_buffer_memory_bounds_what_waits_and_max_block_how_long(proxy: Proxy, topic: str) -> None:
    fitted = []
    for memory in (20_000, 60_000):
        with ottla.Producer(proxy.address, buffer_memory=memory, max_block_ms=100) as producer:
            producer.send(topic, b"", partition=0).result(PATIENCE_S)
            proxy.hold(PRODUCE)
            fitted.append(fill(producer, topic))
            proxy.release(PRODUCE)
            producer.flush(PATIENCE_S)
            # There is room again.
            producer.send(topic, b"." * 1_000, partition=0).result(PATIENCE_S)
    assert 10 <= fitted[0] < 20 and 50 <= fitted[1] < 60


@pytest.mark.parametrize("most", [1, 3])
def test_C4_max_in_flight_bounds_the_requests_that_are_unanswered(
    proxy: Proxy, topic: str, most: int
) -> None:
    proxy.delay_s = 0.02
    settings: dict[str, Any] = {"max_in_flight_requests_per_connection": most, "batch_size": 500}
    requests_for(proxy, topic, **settings)
    assert proxy.in_flight_max[PRODUCE] == most
    proxy.heal()
    assert len(values(proxy.address, topic)) == 100


def test_C4_retries_decide_whether_a_failure_is_the_end(proxy: Proxy, topic: str) -> None:
    refuse_produces(proxy, ErrorCode.NOT_ENOUGH_REPLICAS)
    with (
        ottla.Producer(proxy.address, retries=0, **NOT_IDEMPOTENT) as producer,
        pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"),
    ):
        producer.send(topic, b"0", partition=0).result(PATIENCE_S)
    refuse_produces(proxy, ErrorCode.NOT_ENOUGH_REPLICAS, times=3)
    with ottla.Producer(proxy.address, **NOT_IDEMPOTENT) as producer:
        producer.send(topic, b"1", partition=0).result(PATIENCE_S)
    assert values(proxy.address, topic) == [b"1"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_C4_compression_makes_requests_smaller(proxy: Proxy, topic: str, codec: Any) -> None:
    sizes = []
    for each in ("none", codec):
        requests_for(proxy, topic, linger_ms=500, compression_type=each)
        sizes.append(proxy.request_bytes[PRODUCE])
    assert sizes[1] * 3 < sizes[0]
    assert values(proxy.address, topic) == [b"." * 100] * 200


def test_C4_delivery_timeout_bounds_how_long_a_record_is_tried(proxy: Proxy, topic: str) -> None:
    with ottla.Producer(proxy.address, delivery_timeout_ms=400, request_timeout_ms=300) as producer:
        producer.send(topic, b"0", partition=0).result(PATIENCE_S)
        proxy.pause()
        with within(PATIENCE_S / 2, at_least_s=0.39), pytest.raises(DeliveryTimedOut):
            producer.send(topic, b"1", partition=0).result(PATIENCE_S)
        proxy.resume()


def socket_buffers(port: int) -> set[tuple[int, int]]:
    """Of this process's connections to a port: what the system sends and receives by."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it is closed already, or not connected
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as own:
                if own.family == socket.AF_INET and own.getpeername()[1] == port:
                    sizes = [
                        own.getsockopt(socket.SOL_SOCKET, kind)
                        for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF)
                    ]
                    found.add((sizes[0], sizes[1]))
    return found


def test_C4_the_sockets_have_the_buffers_that_were_asked_for(proxy: Proxy, topic: str) -> None:
    """Linux keeps as much again for itself."""
    settings = {"send_buffer_bytes": 50_000, "receive_buffer_bytes": 70_000}
    with ottla.Producer(proxy.address, **settings) as producer:
        producer.send(topic, b"").result(PATIENCE_S)
        assert (100_000, 140_000) in socket_buffers(proxy.port)


# --- C5, C6 ---------------------------------------------------------------------------------------------------


def send_while_refused(proxy: Proxy, topic: str, **settings: Any) -> list[int]:
    """Twenty batches of one record, the first of which is refused once while the next are on their way; the order they have."""
    proxy.delay_s = 0.03
    with ottla.Producer(
        proxy.address, batch_size=1, linger_ms=0, retry_backoff_ms=20, **settings
    ) as producer:
        producer.partitions_for(topic)
        refuse_produces(proxy, ErrorCode.NOT_ENOUGH_REPLICAS)
        futures = [producer.send(topic, value, partition=0) for value in numbers(20)]
        for future in futures:
            future.result(PATIENCE_S)
    proxy.heal()
    return [int(value) for value in values(proxy.address, topic)]


def test_C6_a_retry_without_idempotence_may_come_after_what_was_sent_later(proxy: Proxy, topic: str) -> None:
    order = send_while_refused(proxy, topic, enable_idempotence=False)
    assert order != list(range(20)) and sorted(order) == list(range(20))
    assert order.index(0) > order.index(1)


def test_C6_with_one_request_in_flight_nothing_overtakes(proxy: Proxy, topic: str) -> None:
    order = send_while_refused(
        proxy, topic, enable_idempotence=False, max_in_flight_requests_per_connection=1
    )
    assert order == list(range(20))


def test_C5_with_idempotence_the_order_is_kept_though_many_are_in_flight(proxy: Proxy, topic: str) -> None:
    assert send_while_refused(proxy, topic) == list(range(20))


@pytest.mark.parametrize(("settings", "copies"), [(NOT_IDEMPOTENT, 3), ({"retry_backoff_ms": 10}, 1)])
def test_C6_answers_that_are_lost_again_and_again_duplicate_unless_idempotent(
    proxy: Proxy, topic: str, settings: dict[str, Any], copies: int
) -> None:
    with ottla.Producer(proxy.address, **settings) as producer:
        producer.send(topic, b"first", partition=0).result(PATIENCE_S)
        proxy.lose_answers(PRODUCE, times=2)
        producer.send(topic, b"order", partition=0).result(PATIENCE_S)
    assert Counter(values(proxy.address, topic)) == {b"first": 1, b"order": copies}


def test_C5_a_killed_broker_leaves_each_record_once_and_in_order(broker: BrokerProcess) -> None:
    """It is killed in between; nobody can know which batches had been written and not acknowledged."""
    settings: dict[str, Any] = {"batch_size": 400, "retry_backoff_ms": 10, "retry_backoff_max_ms": 100}
    with ottla.Producer(broker.address, **settings) as producer:
        futures = [producer.send("orders", value, partition=0) for value in numbers(2_000)]
        eventually(futures[100].done, "it has begun")
        broker.kill()
        broker.start()
        for future in futures:
            future.result(PATIENCE_S)
    assert values(broker.address, "orders") == numbers(2_000)


def test_C5_alone_it_does_not_hold_across_sessions(proxy: Proxy, topic: str) -> None:
    """The first session does not know whether its record was written; the next one has another producer id."""
    first = ottla.Producer(proxy.address, request_timeout_ms=200, delivery_timeout_ms=300)
    first.partitions_for(topic)
    proxy.lose_answers(PRODUCE, times=1_000)
    with pytest.raises(DeliveryTimedOut):
        first.send(topic, b"order", partition=0).result(PATIENCE_S)
    first.close(0)
    proxy.heal()
    with ottla.Producer(proxy.address) as second:
        second.send(topic, b"order", partition=0).result(PATIENCE_S)
    assert values(proxy.address, topic) == [b"order", b"order"]


def test_an_idle_producer_asks_for_nothing(proxy: Proxy, topic: str) -> None:
    with ottla.Producer(proxy.address) as producer:
        producer.send(topic, b"").result(PATIENCE_S)
        proxy.forget()
        used_s = time.thread_time()
        threading.Event().wait(1)
        assert time.thread_time() - used_s < 0.5
        assert proxy.requests[PRODUCE] == 0 and proxy.requests[METADATA] <= 1
