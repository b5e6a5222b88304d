"""A batch without Spark: partitions of rows, run by tasks that can be made to run twice."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

QUERY = "11111111-query"
_TYPES: dict[str, Callable[[], t.DataType]] = {
    "boolean": t.BooleanType, "tinyint": t.ByteType, "smallint": t.ShortType, "int": t.IntegerType, "bigint": t.LongType,
    "float": t.FloatType, "double": t.DoubleType, "string": t.StringType, "binary": t.BinaryType, "date": t.DateType,
    "timestamp": t.TimestampType, "timestamp_ntz": t.TimestampNTZType, "decimal(20,5)": lambda: t.DecimalType(20, 5),
}  # fmt: skip


def schema_of(text: str) -> t.StructType:
    """Spark's own reading of such a text needs a JVM. Here no name holds a comma followed by a space."""
    schema = t.StructType()
    for part in text.split(", "):
        name, _, kind = part.rpartition(" ")
        schema.add(name.removeprefix("`").removesuffix("`").replace("``", "`"), _TYPES[kind]())
    return schema


class Rows:
    """What a table's sink uses of a DataFrame."""

    def __init__(self, schema: str, *partitions: list[tuple[Any, ...]], query_id: str | None = QUERY) -> None:
        self.schema = schema_of(schema)
        self.partitions = partitions
        context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": query_id}.get)
        self.sparkSession = SimpleNamespace(sparkContext=context)
        #: Partitions whose task runs twice, and only the second time counts.
        self.tried_twice: set[int] = set()
        #: Called when all is staged, before the driver hears of it.
        self.then: Callable[[], None] = lambda: None

    def mapInArrow(self, task: Any, _: str) -> Any:  # noqa: N802  # Spark's name
        return SimpleNamespace(collect=lambda: self._run(task))

    def _run(self, task: Any) -> list[t.Row]:
        reports = []
        for number in range(len(self.partitions)):
            with mock.patch(
                "pyspark.TaskContext.get", lambda n=number: SimpleNamespace(partitionId=lambda: n)
            ):
                if number in self.tried_twice:
                    list(task(self._batches(number)))
                [report] = task(self._batches(number))
            reports += [t.Row(**each) for each in report.to_pylist()]
        self.then()
        return reports

    def _batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Two rows at a time."""
        schema = to_arrow_schema(self.schema, timezone="Europe/Helsinki", prefers_large_types=False)
        rows = self.partitions[number]
        for start in range(0, max(len(rows), 1), 2):
            columns = list(zip(*rows[start : start + 2], strict=True)) or [() for _ in schema]
            yield pa.record_batch(
                [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)],
                schema=schema,
            )
