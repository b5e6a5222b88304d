import logging
import threading
from functools import partial

import pytest

from ottla.client.errors import ClientClosed, ConnectionLost, DeliveryTimedOut, KafkaError, refused
from ottla.client.metadata import TopicPartition
from ottla.client.producer.accumulator import Accumulator, Limits
from ottla.client.producer.batches import ProducerBatch, RecordMetadata, SendFuture, record_of
from ottla.model.errors import ErrorCode

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
LOST = ConnectionLost("the connection broke")


def accumulator(
    batch_bytes: int = 1000,
    linger_ms: float = 0,
    buffer_bytes: int = 100_000,
    delivery_timeout_ms: float = 1000,
    request_bytes: int = 1_000_000,
    in_flight_max: int = 1,
    retries: int = 100,
) -> Accumulator:
    return Accumulator(
        Limits(
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
            buffer_bytes=buffer_bytes,
            request_bytes=request_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
            in_flight_max=in_flight_max,
            retries=retries,
        )
    )


def add(queue: Accumulator, tp: TopicPartition = A, value: bytes = b"v", now_ms: float = 0) -> SendFuture:
    record, size = record_of(value, None, (), 1)
    appended = queue.append(tp, record, size, now_ms)
    assert appended is not None
    return appended[0]


def leader(_tp: TopicPartition) -> int:
    return 1


def taken(queue: Accumulator, now_ms: float = 0) -> list[ProducerBatch]:
    return queue.drain(now_ms, leader).ready.get(1, [])


def values(batch: ProducerBatch) -> list[bytes | None]:
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
    add(queue, value=b"2")
    assert queue.fail(first, LOST, now_ms=10, backoff_ms=100)
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
    queue.unreachable([A], KafkaError("the leader is away"))
    assert len(queue.expired(1000)) == 1
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
    assert not queue.wait_for_room(size, 0.01)
    heard: list[str] = []
    queue.when_room(size, lambda: heard.append("first"))
    queue.when_room(10, lambda: heard.append("second"))
    given_up = partial(heard.append, "given up")
    queue.when_room(10, given_up)
    queue.stop_waiting(given_up)
    assert not heard
    (batch,) = taken(queue)
    queue.finish(batch, None, 0)
    assert heard == ["first", "second"]
    assert queue.wait_for_room(size, 0.01)
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


def test_partitions_take_turns_where_a_request_has_no_room_for_all() -> None:
    queue = accumulator(batch_bytes=100, request_bytes=150)
    for _ in range(2):
        add(queue, A)
        add(queue, B)
        add(queue, A)
        add(queue, B)
    drained = queue.drain(0, leader)
    assert [batch.tp for batch in drained.ready[1]] == [A]
    assert drained.wait_ms == 0
    assert [batch.tp for batch in taken(queue)] == [B]
    for batch in queue.outstanding():
        queue.finish(batch, None, 0)


def test_a_broker_that_is_not_free_keeps_its_batches_and_is_told_of() -> None:
    queue = accumulator()
    add(queue)
    drained = queue.drain(0, leader, free=lambda node: node != 1)
    assert (drained.ready, drained.wanted) == ({}, {1})
    drained = queue.drain(0, leader, admitted=lambda _tp: False)
    assert (drained.ready, drained.outside) == ({}, [A])
    assert len(taken(queue)) == 1


def test_several_batches_of_a_partition_leave_when_they_are_full_or_have_waited() -> None:
    queue = accumulator(batch_bytes=61 + 37, in_flight_max=3)
    for number in range(5):
        add(queue, value=b"%d" % number)
    assert [values(batch) for _ in range(4) for batch in taken(queue)] == [[b"0"], [b"1"], [b"2"]]
    partial_batches = accumulator(in_flight_max=3)
    add(partial_batches)
    assert len(taken(partial_batches)) == 1
    add(partial_batches)
    assert partial_batches.drain(1, leader).wait_ms == 4
    assert len(taken(partial_batches, 5)) == 1


def test_a_drain_tells_when_the_next_batch_of_the_same_partition_may_follow() -> None:
    """Or the sender would look again only when an answer comes, and one request would be on its way at a time."""
    queue = accumulator(batch_bytes=61 + 37, in_flight_max=2)
    for value in (b"1", b"2", b"3"):
        add(queue, value=value)
    assert queue.drain(0, leader).wait_ms == 0
    # Two are on their way: the third waits for an answer, not for a time.
    assert queue.drain(0, leader).wait_ms is None


def test_without_numbers_a_retry_comes_after_what_was_sent_behind_it() -> None:
    """C6: that is what max_in_flight_requests_per_connection=1 or idempotence is for."""

    def log(in_flight_max: int) -> list[bytes | None]:
        queue = accumulator(batch_bytes=61 + 37, in_flight_max=in_flight_max)
        for number in range(3):
            add(queue, value=b"%d" % number)
        appended: list[bytes | None] = []
        refusals = 1
        while not queue.empty:
            flying = [batch for _ in range(in_flight_max) for batch in taken(queue)]
            for batch in flying:
                if refusals:
                    refusals -= 1
                    assert queue.fail(batch, refused(ErrorCode.NOT_ENOUGH_REPLICAS, "producing"), 0, 0)
                else:
                    appended += values(batch)
                    queue.finish(batch, None, 0)
        return appended

    assert log(1) == [b"0", b"1", b"2"]
    assert log(3) == [b"1", b"2", b"0"]


