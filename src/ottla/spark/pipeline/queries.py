"""A plan made into DataFrames and streaming queries. Decides nothing that the plan does not say; who runs it is `running`.

Every source and step becomes a temporary view of its name, so that SQL finds it. A sink's query is named after it and the pipeline, and has
its checkpoint under its name.
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

#: What a query of undecodable records is called: its source's name with this behind it.
DEAD_LETTERS: Final = ".dead-letters"
#: Spark's setting by which whoever knows better has it not look.
_MODE_CHECK: Final = "spark.sql.streaming.unsupportedOperationCheck"


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


@dataclass(frozen=True, slots=True)
class Part:
    """A query to be: where in the file it stands, its sink and its rows."""

    place: str
    sink: Sink
    frame: DataFrame


def parts(spark: SparkSession, plan: Plan, frames: Mapping[str, DataFrame]) -> list[Part]:
    """Every sink, and one for each source's records that cannot be decoded. Raises `StepFailed`."""
    found = [Part(f"sinks.{name}", sink, frames[sink.input]) for name, sink in plan.sinks.items()]
    for name, source in plan.sources.items():
        if source.dead_letters is not None and name in frames:
            place = f"sources.{name}.dead_letters"
            with _told(place):
                # The group hears of the sinks, not of this query, which has a pace of its own.
                frame = unreadable(decoded(topic_frame(spark, _without_group(source)), source))
            found.append(Part(place, _dead_letter_sink(name, source), frame))
    return found


def prepare(plan: Plan, part: Part, *, rehearses: bool = False) -> DataStreamWriter:
    """The query, checked as far as it can be before it starts; a rehearsal leaves nothing behind. Raises `StepFailed`."""
    with _told(part.place):
        writer = _writer(plan, part.sink, part.frame, rehearses)
        _check_mode(part.frame, part.sink.mode)
    return writer


def start_queries(
    spark: SparkSession, plan: Plan, frames: Mapping[str, DataFrame], *, once: bool
) -> dict[str, StreamingQuery]:
    """Start every query, after all of them were found to be good: no row moves before. Raises `StepFailed`."""
    writers = [(part, prepare(plan, part)) for part in parts(spark, plan, frames)]
    queries: dict[str, StreamingQuery] = {}
    try:
        for part, writer in writers:
            with _told(part.place):
                queries[part.sink.name] = _start(plan, part.sink, writer, once)
    except BaseException:
        for query in queries.values():
            query.stop()
        raise
    return queries


def _check_mode(frame: DataFrame, mode: str) -> None:
    """Whether Spark can have this output mode: it would say so when the query starts, after others have. Not over Spark Connect."""
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
    # The table of a sink in memory is named after its query, and has no dots.
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
            return records.writeStream.foreachBatch(_WriteBatch(options, plan.checkpoint_of(sink)))
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


class _WriteBatch:
    """A micro-batch as a write of its own, once by its `sinkId`: Spark lets no sink in Python have the update mode."""

    def __init__(self, options: dict[str, str], checkpoint: str) -> None:
        self._options = options
        self._checkpoint = checkpoint

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        options = dict(self._options)
        if "sinkId" in options:
            # Over Spark Connect tasks are not told which query and batch is theirs.
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
    """The columns of a table's rows: those that begin with _ are the record's, and tell the sink only which of a key's rows is the latest; but
    for those that are `kept`, since they are the key or the order."""
    place = ("topic", "partition", "offset")
    named = set(kept)
    if all(f"_{name}" in frame.columns and name not in frame.columns for name in place):
        frame = frame.withColumnsRenamed({f"_{name}": name for name in place if f"_{name}" not in named})
    own = [name for name in frame.columns if name.startswith("_") and name not in named]
    return frame.drop(*own) if own else frame
