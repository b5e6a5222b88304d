import random
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader as native_entity_reader
from kio.static.constants import EntityType

from ottla.wire.decode import (
    MalformedMessage,
    decode_request,
    decode_response,
    entity_reader,
    read_tolerant,
    request_reader,
    response_reader,
)
from ottla.wire.encode import entity_encoder, request_encoder, response_encoder, uvarint
from ottla.wire.guard import NeedsTolerantReader
from ottla.wire.layout import layout
from ottla.wire.schema import request_class, request_is_flexible, response_class

PRODUCE, FETCH, METADATA, OFFSET_FETCH, HEARTBEAT, API_VERSIONS, DESCRIBE_TOPIC_PARTITIONS = (
    0,
    1,
    3,
    9,
    12,
    18,
    75,
)
BEFORE, AFTER = b"\xff\xff\xff", b"\x7f\xff"
MESSAGES_OF_EACH_CLASS = 4
MUTATIONS_OF_EACH_CLASS = 12
BOMBS = (
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x08",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\xff" * 9,
)


def test_both_readers_return_what_was_encoded(classes: list[Any], maker: Any) -> None:
    for cls in classes:
        for _ in range(MESSAGES_OF_EACH_CLASS):
            instance, plain = maker.message(cls)
            body = entity_encoder(cls)(plain)
            framed = BEFORE + body + AFTER
            expected = (instance, len(body))
            assert native_entity_reader(cls)(framed, len(BEFORE)) == expected
            assert read_tolerant(cls, framed, len(BEFORE)) == expected
            try:
                assert entity_reader(cls)(framed, len(BEFORE)) == expected
            except NeedsTolerantReader:
                # Allowed only for tagged fields; without them the fast path reads every valid message.
                assert body != entity_encoder(cls)(without_tags(cls, plain))


