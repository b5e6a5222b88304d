"""Word count, as in Kafka Streams, with Spark's state store: exactly once from topic to topic.

    python examples/pipelines/generate.py lines
    ottla pipeline run examples/pipelines/wordcount.py
    ottla consume counts --from-beginning --keys

Each micro-batch writes the new count of every word in it, like a changelog. The latest record of a word is
its count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from ottla.spark.pipeline import Pipeline, setting

pipeline = Pipeline(
    "wordcount",
    brokers=setting("BROKERS", "127.0.0.1:9092"),
    checkpoint=setting("CHECKPOINTS", "./checkpoints") + "/wordcount",
    trigger=setting("TRIGGER", "1 second"),
    spark={
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    },
)
pipeline.source("lines", topic="lines", value="string", group="wordcount")
pipeline.sql("words", r"SELECT explode(split(lower(value), '\\W+')) AS word FROM lines")


class WordCounter(StatefulProcessor):
    """Keeps one count per word."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count BIGINT")

    def handleInputRows(  # noqa: N802  # Spark's name
        self, key: Any, rows: Iterator[Row], timerValues: Any  # noqa: N803
    ) -> Iterator[Row]:  # fmt: skip
        before = self._count.get()
        count = (before[0] if before is not None else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(word=key[0], count=count)


@pipeline.step
def counts(words: DataFrame) -> DataFrame:
    return (
        words.where(F.col("word") != "")
        .groupBy("word")
        .transformWithState(
            statefulProcessor=WordCounter(),
            outputStructType="word STRING, count BIGINT",
            outputMode="Append",
            timeMode="None",
        )
    )


pipeline.sink("counts", from_="counts", topic="counts", key="word", value="string")
