"""Parquet tables, exactly once: a plain table of all rows, or a current table of the last row of each key.

Every batch is a folder that one rename commits (see `folders.py`). A current table is its last state plus the
changes since then; the sink regularly writes a new state. `read_table` reads both kinds.
`spark.read.parquet(path)` reads a plain table, with the batch as a column. Spark writes the files, and its
commit protocol handles retried tasks.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.table_sinks import positions
from ottla.spark.table_sinks.errors import BatchRefused, SchemaMismatch, SinkError
from ottla.spark.table_sinks.folders import (
    BATCH,
    CHANGES,
    PLAIN,
    STATE,
    TableFolders,
    arriving_folder,
    commit_folder,
    folder_of,
    list_table,
    local_path,
    remove_leftovers,
    remove_superseded,
    spark_path,
)
from ottla.spark.table_sinks.progress import Progress, Verdict, check_repeated, check_sink_id, judge
from ottla.spark.table_sinks.shape import METADATA, OWN, POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

DELETED: Final = "ottla_deleted"
_NTH: Final = "ottla_nth"
_ROW: Final = "ottla_row"


@dataclass
class ParquetTable:
    """A Parquet sink; created by `parquet_table`."""

    root: Path
    sink_id: str
    key: tuple[str, ...]
    order_by: str | None
    delete_when: str | None
    tombstones: bool
    offsets: Callable[[DataFrame, int], Any] | None
    checkpoint: str | None
    reset: bool
    merge_every: int
    keep_s: float
    #: The last schema of rows that was checked against the table.
    _ready_for: StructType | None = field(default=None, repr=False)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.check(frame.columns)
        query_id = positions.query_id_of(frame, self.checkpoint)
        listing = self._listing()
        done = self._progress(listing)
        verdict = judge(done, sink_id=self.sink_id, batch_id=batch_id, query_id=query_id, reset=self.reset)
        if verdict is Verdict.DONE:
            assert done is not None
            self._check_repeated(frame, done, batch_id)
            return
        written = self._changes(frame) if self.key else frame
        self._check_schema(listing, written)
        number = 0 if listing.last is None else listing.last.number + 1
        remove_leftovers(self.root)
        arriving = arriving_folder(self.root)
        try:
            written.write.mode("append").parquet(spark_path(arriving))
            progress = Progress(batch_id, query_id, self._offsets(frame, written, arriving, batch_id))
            commit_folder(
                arriving,
                folder_of(self.root, CHANGES if self.key else PLAIN, number),
                self._mark(progress),
            )
        finally:
            shutil.rmtree(arriving, ignore_errors=True)
        if self.key and (number + 1) % self.merge_every == 0:
            self._write_state(frame.sparkSession)

    def check(self, columns: Sequence[str]) -> None:
        """Check the columns of the rows. Raises `SchemaMismatch`."""
        own = [name for name in columns if name.lower().startswith(OWN)]
        if own:
            raise SchemaMismatch(f"column {own[0]!r} has the reserved prefix {OWN}: rename it")
        for name in (*self.key, *filter(None, (self.order_by, self.delete_when))):
            if name not in columns:
                raise SchemaMismatch(f"the rows have no column {name!r}; they have {', '.join(columns)}")

    # --- what is there

    def _listing(self) -> TableFolders:
        listing = list_table(self.root)
        wanted = "current" if self.key else "plain"
        if listing.kind not in (None, wanted):
            raise SchemaMismatch(
                f"{self.root} is a {listing.kind} table, but this sink writes a {wanted} one: use another "
                "path, or "
                "change key="
            )
        return listing

    def _progress(self, listing: TableFolders) -> Progress | None:
        if listing.last is None:
            return None
        mark = listing.last.mark()
        if mark["sink_id"] != self.sink_id:
            raise BatchRefused(
                f"the table {self.root} is written by sink_id {mark['sink_id']!r}, not {self.sink_id!r}: a "
                "table has one "
                "writer, use another path"
            )
        if tuple(mark["key"]) != self.key:
            raise SchemaMismatch(
                f"the key of the table {self.root} is ({', '.join(mark['key'])}), not "
                f"({', '.join(self.key)}): "
                "use that key, or another path"
            )
        return Progress(mark["batch_id"], mark["query_id"], mark["offsets"])

    def _mark(self, progress: Progress) -> dict[str, Any]:
        return {
            "sink_id": self.sink_id,
            "batch_id": progress.batch_id,
            "query_id": progress.query_id,
            "offsets": progress.offsets,
            "key": self.key,
        }

    def _check_schema(self, listing: TableFolders, written: DataFrame) -> None:
        if listing.last is None or written.schema == self._ready_for:
            return
        there = written.sparkSession.read.parquet(spark_path(listing.last.path)).schema
        # A state has no deletions, so it lacks their column.
        had = {each.name: each.dataType.simpleString() for each in there.fields if each.name != DELETED}
        now = {
            each.name: each.dataType.simpleString() for each in written.schema.fields if each.name != DELETED
        }
        wrong = [
            f"{name} was {kind} and is {now[name]}"
            for name, kind in had.items()
            if now.get(name, kind) != kind
        ]
        wrong += [f"{name} is missing" for name in had if name not in now]
        wrong += [f"{name} is new" for name in now if name not in had]
        if wrong:
            raise SchemaMismatch(
                f"the rows do not fit the table {self.root}: {', '.join(wrong)}: select the columns of the "
                "table, or use "
                "another path"
            )
        self._ready_for = written.schema

    # --- a batch

    def _changes(self, frame: DataFrame) -> DataFrame:
        """The last row of each key, with a column that marks deletions."""
        from pyspark.sql import functions as f

        order = self.order_by or ("offset" if _has_position(frame) else None)
        apart = {
            *self.key,
            self.delete_when,
            order,
            *((*POSITION, *METADATA) if _has_position(frame) else ()),
        }
        values = [name for name in frame.columns if name not in apart]
        deleted = f.lit(self.delete_when is None and self.tombstones and bool(values))
        if self.delete_when is not None:
            deleted = f.coalesce(f.col(self.delete_when), f.lit(False))
        else:
            for name in values:
                deleted = deleted & f.col(f"`{name}`").isNull()
        marked = frame.withColumn(DELETED, deleted)
        for name in self.key:
            missing = f.raise_error(f.lit(f"key column {name} is null: filter such rows"))
            marked = marked.withColumn(name, f.coalesce(f.col(f"`{name}`"), missing))
        if order is None:
            changes = _only_of_each(marked, self.key)
        else:
            # Ties are broken by position, so that a repeated batch gives the same result.
            ties = ("offset", "partition", "topic") if _has_position(frame) else (_ROW,)
            if _ROW in ties:
                marked = marked.withColumn(_ROW, f.monotonically_increasing_id())
            changes = _last_of_each(marked, self.key, (order, *ties)).drop(_ROW)
        return changes.drop(*filter(None, (self.delete_when,)))

    def _check_repeated(self, frame: DataFrame, done: Progress, batch_id: int) -> None:
        if self.offsets is not None:
            offsets = self.offsets(frame, batch_id)
        elif _has_position(frame):
            # The offsets of the written rows, as they were stored.
            offsets = positions.of_frame(self._changes(frame) if self.key else frame)
        else:
            return
        check_repeated(done, offsets, sink_id=self.sink_id, batch_id=batch_id)

    def _offsets(self, frame: DataFrame, written: DataFrame, arriving: Path, batch_id: int) -> Any:
        if self.offsets is not None:
            return self.offsets(frame, batch_id)
        if _has_position(frame):
            # From the written files, so that the rows are not evaluated again.
            there = frame.sparkSession.read.schema(written.schema).parquet(spark_path(arriving))
            return positions.of_frame(there)
        if self.checkpoint is not None:
            return positions.of_checkpoint(frame.sparkSession, self.checkpoint, batch_id)
        return None

    def _write_state(self, spark: SparkSession) -> None:
        """Write the whole table as a new state, so that readers skip old changes.

        Replaced folders stay for a while.
        """
        listing = self._listing()
        assert listing.last is not None
        # The mark of the last folder: another driver may have written batches since.
        mark = listing.last.mark()
        arriving = arriving_folder(self.root)
        try:
            _read(spark, listing).write.mode("append").parquet(spark_path(arriving))
            # Another driver may have written the same state first.
            with contextlib.suppress(BatchRefused):
                commit_folder(arriving, folder_of(self.root, STATE, listing.last.number), mark)
        finally:
            shutil.rmtree(arriving, ignore_errors=True)
        remove_superseded(self.root, time.time() - self.keep_s)


def parquet_table(
    path: str,
    *,
    sink_id: str,
    key: Sequence[str] | str | None = None,
    order_by: str | None = None,
    delete_when: str | None = None,
    tombstones: bool = True,
    offsets: Callable[[DataFrame, int], Any] | None = None,
    checkpoint: str | None = None,
    reset: bool = False,
    merge_every: int = 20,
    keep_s: float = 3600,
) -> ParquetTable:
    """Write every row, or the last row of each `key`, to Parquet files: a sink for `foreachBatch`.

    All columns are written. Without an order, each key may occur only once per batch, as in an aggregate in
    output mode update.

    Args:
        path: The folder of the table, on a disk or NFS.
        sink_id: The name of the table's writer. A table has one.
        key: The columns that identify a row. Without them, every row is kept.
        order_by: Of several rows of a key in a batch, the row with the greatest value is kept; by default the
            offset, if the rows have topic, partition and offset.
        delete_when: A boolean column: rows with true delete their key. It replaces the rule for tombstones.
        tombstones: Whether a row that is null in all columns besides the key deletes its key.
        offsets: A function of frame and batch id that returns the source's offsets, as for `upsert`.
        checkpoint: The query's checkpointLocation. Required over Spark Connect.
        reset: For one run: let a query with a new checkpoint take over the table.
        merge_every: A table with a key is rewritten after this many batches.
        keep_s: Replaced files are kept for this many seconds, for running readers.

    Returns:
        A function for `foreachBatch`.

    Raises:
        SinkError: An argument is invalid.

    Example:
        >>> df.writeStream.foreachBatch(parquet_table("/data/orders", sink_id="orders"))
    """
    root = _root(path)
    if merge_every < 1:
        raise SinkError(f"merge_every must be 1 or more, not {merge_every}")
    check_sink_id(sink_id)
    names = (key,) if isinstance(key, str) else tuple(key or ())
    if not names and (order_by or delete_when):
        raise SinkError("order_by= and delete_when= need key=: set key=, or leave them out")
    return ParquetTable(
        root=root,
        sink_id=sink_id,
        key=names,
        order_by=order_by,
        delete_when=delete_when,
        tombstones=tombstones,
        offsets=offsets,
        checkpoint=checkpoint,
        reset=reset,
        merge_every=merge_every,
        keep_s=keep_s,
    )


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """Read a Parquet table: all committed batches.

    Args:
        spark: The session to read with.
        path: The folder of the table.

    Returns:
        The rows; for a table with a key, its last rows.

    Raises:
        SinkError: The folder has no table yet.

    Example:
        >>> read_table(spark, "/data/customers").show()
    """
    root = _root(path)
    listing = list_table(root)
    if listing.kind is None:
        raise SinkError(f"{root} has no table: start the query that writes it, or correct the path")
    return _read(spark, listing)


def _read(spark: SparkSession, listing: TableFolders) -> DataFrame:
    from pyspark.sql import functions as f

    if listing.kind == "plain":
        return spark.read.parquet(*(spark_path(each.path) for each in listing.plain))
    assert listing.last is not None
    key = listing.last.mark()["key"]
    frames = [
        spark.read.parquet(spark_path(each.path)).withColumn(BATCH, f.lit(each.number))
        for each in listing.read
    ]
    whole = frames[0]
    for each in frames[1:]:
        whole = whole.unionByName(each, allowMissingColumns=True)
    if DELETED in whole.columns:
        whole = _last_of_each(whole, key, (BATCH,)).where(~f.coalesce(f.col(DELETED), f.lit(False)))
    return whole.drop(BATCH, DELETED)


def _last_of_each(frame: DataFrame, key: Sequence[str], order: Sequence[str]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    last = Window.partitionBy(*(f.col(f"`{name}`") for name in key)).orderBy(
        *(f.col(f"`{name}`").desc() for name in order)
    )
    return frame.withColumn(_NTH, f.row_number().over(last)).where(f.col(_NTH) == 1).drop(_NTH)


def _only_of_each(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """The rows, if every key occurs once: without an order, the last of two rows is unknown."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    names = ", ".join(key)
    alike = f.count(f.lit(1)).over(Window.partitionBy(*(f.col(f"`{name}`") for name in key)))
    refused = f.raise_error(
        f.lit(
            f"a key ({names}) has several rows in one batch, and their order is unknown: name a column with "
            "order_by, "
            "or keep topic, partition and offset (in a pipeline _topic, _partition and _offset)"
        )
    )
    first = f.col(f"`{key[0]}`")
    # In a written column, not in a filter: Spark may drop a filter's condition.
    marked = frame.withColumn(_NTH, alike)
    return marked.withColumn(key[0], f.when(f.col(_NTH) == 1, first).otherwise(refused)).drop(_NTH)


def _root(path: str) -> Path:
    root = local_path(path)
    if root is None:
        raise SinkError(
            f"{path} is not a local path: a Parquet table needs a file system with atomic renames, use a "
            "disk or NFS"
        )
    return root.absolute()


def _has_position(frame: DataFrame) -> bool:
    return set(POSITION) <= set(frame.columns)
