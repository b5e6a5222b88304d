"""Entry point of Spark's Python data source API: maps the format "ottla" to its reader and writer classes.

Spark creates these objects again in every process, so constructors have no side effects.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class OttlaDataSource(DataSource):
    """Kafka topics: `spark.read`, `readStream`, `df.write` and `writeStream` with `.format("ottla")`."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        from ottla.spark.source.schema import source_schema

        return source_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from ottla.spark.source.batch import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        from ottla.spark.source.stream import OttlaStreamReader

        return OttlaStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ottla.spark.topic_sink.batch import OttlaWriter

        return OttlaWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        from ottla.spark.topic_sink.stream import OttlaStreamWriter

        return OttlaStreamWriter(self.options, schema, overwrite)
