"""A plan made into DataFrames and streaming queries. Decides nothing that the plan does not say; who runs it is `running`.

Every source and step becomes a temporary view of its name, so that SQL finds it. A sink's query is named after it and the pipeline, and has
its checkpoint under its name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.client.producer.settings import Producing
from ottla.spark.clients import settings_for
from ottla.spark.pipeline.decoding import decoded, encoded, readable, unreadable
from ottla.spark.pipeline.model import AVAILABLE_NOW, Plan, Sink, Source, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: What a query of undecodable records is called: its source's name with this behind it.
DEAD_LETTERS: Final = ".dead-letters"


class StepFailed(Exception):
    """A step that cannot be made: which one, and what Spark or the function said."""

    def __init__(self, place: str, error: Exception) -> None:
        super().__init__(f"{place}: {error}")
        self.place = place
        self.error = error


def build_tables(spark: SparkSession, plan: Plan) -> dict[str, DataFrame]:
    """Every source and step that a sink needs, by name. Raises `StepFailed`."""
    needed = {name for sink in plan.sinks.values() for name in plan.upstream(sink.input)}
    frames: dict[str, DataFrame] = {}
    for name, source in plan.sources.items():
        if name in needed:
            with _told(f"sources.{name}"):
                _add(frames, name, _late(source_frame(spark, source), source))
    for name, step in plan.steps.items():
        if name not in needed:
            continue
        with _told(f"steps.{name}"):
            if step.sql is not None:
                frame = spark.sql(step.sql)
            else:
                assert step.function is not None and step.function.call is not None
                frame = step.function.call(*(frames[each] for each in step.inputs))
                if not hasattr(frame, "createOrReplaceTempView"):
                    raise TypeError(f"{step.function.where} returned {frame!r}, and must return a DataFrame")
            _add(frames, name, _late(frame, step))
    return frames


def _add(frames: dict[str, DataFrame], name: str, frame: DataFrame) -> None:
    frames[name] = frame
    frame.createOrReplaceTempView(name)


def _late(frame: DataFrame, thing: Any) -> DataFrame:
    if thing.watermark is None:
        return frame
    return frame.withWatermark(thing.watermark.column, thing.watermark.delay)


class _told:  # noqa: N801  # reads as a verb where it is used
    """Whatever goes wrong inside is told with the place in the file."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            raise StepFailed(self._place, error) from error


# --- sources ----------------------------------------------------------------------------------------------


def source_frame(spark: SparkSession, source: Source) -> DataFrame:
    """What a source's table is made of: for a topic, with its values decoded."""
    if source.is_topic:
        frame = topic_frame(spark, source)
        if source.read == "table":
            frame = latest_of_each_key(frame)
        return readable(decoded(frame, source), source)
    reader: Any = spark.readStream if source.read == "stream" else spark.read
    reader = reader.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    return reader.load(source.path)  # type: ignore[no-any-return]


def topic_frame(spark: SparkSession, source: Source) -> DataFrame:
    """The records of a topic, as they are."""
    reader: Any = spark.readStream if source.read == "stream" else spark.read
    return reader.format(source.format).options(**source_options(source)).load()  # type: ignore[no-any-return]


def source_options(source: Source) -> dict[str, str]:
    """The options of format("ottla"). Those under `options` go before all others."""
    found = {"kafka.bootstrap.servers": source.brokers or "", **_kafka(source.kafka)}
    if source.pattern is not None:
        found["subscribePattern"] = source.pattern
    else:
        found["subscribe"] = source.topic or ""
    if source.read == "stream":
        found["startingOffsets"] = source.start
        if source.records_max is not None:
            found["maxOffsetsPerTrigger"] = str(source.records_max)
        if source.group is not None:
            found["groupId"] = source.group
    return {**found, **source.options}


def _kafka(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in settings.items()}


