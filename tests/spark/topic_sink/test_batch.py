"""`df.write.format("ottla")` on a real broker."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import ottla
from ottla.records.partitioner import partition_for_key
from tests.spark.topic_sink.committed_records import Read, read_topic


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


def test_tasks_write_by_themselves_where_at_least_once_will_do(
    spark: SparkSession, ottla_address: str, topic_name: str
) -> None:
    """Compressed, to topics by row; the broker makes those that are not there."""
    rows = spark.range(3000).select(
        f.concat(f.lit(f"{topic_name}-"), f.col("id") % 2).alias("topic"),
        f.col("id").cast("string").alias("value"),
    )
    rows.write.format("ottla").options(
        **{
            "kafka.bootstrap.servers": ottla_address,
            "kafka.compression.type": "zstd",
            "kafka.batch.size": "2000",
            "guarantee": "at-least-once",
        }
    ).mode("append").save()
    for number in range(2):
        found = read_topic(ottla_address, f"{topic_name}-{number}")
        assert sorted(int(row.value or b"") for row in found) == list(range(number, 3000, 2))


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        ("id", {}, "cannot write the column `id`"),
        (
            "CAST(id AS STRING) AS value",
            {"kafka.linger": "1"},
            "unknown setting 'linger': did you mean linger_ms",
        ),
        ("CAST(id AS STRING) AS value", {"topic": "a b"}, "topic 'a b'"),
        ("CAST(id AS STRING) AS value, CAST(9 AS INT) AS partition", {}, "partition 9, but topic"),
    ],
)
def test_bad_input_is_told_and_nothing_is_written(
    spark: SparkSession,
    ottla_address: str,
    topic_name: str,
    column: str,
    options: dict[str, str],
    message: str,
) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1)
    writer = spark.range(10).selectExpr(*column.split(", ")).write.format("ottla").mode("append")
    given = {"kafka.bootstrap.servers": ottla_address, "topic": topic_name, **options}
    with pytest.raises(PySparkException, match=message):
        writer.options(**given).save()
    assert read_topic(ottla_address, topic_name) == []
