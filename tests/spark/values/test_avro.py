import contextlib
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.spark.values.avro import AvroReader, AvroWriter
from ottla.spark.values.errors import BadValue, SchemaError
from ottla.spark.values.registry import Schema
from ottla.spark.values.wire_format import header
from tests.spark.values.avro_schemas import avro, logical, record, schemas_and_values


def passed(written: Any, read: Any, value: Any, *, columns: bool = False) -> Any:
    """What a value is after it was written with one schema and read as another."""
    writer, reader = avro(written, 1), avro(read, 2 if written != read else 1)
    return AvroReader(reader, columns=columns).read(AvroWriter(writer).write(value), writer)


# --- any schema, any value -------------------------------------------------------------------------------


@settings(max_examples=150)
@given(schemas_and_values(depth=3))
def test_what_is_written_is_read(drawn: tuple[Any, Any]) -> None:
    schema, value = drawn
    assert passed(schema, schema, value) == value


@settings(max_examples=150)
@given(schemas_and_values(depth=2), st.data())
def test_noise_is_a_bad_value_and_nothing_else(drawn: tuple[Any, Any], data: st.DataObject) -> None:
    schema, value = drawn
    frame = bytearray(AvroWriter(avro(schema)).write(value))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[5:] = frame[5 : data.draw(st.integers(5, len(frame)))] + data.draw(st.binary(max_size=3))
    for columns in (True, False):
        with contextlib.suppress(BadValue):
            AvroReader(avro(schema), columns=columns).read(bytes(frame), avro(schema))


# --- versions --------------------------------------------------------------------------------------------


def test_another_version_is_read_by_avros_rules() -> None:
    old = record(("id", "int"), ("gone", "string"), ("renamed", "string"))
    new = record(("id", "long"), ("added", "string", "none"), ("maybe", ["null", "int"], None))
    new["fields"].append({"name": "name", "type": "string", "aliases": ["renamed"]})
    value = {"id": 7, "gone": "x", "renamed": "ann"}
    assert passed(old, new, value) == {"id": 7, "added": "none", "maybe": None, "name": "ann"}


def test_a_version_that_cannot_be_resolved_is_a_bad_value() -> None:
    with pytest.raises(BadValue, match="does not fit schema 1"):
        passed(record(("id", "string")), record(("id", "long")), {"id": "x"})
    with pytest.raises(BadValue, match=r"does not fit schema 1.*added"):
        passed(record(("id", "long")), record(("id", "long"), ("added", "string")), {"id": 1})


MOMENT = datetime(2024, 2, 29, 12, 30, 15, 123000, UTC)
MILLIS = (MOMENT - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("written", "read", "value", "expected"),
    [
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), MOMENT, MOMENT),
        ("long", logical("long", "timestamp-millis"), MILLIS, MOMENT),
        (logical("long", "timestamp-millis"), "long", MOMENT, MILLIS),
        (["null", "long"], ["null", logical("long", "timestamp-millis")], MILLIS, MOMENT),
        ("long", ["null", logical("long", "timestamp-millis")], MILLIS, MOMENT),
        (
            {"type": "array", "items": "long"},
            {"type": "array", "items": logical("long", "timestamp-millis")},
            [MILLIS],
            [MOMENT],
        ),
        (
            {"type": "map", "values": logical("long", "timestamp-millis")},
            {"type": "map", "values": "long"},
            {"a": MOMENT},
            {"a": MILLIS},
        ),
        (
            logical("bytes", "decimal", precision=5, scale=1),
            logical("bytes", "decimal", precision=9, scale=3),
            Decimal("12.5"),
            Decimal("12.5"),
        ),
    ],
)
@pytest.mark.parametrize("columns", [False, True])
def test_a_logical_type_that_changed_means_what_its_writer_meant(
    written: Any, read: Any, value: Any, expected: Any, columns: bool
) -> None:
    out = passed(record(("at", written)), record(("at", read)), {"at": value}, columns=columns)
    assert out == {"at": expected}