def test_retries_are_counted_and_time_ends_them_at_the_answer() -> None:
    queue = accumulator(retries=1)
    future = add(queue)
    (batch,) = taken(queue)
    assert queue.fail(batch, LOST, 0, 0)
    (batch,) = taken(queue)
    assert not queue.fail(batch, LOST, 0, 0)
    assert future.exception(0) is LOST
    late = add(queue)
    (batch,) = taken(queue)
    assert not queue.fail(batch, LOST, 2000, 0)
    error = late.exception(0)
    assert isinstance(error, DeliveryTimedOut)
    assert error.__cause__ is LOST


def test_a_batch_that_is_too_large_is_cut_until_it_goes() -> None:
    queue = accumulator(in_flight_max=2)
    heard: list[RecordMetadata] = []
    futures = [add(queue, value=b"%d" % number) for number in range(5)]
    futures[3].add_done_callback(lambda done: heard.append(done.result(0)))
    too_large = refused(ErrorCode.MESSAGE_TOO_LARGE, "producing")
    appended: list[bytes | None] = []
    before = queue.buffered_bytes
    while not queue.empty:
        (batch,) = queue.drain(0, leader, producer=(7, 0)).ready[1]
        assert batch.sequence == len(appended)
        if len(batch.records) > 1:
            assert queue.fail(batch, too_large, 0, 1000)
            assert queue.buffered_bytes == before - 37 * len(appended)
        elif batch.records.values[0] == b"2":
            assert not queue.fail(batch, too_large, 0, 0)
            appended += [None]
            # The gap that it leaves is in its own numbers.
            break
        else:
            appended += values(batch)
            queue.finish(batch, None, 99 + len(appended))
    assert futures[0].done() is False, "done when all of it is"
    while not queue.empty:
        for batch in queue.drain(0, leader, producer=(7, 0)).ready[1]:
            queue.finish(batch, None, 200 if len(batch.records) == 1 else 300)
    assert [future.exception(0) for future in futures] == [None, None, too_large, None, None]
    assert [futures[number].result(0).offset for number in (0, 1)] == [100, 101]
    assert heard == [futures[3].result(0)]
    assert queue.buffered_bytes == 0


def test_each_record_hears_what_it_did_itself() -> None:
    queue = accumulator()
    futures = [add(queue) for _ in range(3)]
    (batch,) = taken(queue)
    guilty, others = KafkaError("no key"), KafkaError("another record of the batch was refused")
    queue.finish(batch, others, record_errors={1: guilty})
    assert [future.exception(0) for future in futures] == [others, guilty, others]


def test_a_callback_that_raises_keeps_no_other_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    queue = accumulator()
    heard: list[RecordMetadata] = []
    record, size = record_of(b"v", None, (), 1)
    queue.append(A, record, size, 0, lambda metadata, error: 1 / 0)
    queue.append(A, record, size, 0, lambda metadata, error: heard.append(metadata))
    (batch,) = taken(queue)
    with caplog.at_level(logging.CRITICAL, "ottla"):
        queue.finish(batch, None, 5)
    assert heard == [RecordMetadata("t", 0, 6, 1)]


def test_refused_for_now_and_let_in_again() -> None:
    queue = accumulator()
    queue.refuse(lambda: KafkaError("not now"))
    with pytest.raises(KafkaError, match="not now"):
        add(queue)
    queue.refuse(None)
    add(queue)
    queue.fail_waiting(KafkaError("given up"), [B])
    assert not queue.empty
    queue.fail_waiting(KafkaError("given up"))
    assert queue.empty


def test_a_batch_on_its_way_is_given_up_in_its_time_and_a_late_answer_changes_nothing() -> None:
    queue = accumulator(delivery_timeout_ms=100)
    sent = add(queue, now_ms=0)
    (batch,) = taken(queue, 10)
    assert queue.next_expiry_ms() == 100
    assert queue.expired(99) == []
    assert queue.expired(100) == [batch]
    with pytest.raises(DeliveryTimedOut, match=r"after 1 attempt\(s\). The broker may have written them"):
        sent.result(0)
    assert queue.buffered_bytes == 0 and queue.empty and queue.next_expiry_ms() is None
    queue.finish(batch, None, base_offset=7)
    assert not queue.fail(batch, LOST, 110, 0)
    assert queue.buffered_bytes == 0
    with pytest.raises(DeliveryTimedOut):
        sent.result(0)


def test_a_transaction_waits_for_what_is_on_its_way() -> None:
    queue = accumulator(delivery_timeout_ms=100)
    queue.limits = queue.limits._replace(bumps=False)
    add(queue)
    (batch,) = taken(queue)
    assert queue.expired(200) == [] and queue.next_expiry_ms() is None
    assert not queue.fail(batch, LOST, 200, 0)


def test_a_batch_is_cut_though_nothing_is_tried_again() -> None:
    queue = accumulator(retries=0)
    sent = [add(queue), add(queue)]
    (batch,) = taken(queue)
    assert queue.fail(batch, refused(ErrorCode.MESSAGE_TOO_LARGE, "producing"), 0, 0)
    for offset in range(2):
        (part,) = taken(queue)
        queue.finish(part, None, base_offset=offset)
    assert [future.result(0).offset for future in sent] == [0, 1]


def test_waiting_on_the_thread_that_sends_is_refused_and_looking_is_not() -> None:
    queue = accumulator()
    sent = add(queue)
    queue.sender_thread = threading.get_ident()
    with pytest.raises(KafkaError, match="on the thread that sends the record"):
        sent.result()
    with pytest.raises(TimeoutError):
        sent.result(0)
