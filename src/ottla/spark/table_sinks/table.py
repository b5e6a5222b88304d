"""A database table as the sink of a streaming query, called by `foreachBatch`.

Tasks stage the rows of a batch. The driver commits them in one transaction with the batch id and the source's
offsets (G2). The rows are evaluated once. It runs on a driver or in a Spark Connect worker: of the JVM it
uses only the query id.
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

#: Attempts for a commit that fails with a transient error.
COMMITS_MAX: Final = 4
PAUSE_S: Final = 0.2
REFUSED_MAX: Final = 1000


@dataclass
class TableSink:
    """A table sink; created by `upsert` and `append`."""

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
    #: The last shape of rows that was checked against the table.
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
            # If this fails, the next driver drops the table.
            with contextlib.suppress(Exception), self.database.opened() as connection:
                self._limit_lock_wait(connection)
                self.database.drop(connection, table)

    def check(self, schema: StructType) -> Shape:
        """Return how rows of this schema are written, without a database access. Raises `SchemaMismatch`."""
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
        self._limit_lock_wait(connection)
        for name in database.tables_like(connection, staging_prefix(self.sink_id)):
            # A task of a dead driver may still lock it; the next start drops it.
            with contextlib.suppress(Exception):
                database.drop(connection, name)
        self._ready_for = shape

    def _limit_lock_wait(self, connection: Any) -> None:
        """Limit the wait for locks: abandoned tasks may still lock a staging table."""
        if self.database.short_lock_timeout is not None:
            self.database.run(connection, self.database.short_lock_timeout)

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
        """Commit with retries. If the answer to a commit was lost, the retry finds the batch done."""
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
        raise SinkError(f"batch could not be committed in {COMMITS_MAX} attempts: check the database")


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
    """Keep the last row of each key in a database table, exactly once: a sink for `foreachBatch`.

    A row whose columns besides the key are all null deletes its key (see `tombstones`). If the rows have the
    columns topic, partition and offset, these define the order of rows and the stored progress. They are
    written to the table only if `columns` names them.

    Args:
        url: The database: postgresql://user:password@host/database, mysql://…, mariadb://… or sqlite:///path.
        table: The table. It is created if it is missing.
        key: The columns of the primary key or of a unique index.
        sink_id: The name of this query's progress in the table `ottla_progress`. Every query needs its own.
        mode: "upsert", or "append" to add every row.
        columns: The columns to write; by default all except topic, partition, offset and `delete_when`.
        order_by: Of several rows of a key in a batch, the row with the greatest value is kept; by default the
            offset.
        delete_when: A boolean column: rows with true delete their key. It replaces the rule for tombstones.
        tombstones: Whether a row that is null in all columns besides the key deletes its key.
        offsets: A function of frame and batch id that returns the source's offsets to store. By default they
            come from the rows, else from `checkpoint`.
        checkpoint: The query's checkpointLocation. Required over Spark Connect.
        reset: For one run: let a query with a new checkpoint take over the sink_id.
        dead_letters: Where rows go that the database refuses. Without it, such a row fails the query.
        refused_max: The maximum number of refused rows per batch; above it the query fails.

    Returns:
        A function for `foreachBatch`.

    Raises:
        SinkError: An argument is invalid.

    Example:
        >>> sink = upsert("sqlite:///shop.db", table="customers", key="id", sink_id="customers")
        >>> df.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/cp").start()
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    if mode not in ("upsert", "append"):
        raise SinkError(f"mode must be upsert or append, not {mode!r}")
    if mode == "upsert" and not names:
        raise SinkError("upsert needs key=, the columns that identify a row; to add every row, use append()")
    if mode == "append" and (names or delete_when or order_by):
        raise SinkError("append has no key=, order_by= or delete_when=: leave them out, or use upsert()")
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
    """Add every row to a database table, exactly once: a sink for `foreachBatch`.

    Args:
        url: The database, as for `upsert`.
        table: The table. It is created if it is missing.
        sink_id: The name of this query's progress in the table `ottla_progress`. Every query needs its own.
        columns: The columns to write, as for `upsert`.
        offsets: A function that returns the source's offsets, as for `upsert`.
        checkpoint: The query's checkpointLocation. Required over Spark Connect.
        reset: For one run: let a query with a new checkpoint take over the sink_id.
        dead_letters: Where rows go that the database refuses. Without it, such a row fails the query.
        refused_max: The maximum number of refused rows per batch.

    Returns:
        A function for `foreachBatch`.

    Raises:
        SinkError: An argument is invalid.

    Example:
        >>> sink = append("sqlite:///shop.db", table="orders", sink_id="orders")
    """
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