FIXED = {"type": "fixed", "name": "F", "size": 2}
INNER = record(("n", "int", 7), ("at", logical("int", "date"), 1), name="Inner")


@pytest.mark.parametrize(
    ("type_", "default", "value"),
    [
        (logical("long", "timestamp-millis"), MILLIS, MOMENT),
        (logical("int", "date"), 19782, date(2024, 2, 29)),
        ("bytes", "\u00ff\u0000", b"\xff\0"),
        (FIXED, "\u00ff\u0000", b"\xff\0"),
        (logical("bytes", "decimal", precision=4, scale=2), "\u0004\u00d2", Decimal("12.34")),
        ("double", 1, 1.0),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": "bytes"}, {"k": "\u00ff"}, {"k": b"\xff"}),
        (INNER, {}, {"n": 7, "at": date(1970, 1, 2)}),
        (INNER, {"n": 8}, {"n": 8, "at": date(1970, 1, 2)}),
        (["null", "bytes"], None, None),
        (["bytes", "null"], "\u00ff", b"\xff"),
        # Not by the letter of old versions, but found everywhere.
        (["null", "bytes"], "\u00ff", b"\xff"),
        (["string", "null"], None, None),
    ],
)
@pytest.mark.parametrize("columns", [False, True])
def test_a_default_is_a_value_like_others(type_: Any, default: Any, value: Any, columns: bool) -> None:
    with_default = record(("a", "int"), ("f", type_, default))
    assert passed(record(("a", "int")), with_default, {"a": 1}, columns=columns) == {"a": 1, "f": value}
    assert passed(with_default, with_default, {"a": 1}, columns=columns) == {"a": 1, "f": value}


def test_the_default_of_a_choice_is_of_its_first_branch() -> None:
    first, second = (record(("x", "bytes", "\u00ff"), name=name) for name in "AB")
    new = record(("a", "int"), ("f", [second, "string", first], {}), ("o", ["A", "null"], {}))
    out = passed(record(("a", "int")), new, {"a": 1}, columns=True)
    assert out["f"] == {"member0": {"x": b"\xff"}, "member1": None, "member2": None}
    assert out["o"] == {"x": b"\xff"}


@pytest.mark.parametrize(
    ("type_", "default"),
    [
        ("bytes", "\u0100"),
        (FIXED, "x"),
        (record(("n", "int"), name="N"), {}),
    ],
)
def test_a_default_that_does_not_suit_is_missed_where_it_is_needed(type_: Any, default: Any) -> None:
    with_default = record(("a", "int"), ("f", type_, default))
    with pytest.raises(BadValue, match="No default value for field f"):
        passed(record(("a", "int")), with_default, {"a": 1})
    reader = AvroReader(avro(with_default))
    assert reader.schema.id == 1, "nobody else misses it"


def test_an_int_is_not_taken_for_milliseconds_it_never_was() -> None:
    with pytest.raises(BadValue, match="its int cannot be read as long-timestamp-millis"):
        passed(record(("at", "int")), record(("at", logical("long", "timestamp-millis"))), {"at": 1})


def test_references_are_part_of_the_schema() -> None:
    line = record(("sku", "string"), ("at", logical("long", "timestamp-millis")), name="shop.Line")
    order = record(
        ("lines", {"type": "array", "items": "shop.Line"}),
        ("first", ["null", "shop.Line"]),
        name="shop.Order",
    )
    schema = avro(order, references=(("shop.Line", line),))
    value = {"lines": [{"sku": "a", "at": MOMENT}], "first": {"sku": "b", "at": MOMENT}}
    assert AvroReader(schema).read(AvroWriter(schema).write(value), schema) == value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("string", "x"),
        (["null", "long"], 5),
        (["null", "long"], None),
        ({"type": "array", "items": "int"}, [1, 2]),
    ],
)
def test_a_root_need_not_be_a_record(schema: Any, value: Any) -> None:
    assert passed(schema, schema, value) == value
    assert passed(schema, ["null", *(schema if isinstance(schema, list) else [schema])][-2:], value) == value


