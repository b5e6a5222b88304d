import threading

import pytest

from ottla.client.errors import BufferFull, ClientClosed, KafkaError
from ottla.client.metadata import TopicPartition
from ottla.client.producer.accumulator import Accumulator, Batch, SendFuture, record_of, timed_out

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def accumulator(
    batch_bytes: int = 1000,
    linger_ms: float = 0,
    buffer_bytes: int = 100_000,
    delivery_timeout_ms: float = 1000,
) -> Accumulator:
    return Accumulator(
        batch_bytes=batch_bytes,
        linger_ms=linger_ms,
        buffer_bytes=buffer_bytes,
        delivery_timeout_ms=delivery_timeout_ms,
    )


def add(queue: Accumulator, tp: TopicPartition = A, value: bytes = b"v", now_ms: float = 0) -> SendFuture:
    record, size = record_of(value, None, (), 1)
    appended = queue.append(tp, record, size, now_ms)
    assert appended is not None
    return appended[0]


def leader(_tp: TopicPartition) -> int:
    return 1


def taken(queue: Accumulator, now_ms: float = 0) -> list[Batch]:
    return queue.drain(now_ms, leader).ready.get(1, [])


def values(batch: Batch) -> list[bytes | None]:
    return [record.value for record in batch.records]


def test_records_of_a_partition_share_a_batch_until_it_is_full() -> None:
    queue = accumulator(batch_bytes=61 + 3 * 37)
    for value in (b"1", b"2", b"3", b"4"):
        add(queue, value=value)
    (first,) = taken(queue)
    assert values(first) == [b"1", b"2", b"3"]
    queue.finish(first, None, 0)
    (second,) = taken(queue)
    assert values(second) == [b"4"]


def test_one_batch_of_a_partition_is_on_its_way_at_a_time() -> None:
    queue = accumulator()
    add(queue, value=b"1")
    (first,) = taken(queue)
    add(queue, value=b"2")
    add(queue, B)
    assert [batch.tp for batch in taken(queue)] == [B]
    queue.finish(first, None, 0)
    assert [values(batch) for batch in taken(queue)] == [[b"2"]]


def test_a_retry_goes_before_what_came_later_and_waits_for_its_back_off() -> None:
    queue = accumulator()
    add(queue, value=b"1")
    (first,) = taken(queue)
    first.encoded = b"sent before"
    add(queue, value=b"2")
    queue.retry(first, KafkaError("lost"), now_ms=10, backoff_ms=100)
    drained = queue.drain(50, leader)
    assert not drained.ready
    assert drained.wait_ms == 60
    assert taken(queue, 110) == [first]
    assert values(first) == [b"1"]


def test_linger_waits_unless_the_batch_is_full_or_flushed() -> None:
    queue = accumulator(batch_bytes=61 + 2 * 37, linger_ms=50)
    add(queue)
    assert queue.drain(20, leader).wait_ms == 30
    queue.begin_flush()
    assert len(taken(queue, 20)) == 1
    queue.end_flush()
    add(queue, B)
    add(queue, B)
    assert [batch.tp for batch in taken(queue, 20)] == [B]


def test_a_partition_without_a_leader_is_told_and_kept() -> None:
    queue = accumulator()
    future = add(queue)
    assert [batch.tp for batch in queue.drain(0, lambda _tp: None).leaderless] == [A]
    assert len(taken(queue)) == 1
    assert not future.done()


def test_a_batch_past_its_time_is_taken_out_and_its_error_tells_the_last_one() -> None:
    queue = accumulator(delivery_timeout_ms=1000)
    future = add(queue, now_ms=0)
    assert queue.expired(999) == []
    assert queue.next_expiry_ms() == 1000
    (batch,) = queue.expired(1000)
    batch.last_error = KafkaError("the leader is away")
    queue.finish(batch, timed_out(batch, 1000))
    with pytest.raises(KafkaError, match="the leader is away"):
        future.result(0)
    assert queue.empty


def test_offsets_count_from_the_batch_and_unknown_stays_unknown() -> None:
    queue = accumulator()
    futures = [add(queue), add(queue)]
    (batch,) = taken(queue)
    queue.finish(batch, None, 40)
    assert [future.result(0).offset for future in futures] == [40, 41]
    late = add(queue)
    (batch,) = taken(queue)
    queue.finish(batch, None)
    assert late.result(0).offset == -1


def test_a_full_buffer_refuses_until_something_is_acknowledged() -> None:
    queue = accumulator(buffer_bytes=80)
    add(queue, value=b"x" * 40)
    record, size = record_of(b"y" * 40, None, (), 1)
    assert queue.append(A, record, size, 0) is None
    with pytest.raises(BufferFull, match="buffer_memory"):
        queue.wait_for_room(size, 0.01)
    (batch,) = taken(queue)
    queue.finish(batch, None, 0)
    queue.wait_for_room(size, 0.01)
    assert queue.append(A, record, size, 0) is not None


def test_one_record_larger_than_the_buffer_still_goes() -> None:
    queue = accumulator(buffer_bytes=10)
    assert add(queue, value=b"x" * 100) is not None


def test_waiting_threads_and_callbacks_hear_of_the_outcome() -> None:
    queue = accumulator()
    future = add(queue)
    heard: list[int] = []
    future.add_done_callback(lambda done: heard.append(done.result(0).offset))
    waiter = threading.Thread(target=lambda: heard.append(future.result(10).offset))
    waiter.start()
    (batch,) = taken(queue)
    queue.finish(batch, None, 5)
    waiter.join(10)
    future.add_done_callback(lambda done: heard.append(done.result(0).offset))
    assert heard == [5, 5, 5]


def test_a_result_that_does_not_come_in_time_says_so() -> None:
    with pytest.raises(TimeoutError, match="t-0"):
        add(accumulator()).result(0.01)


def test_after_closing_records_are_refused_and_the_queue_leaves_at_once() -> None:
    queue = accumulator(linger_ms=10_000)
    add(queue)
    queue.close()
    assert len(taken(queue)) == 1
    with pytest.raises(ClientClosed):
        add(queue)


def test_the_size_of_a_record_is_never_guessed_too_small() -> None:
    from ottla.records.record import encode_batch

    record, size = record_of(b"v" * 5000, b"k" * 300, [("ключ", b"x" * 200), ("n", None)], 1 << 40)
    assert len(encode_batch([record])) <= 61 + size
