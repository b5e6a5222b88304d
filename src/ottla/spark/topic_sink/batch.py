"""`df.write.format("ottla")`: all rows in one transaction.

read_committed consumers see all rows or none. In foreachBatch with a `sinkId`, the write belongs to a
micro-batch and is written once, however often it is repeated. This makes output mode update exactly once,
which Spark does not offer to Python sinks. Spark creates the writer while planning and sends it to the tasks
and the commit, so all share one write id.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ottla.spark.options import OptionError
from ottla.spark.topic_sink.plan import EXACTLY_ONCE, read_plan
from ottla.spark.topic_sink.staged_batches import TaskOutput
from ottla.spark.worker import freeze_loaded_modules

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class OttlaWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "a topic cannot be overwritten, rows are only appended: use mode('append'); "
                "to replace all records, delete the topic first"
            )
        self._plan = read_plan(options, schema)
        self._write_id = f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from ottla.spark.topic_sink.task import write_micro_batch, write_rows

        if self._plan.sink_id is not None:
            return write_micro_batch(self._plan, iterator)
        return write_rows(self._plan, iterator, self._write_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from ottla.spark.topic_sink.commit import commit_micro_batch, commit_write

        if self._plan.guarantee != EXACTLY_ONCE:
            return
        prepared = _of_all(messages)
        if self._plan.sink_id is None:
            commit_write(self._plan, prepared, self._write_id)
        for batch_id in {each.batch_id for each in prepared if each.batch_id is not None}:
            commit_micro_batch(self._plan, prepared, batch_id)
        freeze_loaded_modules()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        from ottla.spark.topic_sink.commit import forget_write
        from ottla.spark.topic_sink.staged_batches import clean

        # Failed tasks return no message, so their staged batches are unknown. They are removed with the topic
        # of the write, or by the retention of the sink's staging topic.
        if self._plan.sink_id is not None:
            clean(self._plan, _of_some(messages))
        elif self._plan.guarantee == EXACTLY_ONCE:
            forget_write(self._plan, self._write_id)


def _of_some(messages: list[WriterCommitMessage | None]) -> list[TaskOutput | None]:
    return cast("list[TaskOutput | None]", messages)


def _of_all(messages: list[WriterCommitMessage | None]) -> list[TaskOutput]:
    assert None not in messages, "Spark commits only after all tasks have succeeded"
    return cast("list[TaskOutput]", messages)
