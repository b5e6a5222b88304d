"""Batches: `spark.read.format("ottla")` on a real broker."""

from pyspark.sql import DataFrame, SparkSession

import ottla


def reading(spark: SparkSession, address: str, **options: object) -> DataFrame:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", address)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader.load()


def test_rows_are_the_records(spark: SparkSession, ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 2)
    with ottla.Producer(ottla_address) as producer:
        producer.send(topic_name, b"one", key=b"k", partition=0, timestamp_ms=1_000, headers=[("h", b"x")])
        producer.send(topic_name, None, key=None, partition=1, timestamp_ms=2_001)
    rows = (
        reading(spark, ottla_address, subscribe=topic_name, includeHeaders="true")
        .orderBy("partition")
        .collect()
    )
    assert [tuple(row)[:5] for row in rows] == [
        (b"k", b"one", topic_name, 0, 0),
        (None, None, topic_name, 1, 0),
    ]
    assert [row.timestamp.timestamp() for row in rows] == [1.0, 2.001]
    assert [row.timestampType for row in rows] == [0, 0]
    assert [row.headers for row in rows] == [[("h", b"x")], None]
