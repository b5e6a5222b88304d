"""The behaviour of a transactional producer on any broker; imported like `behaviours.py`.

Each test runs with both protocols: `announced` (v1) and `implicit` (v2, KIP-890), which both brokers support.
"""

import asyncio
import threading
from collections.abc import Iterator

import confluent_kafka
import pytest

import ottla
from ottla.client.errors import (
    InvalidRequest,
    KafkaError,
    MessageTooLarge,
    ProducerFenced,
    SettingError,
    TransactionAbortable,
    TransactionMisused,
)
from ottla.client.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition
from ottla.client.producer import transactions
from ottla.client.producer.core import AsyncProducer
from tests.client.producer.behaviours import read_all

PATIENCE_S = 30


@pytest.fixture(params=["implicit", "announced"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "announced":
        monkeypatch.setattr(transactions, "IMPLICIT_LEVEL", 99)
    return str(request.param)


@pytest.fixture
def two_topics(address: str, topic_name: str) -> tuple[str, str]:
    names = (f"{topic_name}-in", f"{topic_name}-out")
    with ottla.Admin(address) as admin:
        for name in names:
            admin.create_topic(name, 2)
    return names


@pytest.fixture
def producer(address: str, topic_name: str, protocol: str) -> Iterator[ottla.Producer]:
    with ottla.Producer(address, transactional_id=f"id-{topic_name}-{protocol}", retry_backoff_ms=20) as made:
        assert made._core._transactions is not None
        assert made._core._transactions.states.implicit == (protocol == "implicit")
        yield made


def committed(address: str, topic: str) -> list[bytes]:
    """What readers of committed records see in the topic's two partitions, in order within each."""
    found = read_all(address, topic, 2)
    return [message.value() for partition in sorted(found) for message in found[partition]]


def group_offset(address: str, group: str, topic: str, partition: int) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": group})
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, partition)], PATIENCE_S)
    finally:
        consumer.close()
    assert found.error is None, found.error
    return int(found.offset)


def test_committed_is_read_and_aborted_is_not(
    producer: ottla.Producer, address: str, two_topics: tuple[str, str]
) -> None:
    first, second = two_topics
    for number in range(6):
        producer.begin()
        futures = [
            producer.send(topic, b"%d" % number, partition=number % 2)
            for topic in two_topics
            for _ in range(3)
        ]
        if number % 3 == 2:
            # With some of it on its way, and some of it sent.
            futures[0].result(PATIENCE_S)
            producer.abort()
        else:
            producer.commit()
            assert all(future.result(0).offset >= 0 for future in futures)
    expected = [b"0"] * 3 + [b"4"] * 3 + [b"1"] * 3 + [b"3"] * 3
    assert committed(address, first) == committed(address, second) == expected


