"""The one transaction in which a batch begins to count: its rows, its deletions and the sink's progress.

The progress row is locked first, so that of two drivers one waits and then finds its batch done, or is refused. Whatever fails here leaves the
table as it was. Called by `table.py` with a connection of its own, again and again if need be.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.spark.table_sinks.database import Database, StagedRows, transaction
from ottla.spark.table_sinks.errors import RowsRefused, SinkError
from ottla.spark.table_sinks.progress import Progress, Verdict, judge
from ottla.spark.table_sinks.shape import POSITION
from ottla.spark.table_sinks.staged_rows import refused_row

#: Takes rows that were refused; returns when they are safe elsewhere.
Send = Callable[[Sequence[Mapping[str, Any]]], None]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    sink_id: str
    progress: Progress
    reset: bool
    target: str
    staged: StagedRows
    #: How many rows each attempt that counts has staged.
    rows: Mapping[int, int]
    deletes: bool
    #: What tasks found that cannot be stored.
    refused: tuple[dict[str, Any], ...] = ()


def commit(database: Database, connection: Any, batch: MicroBatch) -> None:
    """Make the batch count, all of it or nothing. If it counts already, nothing is done."""
    with _transaction(database, connection, batch) as is_needed:
        if is_needed:
            database.merge(connection, batch.target, batch.staged, deletes=batch.deletes)


def commit_what_fits(
    database: Database, connection: Any, batch: MicroBatch, send: Send, refused_max: int
) -> None:
    """As `commit`, without the rows that the database does not take: those are sent first. If the commit then fails they are sent again."""
    with _transaction(database, connection, batch) as is_needed:
        if not is_needed:
            return
        if len(batch.refused) > refused_max:
            # No task had too many, all of them together have.
            raise _too_many(refused_max, batch.refused[-1]["reason"])
        if database.check_now is not None:
            database.run(connection, database.check_now)
        refused = [*batch.refused, *_merge_by_halves(database, connection, batch, refused_max)]
        if refused:
            send(refused)


@contextlib.contextmanager
def _transaction(database: Database, connection: Any, batch: MicroBatch) -> Iterator[bool]:
    """Gives whether the batch is still to be done, with the progress locked; at the end it is."""
    now = batch.progress
    with transaction(database, connection):
        done = database.progress(connection, batch.sink_id, locks=True)
        verdict = judge(
            done, sink_id=batch.sink_id, batch_id=now.batch_id, query_id=now.query_id, reset=batch.reset
        )
        if verdict is Verdict.RUN:
            _check_staged(database, connection, batch)
        yield verdict is Verdict.RUN
        if verdict is Verdict.RUN:
            database.advance(connection, batch.sink_id, now)


def _check_staged(database: Database, connection: Any, batch: MicroBatch) -> None:
    there = database.staged_counts(connection, batch.staged)
    for attempt, count in batch.rows.items():
        if there.get(attempt, 0) != count:
            raise SinkError(
                f"of {count} staged rows {there.get(attempt, 0)} are left: the database has lost some, by a crash or by somebody's "
                "hand. Nothing was written; start the query again"
            )


def _merge_by_halves(
    database: Database, connection: Any, batch: MicroBatch, refused_max: int
) -> list[dict[str, Any]]:
    """Merge all rows but those that are refused; a half that is refused is halved again, down to one row."""
    rows = database.thin(connection, batch.staged)
    refused: list[dict[str, Any]] = []
    broken = database.broken_late(connection)
    halves = [(0, len(rows))] if rows else []
    while halves:
        low, high = halves.pop()
        staged = dataclasses.replace(batch.staged, is_thinned=True, between=(rows[low], rows[high - 1]))
        database.run(connection, "SAVEPOINT ottla_half")
        try:
            database.merge(connection, batch.target, staged, deletes=batch.deletes)
            if database.broken_late(connection) > broken:
                raise _BrokenLate("a deferred foreign key leads nowhere")
        except Exception as error:
            if not (isinstance(error, _BrokenLate) or database.is_refusal(error)):
                raise
            database.run(connection, "ROLLBACK TO SAVEPOINT ottla_half")
            if high - low > 1:
                middle = (low + high) // 2
                # The last of the list is the next: rows are tried in their order.
                halves += [(middle, high), (low, middle)]
                continue
            refused.append(_described(database, connection, staged, rows[low], error))
            if len(refused) + len(batch.refused) > refused_max:
                raise _too_many(refused_max, database.reason(error)) from error
        database.run(connection, "RELEASE SAVEPOINT ottla_half")
    return refused


class _BrokenLate(Exception):
    """A row, or the rows of a half, would fail the commit."""


def _too_many(refused_max: int, reason: str) -> RowsRefused:
    return RowsRefused(
        f"more than {refused_max} rows of a batch are refused, the last one with: {reason}. That is not a bad row but a table "
        "that does not fit: nothing was written"
    )


def _described(
    database: Database, connection: Any, staged: StagedRows, row: int, error: Exception
) -> dict[str, Any]:
    columns = staged.shape.columns
    values = database.staged_row(connection, staged, row, [column.name for column in columns])
    position = None
    if staged.shape.has_position:
        topic, partition, offset = database.staged_row(
            connection, staged, row, [f"ottla_{name}" for name in POSITION]
        )
        position = (topic, partition, offset)
    return refused_row(
        str(error.args[-1] if error.args else error).strip(),
        [each.name for each in columns],
        values,
        position,
    )
