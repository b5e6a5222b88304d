"""A Spark of one's own for each process of the tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ottla.spark.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session("tests", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
