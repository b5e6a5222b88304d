from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader

from ottla.wire.encode import entity_encoder
from ottla.wire.layout import (
    EPOCH,
    body_fields,
    default_instance,
    item_size_min,
    layout,
    size_min,
    tagged_fields,
)
from ottla.wire.schema import request_class, response_class

PRODUCE, FETCH, METADATA, DESCRIBE_TOPIC_PARTITIONS, BROKER_HEARTBEAT = 0, 1, 3, 75, 63


def field(cls: Any, name: str) -> Any:
    return next(found for found in layout(cls) if found.name == name)


def test_kinds_arrays_and_nullability() -> None:
    request = request_class(METADATA, 12)
    topics = field(request, "topics")
    assert (topics.kind, topics.is_array, topics.is_nullable, topics.is_flexible) == (
        "struct",
        True,
        True,
        True,
    )
    name = field(topics.struct, "name")
    assert (name.kind, name.is_array, name.is_nullable, name.struct) == ("string", False, True, None)
    cursor = field(request_class(DESCRIBE_TOPIC_PARTITIONS, 0), "cursor")
    assert (cursor.kind, cursor.is_array, cursor.is_nullable) == ("struct", False, True)
    directories = field(request_class(BROKER_HEARTBEAT, 2), "cordoned_log_dirs")
    assert (directories.kind, directories.is_array, directories.is_nullable) == ("uuid", True, True)
    assert directories.fixed_format is None and field(topics.struct, "topic_id").fixed_format == "16s"


def test_the_client_id_is_never_compact() -> None:
    assert RequestHeader.__flexible__
    assert not field(RequestHeader, "client_id").is_flexible


def test_defaults_of_the_schema_come_before_implicit_ones() -> None:
    request = request_class(FETCH, 16)
    assert field(request, "max_bytes").default == 2**31 - 1
    assert field(request, "max_wait").default == timedelta(0)
    assert field(request, "topics").default == ()
    assert field(request, "replica_state").default == default_instance(field(request, "replica_state").struct)
    partition = field(field(response_class(FETCH, 16), "responses").struct, "partitions").struct
    assert field(partition, "error_code").default is ErrorCode(0)
    # Nullable without a default: an array is empty, anything else is null.
    assert field(partition, "aborted_transactions").default == ()
    assert field(partition, "records").default is None


def test_a_timestamp_that_cannot_be_null_is_the_epoch_by_default(every_class: list[Any]) -> None:
    assert {
        found.default
        for cls in every_class
        for found in layout(cls)
        if found.kind == "datetime_i64" and not found.is_nullable
    } == {EPOCH}


def test_body_and_tagged_fields() -> None:
    request = request_class(FETCH, 16)
    assert [found.name for found in tagged_fields(request)] == ["cluster_id", "replica_state"]
    assert body_fields(request)[0].name == "max_wait"
    assert set(body_fields(request)) | set(tagged_fields(request)) == set(layout(request))


def test_no_message_is_smaller_than_size_min(classes: list[Any], maker: Any) -> None:
    for cls in classes:
        encode = entity_encoder(cls)
        assert len(encode({})) >= size_min(cls)
        assert len(encode(maker.message(cls)[1])) >= size_min(cls)


def test_size_min_counts_what_is_always_there() -> None:
    # transactional_id 1, acks 2, timeout 4, count 1, tagged section 1
    assert size_min(request_class(PRODUCE, 9)) == 9
    # index 4, records 1, tagged section 1
    topics = field(request_class(PRODUCE, 9), "topic_data")
    assert item_size_min(field(topics.struct, "partition_data")) == 6
    # transactional_id 2, acks 2, timeout 4, count 4
    assert size_min(request_class(PRODUCE, 8)) == 12
