"""Spark integration: the format "ottla" as source and sink, table sinks, and pipelines.

    spark.readStream.format("ottla")
    .option("kafka.bootstrap.servers", "127.0.0.1:9092")
    .option("subscribe", "orders")
    .load()

Spark registers the format through the module `pyspark_ottla`. Call `register(spark)` over Spark Connect, or
if Spark was started before ottla was installed. This package runs in drivers and Python workers. It talks to
brokers only through `ottla.client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("ottla")` with a session.

    Needed over Spark Connect, and in a session that was started before ottla was installed.

    Args:
        spark: The session that will read or write topics.

    Example:
        >>> ottla.spark.register(spark)
    """
    from ottla.spark.data_source import OttlaDataSource

    spark.dataSource.register(OttlaDataSource)
