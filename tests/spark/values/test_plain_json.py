import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as spark

from ottla.spark.values.errors import BadValue, SchemaError
from ottla.spark.values.plain_json import json_reader

TYPE = spark.StructType(
    [
        spark.StructField("byte", spark.ByteType()),
        spark.StructField("long", spark.LongType()),
        spark.StructField("double", spark.DoubleType()),
        spark.StructField("float", spark.FloatType()),
        spark.StructField("decimal", spark.DecimalType(6, 3)),
        spark.StructField("ok", spark.BooleanType()),
        spark.StructField("text", spark.StringType()),
        spark.StructField("raw", spark.BinaryType()),
        spark.StructField("day", spark.DateType()),
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("local", spark.TimestampNTZType()),
        spark.StructField("xs", spark.ArrayType(spark.LongType())),
        spark.StructField("m", spark.MapType(spark.StringType(), spark.StructType([spark.StructField("x", spark.LongType())]))),
    ]
)  # fmt: skip
NOTHING = dict.fromkeys(TYPE.names)


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({}, {}),
        ({"other": 1, "byte": None}, {}),
        ({"byte": -128, "long": 2**63 - 1}, {"byte": -128, "long": 2**63 - 1}),
        ({"double": 1}, {"double": 1.0}),
        ({"double": 0.1, "decimal": 0.125}, {"double": 0.1, "decimal": Decimal("0.125")}),
        ({"decimal": 999}, {"decimal": Decimal("999.000")}),
        ({"ok": False, "text": "é"}, {"ok": False, "text": "é"}),
        ({"text": {"a": [1, 0.5]}}, {"text": '{"a":[1,0.5]}'}),
        ({"float": 3e38}, {"float": 3e38}),
        ({"raw": "AAE="}, {"raw": b"\0\1"}),
        ({"day": "2024-02-29"}, {"day": date(2024, 2, 29)}),
        ({"at": "2024-02-29T01:00:00+01:00"}, {"at": datetime(2024, 2, 29, tzinfo=UTC)}),
        ({"local": "2024-02-29 12:30:00.5"}, {"local": datetime(2024, 2, 29, 12, 30, 0, 500_000)}),  # noqa: DTZ001
        (
            {"xs": [1, None], "m": {"k": {"x": 1}, "n": None}},
            {"xs": [1, None], "m": {"k": {"x": 1}, "n": None}},
        ),
    ],
)
def test_what_columns_hold(given: Any, held: Any) -> None:
    for text in (json.dumps(given), json.dumps(given).encode()):
        assert json_reader(TYPE)(text) == {**NOTHING, **held}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"byte": 128}, "byte must be an integer of 8 bits, not int 128"),
        ({"long": 1.0}, "long must be an integer of 64 bits"),
        ({"long": True}, "long must be an integer"),
        ({"double": "1"}, "double must be a number"),
        ({"double": 10**400}, "double must be a number within its column's range"),
        ({"float": -1e300}, "float must be a number within its column's range"),
        ({"decimal": 0.0001}, r"decimal must be a decimal\(6, 3\)"),
        ({"decimal": 1000}, r"decimal must be a decimal\(6, 3\)"),
        ({"ok": 0}, "ok must be a boolean"),
        ({"text": "\ud800"}, "text must be a string of Unicode"),
        ({"raw": "?"}, "raw must be bytes in base64"),
        ({"day": "29.2.2024"}, "day must be a date"),
        ({"at": "2024-02-29T01:00:00"}, "at must be a time with its zone"),
        ({"at": 5}, "at must be a time with its zone"),
        ({"local": "2024-02-29T01:00:00Z"}, "local must be a time without a zone"),
        ({"xs": [1, "x"]}, r"xs\[1\] must be an integer"),
        ({"xs": 1}, "xs must be an array"),
        ({"m": {"k": {"x": "y"}}}, r"m\{k\}\.x must be an integer"),
        ({"m": {"\ud800": 5}}, r"m\{\?\} must be an object"),
        ({"text": ["\ud800"]}, "text must be a string of Unicode"),
        ({"m": []}, "m must be an object"),
        (5, "the value must be an object"),
    ],
)
def test_what_does_not_fit_is_told_by_name(given: Any, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        json_reader(TYPE)(json.dumps(given))


def test_no_digit_is_lost() -> None:
    read = json_reader(TYPE)
    assert read('{"text": [0.12345678901234567890, 1e5]}')["text"] == "[0.12345678901234567890,1E+5]"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"double": 1e400}', "double must be a number within"),
        ('{"text": ' + "[" * 990 + "]" * 990 + "}", "nested too deep"),
    ],
)
def test_numbers_and_depths_that_nobody_can_hold(text: str, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        json_reader(TYPE)(text)


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000, '{"x":1e99999999999999999999}'])
def test_what_is_not_json_is_told(text: str | bytes) -> None:
    with pytest.raises(BadValue, match="not JSON"):
        json_reader(TYPE)(text)


def test_a_type_that_json_cannot_be_read_as_is_told() -> None:
    inner = spark.StructType([spark.StructField("took", spark.DayTimeIntervalType())])
    with pytest.raises(SchemaError, match=r"xs\[\]\.took: JSON cannot be read as interval day to second"):
        json_reader(spark.StructType([spark.StructField("xs", spark.ArrayType(inner))]))
