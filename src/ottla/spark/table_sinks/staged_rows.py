"""Tasks write their rows to the staging table, under their attempt number, and report what they wrote.

Staged rows are not visible in the target table. Rows of failed or duplicate attempts have an attempt number
that is not reported, so they are never merged. The staging table of a dead driver is never merged.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.table_sinks import positions
from ottla.spark.table_sinks.database import (
    ATTEMPT,
    DELETE,
    ORDER,
    ROW,
    Database,
    staging_columns,
    transaction,
)
from ottla.spark.table_sinks.errors import RowsRefused
from ottla.spark.table_sinks.shape import POSITION, Column, Shape

if TYPE_CHECKING:
    import pyarrow as pa

REPORT: Final = "report string"
#: Row numbers of a partition start at this multiple of its number, so that all rows of a batch are ordered.
ROWS_A_PARTITION: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class StagingTable:
    """The staging table of a batch, as sent to every task."""

    database: Database
    table: str
    shape: Shape
    #: Up to this many unfit rows per task are reported; with 0, or above it, they fail the task.
    refused_max: int

    @property
    def columns(self) -> tuple[Column, ...]:
        return staging_columns(self.shape, with_position=self.refused_max > 0)


def refused_row(
    reason: str, names: Iterable[str], values: Iterable[Any], position: tuple[Any, Any, Any] | None
) -> dict[str, Any]:
    """A refused row, in the form that is sent to the dead-letter topic."""
    return {
        "reason": reason,
        "row": {name: _plain(value) for name, value in zip(names, values, strict=True)},
        "position": None if position is None else list(position),
    }


def _plain(value: Any) -> Any:
    """Convert to JSON types: bytes to base64, times and decimals to strings."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def staging_task(staging: StagingTable) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: it stages a partition's rows and returns one report."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        report = stage_rows(staging, partition, secrets.randbits(62), batches)
        yield pa.record_batch([pa.array([json.dumps(report)])], names=["report"])

    return stage


def stage_rows(
    staging: StagingTable, partition: int, attempt: int, batches: Iterable[pa.RecordBatch]
) -> dict[str, Any]:
    """Stage a partition's rows. Returns the report: counts, source offsets and refused rows."""
    shape = staging.shape
    row = partition * ROWS_A_PARTITION
    rows = deletes = 0
    offsets: list[positions.Offsets] = []
    refused: list[dict[str, Any]] = []
    connection = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if shape.has_position:
                offsets.append(positions.of_rows(batch))
            staged = _staged(staging, batch, attempt, row)
            row += batch.num_rows
            staged = _without_unfit(staging, staged, refused)
            if connection is None:
                connection = staging.database.connect()
            for written in _written(staging, connection, staged, refused):
                rows += written.num_rows
                deletes += _sum(written.column(DELETE.name))
    finally:
        if connection is not None:
            connection.close()
    return {
        "attempt": attempt,
        "rows": rows,
        "deletes": deletes,
        "offsets": positions.join(offsets) if shape.has_position else None,
        "refused": refused,
    }


def _written(
    staging: StagingTable, connection: Any, rows: pa.RecordBatch, refused: list[dict[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Stage rows, and yield those that were staged. Refused rows are found by halving, and noted."""
    database = staging.database
    if not rows.num_rows:
        return
    try:
        with transaction(database, connection):
            database.stage(connection, staging.table, staging.columns, rows)
    except Exception as error:
        if not staging.refused_max or not database.is_refusal(error):
            raise
        if rows.num_rows == 1:
            note(staging, rows, database.reason(error), refused)
            return
        half = rows.num_rows // 2
        for part in (rows.slice(0, half), rows.slice(half)):
            yield from _written(staging, connection, part, refused)
    else:
        yield rows


def _sum(values: pa.Array) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(values).as_py() or 0)


def _staged(staging: StagingTable, batch: pa.RecordBatch, attempt: int, first_row: int) -> pa.RecordBatch:
    """The rows with the columns of the staging table."""
    import pyarrow as pa

    shape, count = staging.shape, batch.num_rows
    made: dict[str, pa.Array] = {
        ATTEMPT.name: pa.repeat(pa.scalar(attempt, pa.int64()), count),
        ROW.name: pa.array(range(first_row, first_row + count), pa.int64()),
        DELETE.name: _deletions(shape, batch),
    }
    if shape.order is not None:
        made[ORDER] = batch.column(shape.order.name)
    for name in POSITION if shape.has_position else ():
        made[f"ottla_{name}"] = batch.column(name)
    for column in shape.columns:
        made[column.name] = batch.column(column.name)
    columns = staging.columns
    return pa.record_batch(
        [_utc(made[column.name]) for column in columns], names=[column.name for column in columns]
    )


def _utc(values: pa.Array) -> pa.Array:
    """Convert timestamps to UTC: the session's zone is only for display."""
    import pyarrow as pa

    if pa.types.is_timestamp(values.type) and values.type.tz is not None:
        return values.cast(pa.timestamp("us", "UTC"))
    return values


def _deletions(shape: Shape, batch: pa.RecordBatch) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if shape.delete_when is not None:
        deleted = pc.fill_null(batch.column(shape.delete_when), False)
    else:
        # A row that has only key columns is never a tombstone.
        deleted = pa.repeat(pa.scalar(shape.tombstones and bool(shape.tombstone_columns)), batch.num_rows)
        for column in shape.tombstone_columns:
            deleted = pc.and_(deleted, pc.is_null(batch.column(column.name)))
    return deleted.cast(pa.int32())


def _without_unfit(
    staging: StagingTable, staged: pa.RecordBatch, refused: list[dict[str, Any]]
) -> pa.RecordBatch:
    """The rows that this kind of database can store. Other rows are noted as refused."""
    import pyarrow.compute as pc

    for column in staging.shape.columns:
        in_key = column.name in staging.shape.key
        if in_key:
            missing = pc.is_null(staged.column(column.name))
            staged = _leave_out(staging, staged, missing, f"key column {column.name} is null", refused)
        found = staging.database.unfit(column, staged.column(column.name), in_key=in_key)
        if found is not None:
            staged = _leave_out(staging, staged, found[0], f"column {column.name}: {found[1]}", refused)
    return staged


def _leave_out(
    staging: StagingTable, staged: pa.RecordBatch, bad: pa.Array, reason: str, refused: list[dict[str, Any]]
) -> pa.RecordBatch:
    import pyarrow.compute as pc

    bad = pc.fill_null(bad, False)
    if not _sum(bad):
        return staged
    note(staging, staged.filter(bad), reason, refused)
    return staged.filter(pc.invert(bad))


def note(staging: StagingTable, rows: pa.RecordBatch, reason: str, refused: list[dict[str, Any]]) -> None:
    """Note rows as refused. Raises `RowsRefused` if there are too many."""
    names = [column.name for column in staging.shape.columns]
    for row in rows.to_pylist():
        position = (
            (row["ottla_topic"], row["ottla_partition"], row["ottla_offset"])
            if "ottla_topic" in row
            else None
        )
        refused.append(refused_row(reason, names, [row[name] for name in names], position))
        if len(refused) > staging.refused_max:
            where = refused[-1]["position"] or json.dumps(refused[-1]["row"])[:300]
            raise RowsRefused(
                f"{reason}, in {where}"
                + (
                    f", and {staging.refused_max} more rows were refused: check the table, or raise "
                    "refused_max"
                    if staging.refused_max
                    else ": filter such rows, or send them to a topic with dead_letters="
                )
            )
