"""`df.writeStream.format("ottla")` on a real broker."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import ottla
from tests.spark.topic_sink.committed_records import read_topic


def run(rows: DataFrame, address: str, checkpoint: Path, **options: str) -> str:
    """Write all that is there; the id of the query."""
    writer = rows.writeStream.format("ottla").option("kafka.bootstrap.servers", address)
    writer = writer.options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return str(query.id)


def lines(spark: SparkSession, folder: Path, per_batch: int = 1000) -> DataFrame:
    return spark.readStream.format("text").option("maxFilesPerTrigger", per_batch).load(str(folder))


def add(folder: Path, name: str, numbers: range) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text("".join(f"{number}\n" for number in numbers))


def test_micro_batches_are_written_once_and_the_query_goes_on_where_it_was(
    spark: SparkSession, ottla_address: str, topic_name: str, tmp_path: Path
) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 3)
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for number in range(2):
        add(folder, f"a{number}", range(100 * number, 100 * number + 100))
    rows = lines(spark, folder, 1).select(f.col("value").alias("key"), "value")
    query_id = run(rows, ottla_address, checkpoint, topic=topic_name)
    with ottla.Admin(ottla_address) as admin:
        name = f"ottla-sink-{query_id}"
        (marker,) = admin.list_group_offsets([name])[name].values()
        assert marker[:2] == (2, query_id)
    add(folder, "b", range(200, 300))
    # As after a crash between the commit and Spark's note of it.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink()
    run(rows, ottla_address, checkpoint, topic=topic_name)
    found = read_topic(ottla_address, topic_name)
    assert sorted(int(row.value or b"") for row in found) == list(range(300))
