"""Dead letters: rows that cannot be decoded or stored go to their own topic, with the reason in the headers.

A decoder adds a column `error` to the rows: null, or the reason. This module separates such rows and writes
them:

- `with_dead_letters` turns good and bad rows into records for one `format("ottla")` sink. Both are written in
  the same transaction, exactly once, and the rows are evaluated once.
- `DeadLetters` sends bad rows with its own producer, at least once. Use it with `foreachBatch`, or as
  `dead_letters=` of the table sinks.

A dead letter keeps the key, value and headers of the row. The headers error.reason, error.topic,
error.partition and error.offset are appended, if known. If the row has no column `value`, the dead letter's
value is the row as JSON.
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
    """Split rows into good and bad ones.

    The two frames are two queries: each evaluates the rows again. `with_dead_letters` evaluates them once.

    Args:
        frame: Rows with a string column that is null or holds the reason.
        error: The name of that column.

    Returns:
        The rows without an error, without that column; and the rows with an error.

    Raises:
        OptionError: The column is missing or is not a string.

    Example:
        >>> good, bad = dead_letters.split(decoded)
    """
    from pyspark.sql import functions as f

    _check(frame, error)
    return frame.where(f.col(error).isNull()).drop(error), frame.where(f.col(error).isNotNull())


def letters(bad: DataFrame, error: str = ERROR) -> DataFrame:
    """Turn bad rows into the records of a dead-letter topic.

    Args:
        bad: Rows with a string column that holds the reason.
        error: The name of that column.

    Returns:
        A frame with the columns key, value and headers.

    Raises:
        OptionError: The column is missing or is not a string.

    Example:
        >>> letters(bad).writeStream.format("ottla").option("topic", "orders.dead")
    """
    _check(bad, error)
    return bad.select(_key(bad), _value(bad, error), _letter_headers(bad, error).alias("headers"))


def with_dead_letters(
    frame: DataFrame, *, topic: str | Column, dead_letter_topic: str, error: str = ERROR
) -> DataFrame:
    """Turn good and bad rows into records for one `format("ottla")` sink, in one transaction.

    Args:
        frame: Rows with the key and value to write. In a bad row, `value` holds what could not be decoded.
        topic: The topic of the good rows: a name, or a column of names.
        dead_letter_topic: The topic of the bad rows.
        error: The string column that is null or holds the reason.

    Returns:
        A frame with the columns key, value, headers and topic.

    Raises:
        OptionError: The column `error` is missing or is not a string.

    Example:
        >>> with_dead_letters(decoded, topic="orders", dead_letter_topic="orders.dead")
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
            f"the rows have no string column {error!r} with the reason; they have {', '.join(kinds)}: "
            "name the column with error="
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
    """Sends bad rows to a dead-letter topic with its own producer, at least once.

    Pass it to `foreachBatch`, or to a table sink as `dead_letters=`.

    Args:
        servers: HOST:PORT of a broker, or several with commas.
        topic: The dead-letter topic.
        options: Client settings with the prefix `kafka.`, as for `format("ottla")`.
        error: The string column with the reason, in rows from `foreachBatch`.

    Raises:
        OptionError: The topic is empty, or an option is invalid.

    Example:
        >>> bad.writeStream.foreachBatch(DeadLetters("host:9092", "orders.dead"))
    """

    servers: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    error: str = ERROR

    def __post_init__(self) -> None:
        if not self.topic:
            raise OptionError("topic of the dead letters is empty: give the name of a topic")
        for name in self.options:
            if not name.startswith(KAFKA):
                raise OptionError(
                    f"option {name!r} of the dead letters lacks the prefix {KAFKA}: write {KAFKA}{name}"
                )
        clients.check_settings(self._kafka(), ProducerConfig)

    def _kafka(self) -> dict[str, str]:
        own = {name.lower().removeprefix(KAFKA): value for name, value in self.options.items()}
        return {"bootstrap.servers": self.servers, **own}

    def __call__(self, bad: DataFrame, batch_id: int) -> None:
        """Send all rows from the tasks that hold them."""
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
        """Send rows that a database refused, as JSON with reason and position.

        Returns when all are acknowledged.
        """
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
