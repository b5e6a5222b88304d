"""Rows that cannot be decoded or stored go to a topic of their own, with the reason in headers, and the rest goes on.

Whoever decodes rows leaves a column `error` in them: null, or why it failed. Here such rows are told apart and made records again:

- `with_dead_letters` makes of good and bad rows records for one sink, `format("ottla")`, each with its topic: so both are written in the same
  transaction, exactly once, and the rows are evaluated once.
- `DeadLetters` sends them with a producer of its own, at least once: `bad.writeStream.foreachBatch(DeadLetters("host:9092", "orders.dead"))`,
  and as `dead_letters=` of the tables' sinks.

A dead letter has the key and value that the row had, its headers, and after them error.reason, error.topic, error.partition and error.offset,
as far as they are known. A row without a value column has itself as JSON for its value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.client.producer.settings import ProducerConfig
from ottla.spark import clients
from ottla.spark.options import KAFKA, OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

REASON: Final = "error.reason"
TOPIC: Final = "error.topic"
PARTITION: Final = "error.partition"
OFFSET: Final = "error.offset"
ERROR: Final = "error"
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def split(frame: DataFrame, error: str = ERROR) -> tuple[DataFrame, DataFrame]:
    """The rows without an error, and those with one. Two queries: each evaluates the rows for itself."""
    from pyspark.sql import functions as f

    _check(frame, error)
    return frame.where(f.col(error).isNull()).drop(error), frame.where(f.col(error).isNotNull())


def letters(bad: DataFrame, error: str = ERROR) -> DataFrame:
    """Bad rows as records: key, value, headers."""
    _check(bad, error)
    return bad.select(_key(bad), _value(bad, error), _letter_headers(bad, error).alias("headers"))


def with_dead_letters(
    frame: DataFrame, *, topic: str | Column, dead_letter_topic: str, error: str = ERROR
) -> DataFrame:
    """Records for `format("ottla")`, good ones for `topic`, bad ones for `dead_letter_topic`: columns key, value, headers, topic.

    The rows have key and value as they are to be written; where there is an error, the value is what could not be decoded.
    """
    from pyspark.sql import functions as f

    _check(frame, error)
    is_good = f.col(error).isNull()
    where = f.lit(topic) if isinstance(topic, str) else topic
    return frame.select(
        _key(frame),
        _value(frame, error),
        f.when(is_good, _own_headers(frame)).otherwise(_letter_headers(frame, error)).alias("headers"),
        f.when(is_good, where).otherwise(f.lit(dead_letter_topic)).alias("topic"),
    )


def _check(frame: DataFrame, error: str) -> None:
    kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    if kinds.get(error) != "string":
        raise OptionError(
            f"the rows have no text column {error!r} that says what is wrong with them; they have {', '.join(kinds)}"
        )


def _key(frame: DataFrame) -> Column:
    from pyspark.sql import functions as f

    key = f.col("key") if "key" in frame.columns else f.lit(None)
    return key.cast("binary").alias("key")


def _value(frame: DataFrame, error: str) -> Column:
    from pyspark.sql import functions as f

    if "value" in frame.columns:
        value = f.col("value")
    else:
        value = f.to_json(
            f.struct(*(f.col(name) for name in frame.columns if name not in (error, "headers")))
        )
    return value.cast("binary").alias("value")


def _own_headers(frame: DataFrame) -> Column:
    from pyspark.sql import functions as f

    headers = f.col("headers") if "headers" in frame.columns else f.lit(None)
    return headers.cast(_HEADERS_TYPE)


def _letter_headers(frame: DataFrame, error: str) -> Column:
    from pyspark.sql import functions as f

    def header(name: str, value: Column) -> Column:
        return f.struct(f.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))

    made = [header(REASON, f.col(error))]
    made += [
        header(name, f.col(column))
        for name, column in ((TOPIC, "topic"), (PARTITION, "partition"), (OFFSET, "offset"))
        if column in frame.columns
    ]
    nothing = f.array().cast(_HEADERS_TYPE)
    return f.concat(f.coalesce(_own_headers(frame), nothing), f.array(*made).cast(_HEADERS_TYPE))


@dataclass(frozen=True)
class DeadLetters:
    """A topic for rows that nobody could use; at least once. `options` are the client's, written as for `format("ottla")`: `kafka.…`."""

    servers: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    error: str = ERROR

    def __post_init__(self) -> None:
        if not self.topic:
            raise OptionError("dead letters need the name of a topic")
        for name in self.options:
            if not name.startswith(KAFKA):
                raise OptionError(f"option {name!r} of dead letters must begin with {KAFKA}")
        clients.check_settings(self._kafka(), ProducerConfig)

    def _kafka(self) -> dict[str, str]:
        own = {name.lower().removeprefix(KAFKA): value for name, value in self.options.items()}
        return {"bootstrap.servers": self.servers, **own}

    def __call__(self, bad: DataFrame, batch_id: int) -> None:
        """Send all rows, from the tasks that have them: for `foreachBatch`."""
        records = letters(bad, self.error)
        kafka, topic = self._kafka(), self.topic

        def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            count = 0
            with clients.producer(kafka) as producer:
                for batch in batches:
                    waiting = [
                        producer.send(
                            topic,
                            row["value"],
                            key=row["key"],
                            headers=[(each["key"], each["value"]) for each in row["headers"]],
                        )
                        for row in batch.to_pylist()
                    ]
                    for each in waiting:
                        each.result()
                    count += len(waiting)
            yield pa.record_batch([pa.array([count], pa.int64())], names=["sent"])

        records.mapInArrow(send, "sent bigint").collect()

    def send(self, refused: Sequence[Mapping[str, Any]]) -> None:
        """Rows that a database did not take: as JSON, each with its reason and position. Returns when all are acknowledged."""
        with clients.producer(self._kafka()) as producer:
            waiting = [
                producer.send(
                    self.topic,
                    json.dumps(each["row"], ensure_ascii=False).encode(),
                    headers=refusal_headers(each),
                )
                for each in refused
            ]
            for sent in waiting:
                sent.result()


def refusal_headers(refused: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    names = (TOPIC, PARTITION, OFFSET)
    position = refused["position"] or ()
    known = [
        (name, str(value).encode()) for name, value in zip(names, position, strict=False) if value is not None
    ]
    return [(REASON, str(refused["reason"]).encode()), *known]
