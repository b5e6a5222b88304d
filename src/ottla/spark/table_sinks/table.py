"""A table of a database as the sink of a streaming query: what `foreachBatch` calls.

Tasks stage a batch's rows, and the driver makes them count in one transaction together with the batch's id and the source's offsets (G2). The
rows are evaluated once. It runs on a driver and in the worker of Spark Connect alike: it uses nothing of the JVM but the query's id.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.table_sinks import positions
from ottla.spark.table_sinks.commit import MicroBatch, commit, commit_what_fits
from ottla.spark.table_sinks.database import Database, StagedRows, database_of, staging_prefix
from ottla.spark.table_sinks.errors import SinkError
from ottla.spark.table_sinks.progress import Progress, Verdict, check_repeated, check_sink_id, judge
from ottla.spark.table_sinks.shape import Shape, shape_of
from ottla.spark.table_sinks.staged_rows import REPORT, StagingTable, staging_task
from ottla.spark.table_sinks.table_check import check_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from ottla.spark.dead_letters import DeadLetters

#: How often a commit is tried that fails for a reason that passes.
COMMITS_MAX: Final = 4
PAUSE_S: Final = 0.2
REFUSED_MAX: Final = 1000


@dataclass
class TableSink:
    """See `upsert` and `append`, which make one."""

    database: Database = field(repr=False)
    table: str
    sink_id: str
    key: tuple[str, ...]
    columns: tuple[str, ...] | None
    order_by: str | None
    delete_when: str | None
    tombstones: bool
    offsets: Callable[[DataFrame, int], Any] | None
    checkpoint: str | None
    reset: bool
    dead_letters: DeadLetters | None
    refused_max: int
    #: The shape of rows that the table was found to fit.
    _ready_for: Shape | None = field(default=None, repr=False)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        shape = self.check(frame.schema)
        query_id = positions.query_id_of(frame, self.checkpoint)
        with self.database.opened() as connection:
            if self._ready_for is None:
                self.database.create_progress(connection, self.sink_id)
            done = self.database.progress(connection, self.sink_id)
            verdict = judge(
                done, sink_id=self.sink_id, batch_id=batch_id, query_id=query_id, reset=self.reset
            )
            if verdict is Verdict.DONE:
                assert done is not None
                self._check_repeated(frame, shape, done, batch_id)
                return
            if self._ready_for != shape:
                self._make_ready(connection, shape)
            table = f"{staging_prefix(self.sink_id)}{batch_id}_{secrets.token_hex(4)}"
            staging = StagingTable(self.database, table, shape, self.refused_max if self.dead_letters else 0)
            self.database.create_staging_table(connection, table, staging.columns, shape.key)
        try:
            found = frame.mapInArrow(staging_task(staging), REPORT).collect()
            reports = [json.loads(row["report"]) for row in found]
            offsets = self._offsets(frame, shape, batch_id, reports)
            self._commit(self._batch(staging, Progress(batch_id, query_id, offsets), reports))
        finally:
            # If even that fails, the next driver drops it.
            with contextlib.suppress(Exception), self.database.opened() as connection:
                self._wait_little(connection)
                self.database.drop(connection, table)

    def check(self, schema: StructType) -> Shape:
        """How rows of this schema are written; raises `SchemaMismatch`. Asks no database."""
        return shape_of(
            schema,
            key=self.key,
            columns=self.columns,
            order_by=self.order_by,
            delete_when=self.delete_when,
            tombstones=self.tombstones,
        )

    def _check_repeated(self, frame: DataFrame, shape: Shape, done: Progress, batch_id: int) -> None:
        if self.offsets is not None:
            offsets = self.offsets(frame, batch_id)
        elif shape.has_position:
            offsets = positions.of_frame(frame)
        else:
            return
        check_repeated(done, offsets, sink_id=self.sink_id, batch_id=batch_id)

    def _make_ready(self, connection: Any, shape: Shape) -> None:
        database = self.database
        found = database.columns_of(connection, self.table)
        if found:
            check_table(database, self.table, shape, found, database.unique_keys(connection, self.table))
        else:
            database.create_table(connection, self.table, shape)
        self._wait_little(connection)
        for name in database.tables_like(connection, staging_prefix(self.sink_id)):
            # A task of a dead driver may still hold it; then it stays for the next start.
            with contextlib.suppress(Exception):
                database.drop(connection, name)
        self._ready_for = shape

    def _wait_little(self, connection: Any) -> None:
        """Tasks that nobody waits for any more may still hold a staging table."""
        if self.database.wait_little is not None:
            self.database.run(connection, self.database.wait_little)

    def _offsets(
        self, frame: DataFrame, shape: Shape, batch_id: int, reports: Sequence[dict[str, Any]]
    ) -> Any:
        if self.offsets is not None:
            return self.offsets(frame, batch_id)
        if shape.has_position:
            return positions.join(report["offsets"] for report in reports)
        if self.checkpoint is not None:
            return positions.of_checkpoint(frame.sparkSession, self.checkpoint, batch_id)
        return None

    def _batch(
        self, staging: StagingTable, progress: Progress, reports: Sequence[dict[str, Any]]
    ) -> MicroBatch:
        rows = {report["attempt"]: report["rows"] for report in reports if report["rows"]}
        return MicroBatch(
            sink_id=self.sink_id,
            progress=progress,
            reset=self.reset,
            target=self.table,
            staged=StagedRows(staging.table, staging.shape, tuple(rows)),
            rows=rows,
            deletes=any(report["deletes"] for report in reports),
            refused=tuple(row for report in reports for row in report["refused"]),
        )

    def _commit(self, batch: MicroBatch) -> None:
        """A commit whose answer was lost is asked for again, and then found done."""
        sifts = bool(batch.refused)
        for left in reversed(range(COMMITS_MAX)):
            try:
                with self.database.opened() as connection:
                    if sifts and self.dead_letters is not None:
                        commit_what_fits(
                            self.database, connection, batch, self.dead_letters.send, self.refused_max
                        )
                    else:
                        commit(self.database, connection, batch)
            except Exception as error:
                if self.dead_letters is not None and not sifts and self.database.is_refusal(error):
                    sifts = True
                elif not left or not self.database.is_passing(error):
                    raise
                else:
                    time.sleep(PAUSE_S * (COMMITS_MAX - left))
            else:
                return
        raise SinkError("a batch could not be committed")


def upsert(
    url: str,
    *,
    table: str,
    key: Sequence[str] | str = (),
    sink_id: str,
    mode: str = "upsert",
    columns: Sequence[str] | None = None,
    order_by: str | None = None,
    delete_when: str | None = None,
    tombstones: bool = True,
    offsets: Callable[[DataFrame, int], Any] | None = None,
    checkpoint: str | None = None,
    reset: bool = False,
    dead_letters: DeadLetters | None = None,
    refused_max: int = REFUSED_MAX,
) -> TableSink:
    """A table that has the last row of each key, exactly once: for `foreachBatch`.

    `url` is postgresql://user:password@host/database, mysql://… or mariadb://…, or sqlite:///path. The table is made if it is missing.
    `sink_id` names this query's progress, which is kept in the table ottla_progress of the same database: two queries need two.

    A row whose columns besides the key are all null deletes its key, unless `tombstones=False`; `delete_when` names a boolean column that says so
    instead. Of several rows of one key in a batch the one with the greatest `order_by` counts: by default the offset, if the rows have topic,
    partition and offset. Those three are written only if `columns` names them.

    `offsets` gives the source's offsets to store; without it they are those that rows carry, if they have topic, partition and offset; else
    `checkpoint`, the query's checkpointLocation, is where they are read. Over Spark Connect `checkpoint` is needed. `reset=True` lets a query with a new checkpoint take over the
    sink_id of an older one.

    With `dead_letters`, rows that the database refuses are sent there instead of failing the query, up to `refused_max` a batch.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    if mode not in ("upsert", "append"):
        raise SinkError(f"mode must be upsert or append, not {mode!r}")
    if mode == "upsert" and not names:
        raise SinkError("upsert needs key=, the columns that tell rows apart; to add every row use append()")
    if mode == "append" and (names or delete_when or order_by):
        raise SinkError("append adds every row: key=, order_by= and delete_when= have no meaning there")
    if refused_max < 1:
        raise SinkError(f"refused_max must be 1 or more, not {refused_max}")
    check_sink_id(sink_id)
    database = database_of(url)
    database.quote(table)
    return TableSink(
        database=database,
        table=table,
        sink_id=sink_id,
        key=names,
        columns=None if columns is None else tuple(columns),
        order_by=order_by,
        delete_when=delete_when,
        tombstones=tombstones,
        offsets=offsets,
        checkpoint=checkpoint,
        reset=reset,
        dead_letters=dead_letters,
        refused_max=refused_max,
    )


def append(
    url: str,
    *,
    table: str,
    sink_id: str,
    columns: Sequence[str] | None = None,
    offsets: Callable[[DataFrame, int], Any] | None = None,
    checkpoint: str | None = None,
    reset: bool = False,
    dead_letters: DeadLetters | None = None,
    refused_max: int = REFUSED_MAX,
) -> TableSink:
    """A table that has every row, exactly once: for `foreachBatch`. Arguments as for `upsert`."""
    return upsert(
        url,
        table=table,
        sink_id=sink_id,
        mode="append",
        columns=columns,
        offsets=offsets,
        checkpoint=checkpoint,
        reset=reset,
        dead_letters=dead_letters,
        refused_max=refused_max,
    )
