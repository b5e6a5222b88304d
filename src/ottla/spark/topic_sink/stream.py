"""`df.writeStream.format("ottla")`: each micro-batch is one transaction, written exactly once.

Spark creates a writer in the planning process, whose `write` runs in tasks, and another one where `commit`
runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.spark.topic_sink.plan import EXACTLY_ONCE, read_plan
from ottla.spark.worker import freeze_loaded_modules

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.spark.topic_sink.staged_batches import TaskOutput


class OttlaStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        # Output mode complete sets overwrite. As in Spark's connector, results are appended; the latest per
        # key is valid.
        del overwrite
        self._plan = read_plan(options, schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from ottla.spark.topic_sink.task import write_micro_batch

        return write_micro_batch(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        from ottla.spark.topic_sink.commit import commit_micro_batch

        if self._plan.guarantee == EXACTLY_ONCE:
            assert None not in messages, "Spark commits only after all tasks have succeeded"
            commit_micro_batch(self._plan, cast("list[TaskOutput]", messages), batchId)
            freeze_loaded_modules()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        from ottla.spark.topic_sink.staged_batches import clean

        # A failed commit may have been written. Only staged batches are deleted; a repeated micro-batch
        # stages them again.
        clean(self._plan, cast("list[TaskOutput | None]", messages))
