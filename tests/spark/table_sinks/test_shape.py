import pickle
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, StringType

from ottla.spark import table_sinks
from ottla.spark.table_sinks.errors import SchemaMismatch, SinkError
from ottla.spark.table_sinks.shape import Shape, shape_of
from tests.spark.table_sinks.rows import schema_of

RECORDS = "id bigint, name string, at timestamp, topic string, partition int, offset bigint"


def shape(schema: str = RECORDS, **settings: Any) -> Shape:
    return shape_of(schema_of(schema), **settings)


def names(shape: Shape) -> list[str]:
    return [column.name for column in shape.columns]


def test_the_position_is_used_and_not_written() -> None:
    found = shape(key=["id"])
    assert names(found) == ["id", "name", "at"]
    assert found.has_position and found.order is not None and found.order.name == "offset"
    assert [column.name for column in found.tombstone_columns] == ["name", "at"]


def test_the_position_is_written_if_it_is_asked_for() -> None:
    found = shape(key=["id"], columns=["id", "offset", "name"])
    assert names(found) == ["id", "offset", "name"]
    assert [column.name for column in found.tombstone_columns] == ["name"]
    assert names(shape(key=["topic", "partition", "offset"]))[-3:] == ["topic", "partition", "offset"]


def test_columns_of_those_names_and_other_types_are_just_columns() -> None:
    found = shape("id bigint, topic string, partition string, offset bigint", key=["id"])
    assert (
        names(found) == ["id", "topic", "partition", "offset"]
        and not found.has_position
        and found.order is None
    )


def test_a_tombstone_may_have_what_orders_it() -> None:
    assert [column.name for column in shape(key=["id"], order_by="at").tombstone_columns] == ["name"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"key": ["nope"]}, "key: the rows have no column 'nope'; they have id, name"),
        ({"key": ["id"], "order_by": "nope"}, "order_by: the rows have no column"),
        ({"key": ["id"], "delete_when": "name"}, "is not a boolean column"),
        ({"key": ["id"], "columns": ["name"]}, "lacks columns of the key: add id"),
    ],
)
def test_columns_that_are_not_there_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SchemaMismatch, match=says):
        shape(**settings)


@pytest.mark.parametrize(
    ("schema", "says"),
    [("a int, A int", "databases ignore case"), ("ottla_x int", "reserved prefix"), ("a%s int", "use a non-empty name without %")],
)  # fmt: skip
def test_names_that_cannot_be(schema: str, says: str) -> None:
    with pytest.raises(SinkError, match=says):
        shape(schema)


def test_a_type_that_databases_do_not_have() -> None:
    schema = schema_of("id bigint").add("tags", ArrayType(StringType()))
    with pytest.raises(SchemaMismatch, match=r"'tags' has the type array<string>.*to_json"):
        shape_of(schema)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "upsert needs key="),
        ({"mode": "replace"}, "upsert or append"),
        ({"mode": "append", "key": "id"}, "append has no key="),
        ({"key": "id", "refused_max": 0}, "refused_max"),
        ({"key": "id", "sink_id": ""}, "sink_id"),
        ({"key": "id", "table": "a..b"}, "name of a column or table"),
        ({"key": "id", "url": "oracle://x/y"}, "cannot start with oracle:"),
        ({"key": "id", "url": "mysql://host"}, "mysql://user:password@host"),
    ],
)
def test_settings_of_no_sense(settings: dict[str, Any], says: str) -> None:
    given = {"url": "sqlite:///x.db", "table": "t", "sink_id": "s", **settings}
    with pytest.raises(SinkError, match=says):
        table_sinks.upsert(given.pop("url"), **given)


def test_a_sink_can_be_sent_and_does_not_tell_its_password() -> None:
    sink = table_sinks.upsert("mysql://me:secret@host/db", table="t", key="id", sink_id="s")
    assert "secret" not in repr(sink)
    assert pickle.loads(pickle.dumps(sink)).database.settings["password"] == "secret"
