"""Lets Spark find `format("ottla")`: Spark imports modules named `pyspark_*` and registers their `DefaultSource`."""

from ottla.spark.data_source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