def without_tags(cls: Any, plain: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for field in layout(cls):
        if field.tag is not None or field.name not in plain:
            continue
        value = plain[field.name]
        if field.struct is not None and value is not None:
            value = (
                [without_tags(field.struct, item) for item in value]
                if field.is_array
                else without_tags(field.struct, value)
            )
        kept[field.name] = value
    return kept


def test_the_fast_path_takes_every_message_without_tagged_fields(classes: list[Any], maker: Any) -> None:
    for cls in classes:
        body = entity_encoder(cls)(without_tags(cls, maker.message(cls)[1]))
        assert entity_reader(cls)(body, 0) == native_entity_reader(cls)(body, 0)


def test_requests_and_responses_by_key() -> None:
    request = request_encoder(HEARTBEAT, 4)({"group_id": "g", "member_id": "m", "generation_id": 5})
    assert decode_request(HEARTBEAT, 4, b"xx" + request, 2).generation_id == 5
    assert request_reader(HEARTBEAT, 4)(memoryview(request), 0)[1] == len(request)
    response = response_encoder(HEARTBEAT, 4)({"throttle_time": 12, "error_code": 27})
    decoded = decode_response(HEARTBEAT, 4, memoryview(b"x" + response)[1:], 0)
    assert (decoded.throttle_time, decoded.error_code) == (timedelta(milliseconds=12), ErrorCode(27))
    assert response_reader(HEARTBEAT, 4)(response, 0) == (decoded, len(response))


def test_a_writable_buffer_is_read_by_the_tolerant_reader() -> None:
    body = bytearray(request_encoder(HEARTBEAT, 4)({"group_id": "g"}))
    assert decode_request(HEARTBEAT, 4, memoryview(body), 0).group_id == "g"


def with_tags(body: bytes, section: bytes) -> bytes:
    """Replaces the empty tagged section at the end of a message."""
    assert body[-1:] == b"\0"
    return body[:-1] + section


@pytest.mark.parametrize("tag", [0, 5, 9999])
def test_unknown_tagged_fields_are_ignored(tag: int) -> None:
    body = request_encoder(HEARTBEAT, 4)({"group_id": "g"})
    extended = with_tags(body, b"\x01" + uvarint(tag) + b"\x03abc")
    with pytest.raises(KeyError):
        native_entity_reader(request_class(HEARTBEAT, 4))(extended, 0)
    assert decode_request(HEARTBEAT, 4, extended, 0) == decode_request(HEARTBEAT, 4, body, 0)
    assert read_tolerant(request_class(HEARTBEAT, 4), extended + AFTER, 0)[1] == len(extended)


def test_unknown_tagged_fields_inside_arrays_are_ignored() -> None:
    plain = {"topics": [{"name": "first"}, {"name": "second"}]}
    body = request_encoder(METADATA, 9)(plain)
    extended = body.replace(b"\x06first\0", b"\x06first\x02\x00\x00\x21\x02zz")
    assert len(extended) == len(body) + 6
    assert decode_request(METADATA, 9, extended, 0) == decode_request(METADATA, 9, body, 0)


def test_known_tagged_fields_are_read_among_unknown_ones() -> None:
    body = response_encoder(API_VERSIONS, 3)({})
    section = bytes.fromhex("03 01 08 0000000000000005 03 01 01 7f 00")
    decoded = decode_response(API_VERSIONS, 3, with_tags(body, section), 0)
    assert (decoded.finalized_features_epoch, decoded.zk_migration_ready) == (5, True)
    assert decoded.supported_features == ()


@pytest.mark.parametrize("section", ["01 01 07 00000000000005", "01 01 09 000000000000000500", "01 01 08 00"])
def test_a_known_tagged_field_of_a_wrong_size_is_malformed(section: str) -> None:
    body = with_tags(response_encoder(API_VERSIONS, 3)({}), bytes.fromhex(section))
    with pytest.raises(MalformedMessage):
        decode_response(API_VERSIONS, 3, body, 0)


def test_an_unknown_error_code_is_an_unknown_server_error() -> None:
    body = response_encoder(HEARTBEAT, 4)({"error_code": 32000})
    assert decode_response(HEARTBEAT, 4, body, 0).error_code is ErrorCode.unknown_server_error


@pytest.mark.parametrize("marker", ["ff", "01"])
def test_a_nullable_struct(marker: str) -> None:
    cursor = None if marker == "ff" else {"topic_name": "t", "partition_index": 3}
    body = request_encoder(DESCRIBE_TOPIC_PARTITIONS, 0)({"cursor": cursor})
    decoded = decode_request(DESCRIBE_TOPIC_PARTITIONS, 0, body, 0)
    assert (decoded.cursor is None) == (cursor is None)
    assert read_tolerant(request_class(DESCRIBE_TOPIC_PARTITIONS, 0), body, 0)[0] == decoded


@pytest.mark.parametrize(
    ("version", "body"),
    [(0, "ffffffff"), (9, "00 01 00 00 00")],
)
def test_null_for_an_array_that_may_not_be_null_is_malformed(version: int, body: str) -> None:
    # Metadata responses: brokers is the first array. (Requests may send null topics from version 1 on.)
    cls = response_class(METADATA, version)
    prefix = b"" if version == 0 else bytes(4)
    raw = prefix + bytes.fromhex(body)
    with pytest.raises(MalformedMessage, match="null"):
        decode_response(METADATA, version, raw, 0)
    with pytest.raises(MalformedMessage, match="null"):
        read_tolerant(cls, raw, 0)


def test_null_for_an_array_that_may_be_null_is_none() -> None:
    assert decode_request(METADATA, 1, b"\xff\xff\xff\xff", 0).topics is None
    assert decode_request(METADATA, 9, b"\0\0\0\0\0", 0).topics is None


@pytest.mark.parametrize(
    ("api_key", "version", "start"),
    [
        (METADATA, 9, b""),
        (METADATA, 1, b""),
        (PRODUCE, 9, b"\0" + b"\0\1" + bytes(4)),
        (PRODUCE, 9, b"\0" + b"\0\1" + bytes(4) + b"\x02\x02t"),
        (PRODUCE, 8, b"\xff\xff" + b"\0\1" + bytes(4) + b"\0\0\0\1\0\1t"),
        (FETCH, 16, bytes(21) + b"\x02" + bytes(16)),
        (FETCH, 16, bytes(21) + b"\x02" + bytes(16) + b"\x02" + bytes(32) + b"\0\0"),
        (OFFSET_FETCH, 8, b"\x02\x02g\x02\x02t"),
    ],
)
@pytest.mark.parametrize("count", [1_000_001, 2**24, 2**30, 2**31 - 1, 2**32 - 1])
def test_a_count_beyond_the_bytes_is_refused_without_allocating(
    api_key: int, version: int, start: bytes, count: int
) -> None:
    if request_is_flexible(api_key, version):
        claim = uvarint(count)
    elif count < 2**31:
        claim = count.to_bytes(4, "big")
    else:
        return
    body = start + claim + bytes(64)
    request_reader(api_key, version)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage, match="items in"):
            decode_request(api_key, version, body, 0)
        with pytest.raises(MalformedMessage, match="items in"):
            read_tolerant(request_class(api_key, version), body, 0)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_more_than_a_million_items_are_refused_even_if_they_fit() -> None:
    count = 1_000_001
    body = count.to_bytes(4, "big") + bytes(2 * count)
    with pytest.raises(MalformedMessage, match="1000001 items"):
        decode_request(METADATA, 1, body, 0)
    with pytest.raises(MalformedMessage, match="1000001 items"):
        read_tolerant(request_class(METADATA, 1), body, 0)