# --- columns ---------------------------------------------------------------------------------------------

TREE = record(("left", ["null", "Tree"], None), ("n", "int"), name="Tree")


def test_columns_hold_what_spark_has_a_type_for() -> None:
    schema = record(
        ("id", logical("string", "uuid")), ("t", logical("int", "time-millis")), ("d", logical("int", "date"))
    )
    value = {"id": UUID(int=5), "t": time(0, 0, 1), "d": date(2024, 1, 2)}
    assert passed(schema, schema, value) == value
    assert passed(schema, schema, value, columns=True) == {
        "id": str(UUID(int=5)),
        "t": 1000,
        "d": date(2024, 1, 2),
    }


UNION = [
    "null",
    "int",
    "string",
    record(("a", "int"), name="A"),
    record(("a", "int"), name="B"),
    {"type": "enum", "name": "E", "symbols": ["X"]},
]


@pytest.mark.parametrize(
    ("value", "member"),
    [
        (5, {"member0": 5}),
        ("five", {"member1": "five"}),
        ({"member2": {"a": 1}}, {"member2": {"a": 1}}),
        ({"member3": {"a": 1}}, {"member3": {"a": 1}}),
        ({"member4": "X"}, {"member4": "X"}),
        (None, None),
    ],
)
def test_a_union_of_several_types_tells_which_was_taken(value: Any, member: Any) -> None:
    schema = record(
        ("u", UNION), ("o", ["null", "A"], None), ("many", {"type": "array", "items": UNION[1:3]})
    )
    out = passed(schema, schema, {"u": value, "o": {"a": 9}, "many": [1, "x"]}, columns=True)
    everything = dict.fromkeys(f"member{place}" for place in range(5))
    assert out["u"] == (None if member is None else {**everything, **member})
    assert out["o"] == {"a": 9}
    assert out["many"] == [{"member0": 1, "member1": None}, {"member0": None, "member1": "x"}]
    # And back again, in the form that columns have.
    assert passed(schema, schema, out, columns=True) == out


def test_a_union_of_numbers_is_the_wider_one() -> None:
    schema = record(("u", ["null", "int", "long"]))
    assert passed(schema, schema, {"u": 2**40}, columns=True) == {"u": 2**40}


NUMBERS = ["null", "float", "string", "int", "long", "double"]


@pytest.mark.parametrize(
    ("value", "member"), [(0.1, {"member4": 0.1}), (2**40 + 1, {"member3": 2**40 + 1}), (5, {"member3": 5})]
)
def test_of_numbers_in_a_union_no_digit_is_lost(value: Any, member: dict[str, Any]) -> None:
    schema = record(("u", NUMBERS))
    assert passed(schema, schema, {"u": value}) == {"u": value}
    out = passed(schema, schema, {"u": value}, columns=True)
    assert {name: each for name, each in out["u"].items() if each is not None} == member
    both = record(("u", ["float", "double"]))
    assert passed(both, both, {"u": value}) == passed(both, both, {"u": value}, columns=True) == {"u": value}


def test_a_record_that_holds_itself_is_read_by_programs() -> None:
    value = {"n": 1, "left": {"n": 2, "left": None}}
    assert passed(TREE, TREE, value) == value


