"""Checks whether an existing table fits the rows, before anything is staged. Called by `table.py`."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.spark.table_sinks.database import Database, TableColumn
from ottla.spark.table_sinks.errors import SchemaMismatch
from ottla.spark.table_sinks.shape import Shape


def check_table(
    database: Database,
    table: str,
    shape: Shape,
    found: Sequence[TableColumn],
    unique: Sequence[frozenset[str]],
) -> None:
    """Raise `SchemaMismatch` with all problems."""
    wrong: list[str] = []
    there = {database.fold(column.name): column for column in found}
    for column in shape.columns:
        has = there.pop(database.fold(column.name), None)
        if has is None:
            wrong.append(
                f"it has no column {column.name} ({column}): add it as "
                f"{database.type_of(column, in_key=False)}, "
                "or select the columns to write with columns="
            )
        elif not database.fits(column, has):
            wrong.append(
                f"its column {has.name} is {has}, which cannot hold Spark's {column}: cast it in the query, "
                "or "
                f"make it {database.type_of(column, in_key=column.name in shape.key)}"
            )
    wrong += [
        f"its column {column.name} is NOT NULL, and the rows have no such column: select one, or give it a "
        "default"
        for column in there.values()
        if not column.optional
    ]
    wanted = {database.fold(name) for name in shape.key}
    if wanted and not any({database.fold(name) for name in key} == wanted for key in unique):
        wrong.append(
            f"its key is not ({', '.join(shape.key)}): add a primary key or a unique index of exactly these "
            "columns"
        )
    if wrong:
        raise SchemaMismatch(f"table {table} does not fit the rows: {'; '.join(wrong)}")