def test_a_tagged_section_of_too_many_fields_is_refused() -> None:
    body = with_tags(request_encoder(HEARTBEAT, 4)({}), b"\x91\x4e" + b"\x20\x00" * 10_001)
    with pytest.raises(MalformedMessage, match="10001 tagged fields"):
        decode_request(HEARTBEAT, 4, body, 0)


def test_an_overlong_varint_is_refused() -> None:
    for body in (b"\x80\x80\x80\x80\x80\x00", b"\xff" * 9):
        with pytest.raises(MalformedMessage, match="varint"):
            decode_request(HEARTBEAT, 4, body, 0)


def test_a_message_cut_anywhere_is_malformed(classes: list[Any], maker: Any) -> None:
    for cls in classes[-2:]:
        body = entity_encoder(cls)(without_tags(cls, maker.message(cls)[1]))
        decode = decode_request if cls.__type__ is EntityType.request else decode_response
        for size in range(min(len(body), 200)):
            with pytest.raises(MalformedMessage):
                decode(cls.__api_key__, cls.__version__, body[:size], 0)


def test_damaged_messages_are_read_or_malformed_and_nothing_else(classes: list[Any], maker: Any) -> None:
    rng = random.Random(classes[0].__api_key__)
    for cls in classes:
        decode = decode_request if cls.__type__ is EntityType.request else decode_response
        for _ in range(MUTATIONS_OF_EACH_CLASS):
            body = bytearray(entity_encoder(cls)(maker.message(cls)[1]))
            for _ in range(rng.randint(1, 3)):
                damage(body, rng)
            try:
                decode(cls.__api_key__, cls.__version__, bytes(body), 0)
            except MalformedMessage:
                continue


def damage(body: bytearray, rng: random.Random) -> None:
    at = rng.randrange(min(len(body), rng.choice((40, 10_000))) + 1)
    match rng.randrange(5):
        case 0:
            body[at : at + 1] = bytes((rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256))),))
        case 1:
            body[at:at] = rng.choice(BOMBS)
        case 2 | 3:
            bomb = rng.choice(BOMBS)
            body[at : at + len(bomb)] = bomb
        case _:
            del body[at:]
