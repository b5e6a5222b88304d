"""The columns of the source, as Spark's own Kafka connector has them, and the check of a schema that somebody gives instead."""

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
    """The columns that these options ask for. What is wrong with the options is told here, before anything is planned."""
    return columns(include_headers=source_options(given).include_headers)


def check_schema(schema: StructType, *, include_headers: bool) -> None:
    """Raise `OptionError` where the schema is not the source's own: it has always the same columns."""
    wanted = columns(include_headers=include_headers)
    if [(field.name, field.dataType) for field in schema] == [(f.name, f.dataType) for f in wanted]:
        return
    extra = [field.name for field in schema if field.name not in wanted.names]
    hint = " (headers come with the option includeHeaders=true)" if "headers" in extra else ""
    raise OptionError(
        f"the schema {schema.simpleString()} is not that of this source{hint}: leave .schema(…) out, "
        f"and take what you need with .select(…); its columns are {wanted.simpleString()}"
    )
