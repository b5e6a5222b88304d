"""Batch reads, `spark.read.format("ottla")`.

The offsets are fixed when the query is planned, in its own process.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from ottla.client.offsets import EARLIEST, LATEST
from ottla.spark.source.filters import PushedFilters, push_down
from ottla.spark.source.offsets import AtEnd, offsets_of, times_of
from ottla.spark.source.options import source_options
from ottla.spark.source.read_plan import Log, lost, not_before, ranges_of, split
from ottla.spark.source.reader import Slice, read_slice, slices
from ottla.spark.source.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("ottla.spark")


class OttlaReader(DataSourceReader):
    """Plans a batch and reads its slices. It is pickled to the workers, so it holds only options."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = source_options(given, "batch")
        check_schema(schema, include_headers=self._options.include_headers)
        self._schema = schema
        self._wanted = PushedFilters()

    def partitions(self) -> list[Slice]:
        from ottla.spark.source.topic_admin import TopicAdmin

        options, wanted, topic_admin = self._options, self._wanted, TopicAdmin(self._options)
        partitions = topic_admin.partitions()
        starting, ending = options.starting or AtEnd(EARLIEST), options.ending or AtEnd(LATEST)
        places = ((starting, options.starting_option), (ending, options.ending_option))
        # Logs grow at the end and shrink at the start. Asking for starts first and ends last keeps the
        # offsets in between inside the range, so they are not reported as lost.
        begins = topic_admin.offsets(dict.fromkeys(partitions, EARLIEST))
        answers = [topic_admin.offsets(times_of(place, partitions, option)) for place, option in places]
        latest = topic_admin.latest(partitions)
        logs = {tp: Log(begin, max(latest[tp], begin)) for tp, begin in begins.items()}
        starts, ends = (
            offsets_of(place, partitions, each, latest, option)
            for (place, option), each in zip(places, answers, strict=True)
        )
        ranges, losses = ranges_of(starts, not_before(starts, ends, logs), logs)
        if losses and options.fail_on_data_loss:
            raise lost(losses)
        for loss in losses:
            _log.warning("failOnDataLoss is false, skipping lost records: %s", loss)
        ranges = wanted.cut(ranges)
        times = wanted.times([range_.tp for range_ in ranges])
        ranges = wanted.since(ranges, topic_admin.offsets(times))
        return slices(split(ranges, least=options.partitions_min, records_max=options.task_records_max))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark passes a partition of its own class if there is nothing to read.
        if isinstance(partition, Slice):
            yield from read_slice(self._options, arrow_schema(self._schema), partition)


class FilteringReader(OttlaReader):
    """A reader that receives the query's filters before it plans.

    It applies them only if the option filterPushdown is set. Spark keeps one plan per loaded DataFrame, with
    the filters of the query that was optimized last: `f.where(a).union(f.where(b))` would apply filter b to
    both halves.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        if not self._options.filter_pushdown:
            return filters
        self._wanted, left = push_down(filters)
        return left


#: The module of the process in which Spark pushes filters down.
_FILTER_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def batch_reader(given: Mapping[str, str], schema: StructType) -> OttlaReader:
    """Return the reader for this process.

    Spark rejects a reader with `pushFilters` while spark.sql.python.filterPushdown.enabled is false, its
    default. Such a reader is therefore returned only in the process that pushes filters down.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_asked = _FILTER_WORKER in sys.modules or getattr(main, "name", None) == _FILTER_WORKER
    return (FilteringReader if is_asked else OttlaReader)(given, schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
