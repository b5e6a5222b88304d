"""The path of almost every record: it joins the open batch of its partition, and the sender keeps up."""

import asyncio

import pytest

from ottla.client.errors import ClientClosed
from ottla.client.metadata import PartitionInfo
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.batches import RECORD_OVERHEAD_BYTES, OnDelivery, SendFuture
from ottla.client.producer.core import AsyncProducer
from ottla.client.producer.partitioner import RoundRobin, Sticky
from tests.client.producer.test_accumulator import LOST, A, B, accumulator, add, taken, values

SIZE = RECORD_OVERHEAD_BYTES + 1


def join(
    queue: Accumulator, value: bytes = b"j", size_bytes: int = SIZE, callback: OnDelivery | None = None
) -> SendFuture | None:
    batch = queue.open_batches.get(A)
    return None if batch is None else queue.join(batch, value, None, (), 1, size_bytes, callback)


def test_a_record_joins_the_batch_that_is_open() -> None:
    queue = accumulator()
    assert join(queue) is None
    add(queue)
    before = queue.buffered_bytes
    joined = join(queue)
    assert joined is not None and joined.index == 1
    assert queue.buffered_bytes == before + SIZE
    (batch,) = taken(queue)
    assert values(batch) == [b"v", b"j"]
    # It is on its way: nothing is added to it.
    assert join(queue) is None
    queue.finish(batch, None, base_offset=7)
    assert joined.result(0).offset == 8
    assert queue.buffered_bytes == 0


def test_other_partitions_have_batches_of_their_own() -> None:
    queue = accumulator()
    add(queue, B)
    assert join(queue) is None


def test_a_full_batch_takes_no_more() -> None:
    queue = accumulator(batch_bytes=61 + 3 * SIZE)
    add(queue)
    assert join(queue) is not None
    # The last one that fits makes the batch full, of which the sender must hear: that is for `append`.
    assert join(queue) is None
    assert join(queue, size_bytes=SIZE - 1) is not None


def test_a_record_does_not_get_before_one_that_was_too_large_for_the_batch() -> None:
    queue = accumulator(batch_bytes=61 + 3 * SIZE)
    add(queue)
    first = queue.open_batches[A]
    add(queue, value=b"v" * 2 * SIZE)
    assert queue.open_batches[A] is not first
    # It has room still, but leaves before the large one.
    assert queue.join(first, b"j", None, (), 1, SIZE, None) is None


def test_who_was_interrupted_before_the_lock_was_taken_gives_back_nothing() -> None:
    queue = accumulator()
    add(queue)

    def interrupted() -> bool:
        raise KeyboardInterrupt

    queue._acquire = interrupted  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        join(queue)
    queue._acquire = queue.lock.acquire
    assert join(queue) is not None


def test_a_record_that_comes_as_its_batch_expires_begins_another() -> None:
    queue = accumulator()
    add(queue)
    batch = queue.open_batches[A]
    queue.expired(1e9)
    assert batch.done and queue.join(batch, b"j", None, (), 1, SIZE, None) is None


def test_a_full_buffer_takes_no_more() -> None:
    queue = accumulator(buffer_bytes=2 * SIZE)
    add(queue)
    assert join(queue) is not None
    assert join(queue) is None


def test_a_batch_that_came_back_takes_no_more() -> None:
    queue = accumulator()
    add(queue)
    (batch,) = taken(queue)
    queue.fail(batch, LOST, 0, 10)
    assert join(queue) is None


def test_a_closed_producer_takes_no_more() -> None:
    queue = accumulator()
    add(queue)
    queue.close()
    assert join(queue) is None
    with pytest.raises(ClientClosed):
        add(queue)


def test_a_callback_of_a_record_that_joined() -> None:
    queue = accumulator()
    add(queue)
    heard: list[int] = []
    join(queue, callback=lambda metadata, error: heard.append(metadata.offset))
    (batch,) = taken(queue)
    queue.finish(batch, None, base_offset=4)
    assert heard == [5]


def partitions(*leaders: int) -> dict[int, PartitionInfo]:
    return {number: PartitionInfo(number, leader, 0, (), ()) for number, leader in enumerate(leaders)}


def test_sticky_stays_until_a_batch_is_full() -> None:
    spread, known = Sticky(), partitions(1, 1, 1)
    first = spread.current("t", known)
    assert {spread.current("t", known) for _ in range(20)} == {first}
    second = spread.moved("t", first, known)
    assert second == (first + 1) % 3 == spread.current("t", known)
    # Another thread found the same batch full: it follows.
    assert spread.moved("t", first, known) == second
    assert spread.moved("t", second, known) == (first + 2) % 3


def test_partitions_without_a_leader_are_passed_over() -> None:
    known = partitions(1, -1, 1)
    sticky, robin = Sticky(), RoundRobin()
    sticky._current["t"] = 0
    assert sticky.moved("t", 0, known) == 2
    assert {robin.current("t", known) for _ in range(9)} == {0, 2}
    assert {Sticky().moved("t", 0, partitions(-1, -1)) for _ in range(9)} == {1}


def test_who_sends_without_pause_lets_the_sender_have_its_turn(ottla_address: str, topic_name: str) -> None:
    async def requests_meanwhile() -> int:
        async with AsyncProducer(ottla_address, batch_size=2000) as producer:
            await (await producer.send(topic_name, b"first"))
            before = producer.metrics().requests
            for _ in range(200):
                await producer.send(topic_name, b"v" * 200)
            return producer.metrics().requests - before

    assert asyncio.run(requests_meanwhile()) > 0


def test_records_without_a_key_go_on_in_a_batch_that_another_record_began(
    ottla_address: str, topic_name: str
) -> None:
    async def batches() -> tuple[object, object]:
        async with AsyncProducer(ottla_address, batch_size=2000, linger_ms=60_000) as producer:
            await producer.send(topic_name, b"first")
            await producer.send(topic_name, b"v" * 1950, partition=producer._spread._current[topic_name])
            # Its own batch is closed now; the other one is full, and makes room for a third.
            await producer.send(topic_name, b"v" * 100, partition=producer._spread._current[topic_name])
            sent = await producer.send(topic_name, b"last")
            return sent.batch, producer._sticky_batches[topic_name]

    joined, sticky = asyncio.run(batches())
    assert joined is sticky
