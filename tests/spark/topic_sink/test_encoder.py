"""Arrow batches become record batches: both twins, every column, full batches, large rows. No Spark or broker."""

import random
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from ottla.client.errors import MessageTooLarge
from ottla.records.batch import HEADER
from ottla.records.compression import LZ4
from ottla.records.partitioner import partition_for_key
from ottla.records.record import Record, decode_batch, encode_batch
from ottla.spark.topic_sink import layout, layout_compiled
from ottla.spark.topic_sink.encoder import EncodedBatch, Encoder, RowError, Twin
from ottla.spark.topic_sink.plan import COLUMNS, Plan

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TWINS = [cast(Twin, layout), cast(Twin, layout_compiled)]
twins = pytest.mark.parametrize("twin", TWINS, ids=["pure", "compiled"])


def plan(*columns: str, topic: str | None = "t", **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "kafka": {}, "topic": topic, "guarantee": "exactly-once", "sink_id": None, "adopts": False,
        "message_bytes": 0, "columns": frozenset(columns), "codec": 0, "batch_bytes": 4096, "record_bytes": 20_000, "transaction_ms": 0,
    }  # fmt: skip
    return Plan(**{**values, **changes})


def encode(the_plan: Plan, twin: Twin, *batches: Any, partitions: int = 4) -> list[EncodedBatch]:
    found: list[EncodedBatch] = []
    encoder = Encoder(the_plan, lambda _topic: partitions, found.append, 0, twin)
    for number, batch in enumerate(batches):
        encoder.add(batch, 1000 + number)
    encoder.close()
    assert encoder.rows == sum(batch.num_rows for batch in batches)
    return found


def rows_of(found: list[EncodedBatch]) -> dict[tuple[str, int], list[Record]]:
    rows: dict[tuple[str, int], list[Record]] = {}
    for each in found:
        rows.setdefault((each.topic, each.partition), []).extend(decode_batch(each.batch))
    return rows


def anything(dice: random.Random, rows: int) -> Any:
    """Rows of all kinds, as a slice of a larger batch: Arrow's offsets need not begin at 0."""

    def content(size: int) -> bytes:
        return dice.randbytes(dice.choice((0, 1, dice.randrange(size))))

    keys = [dice.choice((None, content(70))) for _ in range(rows + 5)]
    values = [dice.choice((None, content(300), content(300))) for _ in range(rows + 5)]
    headers = [
        dice.choice((None, [], [{"key": "ä", "value": content(20)}, {"key": "", "value": None}]))
        for _ in range(rows + 5)
    ]
    places = [dice.choice((None, dice.randrange(4))) for _ in range(rows + 5)]
    topics = [dice.choice(("one", "two", "three")) for _ in range(rows + 5)]
    return pa.record_batch(
        [
            pa.array(headers, HEADERS),
            pa.array(values, pa.binary()),
            pa.array(places, pa.int32()),
            pa.array(topics, pa.string()),
            pa.array(keys, pa.binary()),
        ],
        ["headers", "value", "partition", "topic", "key"],
    ).slice(2, rows)


def test_both_twins_make_the_same_bytes_and_they_are_right() -> None:
    dice = random.Random(7)
    batches = [anything(dice, rows) for rows in (1, 500, 3, 200)]
    pure, compiled = (encode(plan(*COLUMNS, topic=None), twin, *batches) for twin in TWINS)
    assert pure == compiled
    assert all(len(each.batch) <= 4096 + 61 for each in pure)
    for each in pure:
        stamps = [record.timestamp_ms for record in decode_batch(each.batch)]
        assert HEADER.unpack_from(each.batch)[7:9] == (min(stamps), max(stamps))
    expected: dict[tuple[str, int], list[tuple[int, Any, Any, Any]]] = {}
    for number, batch in enumerate(batches):
        for row in batch.to_pylist():
            place = row["partition"]
            if place is None:
                place = number % 4 if row["key"] is None else partition_for_key(row["key"], 4)
            headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
            expected.setdefault((row["topic"], place), []).append(
                (1000 + number, row["key"], row["value"], headers)
            )
    found = {place: [tuple(record)[1:] for record in records] for place, records in rows_of(pure).items()}
    assert found == expected


