"""Builds DataFrames and streaming queries from a plan.

It decides nothing beyond the plan; `runner` runs the queries.

Every source and step becomes a temporary view with its name, for SQL. A sink's query is named after the
pipeline and the sink, and has its own checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.client.producer.settings import ProducerConfig
from ottla.spark.clients import settings_for
from ottla.spark.pipeline.model import AVAILABLE_NOW, Plan, Sink, Source, Table
from ottla.spark.pipeline.value_columns import decoded, encoded, readable, unreadable
from ottla.spark.table_sinks.positions import query_id_of
from ottla.spark.topic_sink.plan import read_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: The suffix of the query that writes a source's dead letters.
DEAD_LETTERS: Final = ".dead-letters"
#: Spark's setting that disables its check of unsupported operations.
_MODE_CHECK: Final = "spark.sql.streaming.unsupportedOperationCheck"


class StepFailed(Exception):
    """A step cannot be built: its place, and the error of Spark or of the function."""

    def __init__(self, place: str, error: Exception) -> None:
        super().__init__(f"{place}: {error}")
        self.place = place
        self.error = error


def build_tables(spark: SparkSession, plan: Plan) -> dict[str, DataFrame]:
    """Build every source and step that a sink needs. Raises `StepFailed`."""
    needed = {name for sink in plan.sinks.values() for name in plan.upstream(sink.input)}
    frames: dict[str, DataFrame] = {}
    for name, source in plan.sources.items():
        if name in needed:
            with _StepErrors(f"sources.{name}"):
                _add(frames, name, _late(source_frame(spark, source), source))
    for name, step in plan.steps.items():
        if name not in needed:
            continue
        with _StepErrors(f"steps.{name}"):
            if step.sql is not None:
                frame = spark.sql(step.sql)
            else:
                assert step.function is not None and step.function.call is not None
                frame = step.function.call(*(frames[each] for each in step.inputs))
                if not hasattr(frame, "createOrReplaceTempView"):
                    raise TypeError(f"{step.function.where} returned {frame!r}: it must return a DataFrame")
            _add(frames, name, _late(frame, step))
    return frames


def _add(frames: dict[str, DataFrame], name: str, frame: DataFrame) -> None:
    frames[name] = frame
    frame.createOrReplaceTempView(name)


def _late(frame: DataFrame, thing: Any) -> DataFrame:
    if thing.watermark is None:
        return frame
    return frame.withWatermark(thing.watermark.column, thing.watermark.delay)


class _StepErrors:
    """Raises errors of its block as `StepFailed`, with the place in the file."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            raise StepFailed(self._place, error) from error


# --- sources ----------------------------------------------------------------------------------------------


def source_frame(spark: SparkSession, source: Source) -> DataFrame:
    """The DataFrame of a source; for a topic, with decoded values."""
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
    """The records of a topic, not decoded."""
    reader: Any = spark.readStream if source.read == "stream" else spark.read
    return reader.format(source.format).options(**source_options(source)).load()  # type: ignore[no-any-return]


def source_options(source: Source) -> dict[str, str]:
    """The options of format("ottla"). The field `options` overrides all others."""
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
    """The state of a compacted topic: the latest record of each key, without tombstones and null keys."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    rest = [name for name in frame.columns if name not in ("topic", "key")]
    latest = frame.where("key IS NOT NULL").groupBy("topic", "key")
    rows = latest.agg(F.max_by(F.struct(*rest), F.struct("partition", "offset")).alias("_latest"))
    return rows.select("key", "topic", *(F.col(f"_latest.{name}") for name in rest)).where(
        "value IS NOT NULL"
    )


# --- sinks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A query to start: its place in the file, its sink and its rows."""

    place: str
    sink: Sink
    frame: DataFrame


def planned_queries(spark: SparkSession, plan: Plan, frames: Mapping[str, DataFrame]) -> list[PlannedQuery]:
    """The queries: one per sink, and one per source with dead letters. Raises `StepFailed`."""
    found = [PlannedQuery(f"sinks.{name}", sink, frames[sink.input]) for name, sink in plan.sinks.items()]
    for name, source in plan.sources.items():
        if source.dead_letters is not None and name in frames:
            place = f"sources.{name}.dead_letters"
            with _StepErrors(place):
                # Only the queries of the sinks commit to the group; this query has its own progress.
                frame = unreadable(decoded(topic_frame(spark, _without_group(source)), source))
            found.append(PlannedQuery(place, _dead_letter_sink(name, source), frame))
    return found


def prepare(plan: Plan, part: PlannedQuery, *, rehearses: bool = False) -> DataStreamWriter:
    """Build and check a query. With `rehearses` it has no side effects. Raises `StepFailed`."""
    with _StepErrors(part.place):
        writer = _writer(plan, part.sink, part.frame, rehearses)
        _check_mode(part.frame, part.sink.mode)
    return writer


def start_queries(
    spark: SparkSession, plan: Plan, frames: Mapping[str, DataFrame], *, once: bool
) -> dict[str, StreamingQuery]:
    """Check all queries, then start them: nothing is written if one is invalid. Raises `StepFailed`."""
    writers = [(part, prepare(plan, part)) for part in planned_queries(spark, plan, frames)]
    queries: dict[str, StreamingQuery] = {}
    try:
        for part, writer in writers:
            with _StepErrors(part.place):
                queries[part.sink.name] = _start(plan, part.sink, writer, once)
    except BaseException:
        for query in queries.values():
            query.stop()
        raise
    return queries


