"""A Spark of one's own for each process of the tests; and what it, and those that tests start as processes, have in common."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ottla.spark.session import spark_session
from tests.spark_classes import java_options

os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session("tests", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
