"""The behaviour of a group member on any broker: run on ottla here, and on Apache Kafka by `tests/interop`.

Each test gets the `address` of a broker and a unique name for topic and group.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import ottla
import ottla.aio
from ottla.client.consumer.fetched import ConsumerRecord
from ottla.client.errors import CommitFailed, KafkaError, WakeupError
from ottla.client.metadata import OffsetAndMetadata, TopicPartition

WAIT_S = 60
#: Every kind of group: settings, and whether members keep what they have while it rebalances.
KINDS: dict[str, dict[str, Any]] = {
    "range": {"partition_assignment_strategy": "range"},
    "roundrobin": {"partition_assignment_strategy": "roundrobin"},
    "sticky": {"partition_assignment_strategy": "sticky"},
    "cooperative-sticky": {"partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}
INCREMENTAL = ("cooperative-sticky", "consumer")

every_kind = pytest.mark.parametrize("kind", KINDS)
both_protocols = pytest.mark.parametrize("kind", ["range", "consumer"])


def create(address: str, topic: str, partitions: int) -> list[TopicPartition]:
    with ottla.Admin(address) as admin:
        admin.create_topic(topic, partitions)
    return [TopicPartition(topic, number) for number in range(partitions)]


def fill(address: str, topic: str, count: int, partitions: int) -> None:
    """So many records in each partition, their values their offsets."""
    with ottla.Producer(address) as producer:
        for number in range(count):
            for partition in range(partitions):
                producer.send(topic, b"%d" % number, partition=partition)
        producer.flush(WAIT_S)


def member(address: str, group: str, kind: str = "range", **settings: Any) -> ottla.Consumer:
    given: dict[str, Any] = {
        "group_id": group, "auto_offset_reset": "earliest", "session_timeout_ms": 10_000, "heartbeat_interval_ms": 100,
        "retry_backoff_ms": 20, **KINDS[kind], **settings,
    }  # fmt: skip
    return ottla.Consumer(address, **given)


def until(condition: Callable[[], Any], *consumers: ottla.Consumer) -> list[ConsumerRecord]:
    """Poll these in turn until the condition holds; what they got."""
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        for consumer in consumers:
            for records in consumer.poll(20).values():
                found += records
    return found


def take(consumer: ottla.Consumer, count: int) -> list[ConsumerRecord]:
    """Exactly so many records."""
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} came"
        for records in consumer.poll(100, count - len(found)).values():
            found += records
    return found


def offsets(records: Iterable[ConsumerRecord]) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records)


@contextmanager
def polling(*consumers: ottla.Consumer) -> Iterator[list[ConsumerRecord]]:
    """Consumers that are polled in threads of their own, meanwhile."""
    over = threading.Event()
    seen: list[ConsumerRecord] = []
    failures: list[BaseException] = []

    def work(consumer: ottla.Consumer) -> None:
        try:
            while not over.is_set():
                for records in consumer.poll(50).values():
                    seen.extend(records)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[consumer]) for consumer in consumers]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert not failures, failures


class Heard:
    """Callbacks that note what they are called with, and in which thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, set[int]]] = []
        self.threads: set[int] = set()

    def note(self, kind: str) -> Callable[[list[TopicPartition]], None]:
        def call(partitions: list[TopicPartition]) -> None:
            self.threads.add(threading.get_ident())
            self.calls.append((kind, {tp.partition for tp in partitions}))

        return call

    @property
    def callbacks(self) -> dict[str, Any]:
        return {f"on_{kind}": self.note(kind) for kind in ("assigned", "revoked", "lost")}

    def of(self, kind: str) -> list[set[int]]:
        return [partitions for name, partitions in self.calls if name == kind and partitions]


# --- joining, sharing, leaving ------------------------------------------------------------------------------------


@every_kind
def test_two_share_and_the_one_that_stays_gets_all(address: str, name: str, kind: str) -> None:
    tps = create(address, name, 4)
    fill(address, name, 10, 4)
    heard = Heard()
    with member(address, name, kind) as first:
        first.subscribe([name], **heard.callbacks)
        assert offsets(take(first, 40)) == list(itertools.product(range(4), range(10)))
        assert first.subscription() == {name}
        with member(address, name, kind) as second:
            second.subscribe(name)
            again = until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
            assert sorted(first.assignment() + second.assignment()) == tps
            # What the first had read was committed before it gave anything up.
            assert again == []
            metadata = first.group_metadata()
            assert metadata.group_id == name and metadata.member_id and metadata.generation_id > 0
        until(lambda: len(first.assignment()) == 4, first)
    assert heard.threads == {threading.get_ident()}
    revoked = heard.of("revoked")[0]
    assert len(revoked) == (2 if kind in INCREMENTAL else 4)
    assert heard.of("lost") == []