def latest_of_each_key(frame: DataFrame) -> DataFrame:
    """What a compacted topic says: the latest record of each key, unless it is a tombstone. Records without a key say nothing."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    rest = [name for name in frame.columns if name not in ("topic", "key")]
    latest = frame.where("key IS NOT NULL").groupBy("topic", "key")
    rows = latest.agg(F.max_by(F.struct(*rest), F.struct("partition", "offset")).alias("_latest"))
    return rows.select("key", "topic", *(F.col(f"_latest.{name}") for name in rest)).where(
        "value IS NOT NULL"
    )


# --- sinks ------------------------------------------------------------------------------------------------


def start_queries(
    spark: SparkSession, plan: Plan, frames: Mapping[str, DataFrame], *, once: bool
) -> dict[str, StreamingQuery]:
    """Start every sink's query, and one for each source's records that cannot be decoded. Raises `StepFailed`."""
    queries: dict[str, StreamingQuery] = {}
    try:
        for name, sink in plan.sinks.items():
            with _told(f"sinks.{name}"):
                queries[name] = _start(plan, name, sink, frames[sink.input], once)
        for name, source in plan.sources.items():
            if source.dead_letters is not None and source.read == "stream" and name in frames:
                with _told(f"sources.{name}.dead_letters"):
                    sink = _dead_letter_sink(name, source)
                    # The group hears of the sinks, not of this query, which has a pace of its own.
                    frame = unreadable(decoded(topic_frame(spark, _without_group(source)), source))
                    queries[sink.name] = _start(plan, sink.name, sink, frame, once)
    except BaseException:
        for query in queries.values():
            query.stop()
        raise
    return queries


def _dead_letter_sink(name: str, source: Source) -> Sink:
    return Sink(
        name=f"{name}{DEAD_LETTERS}",
        input=name,
        topic=source.dead_letters,
        brokers=source.brokers,
        kafka=settings_for(source.kafka, Producing),
    )


def _without_group(source: Source) -> Source:
    def rest(settings: Mapping[str, str]) -> dict[str, str]:
        named = ("groupid", "group.id", "group_id", "kafka.group.id")
        return {name: value for name, value in settings.items() if name.lower() not in named}

    return dataclasses.replace(source, group=None, kafka=rest(source.kafka), options=rest(source.options))


def _start(plan: Plan, name: str, sink: Sink, frame: DataFrame, once: bool) -> StreamingQuery:
    # The table of a sink in memory is named after its query, and has no dots.
    query_name = name if sink.format == "memory" else f"{plan.name}.{name}"
    writer = _writer(plan, sink, frame).queryName(query_name)
    writer = writer.option("checkpointLocation", f"{plan.checkpoint_path}/{name}").outputMode(sink.mode)
    trigger = sink.trigger or plan.trigger
    if once or trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    elif trigger is not None:
        writer = writer.trigger(processingTime=trigger)
    return writer.start()


def _writer(plan: Plan, sink: Sink, frame: DataFrame) -> DataStreamWriter:
    sink_id = f"{plan.name}.{sink.name}"
    if sink.topic is not None:
        records = encoded(frame, sink)
        options = {"kafka.bootstrap.servers": sink.brokers or "", **_kafka(sink.kafka), "topic": sink.topic}
        options |= {"guarantee": sink.guarantee, **sink.options}
        if sink.guarantee == "exactly-once":
            options.setdefault("sinkId", sink_id)
        if sink.mode == "update":
            return records.writeStream.foreachBatch(_WriteBatch(options))
        return records.writeStream.format("ottla").options(**options)
    if sink.table is not None:
        return row_columns(frame).writeStream.foreachBatch(_table_sink(plan, sink, sink.table))
    if sink.parquet is not None:
        from ottla.spark.sinks import parquet_table

        write = parquet_table(
            sink.parquet,
            sink_id=sink_id,
            key=list(sink.key) or None,
            checkpoint=f"{plan.checkpoint_path}/{sink.name}",
        )
        return row_columns(frame).writeStream.foreachBatch(write)
    if sink.function is not None:
        assert sink.function.call is not None
        return frame.writeStream.foreachBatch(sink.function.call)
    assert sink.format is not None
    writer = frame.writeStream.format(sink.format).options(**sink.options)
    return writer.option("path", sink.path) if sink.path is not None else writer


class _WriteBatch:
    """A micro-batch as a write of its own, once by its `sinkId`: Spark lets no sink in Python have the update mode."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        frame.write.format("ottla").mode("append").options(**self._options).save()


def _table_sink(plan: Plan, sink: Sink, table: Table) -> Callable[[DataFrame, int], None]:
    from ottla.spark.dead_letters import DeadLetters
    from ottla.spark.sinks import upsert

    letters = None
    if sink.dead_letters is not None:
        letters = DeadLetters(sink.brokers or "", sink.dead_letters, _kafka(sink.kafka))
    return upsert(
        table.url,
        table=table.name,
        key=list(table.key),
        sink_id=f"{plan.name}.{sink.name}",
        checkpoint=f"{plan.checkpoint_path}/{sink.name}",
        dead_letters=letters,
    )


def row_columns(frame: DataFrame) -> DataFrame:
    """The columns of a table's rows: those that begin with _ are the record's, and tell the sink only which of a key's rows is the latest."""
    place = ("topic", "partition", "offset")
    if all(f"_{name}" in frame.columns and name not in frame.columns for name in place):
        frame = frame.withColumnsRenamed({f"_{name}": name for name in place})
    own = [name for name in frame.columns if name.startswith("_")]
    return frame.drop(*own) if own else frame
