"""`spark.read.format("ottla")` end to end: rows, filters, and errors shown to the user."""

from collections.abc import Callable

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import ottla
from tests.spark.source.conftest import spark_options

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def reading(spark: SparkSession, address: str, **options: object) -> DataFrame:
    return spark.read.format("ottla").options(**spark_options(address, **options)).load()


def test_rows_are_the_records(
    spark: SparkSession, ottla_address: str, topic_name: str, admin: ottla.Admin
) -> None:
    admin.create_topic(topic_name, 2)
    with ottla.Producer(ottla_address) as producer:
        producer.send(topic_name, b"one", key=b"k", partition=0, timestamp_ms=1_000, headers=[("h", b"x")])
        producer.send(topic_name, None, partition=1, timestamp_ms=2_001)
    frame = reading(spark, ottla_address, subscribe=topic_name, includeHeaders="true")
    rows = frame.orderBy("partition").collect()
    assert [tuple(row)[:5] for row in rows] == [
        (b"k", b"one", topic_name, 0, 0),
        (None, None, topic_name, 1, 0),
    ]
    assert [row.timestamp.timestamp() for row in rows] == [1.0, 2.001]
    assert [row.timestampType for row in rows] == [0, 0]
    assert [row.headers for row in rows] == [[("h", b"x")], None]


def test_filters_spare_reading_and_change_no_result(
    spark: SparkSession, ottla_address: str, topic_name: str, admin: ottla.Admin, send: Callable[..., None]
) -> None:
    admin.create_topic(topic_name, 3)
    for partition in range(3):
        send(topic_name, *[b"%d" % number for number in range(20)], partition=partition)
    for condition, tasks, rows in (
        ("partition = 1 AND offset >= 5 AND offset < 8", 1, 3),
        ("partition IN (0, 2) AND offset = 4 AND value = '4'", 2, 2),
        # The times are those of the producer: 1.000 s and up, 1 ms apart.
        ("timestamp >= timestamp_millis(1018) AND partition <> 0", 2, 4),
    ):
        frame = reading(spark, ottla_address, subscribe=topic_name, filterPushdown="true").where(condition)
        assert frame.rdd.getNumPartitions() == tasks, condition
        assert frame.count() == rows, condition


def test_one_frame_with_several_filters(
    spark: SparkSession, ottla_address: str, topic_name: str, admin: ottla.Admin, send: Callable[..., None]
) -> None:
    """Spark would read both sides by the filter of one of them, if the source heeded filters unasked."""
    admin.create_topic(topic_name, 2)
    for partition in range(2):
        send(topic_name, *[b"%d" % number for number in range(9)], partition=partition)
    frame = reading(spark, ottla_address, subscribe=topic_name)
    both = frame.where("partition = 0 AND offset < 3").union(frame.where("partition = 1 AND offset < 5"))
    assert both.count() == 8
    assert frame.count() == 18
    # Spark's own default, with which a source that has filters at all is refused.
    spark.conf.set(PUSHDOWN, "false")
    try:
        assert reading(spark, ottla_address, subscribe=topic_name).where("partition = 1").count() == 9
    finally:
        spark.conf.set(PUSHDOWN, "true")


def test_mistakes_are_told_in_words(spark: SparkSession, ottla_address: str, topic_name: str) -> None:
    with pytest.raises(AnalysisException, match="did you mean subscribe"):
        reading(spark, ottla_address, subscrib=topic_name)
    with pytest.raises(AnalysisException, match="there is no topic no-such-topic"):
        reading(spark, ottla_address, subscribe="no-such-topic").collect()
    options = spark_options(ottla_address, subscribe=topic_name)
    with pytest.raises(AnalysisException, match=r"struct<value:string> is not the schema of this source"):
        spark.read.format("ottla").options(**options).schema("value string").load().collect()