def _check_mode(frame: DataFrame, mode: str) -> None:
    """Check whether Spark supports this output mode, before any query starts.

    Not possible over Spark Connect.
    """
    java = getattr(frame, "_jdf", None)
    if java is None or frame.sparkSession.conf.get(_MODE_CHECK, "true") != "true":
        return
    jvm: Any = frame.sparkSession._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    of_java = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(java.queryExecution().analyzed(), of_java)


def _dead_letter_sink(name: str, source: Source) -> Sink:
    return Sink(
        name=f"{name}{DEAD_LETTERS}",
        input=name,
        topic=source.dead_letters,
        brokers=source.brokers,
        kafka=settings_for(source.kafka, ProducerConfig),
    )


def _without_group(source: Source) -> Source:
    def rest(settings: Mapping[str, str]) -> dict[str, str]:
        named = ("groupid", "group.id", "group_id", "kafka.group.id")
        return {name: value for name, value in settings.items() if name.lower() not in named}

    return dataclasses.replace(source, group=None, kafka=rest(source.kafka), options=rest(source.options))


def _start(plan: Plan, sink: Sink, writer: DataStreamWriter, once: bool) -> StreamingQuery:
    # The table of a memory sink is named after its query, and cannot contain dots.
    query_name = sink.name if sink.format == "memory" else f"{plan.name}.{sink.name}"
    writer = writer.queryName(query_name).option("checkpointLocation", plan.checkpoint_of(sink))
    writer = writer.outputMode(sink.mode)
    trigger = sink.trigger or plan.trigger
    if once or trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    elif trigger is not None:
        writer = writer.trigger(processingTime=trigger)
    return writer.start()


def _writer(plan: Plan, sink: Sink, frame: DataFrame, rehearses: bool) -> DataStreamWriter:
    if sink.topic is not None:
        records = encoded(frame, sink, rehearses=rehearses)
        options = _topic_options(plan, sink)
        read_plan(options, records.schema)
        if sink.mode == "update":
            return records.writeStream.foreachBatch(_BatchWriter(options, plan.checkpoint_of(sink)))
        return records.writeStream.format("ottla").options(**options)
    if sink.table is not None:
        rows = row_columns(frame, (*sink.table.key, sink.order_by))
        return rows.writeStream.foreachBatch(_table_sink(plan, sink, sink.table, rows))
    if sink.parquet is not None:
        rows = row_columns(frame, (*sink.key, sink.order_by))
        return rows.writeStream.foreachBatch(_parquet_sink(plan, sink, sink.parquet, rows))
    if sink.function is not None:
        assert sink.function.call is not None
        return frame.writeStream.foreachBatch(sink.function.call)
    assert sink.format is not None
    writer = frame.writeStream.format(sink.format).options(**sink.options)
    return writer.option("path", sink.path) if sink.path is not None else writer


def _topic_options(plan: Plan, sink: Sink) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": sink.brokers or "", **_kafka(sink.kafka), "topic": sink.topic or ""}
    options |= {"guarantee": sink.guarantee, **sink.options}
    if sink.guarantee == "exactly-once":
        options.setdefault("sinkId", f"{plan.name}.{sink.name}")
        if sink.reset:
            options.setdefault("adoptCheckpoint", "true")
    return options


class _BatchWriter:
    """Writes each micro-batch by `df.write`, exactly once by its `sinkId`, for output mode update."""

    def __init__(self, options: dict[str, str], checkpoint: str) -> None:
        self._options = options
        self._checkpoint = checkpoint

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        options = dict(self._options)
        if "sinkId" in options:
            # Over Spark Connect, tasks do not know their query and micro-batch.
            options["microBatch"] = f"{query_id_of(frame, self._checkpoint)}/{batch_id}"
        frame.write.format("ottla").mode("append").options(**options).save()


def _table_sink(plan: Plan, sink: Sink, table: Table, rows: DataFrame) -> Callable[[DataFrame, int], None]:
    from ottla.spark.dead_letters import DeadLetters
    from ottla.spark.table_sinks import upsert

    letters = None
    if sink.dead_letters is not None:
        letters = DeadLetters(sink.brokers or "", sink.dead_letters, _kafka(sink.kafka))
    made = upsert(
        table.url,
        table=table.name,
        key=list(table.key),
        sink_id=f"{plan.name}.{sink.name}",
        checkpoint=plan.checkpoint_of(sink),
        order_by=sink.order_by,
        tombstones=sink.tombstones,
        reset=sink.reset,
        dead_letters=letters,
    )
    made.check(rows.schema)
    return made


def _parquet_sink(plan: Plan, sink: Sink, path: str, rows: DataFrame) -> Callable[[DataFrame, int], None]:
    from ottla.spark.table_sinks import parquet_table

    made = parquet_table(
        path,
        sink_id=f"{plan.name}.{sink.name}",
        key=list(sink.key) or None,
        checkpoint=plan.checkpoint_of(sink),
        order_by=sink.order_by,
        tombstones=sink.tombstones,
        reset=sink.reset,
    )
    made.check(rows.columns)
    return made


def row_columns(frame: DataFrame, kept: Iterable[str | None] = ()) -> DataFrame:
    """Select the columns of a table's rows.

    Columns that start with _ belong to the record: the sink uses them only to find the latest row of a key.
    Those in `kept` are written, because they are the key or the order.
    """
    place = ("topic", "partition", "offset")
    named = set(kept)
    if all(f"_{name}" in frame.columns and name not in frame.columns for name in place):
        frame = frame.withColumnsRenamed({f"_{name}": name for name in place if f"_{name}" not in named})
    own = [name for name in frame.columns if name.startswith("_") and name not in named]
    return frame.drop(*own) if own else frame
