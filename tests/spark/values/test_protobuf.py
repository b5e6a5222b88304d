from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, message_factory
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.values import protobuf_schema
from ottla.spark.values.codecs import Plan, SchemaOptions, compiled, plan, reader_of, writer_of
from ottla.spark.values.errors import BadValue, SchemaError
from ottla.spark.values.protobuf_schema import Files, files_of, names, names_at
from ottla.spark.values.registry import NO_ID, Location, Schema
from ottla.spark.values.types import protobuf_type
from ottla.spark.values.wire_format import header

NOWHERE = Location.of("http://127.0.0.1:9")

SOURCE = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";

message Order {
  map<string, Line> by_sku = 9;
  message Line { string sku = 1; uint32 count = 2; }
  enum State { NEW = 0; PAID = 1; }
  int64 id = 1;
  optional string who = 2;
  repeated Line lines = 3;
  State state = 4;
  oneof pay { string card = 5; int32 cash = 6; }
  google.protobuf.Timestamp at = 7;
  map<int32, string> notes = 8;
  google.protobuf.Duration took = 10;
  google.protobuf.StringValue coupon = 11;
  google.protobuf.Struct more = 12;
  uint64 big = 13;
  bytes raw = 14;
  float ratio = 15;
  bool gift = 16;
  repeated sint64 codes = 17 [packed = true];
  map<uint64, bool> flags = 18;
}
message Other { int64 id = 1; }
"""
EMPTY: dict[str, Any] = {
    "by_sku": {},
    "id": 0,
    "who": None,
    "lines": [],
    "state": "NEW",
    "card": None,
    "cash": None,
    "at": None,
    "notes": {},
    "took": None,
    "coupon": None,
    "more": None,
    "big": Decimal(0),
    "raw": b"",
    "ratio": 0.0,
    "gift": False,
    "codes": [],
    "flags": {},
}
FULL: dict[str, Any] = {
    "by_sku": {"a": {"sku": "a", "count": 1}},
    "id": -5,
    "who": "",
    "lines": [{"sku": "b", "count": 2**32 - 1}, {"sku": "", "count": 0}],
    "state": "PAID",
    "card": None,
    "cash": 0,
    "at": datetime(1969, 12, 31, 23, 59, 59, 250_000, UTC),
    "notes": {-1: "x"},
    "took": timedelta(seconds=-1, microseconds=-500_000),
    "coupon": "",
    "more": '{"a": [1.0, null]}',
    "big": Decimal(2**64 - 1),
    "raw": b"\xff",
    "ratio": 0.5,
    "gift": True,
    "codes": [-1, 2**40],
    "flags": {Decimal(2**64 - 1): True},
}


@pytest.fixture(scope="module")
def order() -> Plan:
    return planned(SOURCE)


def planned(
    source: str, schema_id: int = 1, message: str | None = None, *references: tuple[str, str]
) -> Plan:
    return compiled(Plan(NOWHERE, Schema(schema_id, "PROTOBUF", source, references), message=message))


def passed(plan: Plan, value: Any) -> Any:
    return reader_of(plan).read(writer_of(plan).write(value), plan.schema)


@pytest.mark.parametrize("value", [EMPTY, FULL], ids=["empty", "full"])
def test_what_is_written_is_read(order: Plan, value: dict[str, Any]) -> None:
    assert passed(order, value) == value
    assert passed(order, {name: each for name, each in value.items() if each is not None}) == value


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.datetimes(timezones=st.just(UTC)),
    st.timedeltas(),
    st.text(max_size=9),
)
def test_numbers_times_and_texts_come_back(
    order: Plan, number: int, at: datetime, took: timedelta, text: str
) -> None:
    out = passed(order, {"id": number, "at": at, "took": took, "card": text})
    assert (out["id"], out["at"], out["took"], out["card"]) == (number, at, took, text)


def test_a_message_of_defaults_is_set_and_a_missing_one_is_not() -> None:
    outer = planned('syntax = "proto3"; message A { message B { int32 x = 1; } B b = 1; }')
    assert passed(outer, {"b": {}}) == passed(outer, {"b": {"x": None}}) == {"b": {"x": 0}}
    assert passed(outer, {"b": None}) == passed(outer, {}) == {"b": None}


def test_both_parts_of_a_duration_have_the_same_sign(order: Plan) -> None:
    frame = writer_of(order).write({"took": timedelta(milliseconds=-1500)})
    message = message_factory.GetMessageClass(Files(order.files).message(None)).FromString(frame[6:])
    assert (message.took.seconds, message.took.nanos) == (-1, -500_000_000)


def test_the_columns_of_a_message(order: Plan) -> None:
    columns = {
        each.name: each.dataType.simpleString()
        for each in protobuf_type(Files(order.files).message(order.message))
    }
    line = "struct<sku:string,count:bigint>"
    assert columns == {
        "by_sku": f"map<string,{line}>",
        "id": "bigint",
        "who": "string",
        "lines": f"array<{line}>",
        "state": "string",
        "card": "string",
        "cash": "int",
        "at": "timestamp",
        "notes": "map<int,string>",
        "took": "interval day to second",
        "coupon": "string",
        "more": "string",
        "big": "decimal(20,0)",
        "raw": "binary",
        "ratio": "float",
        "gift": "boolean",
        "codes": "array<bigint>",
        "flags": "map<decimal(20,0),boolean>",
    }


def test_another_version_is_read_by_the_numbers_of_its_fields(order: Plan) -> None:
    newer = planned(
        'syntax = "proto3"; package shop; message Before {} '
        "message Order { int64 id = 1; enum State { NEW = 0; LOST = 7; } State state = 4; string added = 99; }",
        2,
        "Order",
    )
    frame = writer_of(newer).write({"id": 8, "state": "LOST", "added": "x"})
    out = reader_of(order).read(frame, newer.schema)
    assert out == {**EMPTY, "id": 8, "state": "7"}, "a state without a name here is its number"
    assert frame[5:7] == b"\x02\x02", "the second message of its file"


def test_a_value_that_holds_another_message_is_refused(order: Plan) -> None:
    other = planned(SOURCE, 1, "shop.Other")
    assert passed(other, {"id": 3}) == {"id": 3}
    with pytest.raises(BadValue, match=r"holds another message: shop\.Other, not shop\.Order"):
        reader_of(order).read(writer_of(other).write({"id": 3}), order.schema)
    with pytest.raises(BadValue, match=r"one at \[7\], which its schema 1 does not have"):
        reader_of(order).read(header(1) + b"\x02\x0e", order.schema)


def test_messages_are_counted_with_and_without_those_of_maps(order: Plan) -> None:
    """`Line` stands behind a map field, whose hidden message protoc counts."""
    line = planned(SOURCE, 1, "Line")
    assert line.message == "shop.Order.Line"
    frame = writer_of(line).write({"sku": "a"})
    main = Files(line.files).main()
    assert names(main) == ["shop.Order", "shop.Order.Line", "shop.Other"]
    assert "shop.Order.Line" in names_at(main, (0, 0)) | names_at(main, (0, 1))
    for indexes in (b"\x04\x00\x00", b"\x04\x00\x02"):
        assert reader_of(line).read(header(1) + indexes + frame[8:], line.schema) == {"sku": "a", "count": 0}


def test_imports_are_references_of_the_registry() -> None:
    line = 'syntax = "proto3"; package shop; message Line { string sku = 1; }'
    source = 'syntax = "proto3"; package shop; import "shop/line.proto"; message Order { Line line = 1; }'
    both = planned(source, 1, None, ("shop/line.proto", line))
    assert passed(both, {"line": {"sku": "x"}}) == {"line": {"sku": "x"}}


def test_a_descriptor_set_of_ones_own_needs_no_compiler(order: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    both = descriptor_pb2.FileDescriptorSet()
    for each in order.files:
        both.file.add().ParseFromString(each)
    own = plan(NOWHERE, SchemaOptions(descriptor_set=both.SerializeToString(), message="shop.Order"))
    assert own.schema.id == NO_ID
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    out = reader_of(own).read(writer_of(order).write({"id": 3}), order.schema)
    assert out["id"] == 3
    with pytest.raises(BadValue, match=r"holds another message: shop\.Other"):
        reader_of(own).read(header(1) + b"\x02\x02", order.schema)
    with pytest.raises(SchemaError, match="the schema has no id"):
        writer_of(own)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"id": "x"}, "id must be of type int64, not str 'x'"),
        ({"id": 2**63}, "id must be of type int64"),
        ({"id": True}, "id must be of type int64"),
        ({"gift": 1}, "gift must be of type bool"),
        ({"state": "GONE"}, r"state must be of type shop\.Order\.State, not str 'GONE'"),
        ({"lines": [{}, {"count": -1}]}, r"lines\[1\]\.count must be of type uint32"),
        ({"lines": 5}, "lines must be an array"),
        ({"lines": [None]}, r"lines\[0\] must be a message"),
        ({"by_sku": {"a": {"sku": 5}}}, r"by_sku\{a\}\.sku must be of type string"),
        ({"notes": {"x": "y"}}, "notes must be a map with keys of type int32, not str 'x'"),
        ({"notes": {1: 5}}, r"notes\{1\} must be of type string"),
        ({"notes": 5}, "notes must be a map"),
        ({"card": "x", "cash": 1}, "cash and card of one oneof are both set"),
        ({"at": datetime(2024, 1, 1)}, "at must be a timestamp with a time zone"),  # noqa: DTZ001
        ({"took": 5}, r"took must be of type google\.protobuf\.Duration"),
        ({"coupon": 5}, "coupon must be of type string"),
        ({"more": "{"}, "more must be JSON text"),
        ({"flags": {Decimal("1.5"): True}}, "flags must be a map with keys of type uint64"),
        ({"flags": {Decimal("NaN"): True}}, "flags must be a map with keys of type uint64"),
        ({"ratio": 1e300}, "ratio must be of type float"),
        ({"ratio": 10**400}, "ratio must be of type float"),
        ({"ratio": "1"}, "ratio must be of type float"),
        ({"big": Decimal("Infinity")}, "big must be of type uint64"),
        ({"id": 10**5000}, "id must be of type int64, not int of too many digits"),
        ({"big": Decimal(-1)}, "big must be of type uint64"),
        ({"big": Decimal("1.5")}, "big must be of type uint64"),
        ({"nope": 1}, r"shop\.Order has no field nope"),
        (5, r"the value must be a message shop\.Order"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(order: Plan, value: Any, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        writer_of(order).write(value)


def test_what_is_no_message_is_told(order: Plan) -> None:
    frame = writer_of(order).write(FULL)
    with pytest.raises(BadValue, match="truncated, or not Protobuf of schema 1"):
        reader_of(order).read(frame[:-2], order.schema)
    with pytest.raises(BadValue, match="truncated: it ends within the message indexes"):
        reader_of(order).read(frame[:5], order.schema)
    far = header(1) + b"\0" + bytes([0x3A, 11, 0x08]) + b"\xff" * 8 + b"\x7f\x00"
    with pytest.raises(BadValue, match=r"does not fit|truncated"):
        reader_of(order).read(far, order.schema)


@pytest.mark.parametrize(
    ("source", "message", "reason"),
    [
        (
            'syntax = "proto3"; message A { nope x = 1; }',
            None,
            r"does not compile: the schema:1:\d+: .nope. is not defined",
        ),
        ('syntax = "proto3";', None, "has no message"),
        ('syntax = "proto3"; message A {}', "B", "has no message 'B'; it has A"),
        (
            'syntax = "proto3"; import "b.proto"; message A {}',
            None,
            r"does not compile: b\.proto: File not found",
        ),
    ],
)
def test_a_schema_that_is_no_use_is_told(source: str, message: str | None, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        planned(source, 1, message)


def test_a_message_that_holds_itself_has_no_columns() -> None:
    tree = planned('syntax = "proto3"; message Tree { Tree left = 1; }')
    with pytest.raises(SchemaError, match="left: Tree is recursive"):
        protobuf_type(Files(tree.files).message(None))


def test_a_compiler_that_is_missing_is_nobodys_bad_value(
    order: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Schema(9, "PROTOBUF", SOURCE.replace("int64 id", "int64 number"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ModuleNotFoundError, match="install grpcio-tools"):
        reader_of(order).read(header(9) + b"\0", other)


def test_a_compiler_that_does_not_end_is_nobodys_bad_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_schema, "_PROTOC", "import signal; signal.pause()")
    monkeypatch.setattr(protobuf_schema, "_COMPILE_S_MAX", 0.05)
    with pytest.raises(TimeoutError, match=r"was not compiled within 0\.05 s"):
        files_of(Schema(1, "PROTOBUF", 'syntax = "proto3";'))


def test_a_file_cannot_be_written_outside_its_folder() -> None:
    with pytest.raises(SchemaError, match=r"has the invalid name '\.\./x\.proto'"):
        files_of(Schema(1, "PROTOBUF", 'syntax = "proto3";', (("../x.proto", 'syntax = "proto3";'),)))
