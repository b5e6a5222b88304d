"""The columns of the source, which are those of Spark's Kafka connector, and the check of a user's schema."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.spark.options import OptionError
from ottla.spark.source.options import source_options

_COLUMNS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_HEADERS = StructField("headers", ArrayType(_HEADER))


def columns(*, include_headers: bool) -> StructType:
    return StructType([*_COLUMNS, _HEADERS] if include_headers else list(_COLUMNS))


def source_schema(given: Mapping[str, str]) -> StructType:
    """The columns for these options. Invalid options are rejected here, before the query is planned."""
    return columns(include_headers=source_options(given).include_headers)


def check_schema(schema: StructType, *, include_headers: bool) -> None:
    """Raise `OptionError` if the schema is not the fixed schema of this source."""
    wanted = columns(include_headers=include_headers)
    if [(field.name, field.dataType) for field in schema] == [(f.name, f.dataType) for f in wanted]:
        return
    extra = [field.name for field in schema if field.name not in wanted.names]
    hint = " (set the option includeHeaders=true for headers)" if "headers" in extra else ""
    raise OptionError(
        f"the schema {schema.simpleString()} is not the schema of this source{hint}: leave .schema(…) out "
        "and use "
        f".select(…); the columns are {wanted.simpleString()}"
    )
