"""The transaction that commits a batch: its rows, its deletions and the sink's progress.

The progress row is locked first. Of two drivers, one waits, and then finds its batch done or is refused. On
failure the table is unchanged. `table.py` calls this with its own connection, and may retry.
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

#: Sends refused rows to a dead-letter topic, and returns when they are acknowledged.
Send = Callable[[Sequence[Mapping[str, Any]]], None]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch whose rows are staged, with everything that its commit needs."""

    sink_id: str
    progress: Progress
    reset: bool
    target: str
    staged: StagedRows
    #: The number of rows that each successful task attempt has staged.
    rows: Mapping[int, int]
    deletes: bool
    #: Rows that tasks found unfit for the database.
    refused: tuple[dict[str, Any], ...] = ()


def commit(database: Database, connection: Any, batch: MicroBatch) -> None:
    """Commit the whole batch, unless it is already committed."""
    with _transaction(database, connection, batch) as is_needed:
        if is_needed:
            database.merge(connection, batch.target, batch.staged, deletes=batch.deletes)


def commit_what_fits(
    database: Database, connection: Any, batch: MicroBatch, send: Send, refused_max: int
) -> None:
    """As `commit`, without the rows that the database refuses.

    They are sent before the commit, and again if it fails.
    """
    with _transaction(database, connection, batch) as is_needed:
        if not is_needed:
            return
        if len(batch.refused) > refused_max:
            # Each task was below the limit, but their sum is not.
            raise _too_many(refused_max, batch.refused[-1]["reason"])
        if database.check_now is not None:
            database.run(connection, database.check_now)
        refused = [*batch.refused, *_merge_by_halves(database, connection, batch, refused_max)]
        if refused:
            send(refused)


@contextlib.contextmanager
def _transaction(database: Database, connection: Any, batch: MicroBatch) -> Iterator[bool]:
    """Lock the progress, yield whether the batch must be written, and advance the progress at the end."""
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
                f"only {there.get(attempt, 0)} of {count} staged rows are in the database: it crashed, or "
                "somebody deleted "
                "rows. Nothing was written: restart the query"
            )


def _merge_by_halves(
    database: Database, connection: Any, batch: MicroBatch, refused_max: int
) -> list[dict[str, Any]]:
    """Merge all rows except refused ones: a refused range is halved until the single rows are found."""
    rows = database.keep_last_rows(connection, batch.staged)
    refused: list[dict[str, Any]] = []
    broken = database.deferred_violations(connection)
    halves = [(0, len(rows))] if rows else []
    while halves:
        low, high = halves.pop()
        staged = dataclasses.replace(
            batch.staged, has_last_rows_only=True, between=(rows[low], rows[high - 1])
        )
        database.run(connection, "SAVEPOINT ottla_half")
        try:
            database.merge(connection, batch.target, staged, deletes=batch.deletes)
            if database.deferred_violations(connection) > broken:
                raise _DeferredViolation("a deferred foreign key has no target")
        except Exception as error:
            if not (isinstance(error, _DeferredViolation) or database.is_refusal(error)):
                raise
            database.run(connection, "ROLLBACK TO SAVEPOINT ottla_half")
            if high - low > 1:
                middle = (low + high) // 2
                # The last entry is processed next, so rows are tried in their order.
                halves += [(middle, high), (low, middle)]
                continue
            refused.append(_described(database, connection, staged, rows[low], error))
            if len(refused) + len(batch.refused) > refused_max:
                raise _too_many(refused_max, database.reason(error)) from error
        database.run(connection, "RELEASE SAVEPOINT ottla_half")
    return refused


class _DeferredViolation(Exception):
    """These rows would fail the commit by a deferred constraint."""


def _too_many(refused_max: int, reason: str) -> RowsRefused:
    return RowsRefused(
        f"more than {refused_max} rows of a batch are refused, the last one with: {reason}. Nothing was "
        "written: "
        "check that the table fits the rows, or raise refused_max"
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
