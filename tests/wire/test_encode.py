import io
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.serial import entity_writer

from ottla.wire.encode import entity_encoder, request_encoder, response_encoder, uvarint
from ottla.wire.schema import request_class, response_class

PRODUCE, METADATA, HEARTBEAT, API_VERSIONS, BROKER_HEARTBEAT = 0, 3, 12, 18, 63
MESSAGES_OF_EACH_CLASS = 5


def written_by_kio(instance: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(instance))(buffer, instance)
    return buffer.getvalue()


def test_random_messages_are_byte_for_byte_those_of_kio(classes: list[Any], maker: Any) -> None:
    for cls in classes:
        encode = entity_encoder(cls)
        for _ in range(MESSAGES_OF_EACH_CLASS):
            instance, plain = maker.message(cls)
            assert encode(plain) == written_by_kio(instance), (cls, plain)


def test_an_empty_dict_gives_every_default(classes: list[Any], defaults: Callable[[Any], Any]) -> None:
    for cls in classes:
        assert entity_encoder(cls)({}) == written_by_kio(defaults(cls)), cls


def test_all_classes_were_compared(every_class: list[Any]) -> None:
    # The number of request and response classes of kio 0.6.5; it may only grow.
    assert len(every_class) >= 604


def test_encoders_by_key_are_those_of_the_classes() -> None:
    assert response_encoder(PRODUCE, 9) is entity_encoder(response_class(PRODUCE, 9))
    assert request_encoder(PRODUCE, 9) is entity_encoder(request_class(PRODUCE, 9))


def test_a_heartbeat_is_one_pack() -> None:
    assert response_encoder(HEARTBEAT, 4)({"throttle_time": 5, "error_code": 27}) == bytes.fromhex(
        "00000005 001b 00"
    )
    assert response_encoder(HEARTBEAT, 0)({"throttle_time": 5, "error_code": 27}) == bytes.fromhex("001b")


def test_keys_that_a_version_lacks_are_ignored() -> None:
    union = {
        "responses": [
            {
                "name": "t",
                "topic_id": bytes(range(16)),
                "partition_responses": [
                    {"index": 1, "base_offset": 7, "log_start_offset": 3, "unknown": object()}
                ],
                "unknown": object(),
            }
        ],
        "unknown": object(),
    }
    by_name, by_id = response_encoder(PRODUCE, 12)(union), response_encoder(PRODUCE, 13)(union)
    assert b"\x02t" in by_name and bytes(range(16)) not in by_name
    assert bytes(range(16)) in by_id and b"\x02t" not in by_id


def test_ids_timestamps_and_byte_strings_in_all_their_forms() -> None:
    encode = request_encoder(PRODUCE, 13)

    def produced(topic_id: Any, records: Any) -> bytes:
        partition = {"index": 0, "records": records}
        return encode({"topic_data": ({"topic_id": topic_id, "partition_data": (partition,)},)})

    records = b"0123456789" * 200
    assert produced(None, records) == produced(bytes(16), records)
    assert (
        produced(None, memoryview(records)) == produced(None, bytearray(records)) == produced(None, records)
    )
    assert produced(UUID(int=7).bytes, None) != produced(None, None)

    respond = response_encoder(PRODUCE, 9)
    null, minus_one, missing = (
        respond({"responses": [{"partition_responses": [partition]}]})
        for partition in ({"log_append_time": None}, {"log_append_time": -1}, {})
    )
    assert null == minus_one == missing


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (METADATA, 9, {"topics": [{"name": None}]}),
        (METADATA, 1, {"topics": [{"name": None}]}),
        (METADATA, 9, {"topics": None}),
        (METADATA, 9, {"topics": [{"partitions": [{"replica_nodes": None}]}]}),
        (METADATA, 9, {"controller_id": 2**31}),
        (METADATA, 9, {"controller_id": "1"}),
        (METADATA, 1, {"cluster_id": "", "brokers": [{"host": "h" * 32768}]}),
    ],
)
def test_what_the_schema_cannot_hold_is_refused(api_key: int, version: int, body: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r".") as raised:
        response_encoder(api_key, version)(body)
    assert not isinstance(raised.value, AssertionError)


def test_null_is_written_where_the_schema_allows_it() -> None:
    encode = request_encoder(METADATA, 9)
    assert encode({"topics": None})[:1] == b"\0"
    assert encode({"topics": []})[:1] == b"\x01"
    assert request_encoder(METADATA, 1)({"topics": None}) == b"\xff\xff\xff\xff"


def test_tagged_fields_are_written_only_when_they_differ_from_their_default() -> None:
    encode = response_encoder(PRODUCE, 10)

    def partition(**fields: Any) -> bytes:
        return encode({"responses": [{"name": "t", "partition_responses": [fields]}]})

    plain = partition()
    assert partition(current_leader={"leader_id": -1, "leader_epoch": -1}) == plain
    assert partition(current_leader={}) == plain
    assert partition(current_leader=None) == plain
    tagged = partition(current_leader={"leader_id": 1})
    # one tagged field, tag 0, nine bytes: leader_id, leader_epoch, and the struct's own empty tagged section
    assert bytes.fromhex("01 00 09 00000001 ffffffff 00") in tagged


def test_tagged_fields_come_in_the_order_of_their_tags() -> None:
    body = {"finalized_features_epoch": 5, "zk_migration_ready": True}
    written = response_encoder(API_VERSIONS, 3)(body)
    assert written.endswith(bytes.fromhex("02 01 08 0000000000000005 03 01 01"))


def test_a_tagged_array_that_is_null_by_default_may_be_empty() -> None:
    encode = request_encoder(BROKER_HEARTBEAT, 2)
    assert (
        len(encode({"cordoned_log_dirs": []})) > len(encode({"cordoned_log_dirs": None})) == len(encode({}))
    )


@pytest.mark.parametrize("header", [RequestHeaderV1, RequestHeaderV2])
@pytest.mark.parametrize("client_id", ["a client", None])
def test_the_client_id_of_a_request_header_is_a_legacy_string(header: Any, client_id: str | None) -> None:
    fields = {"request_api_key": 3, "request_api_version": 9, "correlation_id": 77, "client_id": client_id}
    assert entity_encoder(header)(fields) == written_by_kio(header(**fields))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (16383, "ff7f"), (16384, "808001"), (2**32 - 1, "ffffffff0f")],
)
def test_uvarint(value: int, encoded: str) -> None:
    assert uvarint(value) == bytes.fromhex(encoded)
