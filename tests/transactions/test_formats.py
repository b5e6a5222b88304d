"""Records: bytes as Kafka 4.3.1's own classes write them, and back; damage is told, whatever it is."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records.layout import Malformed
from ottla.transactions.formats import Entry, Record, State, decode, encode

ONE = frozenset({("in", 0)})
TWO = frozenset({("in", 0), ("in", 1)})
UPDATED_MS = 1_700_000_000_002

RECORDS: dict[str, Record] = {
    "empty": Record("t-ä", Entry(4000, 0, 60_000, State.EMPTY, 1_700_000_000_000, previous_producer_id=4000)),
    "ongoing": Record(
        "t", Entry(4000, 3, 60_000, State.ONGOING, UPDATED_MS, UPDATED_MS - 1, ONE, 4000, client_version=2)
    ),
    "prepare-commit": Record(
        "t", Entry(4000, 32767, 60_000, State.PREPARE_COMMIT, UPDATED_MS, UPDATED_MS - 1, ONE, 4000, 4001, 2)
    ),
    "prepare-abort": Record(
        "t", Entry(4000, 4, 60_000, State.PREPARE_ABORT, UPDATED_MS, UPDATED_MS - 1, ONE, 4000)
    ),
    "complete-commit": Record(
        "t",
        Entry(4001, 0, 60_000, State.COMPLETE_COMMIT, UPDATED_MS, UPDATED_MS - 1, frozenset(), 4000, -1, 2),
    ),
}

#: Written by TransactionLog of kafka-transaction-coordinator-4.3.1.jar, with transaction.version 1 or 2.
KAFKAS: dict[str, tuple[str, str]] = {
    "empty": (
        "00000004742dc3a4",
        "00010000000000000fa000000000ea6000000000018bcfe56800ffffffffffffffff0100080000000000000fa0",
    ),
    "ongoing": (
        "0000000174",
        (
            "00010000000000000fa000030000ea60010203696e0200000000000000018bcfe568020000018bcfe56801"
            "0200080000000000000fa002020002"
        ),
    ),
    "prepare-commit": (
        "0000000174",
        (
            "00010000000000000fa07fff0000ea60020203696e0200000000000000018bcfe568020000018bcfe56801"
            "0300080000000000000fa001080000000000000fa102020002"
        ),
    ),
    "prepare-abort": (
        "0000000174",
        (
            "00010000000000000fa000040000ea60030203696e0200000000000000018bcfe568020000018bcfe56801"
            "0100080000000000000fa0"
        ),
    ),
    "complete-commit": (
        "0000000174",
        "00010000000000000fa100000000ea6004010000018bcfe568020000018bcfe568010200080000000000000fa002020002",
    ),
}

#: The same with transaction.version 0, as older brokers write them, and with partitions in Kafka's order, which is that of a
#: hash: these are read only.
READ: dict[str, tuple[str, Entry]] = {
    "empty": (
        "00000000000000000fa000000000ea6000ffffffff0000018bcfe56800ffffffffffffffff",
        Entry(4000, 0, 60_000, State.EMPTY, 1_700_000_000_000),
    ),
    "ongoing": (
        (
            "00000000000000000fa000030000ea6001000000010002696e0000000200000001000000000000018bcfe56802"
            "0000018bcfe56801"
        ),
        Entry(4000, 3, 60_000, State.ONGOING, UPDATED_MS, UPDATED_MS - 1, TWO),
    ),
    "ongoing-of-two": (
        (
            "00010000000000000fa000030000ea60010203696e030000000100000000000000018bcfe568020000018bcfe56801"
            "0200080000000000000fa002020002"
        ),
        Entry(4000, 3, 60_000, State.ONGOING, UPDATED_MS, UPDATED_MS - 1, TWO, 4000, -1, 2),
    ),
    "complete-abort": (
        "00000000000000000fa000040000ea6005000000000000018bcfe568030000018bcfe56801",
        Entry(4000, 4, 60_000, State.COMPLETE_ABORT, UPDATED_MS + 1, UPDATED_MS - 1),
    ),
    # With the next producer's epoch, which two-phase commit will need, and with our own field, which Kafka read as well.
    "tags": (
        "0001000000000000000100020000000500010000000000000009ffffffffffffffff0203020007f4de01020005",
        Entry(1, 2, 5, State.EMPTY, 9, last_epoch=5),
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_the_bytes_are_kafkas(name: str) -> None:
    key, value = encode(RECORDS[name])
    assert (key.hex(), (value or b"").hex()) == KAFKAS[name]


@pytest.mark.parametrize("name", RECORDS)
def test_records_come_back_as_they_were(name: str) -> None:
    record = RECORDS[name]
    assert decode(*encode(record)) == record
    tombstone = Record(record.transactional_id, None)
    assert decode(*encode(tombstone)) == tombstone


@pytest.mark.parametrize("name", READ)
def test_what_others_wrote_is_understood(name: str) -> None:
    value, entry = READ[name]
    assert decode(bytes.fromhex("0000000174"), bytes.fromhex(value)) == Record("t", entry)


@given(
    st.text(max_size=20), st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.sampled_from(list(State)[1:6]),
    st.frozensets(st.tuples(st.text(max_size=10), st.integers(0, 2**31 - 1)), max_size=8), st.integers(-1, 2**62),
    st.sampled_from([0, 2]),
)  # fmt: skip
def test_any_record_comes_back(
    transactional_id: str, producer_id: int, epoch: int, state: State, partitions: frozenset[tuple[str, int]],
    next_id: int, version: int,
) -> None:  # fmt: skip
    entry = Entry(producer_id, epoch, 5, state, 12, 11, partitions, producer_id, next_id, version)
    record = Record(transactional_id, entry)
    assert decode(*encode(record)) == record


@given(st.sampled_from(sorted(RECORDS)), st.data())
def test_damage_is_told_and_nothing_else_happens(name: str, data: Any) -> None:
    key, value = (bytearray(part or b"") for part in encode(RECORDS[name]))
    for part in (key, value):
        for _ in range(data.draw(st.integers(0, 3))):
            if part:
                part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
        del part[data.draw(st.integers(0, len(part))) :]
    with contextlib.suppress(Malformed):
        decode(bytes(key), bytes(value))


def test_what_is_from_the_future_is_none_of_ours() -> None:
    key, value = encode(RECORDS["empty"])
    assert value is not None
    assert decode(b"\0\x01" + key[2:], value) is None
    assert decode(key, b"\0\x02" + value[2:]) is None


@pytest.mark.parametrize("number", [6, 7, 8, -1])
def test_states_that_are_never_written_are_damage(number: int) -> None:
    key, value = encode(RECORDS["empty"])
    assert value is not None
    at = 2 + 8 + 2 + 4
    with pytest.raises(Malformed):
        decode(key, value[:at] + number.to_bytes(1, "big", signed=True) + value[at + 1 :])


def test_what_is_too_long_cannot_be_written() -> None:
    with pytest.raises(Malformed):
        encode(Record("t" * 40_000, None))
