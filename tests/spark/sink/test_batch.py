"""`df.write.format("ottla")` on a real broker."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import ottla
from ottla.records.partitioner import partition_for_key
from tests.spark.sink.reading import Read, read_topic


def test_rows_are_written_with_all_their_columns(
    spark: SparkSession, ottla_address: str, topic_name: str
) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 3)
    rows = spark.range(1000).select(
        f.concat(f.lit("key-"), f.col("id")).alias("key"),
        f.col("id").cast("string").cast("binary").alias("value"),
        f.when(f.col("id") % 10 == 0, 2).alias("partition"),
        f.when(
            f.col("id") % 2 == 0,
            f.array(
                f.struct(f.lit("n").alias("key"), f.col("id").cast("string").cast("binary").alias("value"))
            ),
        ).alias("headers"),
    )
    rows.write.format("ottla").option("kafka.bootstrap.servers", ottla_address).option(
        "topic", topic_name
    ).mode("append").save()
    expected = set()
    for number in range(1000):
        key, value = b"key-%d" % number, b"%d" % number
        partition = partition_for_key(key, 3) if number % 10 else 2
        headers = () if number % 2 else (("n", value),)
        expected.add(Read(partition, key, value, headers))
    found = read_topic(ottla_address, topic_name)
    assert len(found) == 1000
    assert set(found) == expected
