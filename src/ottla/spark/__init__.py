"""Topics in Spark: the format "ottla" as source and sink, tables, and pipelines.

    spark.readStream.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "orders")

The format registers itself through the module `pyspark_ottla`; `register(spark)` does it by hand where Spark was started before ottla was
installed, or over Spark Connect. Everything here runs in drivers and in Python workers, and talks to brokers only through `ottla.client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("ottla")` known to this session."""
    from ottla.spark.data_source import OttlaDataSource

    spark.dataSource.register(OttlaDataSource)