@both_protocols
def test_a_consumer_begins_where_its_group_stopped(address: str, name: str, kind: str) -> None:
    create(address, name, 2)
    fill(address, name, 20, 2)
    with member(address, name, kind) as consumer:
        consumer.subscribe([name])
        first = offsets(take(consumer, 15))
    with member(address, name, kind, enable_auto_commit=False) as consumer:
        consumer.subscribe([name])
        rest = offsets(take(consumer, 25))
    assert sorted(first + rest) == list(itertools.product(range(2), range(20)))
    # Nobody committed what the second read: a third reads it again.
    with member(address, name, kind) as consumer:
        consumer.subscribe([name])
        assert offsets(take(consumer, 25)) == rest


# --- commits ------------------------------------------------------------------------------------------------------


def test_commits_by_hand_with_notes(address: str, name: str) -> None:
    [tp] = create(address, name, 1)
    fill(address, name, 10, 1)
    with member(address, name, enable_auto_commit=False) as consumer:
        consumer.subscribe([name])
        take(consumer, 7)
        assert consumer.committed([tp]) == {}
        assert consumer.lag() == {tp: 3}
        consumer.commit()
        assert consumer.committed([tp]) == {tp: OffsetAndMetadata(7)}
        consumer.commit({tp: OffsetAndMetadata(4, "half way", 0)})
        assert consumer.committed([tp]) == {tp: OffsetAndMetadata(4, "half way", 0)}
        told: list[Any] = []
        consumer.commit_async({tp: 5}, lambda done, error: told.append((done, error)))
        until(lambda: told, consumer)
        assert told == [({tp: OffsetAndMetadata(5)}, None)]
        assert consumer.committed([tp])[tp].offset == 5
        with pytest.raises(KafkaError, match="OFFSET_METADATA_TOO_LARGE"):
            consumer.commit({tp: OffsetAndMetadata(5, "x" * 10_000)})


def test_the_automatic_commit_comes_while_a_poll_waits(address: str, name: str) -> None:
    [tp] = create(address, name, 1)
    fill(address, name, 10, 1)
    with member(address, name, auto_commit_interval_ms=200) as consumer:
        consumer.subscribe([name])
        take(consumer, 10)
        with ottla.Admin(address) as admin, polling(consumer):
            deadline = time.monotonic() + WAIT_S
            while admin.group_offsets(name).get(tp) != 10:
                assert time.monotonic() < deadline


