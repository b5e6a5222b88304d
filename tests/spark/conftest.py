"""Shared fixtures: one Spark session per process, and a broker."""

from tests.running_broker import ottla_address, start_broker, topic_name
from tests.running_spark import spark

__all__ = ["ottla_address", "spark", "start_broker", "topic_name"]
