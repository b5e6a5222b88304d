"""Records: bytes as Kafka 4.3.1's own classes write them, and back; damage is told, whatever it is."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.groups import formats
from ottla.groups.formats import (
    CONSUMER_GROUP_MEMBER,
    CONSUMER_GROUP_METADATA,
    CURRENT_ASSIGNMENT,
    GROUP_METADATA,
    OFFSET_COMMIT,
    REGULAR_EXPRESSION,
    TARGET_ASSIGNMENT,
    TARGET_ASSIGNMENT_MEMBER,
    Committed,
    Record,
    decode,
    encode,
)
from ottla.records import layout
from ottla.records.layout import Malformed

ID = bytes(range(16))
TOPICS = [{"topic_id": ID, "partitions": [0, 3]}]
WITH_EPOCHS = [{"topic_id": ID, "partitions": [0, 3], "assignment_epochs": None}]
MEMBER = {
    "member_id": "m-1", "group_instance_id": None, "client_id": "c", "client_host": "/h", "rebalance_timeout": 300,
    "session_timeout": 45, "subscription": b"sub", "assignment": b"ass",
}  # fmt: skip

RECORDS: dict[str, Record] = {
    "offset": Record((OFFSET_COMMIT, "g", "t", 3), Committed(5, 1, "wo ä", 1000, -1, ID)),
    "offset-without-id": Record((OFFSET_COMMIT, "g", "t", 3), Committed(5, -1, "", 1000)),
    "offset-that-expires": Record((OFFSET_COMMIT, "g", "t", 3), Committed(5, -1, "m", 1000, 2000)),
    "group": Record(
        (GROUP_METADATA, "g"),
        {
            "protocol_type": "consumer", "generation": 4, "protocol": "range", "leader": "m-1",
            "current_state_timestamp": 77, "members": [MEMBER, MEMBER | {"member_id": "m-2", "group_instance_id": "i"}],
        },
    ),
    "consumer-group": Record((CONSUMER_GROUP_METADATA, "g"), {"epoch": 3, "metadata_hash": 9}),
    "member": Record(
        (CONSUMER_GROUP_MEMBER, "g", "m"),
        {
            "instance_id": "", "rack_id": "r", "client_id": "c", "client_host": "/h", "subscribed_topic_names": ["a", "b"],
            "subscribed_topic_regex": None, "rebalance_timeout_ms": 5, "server_assignor": "uniform",
            "classic_member_metadata": {"session_timeout_ms": 6, "supported_protocols": [{"name": "n", "metadata": b"m"}]},
        },
    ),
    "target": Record((TARGET_ASSIGNMENT, "g"), {"assignment_epoch": 8, "assignment_timestamp": 11}),
    "target-member": Record((TARGET_ASSIGNMENT_MEMBER, "g", "m"), {"topic_partitions": TOPICS}),
    "current": Record(
        (CURRENT_ASSIGNMENT, "g", "m"),
        {
            "member_epoch": 2, "previous_member_epoch": 1, "state": 3, "assigned_partitions": WITH_EPOCHS,
            "partitions_pending_revocation": [],
        },
    ),
    "regex": Record((REGULAR_EXPRESSION, "g", "a.*"), {"topics": ["ab"], "version": 4, "timestamp": 5}),
}  # fmt: skip

#: Written by the generated classes of kafka-group-coordinator-4.3.1.jar, with the number of kind and version in front.
KAFKAS: dict[str, tuple[str, str]] = {
    "offset": (
        "000100016700017400000003",
        "000400000000000000050000000106776f20c3a400000000000003e8010010000102030405060708090a0b0c0d0e0f",
    ),
    "offset-without-id": (
        "000100016700017400000003",
        "00040000000000000005ffffffff0100000000000003e800",
    ),
    "offset-that-expires": (
        "000100016700017400000003",
        "0001000000000000000500016d00000000000003e800000000000007d0",
    ),
    "group": (
        "0002000167",
        (
            "00030008636f6e73756d657200000004000572616e676500036d2d31000000000000004d0000000200036d2d31ffff000163"
            "00022f680000012c0000002d000000037375620000000361737300036d2d3200016900016300022f680000012c0000002d00"
            "00000373756200000003617373"
        ),
    ),
    "consumer-group": (
        "0003000167",
        "0000000000030100080000000000000009",
    ),
    "member": (
        "000500016700016d",
        "00000102720263032f680302610262000000000508756e69666f726d01000c010000000602026e026d0000",
    ),
    "target": (
        "0006000167",
        "000000000008010008000000000000000b",
    ),
    "target-member": (
        "000700016700016d",
        "000002000102030405060708090a0b0c0d0e0f0300000000000000030000",
    ),
    "current": (
        "000800016700016d",
        "000000000002000000010302000102030405060708090a0b0c0d0e0f030000000000000003000100",
    ),
    "regex": (
        "00100001670003612e2a",
        "0000020361620000000000000004000000000000000500",
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_come_back_as_they_were(name: str) -> None:
    record = RECORDS[name]
    assert decode(*encode(record)) == record
    tombstone = Record(record.key, None)
    assert decode(*encode(tombstone)) == tombstone


@pytest.mark.parametrize("name", KAFKAS)
def test_the_bytes_are_kafkas(name: str) -> None:
    key, value = encode(RECORDS[name])
    assert (key.hex(), (value or b"").hex()) == KAFKAS[name]


@given(
    st.text(max_size=20), st.text(max_size=20), st.integers(0, 2**31 - 1), st.integers(-1, 2**63 - 1), st.text(max_size=300),
    st.integers(-1, 2**40), st.binary(min_size=16, max_size=16),
)  # fmt: skip
def test_any_offset_comes_back(
    group: str, topic: str, partition: int, offset: int, text: str, expire_ms: int, topic_id: bytes
) -> None:
    has_id = expire_ms < 0
    value = Committed(offset, 4 if has_id else -1, text, 12, expire_ms, topic_id if has_id else bytes(16))
    record = Record((OFFSET_COMMIT, group, topic, partition), value)
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
    key, value = encode(RECORDS["offset"])
    assert value is not None
    assert decode(b"\0\x63" + key[2:], value) is None
    assert decode(key, b"\0\x09" + value[2:]) is None


def test_offsets_of_old_brokers_are_understood() -> None:
    key, _value = encode(RECORDS["offset"])
    old = b"\0\0" + (5).to_bytes(8, "big") + b"\0\1m" + (1000).to_bytes(8, "big")
    assert decode(b"\0\0" + key[2:], old) == Record((OFFSET_COMMIT, "g", "t", 3), Committed(5, -1, "m", 1000))


@pytest.mark.parametrize(
    "record",
    [Record((OFFSET_COMMIT, "g" * 40_000, "t", 0), None), Record((GROUP_METADATA, "g" * 40_000), None)],
)
def test_what_is_too_long_cannot_be_written(record: Record) -> None:
    with pytest.raises(Malformed):
        encode(record)


@given(
    data=st.data(),
    group=st.text(max_size=20),
    topic=st.text(max_size=20),
    metadata=st.one_of(st.text(max_size=40), st.just("x" * 126), st.just("x" * 127), st.just("é" * 200)),
    topic_id=st.sampled_from([bytes(16), bytes(range(16))]),
    version=st.sampled_from([1, 3, 4]),
)
def test_the_short_way_to_read_an_offset_reads_what_the_tables_read(
    data: st.DataObject, group: str, topic: str, metadata: str, topic_id: bytes, version: int
) -> None:
    """And leaves to them what it does not know, damage included: they say what is wrong with it."""
    number = st.integers(-(2**63), 2**63 - 1)
    row = {
        "offset": data.draw(number), "leader_epoch": data.draw(st.integers(-(2**31), 2**31 - 1)),
        "metadata": metadata, "commit_timestamp": data.draw(number), "topic_id": topic_id,
    }  # fmt: skip
    key = encode(Record((OFFSET_COMMIT, group, topic, data.draw(st.integers(0, 2**31 - 1))), None))[0]
    value = version.to_bytes(2, "big") + layout.write(formats._VALUES[OFFSET_COMMIT], version, row)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(value) - 1))
        value = value[:at] + data.draw(st.binary(max_size=2)) + value[at + 1 :]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(2, len(key) - 1))
        key = key[:at] + data.draw(st.binary(max_size=2)) + key[at + 1 :]

    def outcome() -> object:
        try:
            return decode(key, value)
        except Malformed:
            return Malformed

    found = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "_decode_offset", lambda _key, _value: None)
        assert outcome() == found


def test_the_usual_offset_takes_the_short_way() -> None:
    for topic_id in (bytes(16), bytes(range(16))):
        record = Record((OFFSET_COMMIT, "g", "t", 3), Committed(7, 2, "text", 99, -1, topic_id))
        key, value = encode(record)
        assert value is not None and formats._decode_offset(key, value) == record


def test_a_member_as_kafka_4_3_writes_it() -> None:
    """With the classic half of a member that has none told by a tagged field that is null."""
    key = b"\x00\x05\x00\x0bst-consumer\x00\x01m"
    value = b"\x00\x00\x04i-1\x00\x08rdkafka\x0b/127.0.0.1\x02\x02t\x01\x00\x04\x93\xe0\x00\x01\x00\x01\x00"
    record = decode(key, value)
    assert record is not None and record.key == (CONSUMER_GROUP_MEMBER, "st-consumer", "m")
    assert record.value == {
        "instance_id": "i-1", "rack_id": None, "client_id": "rdkafka", "client_host": "/127.0.0.1",
        "subscribed_topic_names": ["t"], "subscribed_topic_regex": "", "rebalance_timeout_ms": 300_000,
        "server_assignor": None, "classic_member_metadata": None,
    }  # fmt: skip
