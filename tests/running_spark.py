"""A Spark of one's own for each process of the tests; and what it, and those that tests start as processes, have in common."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ottla.spark.session import spark_session

# A Java that does not optimize for a life that it will not have takes half of the CPU.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session("tests", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
