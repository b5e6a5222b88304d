"""Errors of the table sinks. Each message says what to do next. Nothing is written when one is raised."""

from __future__ import annotations


class SinkError(RuntimeError):
    """The batch was not written."""


class SchemaMismatch(SinkError):
    """The rows do not fit the table."""


class BatchRefused(SinkError):
    """The batch does not follow the table's progress."""


class RowsRefused(SinkError):
    """The database refuses some rows."""
