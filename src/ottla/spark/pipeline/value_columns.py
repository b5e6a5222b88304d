"""Converts record values to columns and back: the meaning of `value:` in sources and sinks.

A decoded source has the columns of the value, and _key, _topic, _partition, _offset and _timestamp of the
record. In between, `_bad` holds the reason for a value that cannot be decoded; `readable` and `unreadable`
separate the rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.pipeline.model import Sink, Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OWN: Final = ("topic", "partition", "offset", "timestamp")
#: Spark's column for text that does not match the JSON schema.
_CORRUPT: Final = "_corrupt_record"


def decoded(frame: DataFrame, source: Source) -> DataFrame:
    """Add the record's columns, the value as struct `_decoded`, and `_bad`, if the source has `value:`."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    if source.value is None:
        return frame
    text = F.col("value").cast("string")
    no_fault = F.lit(None).cast("string")
    if source.value == "string":
        value, bad = F.struct(text.alias("value")), no_fault
    elif source.value == "json" and source.registry is None:
        schema = f"{source.schema}, {_CORRUPT} STRING"
        value = F.from_json(text, schema, {"columnNameOfCorruptRecord": _CORRUPT})
        fault = F.concat(F.lit("not JSON of the schema: "), F.left(F.col(f"_decoded.{_CORRUPT}"), F.lit(80)))
        bad = F.when(F.col(f"_decoded.{_CORRUPT}").isNotNull(), fault)
    else:
        value, bad = _by_registry(source)
    return (
        frame.withColumn("_key", F.col("key").cast("string"))
        .withColumns({f"_{name}": F.col(name) for name in _OWN})
        .withColumn("_decoded", value)
        .withColumn("_bad", bad)
    )


def _by_registry(source: Source) -> tuple[Column, Column]:
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    from ottla.spark.values import from_registry

    assert source.registry is not None and source.value is not None
    both = from_registry(
        "value",
        source.registry,
        subject=None if source.schema else source.subject or f"{source.topic}-value",
        schema=source.schema,
        schema_type=source.value,
        message=source.message,
        error_column="error",
        auth=source.registry_auth,
        ca_file=source.registry_ca,
    )
    return both.getField("value"), F.when(both.getField("error").isNotNull(), both.getField("error"))


def readable(frame: DataFrame, source: Source) -> DataFrame:
    """The rows with decoded values, as columns.

    Without a dead-letter topic, a bad row fails the micro-batch.
    """
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    if source.value is None:
        return frame
    if source.dead_letters is not None:
        frame = frame.where("_bad IS NULL")
    else:
        at = [F.col(name).cast("string") for name in ("_topic", "_partition", "_offset")]
        place = F.concat(at[0], F.lit("-"), at[1], F.lit(" offset "), at[2])
        message = F.concat(F.lit("the record at "), place, F.lit(" cannot be decoded: "), F.col("_bad"))
        # In the value, not in a filter: Spark may apply another filter first and drop the row.
        checked = F.when(F.col("_bad").isNull(), F.col("_decoded")).otherwise(F.raise_error(message))
        frame = frame.withColumn("_decoded", checked)
    return frame.select("_decoded.*", "_key", *(f"_{name}" for name in _OWN)).drop(_CORRUPT)


def unreadable(frame: DataFrame) -> DataFrame:
    """The bad rows, as records for a dead-letter topic, with position and reason in the headers."""
    from ottla.spark.dead_letters import letters

    bad = frame.where("_bad IS NOT NULL")
    return letters(bad.select("key", "value", *_OWN[:3], bad["_bad"].alias("error")))


def encoded(frame: DataFrame, sink: Sink, *, rehearses: bool = False) -> DataFrame:
    """The columns of a record: key, value, and others that the topic sink takes.

    With `rehearses` no schema is registered, and the frame must not be run.
    """
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    _check_columns(frame, sink.key)
    columns: list[Any] = []
    if len(sink.key) == 1:
        columns.append(_as_text(frame, sink.key[0]).alias("key"))
    elif sink.key:
        columns.append(F.to_json(F.struct(*sink.key)).alias("key"))
    elif "key" in frame.columns:
        columns.append("key")
    if sink.value is None:
        _check_columns(frame, ("value",))
        taken = [name for name in ("value", "partition", "headers") if name in frame.columns]
        return frame.select(*columns, *taken)
    data = [name for name in frame.columns if not name.startswith("_")]
    if sink.value == "json" and sink.registry is None:
        value = F.to_json(F.struct(*data), {"ignoreNullFields": "false"})
    elif sink.value == "string":
        rest = [name for name in data if name not in sink.key and (sink.key or name != "key")]
        if len(rest) != 1:
            raise ValueError(
                f"value: string needs exactly one column besides the key, not {', '.join(rest) or 'none'}"
            )
        value = _as_text(frame, rest[0])
    else:
        value = _to_registry(frame.select(*data), sink, rehearses)
    return frame.select(*columns, value.alias("value"))


def _to_registry(rows: DataFrame, sink: Sink, rehearses: bool) -> Column:
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    from ottla.spark.values import Location
    from ottla.spark.values.codecs import SchemaOptions, plan, writing_plan
    from ottla.spark.values.columns import written_by
    from ottla.spark.values.schema_fit import misfits

    assert sink.registry is not None
    location = Location.of(sink.registry, auth=sink.registry_auth, ca_file=sink.registry_ca)
    subject = sink.subject or f"{sink.topic}-value"
    options = SchemaOptions(subject=subject, schema=sink.schema, schema_type=sink.value, message=sink.message)
    planned = plan(location, replace(options, subject=None) if sink.schema else options)
    wrong = misfits(planned, rows.schema)
    if wrong:
        raise ValueError(f"the rows do not fit the schema of {subject}: {'; '.join(wrong)}")
    if rehearses:
        return F.lit(None).cast("binary")
    if sink.schema is not None:
        planned = writing_plan(location, options)
    return written_by(planned, F.struct(*rows.columns))


def _as_text(frame: DataFrame, name: str) -> Column:
    """Cast to string; bytes stay unchanged."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    column = F.col(name)
    return column if dict(frame.dtypes)[name] == "binary" else column.cast("string")


def _check_columns(frame: DataFrame, names: tuple[str, ...]) -> None:
    from ottla.spark.pipeline.parser import nearest

    for name in names:
        if name not in frame.columns:
            raise ValueError(f"there is no column {name}: {nearest(name, frame.columns)}")