def test_a_value_that_is_nested_too_deep_is_a_bad_one() -> None:
    """fastavro's compiled reader would end the process, here and where the reader has no such field."""
    frame = header(1) + b"\x02" * 50_000 + b"\0" * 60_000
    with pytest.raises(BadValue, match="recursion"):
        AvroReader(avro(TREE)).read(frame, avro(TREE))
    holder, without = record(("t", TREE), ("n", "int")), record(("n", "int"))
    with pytest.raises(BadValue, match="recursion"):
        AvroReader(avro(without, 2), columns=True).read(frame, avro(holder))
    value: dict[str, Any] = {"n": 1}
    for _ in range(5_000):
        value = {"n": 1, "left": value}
    with pytest.raises(BadValue, match="recursion"):
        AvroWriter(avro(TREE)).write(value)


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("int", 2**31, "f must be an int, not int 2147483648"),
        ("int", True, "f must be an int"),
        ("int", 1.5, "f must be an int"),
        ("long", 2**63, "f must be a long"),
        ("float", 1e300, "f must be a float"),
        ("float", 10**400, "f must be a float"),
        ("double", 10**400, "f must be a double"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, ["A"], "f must be one of A, not list"),
        ({"type": "map", "values": "int"}, {"\ud800": "x"}, r"f\{\?\} must be an int"),
        ("boolean", "x", "f must be a boolean, not str 'x'"),
        ("string", None, "f must be a string, not null"),
        ("string", b"x", "f must be a string"),
        ("bytes", "x", "f must be bytes"),
        ({"type": "fixed", "name": "F", "size": 2}, b"x", "f must be 2 bytes"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "C", "f must be one of A, B, not str 'C'"),
        (logical("bytes", "decimal", precision=4, scale=2), Decimal("1.234"), r"f must be a decimal\(4, 2\)"),
        (logical("bytes", "decimal", precision=4, scale=2), Decimal("123.4"), r"f must be a decimal\(4, 2\)"),
        (logical("long", "timestamp-millis"), datetime(2024, 1, 1), "with a time zone"),  # noqa: DTZ001
        (logical("long", "local-timestamp-millis"), MOMENT, "without a time zone"),
        (logical("int", "date"), MOMENT, "f must be a date"),
        (logical("string", "uuid"), "no", "f must be a UUID"),
        ({"type": "array", "items": "int"}, [1, "x"], r"f\[1\] must be an int"),
        ({"type": "map", "values": "int"}, {"k": "x"}, r"f\{k\} must be an int"),
        ({"type": "map", "values": "int"}, 5, "f must be a map"),
        (record(("g", "int"), name="G"), {"g": "x"}, r"f\.g must be an int"),
        (record(("g", "int"), name="G"), {}, r"f\.g is missing, and has no default"),
        (record(("g", "int"), name="G"), {"g": 1, "h": 2}, "f has no field h"),
        (["int", "string"], 1.5, "f must be one of int, string"),
        (["null", "int", "string"], {"member0": 1, "member1": "x"}, "one of member0, member1 set"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(type_: Any, value: Any, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        AvroWriter(avro(record(("f", type_)))).write({"f": value})


def test_a_field_that_is_missing_has_its_default_or_null() -> None:
    schema = record(("a", "int", 5), ("b", ["null", "int"]), ("c", "int"))
    assert passed(schema, schema, {"c": 1}) == {"a": 5, "b": None, "c": 1}
    with pytest.raises(BadValue, match="a must be an int, not null"):
        passed(schema, schema, {"a": None, "c": 1})


def test_what_is_left_over_does_not_fit() -> None:
    schema = avro(record(("a", "int")))
    with pytest.raises(BadValue, match="2 extra bytes"):
        AvroReader(schema).read(header(1) + b"\x02ab", schema)
    with pytest.raises(BadValue, match="truncated: it ends within a value of schema 1"):
        AvroReader(schema).read(header(1), schema)


@pytest.mark.parametrize("schema", ['{"type": "recor"}', "{", '{"type": "record"}', "[]x", '"nope"'])
def test_a_schema_that_is_none_is_told(schema: str) -> None:
    with pytest.raises(SchemaError, match="not an Avro schema"):
        AvroReader(Schema(1, "AVRO", schema))


def test_five_bytes_cannot_ask_for_all_memory() -> None:
    """Items that take no bytes could be any number: reading them would not end."""
    for items in ("null", record(name="Empty"), record(("n", "null"), name="Hollow")):
        with pytest.raises(SchemaError, match="xs: an array of items without bytes"):
            AvroReader(avro(record(("xs", {"type": "array", "items": items}))))
