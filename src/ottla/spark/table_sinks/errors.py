"""What a table's sink can complain of. Each message says what to do next; each is raised before anything is changed."""

from __future__ import annotations


class SinkError(RuntimeError):
    """The batch was not written, and nothing of it counts."""


class SchemaMismatch(SinkError):
    """The rows and the table do not fit each other."""


class BatchRefused(SinkError):
    """The table's progress says that this batch is not the next one."""


class RowsRefused(SinkError):
    """There are rows that the database does not take."""
