"""Loops over a consumer that are left, and polls or seeks inside a loop: every record is seen once."""

import asyncio

import pytest

import ottla
import ottla.aio
from tests.client.consumer.group_behaviour import create, fill


@pytest.fixture
def tp(ottla_address: str, topic_name: str) -> ottla.TopicPartition:
    """A partition with ten records."""
    [tp] = create(ottla_address, topic_name, 1)
    fill(ottla_address, topic_name, 10, 1)
    return tp


@pytest.fixture
def consumer(ottla_address: str, tp: ottla.TopicPartition) -> ottla.Consumer:
    consumer = ottla.Consumer(
        ottla_address, group_id=tp.topic, auto_offset_reset="earliest", fetch_max_wait_ms=50
    )
    consumer.assign([tp])
    return consumer


def some(consumer: ottla.Consumer, count: int) -> list[int]:
    """The offsets of so many records, of a loop that is left then."""
    found: list[int] = []
    for record in consumer:
        found.append(record.offset)
        if len(found) == count:
            break
    return found


def test_a_second_loop_goes_on_where_the_first_was_left(
    consumer: ottla.Consumer, tp: ottla.TopicPartition
) -> None:
    with consumer:
        assert [some(consumer, 3), some(consumer, 3)] == [[0, 1, 2], [3, 4, 5]]
        assert consumer.position(tp) == 6
        consumer.commit()
        assert consumer.committed([tp])[tp].offset == 6


def test_a_poll_after_a_loop_gives_what_the_loop_has_not(
    consumer: ottla.Consumer, tp: ottla.TopicPartition
) -> None:
    with consumer:
        assert some(consumer, 3) == [0, 1, 2]
        assert [record.offset for record in consumer.poll(30_000, 4)[tp]] == [3, 4, 5, 6]
        assert some(consumer, 3) == [7, 8, 9]


def test_a_poll_within_a_loop_takes_from_it(consumer: ottla.Consumer, tp: ottla.TopicPartition) -> None:
    seen: list[int] = []
    with consumer:
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 2:
                seen += [each.offset for each in consumer.poll(30_000, 4)[tp]]
            if len(seen) >= 10:
                break
    assert seen == list(range(10))


def test_a_seek_within_a_loop_holds_at_once(consumer: ottla.Consumer, tp: ottla.TopicPartition) -> None:
    seen: list[int] = []
    with consumer:
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 3:
                consumer.seek(tp, 1)
                assert consumer.position(tp) == 1
            if len(seen) == 5:
                break
    assert seen == [0, 1, 2, 1, 2]


def test_loops_of_asyncio_go_on_too(ottla_address: str, tp: ottla.TopicPartition) -> None:
    async def read() -> list[list[int]]:
        async with ottla.aio.Consumer(ottla_address, auto_offset_reset="earliest") as consumer:
            await consumer.assign([tp])
            found: list[list[int]] = []
            for count in (2, 3):
                found.append([])
                async for record in consumer:
                    found[-1].append(record.offset)
                    if len(found[-1]) == count:
                        break
            return found

    assert asyncio.run(read()) == [[0, 1], [2, 3, 4]]


def test_close_waits_for_commits_on_their_way_and_tells_them(
    consumer: ottla.Consumer, tp: ottla.TopicPartition
) -> None:
    told: list[object] = []
    with consumer:
        consumer.commit_async({tp: 4}, lambda offsets, error: told.append((offsets[tp].offset, error)))
    assert told == [(4, None)]


def test_a_signals_handler_may_wake_the_thread_that_holds_the_buffer(consumer: ottla.Consumer) -> None:
    with consumer:
        with consumer._core._buffer.lock:
            consumer.wakeup()
        with pytest.raises(ottla.WakeupError):
            consumer.poll(30_000)


def test_a_topic_that_is_gone_keeps_no_other_from_being_read(
    ottla_address: str, tp: ottla.TopicPartition
) -> None:
    gone = ottla.TopicPartition(f"{tp.topic}-gone", 0)
    create(ottla_address, gone.topic, 1)
    with (
        ottla.Admin(ottla_address) as admin,
        ottla.Consumer(ottla_address, auto_offset_reset="earliest", retry_backoff_ms=10) as consumer,
    ):
        consumer.partitions_for(gone.topic)
        admin.delete_topics([gone.topic])
        consumer.assign([gone, tp])
        assert consumer.poll(30_000).keys() == {tp}


def test_a_paused_partition_has_a_position(consumer: ottla.Consumer, tp: ottla.TopicPartition) -> None:
    with consumer:
        consumer.pause(tp)
        assert consumer.position(tp) == 0
        assert consumer.lag() == {tp: 10}


def test_a_position_that_cannot_be_found_is_not_waited_for_for_ever(
    ottla_address: str, tp: ottla.TopicPartition
) -> None:
    with (
        ottla.Admin(ottla_address) as admin,
        ottla.Consumer(ottla_address, auto_offset_reset="earliest", default_api_timeout_ms=300) as consumer,
    ):
        consumer.partitions_for(tp.topic)
        admin.delete_topics([tp.topic])
        consumer.assign([tp])
        with pytest.raises(ottla.KafkaError, match=f"the start offset of {tp}"):
            consumer.position(tp)


def test_a_seek_to_what_is_no_offset_is_refused(consumer: ottla.Consumer, tp: ottla.TopicPartition) -> None:
    """-1 and -2 are other clients' names for the ends."""
    with consumer, pytest.raises(ValueError, match="seek_to_end"):
        consumer.seek(tp, -1)
