"""Encoded batches: their order, transactions of both protocols, and splitting of large batches."""

import pytest

import ottla
from ottla.client.errors import KafkaError, MessageTooLarge, TopicNotFound
from ottla.client.metadata import OffsetAndMetadata, TopicPartition
from ottla.client.producer import transactions
from ottla.client.producer.ready_made import ReadyMade
from ottla.records.batch import HEADER, crc_of
from ottla.records.compression import LZ4
from ottla.records.record import Record, encode_batch
from tests.client.producer.behaviours import read_all
from tests.client.producer.transactional import committed


def batch_of(*values: bytes, codec: int = 0) -> bytes:
    return encode_batch([Record(0, 1000, b"k", value, ()) for value in values], codec=codec)


def test_only_the_header_changes() -> None:
    given = batch_of(b"a", b"b", codec=LZ4)
    made = ReadyMade(memoryview(given))
    assert len(made) == 2
    assert made.encode() == given
    stamped = made.encode(producer_id=7, producer_epoch=3, base_sequence=11, transactional=True)
    header = HEADER.unpack_from(stamped)
    assert header[4] == crc_of(stamped)
    assert header[5] == LZ4 | 0x10
    assert header[9:12] == (7, 3, 11)
    assert stamped[61:] == given[61:]
    assert ReadyMade(stamped).encode() == given


@pytest.mark.parametrize("batch", [b"", b"x" * 61, encode_batch([], last_offset_delta=3)])
def test_what_is_no_batch_is_refused(batch: bytes) -> None:
    with pytest.raises(ValueError, match=r"batch"):
        ReadyMade(batch)


@pytest.mark.parametrize("level", [2, 99])
def test_batches_of_a_transaction_count_together_or_not_at_all(
    ottla_address: str, topic_name: str, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    monkeypatch.setattr(transactions, "IMPLICIT_LEVEL", level)
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 2)
    place = TopicPartition(topic_name, 0)
    with (
        ottla.Producer(ottla_address, transactional_id=topic_name) as producer,
        ottla.Admin(ottla_address) as admin,
    ):
        producer.begin()
        producer.send_batch(topic_name, 0, batch_of(b"dropped")).result(30)
        producer.abort()
        with producer.transaction():
            sent = [
                producer.send_batch(topic_name, number % 2, batch_of(b"%d" % number, b"-"))
                for number in range(40)
            ]
            producer.send(topic_name, b"last", partition=1)
            producer.send_offsets({place: OffsetAndMetadata(5, "words")}, topic_name)
        assert admin.list_group_offsets([topic_name], stable=True)[topic_name][place][:2] == (5, "words")
        assert sent[2].result().offset == sent[0].result().offset + 2
    numbers = [value for value in committed(ottla_address, topic_name) if value != b"-"]
    assert numbers == [b"%d" % number for number in (*range(0, 40, 2), *range(1, 40, 2))] + [b"last"]


def test_a_batch_that_the_topic_finds_too_large_is_cut(ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1, configs={"max.message.bytes": "2000"})
    values = [bytes([number]) * 300 for number in range(20)]
    with ottla.Producer(ottla_address) as producer:
        sent = producer.send_batch(topic_name, 0, batch_of(*values, codec=LZ4))
        sent = producer.send_batch(topic_name, 0, batch_of(*values))
        assert sent.result(30).offset == 20
        assert producer._core._accumulator.buffered_bytes == 0
    assert [message.value() for message in read_all(ottla_address, topic_name)[0]] == values * 2


def test_what_cannot_be_sent_is_told_at_once(ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1)
    with ottla.Producer(ottla_address, max_request_size=1000, max_block_ms=300) as producer:
        with pytest.raises(MessageTooLarge, match="a batch of 20"):
            producer.send_batch(topic_name, 0, batch_of(b"x" * 2000))
        with pytest.raises(TopicNotFound, match="has partitions 0 to 0, not 1"):
            producer.send_batch(topic_name, 1, batch_of(b"x"))
        with pytest.raises(ValueError, match="not a batch"):
            producer.send_batch(topic_name, 0, b"x")
        producer.close()
        with pytest.raises(KafkaError, match="closed"):
            producer.send_batch(topic_name, 0, batch_of(b"x"))
