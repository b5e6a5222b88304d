"""A program that knows nothing of where it runs: numbers of a topic are grouped, summed up and written to another, and others copied as a stream.

python cluster_program.py MASTER BROKERS SOURCE COPY SUMS CHECKPOINT
"""

import sys

from pyspark.sql import functions as f

from ottla.spark.session import spark_session


def main(master: str, brokers: str, source: str, copy: str, sums: str, checkpoint: str) -> None:
    spark = spark_session("cluster program", master=master, config={"spark.sql.shuffle.partitions": "4"})
    topic = {"kafka.bootstrap.servers": brokers, "subscribe": source}
    numbers = spark.readStream.format("ottla").options(
        **topic, startingOffsets="earliest", maxOffsetsPerTrigger="1000"
    )
    (
        numbers.load()
        .select("key", (f.col("value").cast("string").cast("int") * 2).cast("string").alias("value"))
        .writeStream.format("ottla")
        .options(**{"kafka.bootstrap.servers": brokers, "topic": copy})
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    doubled = spark.read.format("ottla").options(
        **{**topic, "subscribe": copy, "kafka.isolation.level": "read_committed"}
    )
    (
        doubled.load()
        .groupBy(f.col("key").cast("string").alias("key"))
        .agg(f.sum(f.col("value").cast("string").cast("int")).cast("string").alias("value"))
        .write.format("ottla")
        .options(**{"kafka.bootstrap.servers": brokers, "topic": sums})
        .mode("append")
        .save()
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