def test_the_block_commits_and_an_exception_aborts(
    producer: ottla.Producer, address: str, two_topics: tuple[str, str]
) -> None:
    topic = two_topics[0]
    with producer.transaction():
        producer.send(topic, b"kept", partition=0)

    def leave() -> None:
        with producer.transaction():
            producer.send(topic, b"dropped", partition=0).result(PATIENCE_S)
            producer.send(topic, b"dropped", partition=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    with producer.transaction():
        pass
    with producer.transaction():
        producer.send(topic, b"kept too", partition=0)
    assert committed(address, topic) == [b"kept", b"kept too"]


def test_records_of_an_open_transaction_are_not_seen(
    producer: ottla.Producer, address: str, two_topics: tuple[str, str]
) -> None:
    topic = two_topics[0]
    producer.begin()
    producer.send(topic, b"v", partition=0)
    producer.flush(PATIENCE_S)
    assert committed(address, topic) == []
    producer.commit()
    assert committed(address, topic) == [b"v"]


def test_offsets_count_with_the_records(
    producer: ottla.Producer, address: str, two_topics: tuple[str, str]
) -> None:
    source, target = two_topics
    group = f"group-{source}"
    at = TopicPartition(source, 1)
    with producer.transaction():
        producer.send(target, b"v", partition=0)
        producer.send_offsets({at: 7}, group)
    assert group_offset(address, group, source, 1) == 7
    producer.begin()
    producer.send_offsets({at: 8}, group)
    producer.abort()
    assert group_offset(address, group, source, 1) == 7
    # Offsets alone make a transaction, too; of a group without members the group's name is all there is.
    with producer.transaction():
        producer.send_offsets({at: OffsetAndMetadata(9, "words", 0)}, GroupMetadata(group, -1, "", None))
    assert group_offset(address, group, source, 1) == 9


def test_a_member_that_the_group_does_not_know_must_abort(
    producer: ottla.Producer, address: str, two_topics: tuple[str, str]
) -> None:
    source, target = two_topics
    group, at = f"group-{source}", TopicPartition(source, 0)
    with producer.transaction():
        producer.send_offsets({at: 1}, group)
    producer.begin()
    future = producer.send(target, b"v", partition=0)
    with pytest.raises(TransactionAbortable, match=r"abort\(\) and try again"):
        producer.send_offsets({at: 2}, GroupMetadata(group, 5, "nobody", None))
    with pytest.raises(TransactionAbortable):
        producer.send(target, b"v", partition=0)
    with pytest.raises(TransactionAbortable):
        producer.commit()
    producer.abort()
    assert future.done()
    with producer.transaction():
        producer.send(target, b"after", partition=0)
    assert committed(address, target) == [b"after"]
    assert group_offset(address, group, source, 0) == 1


def test_one_that_comes_under_the_name_fences_the_one_before(
    producer: ottla.Producer, address: str, two_topics: tuple[str, str]
) -> None:
    topic = two_topics[0]
    name = producer._core._settings.transactional_id
    producer.begin()
    producer.send(topic, b"zombie", partition=0).result(PATIENCE_S)
    with ottla.Producer(address, transactional_id=name) as successor, successor.transaction():
        successor.send(topic, b"successor", partition=0)
    with pytest.raises(ProducerFenced, match="create a new producer"):
        producer.commit()
    for call in (producer.begin, producer.commit, producer.abort, lambda: producer.send(topic, b"v")):
        with pytest.raises(ProducerFenced, match="cannot be used any more"):
            call()
    assert committed(address, topic) == [b"successor"]


def test_a_block_of_one_that_is_fenced_says_so(
    producer: ottla.Producer, address: str, two_topics: tuple[str, str]
) -> None:
    topic = two_topics[0]
    with producer.transaction():
        producer.send(topic, b"before", partition=0)
    ottla.Producer(address, transactional_id=producer._core._settings.transactional_id).close()
    with pytest.raises(ProducerFenced, match="cannot be used any more"), producer.transaction():
        producer.send(topic, b"zombie", partition=0)
    assert committed(address, topic) == [b"before"]


def test_a_batch_that_fails_ends_the_transaction_and_not_the_producer(
    producer: ottla.Producer, address: str, topic_name: str
) -> None:
    with ottla.Admin(address) as admin:
        admin.create_topic(topic_name, 2, 1, {"cleanup.policy": "compact"})
    for _ in range(2):
        producer.begin()
        good = producer.send(topic_name, b"v", b"k", partition=0)
        bad = producer.send(topic_name, b"no key", partition=1)
        with pytest.raises(TransactionAbortable, match=r"key.*abort\(\) and try again") as caught:
            producer.commit()
        assert isinstance(caught.value.__cause__, InvalidRequest)
        assert good.done()
        assert isinstance(bad.exception(0), InvalidRequest)
        with pytest.raises(TransactionAbortable):
            producer.send(topic_name, b"v", b"k")
        producer.abort()
    with producer.transaction():
        for partition in (0, 1):
            assert producer.send(topic_name, b"after", b"k", partition=partition).result(PATIENCE_S)
    assert committed(address, topic_name) == [b"after"] * 2


def test_a_batch_that_is_too_large_is_cut_within_its_numbers(
    producer: ottla.Producer, address: str, topic_name: str
) -> None:
    with ottla.Admin(address) as admin:
        admin.create_topic(topic_name, 2, 1, {"max.message.bytes": "2000"})
    values = [b"%04d" % number + b"x" * 200 for number in range(40)]
    with producer.transaction():
        for value in values:
            producer.send(topic_name, value, partition=0)
    with pytest.raises(TransactionAbortable) as caught, producer.transaction():
        producer.send(topic_name, b"x" * 5000, partition=0)
    assert isinstance(caught.value.__cause__, MessageTooLarge)
    with producer.transaction():
        producer.send(topic_name, b"after", partition=0)
    assert committed(address, topic_name) == [*values, b"after"]


def test_calls_at_the_wrong_moment(
    producer: ottla.Producer, address: str, two_topics: tuple[str, str]
) -> None:
    topic = two_topics[0]
    for call in (
        producer.commit,
        producer.abort,
        lambda: producer.send(topic, b"v"),
        lambda: producer.send_offsets({}, "g"),
    ):
        with pytest.raises(TransactionMisused, match=r"begin\(\) first"):
            call()
    producer.begin()
    with pytest.raises(TransactionMisused, match=r"commit\(\) or abort\(\) first"):
        producer.begin()
    producer.abort()
    with ottla.Producer(address) as plain, pytest.raises(TransactionMisused, match="transactional_id"):
        plain.begin()
    with pytest.raises(SettingError, match="transactional_id needs"):
        ottla.Producer(address, transactional_id="x", acks=1)
    with pytest.raises(KafkaError, match=r"transaction\.max\.timeout\.ms"):
        ottla.Producer(address, transactional_id=f"id-{topic}", transaction_timeout_ms=2_000_000_000)


def test_closing_aborts_what_is_open(address: str, two_topics: tuple[str, str], protocol: str) -> None:
    topic = two_topics[0]
    with ottla.Producer(address, transactional_id=f"id-{topic}-{protocol}") as producer:
        producer.begin()
        producer.send(topic, b"v", partition=0).result(PATIENCE_S)
    with ottla.Admin(address) as admin:
        found = admin.describe_transactions([f"id-{topic}-{protocol}"])
    assert found[f"id-{topic}-{protocol}"].state in ("CompleteAbort", "PrepareAbort")


def test_threads_send_in_one_transaction(
    producer: ottla.Producer, address: str, two_topics: tuple[str, str]
) -> None:
    topic = two_topics[0]

    def send(name: int) -> None:
        for number in range(100):
            producer.send(topic, b"%d %d" % (name, number), partition=number % 2)

    with producer.transaction():
        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(committed(address, topic))) == 400