def test_after_an_exception_nothing_is_committed_and_after_a_break_what_was_seen(
    address: str, name: str
) -> None:
    [tp] = create(address, name, 1)
    fill(address, name, 10, 1)

    def fail() -> None:
        with member(address, name) as consumer:
            consumer.subscribe([name])
            take(consumer, 5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with member(address, name) as consumer:
        consumer.subscribe([name])
        for record in consumer:
            if record.offset == 3:
                break
    with member(address, name) as consumer:
        consumer.subscribe([name])
        assert take(consumer, 1)[0].offset == 4
        assert consumer.committed([tp])[tp].offset == 4


def test_assign_with_a_group_begins_at_its_offsets_and_commits(address: str, name: str) -> None:
    [tp] = create(address, name, 1)
    fill(address, name, 10, 1)
    with member(address, name) as consumer:
        consumer.assign([tp])
        assert len(take(consumer, 6)) == 6
    with member(address, name) as consumer:
        consumer.assign([tp])
        assert take(consumer, 1)[0].offset == 6
        # An active member owns the group's offsets.
        with member(address, name) as other:
            other.subscribe([name])
            until(other.assignment, other)
            with pytest.raises(CommitFailed, match="not one of them"):
                consumer.commit()


def test_without_a_group_there_are_no_commits(address: str, name: str) -> None:
    [tp] = create(address, name, 1)
    fill(address, name, 3, 1)
    with ottla.Consumer(address, auto_offset_reset="earliest", client_id=name) as consumer:
        consumer.assign([tp])
        take(consumer, 3)
        assert not consumer._core._progress.is_automatic


# --- callbacks ----------------------------------------------------------------------------------------------------


@both_protocols
def test_in_callbacks_one_may_seek_ask_and_commit(address: str, name: str, kind: str) -> None:
    [tp] = create(address, name, 1)
    fill(address, name, 10, 1)
    positions: list[int] = []
    with member(address, name, kind, enable_auto_commit=False) as consumer:

        def assigned(partitions: list[TopicPartition]) -> None:
            positions.extend(consumer.position(tp) for tp in partitions)
            for tp in partitions:
                consumer.seek(tp, 4)

        def revoked(partitions: list[TopicPartition]) -> None:
            consumer.commit({tp: consumer.position(tp) for tp in partitions})

        consumer.subscribe([name], on_assigned=assigned, on_revoked=revoked)
        assert [record.offset for record in take(consumer, 3)] == [4, 5, 6]
        consumer.unsubscribe()
        assert positions == [0]
        assert consumer.assignment() == []
        consumer.assign([tp])
        assert consumer.position(tp) == 7


@both_protocols
def test_an_exception_of_a_callback_reaches_the_poll_and_the_rebalance_completes(
    address: str, name: str, kind: str
) -> None:
    create(address, name, 2)
    fill(address, name, 5, 2)

    def fail(partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError(len(partitions))

    with member(address, name, kind) as consumer:
        consumer.subscribe([name], on_assigned=fail)
        with pytest.raises(ZeroDivisionError, match="2"):
            until(lambda: False, consumer)
        assert len(take(consumer, 10)) == 10


# --- wakeup, patterns, bad news -----------------------------------------------------------------------------------


@every_kind
def test_in_callbacks_one_may_unsubscribe(address: str, name: str, kind: str) -> None:
    create(address, name, 2)
    with member(address, name, kind) as first, member(address, name, kind) as second:
        first.subscribe([name], on_revoked=lambda _: first.unsubscribe())
        until(lambda: len(first.assignment()) == 2, first)
        second.subscribe([name])
        until(lambda: len(second.assignment()) == 2, first, second)
        assert first.assignment() == []
        second.subscribe([name], on_revoked=lambda _: second.close())
        second.unsubscribe()


def test_another_thread_wakes_a_poll(address: str, name: str) -> None:
    create(address, name, 1)
    with member(address, name) as consumer:
        consumer.subscribe([name])
        until(consumer.assignment, consumer)
        waker = threading.Timer(0.2, consumer.wakeup)
        waker.start()
        with pytest.raises(WakeupError):
            consumer.poll(WAIT_S * 1000)
        waker.join()
        assert consumer.poll(0) == {}


@both_protocols
def test_a_pattern_takes_whole_names_and_new_topics(address: str, name: str, kind: str) -> None:
    create(address, f"{name}-a", 1)
    create(address, f"{name}-a-not", 1)
    with member(address, name, kind, metadata_max_age_ms=100) as consumer:
        consumer.subscribe(pattern=f"{name}-[a-c]")
        until(lambda: [tp.topic for tp in consumer.assignment()] == [f"{name}-a"], consumer)
        create(address, f"{name}-b", 2)
        until(lambda: len(consumer.assignment()) == 3, consumer)
        assert {tp.topic for tp in consumer.assignment()} == {f"{name}-a", f"{name}-b"}


def test_new_partitions_and_late_topics_are_taken(address: str, name: str) -> None:
    create(address, name, 1)
    with member(address, name, metadata_max_age_ms=100) as consumer:
        consumer.subscribe([name, f"{name}-late"])
        until(lambda: len(consumer.assignment()) == 1, consumer)
        with ottla.Admin(address) as admin:
            admin.create_partitions(name, 3)
        until(lambda: len(consumer.assignment()) == 3, consumer)
        create(address, f"{name}-late", 1)
        until(lambda: len(consumer.assignment()) == 4, consumer)


@both_protocols
def test_a_second_subscription_replaces_the_first(address: str, name: str, kind: str) -> None:
    create(address, name, 1)
    [other] = create(address, f"{name}-2", 1)
    with member(address, name, kind) as consumer:
        consumer.subscribe([name])
        until(consumer.assignment, consumer)
        consumer.subscribe([other.topic])
        until(lambda: consumer.assignment() == [other], consumer)


@both_protocols
def test_who_does_not_poll_is_left_out_told_and_comes_back(
    address: str, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    create(address, name, 2)
    fill(address, name, 5, 2)
    heard = Heard()
    with member(address, name, kind, max_poll_interval_ms=700) as lazy, member(address, name, kind) as busy:
        lazy.subscribe([name], **heard.callbacks)
        take(lazy, 4)
        busy.subscribe([name])
        # The lazy one never polls again: the busy one gets all.
        until(lambda: len(busy.assignment()) == 2, busy)
        assert "raise max_poll_interval_ms" in caplog.text
        with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
            lazy.commit()
        assert lazy.poll(0) == {}, "what is buffered is another's by now"
        assert heard.of("lost") == [{0, 1}]
        until(lambda: len(lazy.assignment()) == len(busy.assignment()) == 1, lazy, busy)


@both_protocols
def test_a_static_member_comes_back_to_its_place(address: str, name: str, kind: str) -> None:
    create(address, name, 2)
    heard = Heard()
    with member(address, name, kind) as other:
        other.subscribe([name], **heard.callbacks)
        until(lambda: len(other.assignment()) == 2, other)
        with member(address, name, kind, group_instance_id="one") as static:
            static.subscribe([name])
            until(lambda: len(static.assignment()) == 1 == len(other.assignment()), static, other)
            had = static.assignment()
        before = len(heard.calls)
        with member(address, name, kind, group_instance_id="one") as static:
            static.subscribe([name])
            until(static.assignment, static, other)
            assert static.assignment() == had
        assert [partitions for _, partitions in heard.calls[before:] if partitions] == []


def test_the_default_group_has_a_name(address: str, name: str) -> None:
    create(address, name, 1)
    fill(address, name, 1, 1)
    with ottla.Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([name])
        take(consumer, 1)
        assert consumer.group_metadata().group_id == "ottla"


def test_coroutines_as_callbacks_of_the_asyncio_consumer(address: str, name: str) -> None:
    [tp] = create(address, name, 1)
    fill(address, name, 10, 1)
    heard: list[Any] = []

    async def work() -> None:
        consumer = ottla.aio.Consumer(
            address, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False
        )

        async def assigned(partitions: list[TopicPartition]) -> None:
            heard.append(("assigned", await consumer.position(partitions[0])))
            consumer.seek(tp, 6)

        async def revoked(partitions: list[TopicPartition]) -> None:
            await consumer.commit()
            heard.append(("revoked", (await consumer.committed(partitions))[tp].offset))

        async with consumer:
            await consumer.subscribe([name], on_assigned=assigned, on_revoked=revoked)
            async for record in consumer:
                heard.append(record.offset)
                if record.offset == 8:
                    break

    asyncio.run(work())
    assert heard == [("assigned", 0), 6, 7, 8, ("revoked", 9)]


def test_an_assignor_of_ones_own(address: str, name: str) -> None:
    class First(ottla.Assignor):
        """Everything to the first."""

        name = "first"

        def assign(self, partitions: Any, members: Any) -> Any:
            return {
                min(members): [
                    TopicPartition(topic, n) for topic in partitions for n in range(partitions[topic])
                ]
            }

    create(address, name, 3)
    mine = {"partition_assignment_strategy": First()}
    with member(address, name, **mine) as one, member(address, name, **mine) as two:
        one.subscribe([name])
        two.subscribe([name])
        until(
            lambda: (
                sorted(map(len, (one.assignment(), two.assignment()))) == [0, 3]
                and one.group_metadata().generation_id == two.group_metadata().generation_id
            ),
            one,
            two,
        )


def test_offsets_of_an_open_transaction_are_waited_for(address: str, name: str) -> None:
    [tp] = create(address, name, 1)
    fill(address, name, 10, 1)
    with ottla.Producer(address, transactional_id=name) as producer:
        producer.begin()
        producer.send_offsets({tp: 4}, name)
        with member(address, name, isolation_level="read_committed") as consumer:
            consumer.subscribe([name])
            # It is a member, and knows of the partition, and does not begin.
            until(lambda: consumer.group_metadata().generation_id > 0, consumer)
            assert consumer.poll(500) == {}
            producer.commit()
            assert take(consumer, 1)[0].offset == 4


def test_interceptors_see_records_and_commits(address: str, name: str) -> None:
    [tp] = create(address, name, 1)
    fill(address, name, 4, 1)

    class Odd:
        def __init__(self) -> None:
            self.heard: list[Any] = []

        def on_consume(self, polled: Any) -> Any:
            return {tp: [record for record in records if record.offset % 2] for tp, records in polled.items()}

        def on_commit(self, done: Any) -> None:
            self.heard.append(done)

        def close(self) -> None:
            self.heard.append("closed")

    class Broken:
        def on_consume(self, polled: Any) -> Any:
            raise ZeroDivisionError

    odd = Odd()
    with member(address, name, interceptors=[Broken(), odd]) as consumer:
        consumer.subscribe([name])
        assert [record.offset for record in take(consumer, 2)] == [1, 3]
    assert odd.heard == [{tp: OffsetAndMetadata(4)}, "closed"]