@twins
def test_texts_are_written_as_their_bytes_and_batches_as_the_producer_makes_them(twin: Twin) -> None:
    batch = pa.record_batch([pa.array(["grün", "x" * 200]), pa.array(["k", None])], ["value", "key"])
    (only,) = encode(plan("key", "value", codec=LZ4), twin, batch, partitions=1)
    records = [Record(0, 1000, b"k", "grün".encode(), ()), Record(1, 1000, None, b"x" * 200, ())]
    assert only == ("t", 0, encode_batch(records, codec=LZ4))


@twins
def test_large_types_of_arrow_and_rows_larger_than_a_batch(twin: Twin) -> None:
    values = [b"a", b"b" * 10_000, b"c"]
    batch = pa.record_batch([pa.array(values, pa.large_binary())], ["value"])
    found = encode(plan("value"), twin, batch, partitions=1)
    assert [record.value for record in rows_of(found)["t", 0]] == values
    with pytest.raises(MessageTooLarge, match=r"a row of 20132 bytes exceeds max.request.size \(20000\)"):
        encode(plan("value"), twin, pa.record_batch([pa.array([b"x" * 20_100])], ["value"]))


@twins
def test_rows_without_a_key_take_turns_by_arrow_batch(twin: Twin) -> None:
    batches = [pa.record_batch([pa.array([b"%d" % number] * 3)], ["value"]) for number in range(5)]
    rows = rows_of(encode(plan("value"), twin, *batches))
    assert {place: [record.value for record in records] for (_, place), records in rows.items()} == {
        0: [b"0"] * 3 + [b"4"] * 3, 1: [b"1"] * 3, 2: [b"2"] * 3, 3: [b"3"] * 3,
    }  # fmt: skip


def test_a_clock_that_is_set_back_breaks_no_batch() -> None:
    found: list[EncodedBatch] = []
    encoder = Encoder(plan("value"), lambda _topic: 1, found.append, 0, TWINS[1])
    batch = pa.record_batch([pa.array([b"v"])], ["value"])
    for now_ms in (1000, 400, 1500):
        encoder.add(batch, now_ms)
    encoder.close()
    assert [record.timestamp_ms for record in rows_of(found)["t", 0]] == [1000, 1000, 1500]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (("partition", pa.array([0, 4], pa.int32())), r"partition 4, but topic 't' has 4: use 0 to 3"),
        (("partition", pa.array([0, -1], pa.int32())), "a row has partition -1: partitions start at 0"),
        (("partition", pa.array([None, -2], pa.int32())), "a row has partition -2"),
        (("topic", pa.array(["a", None])), "a row has no topic: set the option topic"),
        (("headers", pa.array([None, [{"key": None, "value": b""}]], HEADERS)), "a header has no key"),
    ],
)
def test_rows_that_cannot_be_written_are_told(column: tuple[str, Any], message: str) -> None:
    name, content = column
    batch = pa.record_batch([pa.array([b"1", b"2"]), content], ["value", name])
    with pytest.raises(RowError, match=message):
        encode(plan("value", name, topic=None if name == "topic" else "t"), TWINS[0], batch)


def test_the_compiled_hash_is_murmur2() -> None:
    dice = random.Random(3)
    keys = [dice.randbytes(length) for length in range(40) for _ in range(20)]
    offsets = np.cumsum([0, *map(len, keys)]).astype(np.int64)
    column = layout.Bytes(offsets, np.frombuffer(b"".join(keys), np.uint8), np.ones(len(keys), np.bool_))
    chosen = np.full(len(keys), -1, np.int64)
    layout_compiled.choose(np.arange(len(keys)), column, 1_000_003, 0, chosen)
    assert chosen.tolist() == [partition_for_key(key, 1_000_003) for key in keys]
