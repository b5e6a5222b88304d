"""A Spark of one's own for each process of the tests, and a broker."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ottla.spark.session import spark_session
from tests.running_broker import ottla_address, start_broker, topic_name

__all__ = ["ottla_address", "start_broker", "topic_name"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session("tests", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