def test_the_same_with_await(address: str, two_topics: tuple[str, str], protocol: str) -> None:
    source, target = two_topics

    async def body() -> None:
        name = f"id-{source}-{protocol}"
        async with AsyncProducer(address, transactional_id=name) as producer:
            async with producer.transaction():
                await producer.send(target, b"kept", partition=0)
                await producer.send_offsets({TopicPartition(source, 0): 3}, f"group-{source}")

            async def leave() -> None:
                async with producer.transaction():
                    await (await producer.send(target, b"dropped", partition=0))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await leave()
            await producer.begin()
            await producer.send(target, b"kept too", partition=0)
            await producer.commit()

    asyncio.run(body())
    assert committed(address, target) == [b"kept", b"kept too"]
    assert group_offset(address, f"group-{source}", source, 0) == 3


def test_producers_of_one_id_take_turns_by_renewing_it(
    producer: ottla.Producer, address: str, two_topics: tuple[str, str]
) -> None:
    topic = two_topics[0]
    name = producer._core._settings.transactional_id

    def write(by: ottla.Producer, value: bytes) -> None:
        with by.transaction():
            by.send(topic, value, partition=0)

    write(producer, b"1")
    with ottla.Producer(address, transactional_id=name, retry_backoff_ms=20) as other:
        write(other, b"2")
        producer.renew()
        write(producer, b"3")
        other.renew()
        write(other, b"4")
        # Who does not ask is fenced.
        with pytest.raises(KafkaError):
            write(producer, b"no")
        with pytest.raises(KafkaError):
            producer.renew()
        other.begin()
        with pytest.raises(TransactionMisused, match=r"commit\(\) or abort\(\) first"):
            other.renew()
        other.abort()
    assert committed(address, topic) == [b"1", b"2", b"3", b"4"]
