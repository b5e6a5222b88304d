"""Topics as tables of Parquet files, exactly once: a plain topic as a table of all its records, a compacted one as a table of what is current.

Every batch is a folder that one rename makes count (see `folders.py`). A current table is what its last state and the changes since then
come to; the sink writes a new state now and then. A plain table is read by `spark.read.parquet(path)`, where the batch is a column; both
kinds by `read_table`. Spark writes the files, and its own commit protocol takes care of tasks that are tried twice.
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
    folder_of,
    let_count,
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
    """See `parquet_table`, which makes one."""

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
    #: The rows' schema that the table was found to have.
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
            let_count(
                arriving,
                folder_of(self.root, CHANGES if self.key else PLAIN, number),
                self._mark(progress),
            )
        finally:
            shutil.rmtree(arriving, ignore_errors=True)
        if self.key and (number + 1) % self.merge_every == 0:
            self._write_state(frame.sparkSession)

    def check(self, columns: Sequence[str]) -> None:
        """Whether rows of these columns can be written; raises `SchemaMismatch`."""
        own = [name for name in columns if name.lower().startswith(OWN)]
        if own:
            raise SchemaMismatch(f"column {own[0]!r}: names that begin with {OWN} are the sink's own")
        for name in (*self.key, *filter(None, (self.order_by, self.delete_when))):
            if name not in columns:
                raise SchemaMismatch(f"the rows have no column {name!r}; they have {', '.join(columns)}")

    # --- what is there

    def _listing(self) -> TableFolders:
        listing = list_table(self.root)
        wanted = "current" if self.key else "plain"
        if listing.kind not in (None, wanted):
            raise SchemaMismatch(
                f"{self.root} is a {listing.kind} table, and this sink writes a {wanted} one: the two differ by key=. Use another path"
            )
        return listing

    def _progress(self, listing: TableFolders) -> Progress | None:
        if listing.last is None:
            return None
        mark = listing.last.mark()
        if mark["sink_id"] != self.sink_id:
            raise BatchRefused(
                f"the table {self.root} is written by sink_id {mark['sink_id']!r}, and this is {self.sink_id!r}: a table has one writer"
            )
        if tuple(mark["key"]) != self.key:
            raise SchemaMismatch(
                f"the key of the table {self.root} is ({', '.join(mark['key'])}), not ({', '.join(self.key)})"
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
        # A state has no deletions, and so not their column.
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
                f"the rows do not fit the table {self.root}: {', '.join(wrong)}. Select what the table has, or write another table"
            )
        self._ready_for = written.schema

    # --- a batch

    def _changes(self, frame: DataFrame) -> DataFrame:
        """The last row of each key, and whether it deletes."""
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
            missing = f.raise_error(f.lit(f"key column {name} is null: leave such rows out"))
            marked = marked.withColumn(name, f.coalesce(f.col(f"`{name}`"), missing))
        if order is None:
            changes = _only_of_each(marked, self.key)
        else:
            # Of rows that are alike in their order the later one counts, and when the batch comes again the same one.
            ties = ("offset", "partition", "topic") if _has_position(frame) else (_ROW,)
            if _ROW in ties:
                marked = marked.withColumn(_ROW, f.monotonically_increasing_id())
            changes = _last_of_each(marked, self.key, (order, *ties)).drop(_ROW)
        return changes.drop(*filter(None, (self.delete_when,)))

    def _check_repeated(self, frame: DataFrame, done: Progress, batch_id: int) -> None:
        if self.offsets is not None:
            offsets = self.offsets(frame, batch_id)
        elif _has_position(frame):
            # As they were stored: of the rows that are written.
            offsets = positions.of_frame(self._changes(frame) if self.key else frame)
        else:
            return
        check_repeated(done, offsets, sink_id=self.sink_id, batch_id=batch_id)

    def _offsets(self, frame: DataFrame, written: DataFrame, arriving: Path, batch_id: int) -> Any:
        if self.offsets is not None:
            return self.offsets(frame, batch_id)
        if _has_position(frame):
            # From what was written: the rows are not evaluated again.
            there = frame.sparkSession.read.schema(written.schema).parquet(spark_path(arriving))
            return positions.of_frame(there)
        if self.checkpoint is not None:
            return positions.of_checkpoint(frame.sparkSession, self.checkpoint, batch_id)
        return None

    def _write_state(self, spark: SparkSession) -> None:
        """The whole table anew, so that readers need not go through all changes. What it replaces stays for readers that have begun."""
        listing = self._listing()
        assert listing.last is not None
        # Not this driver's own: another may have written batches since.
        mark = listing.last.mark()
        arriving = arriving_folder(self.root)
        try:
            _read(spark, listing).write.mode("append").parquet(spark_path(arriving))
            # Another may have been first with the same.
            with contextlib.suppress(BatchRefused):
                let_count(arriving, folder_of(self.root, STATE, listing.last.number), mark)
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
    """A folder of Parquet files with every row, or with the last row of each `key`, exactly once: for `foreachBatch`.

    `order_by`, `delete_when`, `tombstones`, `offsets`, `checkpoint` and `reset` mean what they do for `upsert`; but where nothing tells which row of
    a key is the last, each key may have one row in a batch, as those of an aggregate in update mode do. All columns are written. A current table is written anew after each `merge_every` batches; what that replaces is kept for `keep_s` seconds, for readers that have begun.
    """
    root = _root(path)
    if merge_every < 1:
        raise SinkError(f"merge_every must be 1 or more, not {merge_every}")
    check_sink_id(sink_id)
    names = (key,) if isinstance(key, str) else tuple(key or ())
    if not names and (order_by or delete_when):
        raise SinkError(
            "order_by= and delete_when= have a meaning only for a table of what is current: give its key="
        )
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
    """The table as it is now: whole batches, and none that is still being written."""
    root = _root(path)
    listing = list_table(root)
    if listing.kind is None:
        raise SinkError(f"{root} has no table yet: no batch has been written")
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
    """The rows, if each key has one: nothing tells which of two is the last."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    names = ", ".join(key)
    alike = f.count(f.lit(1)).over(Window.partitionBy(*(f.col(f"`{name}`") for name in key)))
    refused = f.raise_error(
        f.lit(
            f"a key ({names}) has several rows in one batch, and nothing tells which is the last: name a column that does with order_by, "
            "or let the rows have their place in the topic (topic, partition and offset; in a pipeline _topic, _partition and _offset)"
        )
    )
    first = f.col(f"`{key[0]}`")
    # In a column that is written, and not in a filter, which might be asked of no row.
    marked = frame.withColumn(_NTH, alike)
    return marked.withColumn(key[0], f.when(f.col(_NTH) == 1, first).otherwise(refused)).drop(_NTH)


def _root(path: str) -> Path:
    root = local_path(path)
    if root is None:
        raise SinkError(
            f"a table of files needs a file system with an atomic rename, a disk or NFS; {path} is none"
        )
    return root.absolute()


def _has_position(frame: DataFrame) -> bool:
    return set(POSITION) <= set(frame.columns)
