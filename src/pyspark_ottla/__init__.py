"""Spark looks for modules of this kind of name and registers what they call `DefaultSource`: so `format("ottla")` needs no call."""

from ottla.spark.data_source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
