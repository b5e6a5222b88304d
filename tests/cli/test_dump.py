import struct

import pytest
from crc32c import crc32c

from ottla.cli import dump
from ottla.records.record import Record, encode_batch


def batch(base_offset: int = 0, count: int = 2, **options: object) -> bytes:
    records = [Record(0, 1000 + n, b"k", b"v%d" % n, (("h", None),)) for n in range(count)]
    return encode_batch(records, base_offset=base_offset, **options)  # type: ignore[arg-type]


def test_batches_and_their_records() -> None:
    rows = list(
        dump.batches(batch(5, 3, codec=4, producer_id=9, producer_epoch=1, base_sequence=7) + batch(8))
    )
    first, second = rows
    assert (first["position"], first["base_offset"], first["last_offset"], first["count"]) == (0, 5, 7, 3)
    assert (first["codec"], first["producer_id"], first["base_sequence"]) == ("zstd", 9, 7)
    assert [record["offset"] for record in first["records"]] == [5, 6, 7]
    assert first["records"][0]["headers"] == (("h", None),)
    assert second["position"] == first["bytes"]
    assert not any("problem" in row for row in rows)
    assert "records" not in next(dump.batches(batch(), records=False))


def test_markers_are_named() -> None:
    marker = encode_batch(
        [Record(0, 1, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 3))], control=True, transactional=True
    )
    (row,) = dump.batches(marker)
    assert row["control"] and row["control_type"] == "commit"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (batch()[:-1], "truncated"),
        (batch()[:30], "incomplete batch header"),
        (batch()[:-1] + b"\xff", "CRC"),
        (batch()[:16] + b"\x01" + batch()[17:], "magic 1"),
        (bytes(500), "zero bytes"),
    ],
)
def test_problems_are_reported_after_valid_batches(data: bytes, problem: str) -> None:
    rows = list(dump.batches(batch(0) + data))
    assert "problem" not in rows[0]
    assert problem in rows[1]["problem"]


@pytest.mark.parametrize("records", [True, False])
def test_a_bad_crc_is_reported_with_or_without_records_and_hides_nothing(records: bool) -> None:
    bad = bytearray(batch(0))
    bad[-1] ^= 1
    rows = list(dump.batches(bytes(bad) + batch(2), records=records))
    assert "the batch says" in rows[0]["problem"]
    assert "problem" not in rows[1]


def test_offset_index() -> None:
    data = struct.pack(">iiii", 10, 4096, 20, 8192) + bytes(16)
    assert list(dump.offset_index(data, 100)) == [
        {"entry": 0, "offset": 110, "position": 4096},
        {"entry": 1, "offset": 120, "position": 8192},
    ]
    assert (
        "must increase" in list(dump.offset_index(struct.pack(">iiii", 20, 8192, 10, 4096), 0))[1]["problem"]
    )
    assert "incomplete entry" in list(dump.offset_index(struct.pack(">ii", 1, 2) + b"xyz", 0))[-1]["problem"]


def test_time_index() -> None:
    data = struct.pack(">qiqi", 1000, 1, 2000, 5)
    assert [(row["timestamp"], row["offset"]) for row in dump.time_index(data, 50)] == [
        (1000, 51),
        (2000, 55),
    ]
    assert (
        "must not decrease" in list(dump.time_index(struct.pack(">qiqi", 2000, 1, 1000, 5), 0))[1]["problem"]
    )


def test_txn_index() -> None:
    (row,) = dump.txn_index(struct.pack(">hqqqq", 0, 7, 10, 20, 30))
    assert (row["producer_id"], row["first_offset"], row["last_offset"], row["last_stable_offset"]) == (
        7,
        10,
        20,
        30,
    )


def test_producer_snapshot() -> None:
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 4000, 2, 9, 99, 9, 1234, -1, -1)
    data = struct.pack(">hI", 1, crc32c(body)) + body
    (row,) = dump.producer_snapshot(data)
    assert (row["producer_id"], row["last_sequence"], row["last_offset"]) == (4000, 9, 99)
    assert "CRC" in next(dump.producer_snapshot(data[:-1] + b"x"))["problem"]
    assert "too few for a producer snapshot" in next(dump.producer_snapshot(b"abc"))["problem"]
    assert any("the header says" in row.get("problem", "") for row in dump.producer_snapshot(data[:-4]))


def test_checkpoints() -> None:
    assert next(iter(dump.checkpoint("0\n2\norders 0 17\na b 1 5\n"))) == {
        "topic": "orders",
        "partition": 0,
        "offset": 17,
    }
    assert list(dump.checkpoint("0\n1\n3 40\n")) == [{"epoch": 3, "start_offset": 40}]
    assert "the header says" in list(dump.checkpoint("0\n5\n3 40\n"))[-1]["problem"]
    assert "problem" in next(dump.checkpoint("hello"))


def test_properties() -> None:
    assert list(dump.properties("#c\nversion=1\nid: x:y\n")) == [
        {"name": "version", "value": "1"},
        {"name": "id", "value": "x:y"},
    ]


def test_base_offsets_come_from_names() -> None:
    assert dump.base_offset_of("00000000000000000123.index") == 123
    assert dump.base_offset_of("recovery-point-offset-checkpoint") == 0
