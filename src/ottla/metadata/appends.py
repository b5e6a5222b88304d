"""Sizes of metadata changes: what fits into one append of the store, and how a large change is split.

An append is written completely or not at all. A change of many partitions may be split anywhere. A topic with
its settings and partitions may not. A record that depends on the others (a broker's, after its partitions) is
last and stays last.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ottla.metadata import records as r
from ottla.ports.store import APPEND_BYTES_MAX

T = TypeVar("T")


def encoded_bytes(records: Iterable[r.Record]) -> int:
    """The size of these records in an append, with a separator after each."""
    return sum(len(r.encode(record)) + 1 for record in records)


def pack(sized: Iterable[tuple[T, int]], bytes_max: int = APPEND_BYTES_MAX) -> list[list[T]]:
    """Group items in order, so that each group fits into one append. An oversized item gets its own group."""
    made: list[list[T]] = []
    bytes_left = 0
    for item, size in sized:
        if not made or size > bytes_left:
            made.append([])
            bytes_left = bytes_max
        made[-1].append(item)
        bytes_left -= size
    return made


def in_appends(records: Iterable[r.Record], bytes_max: int = APPEND_BYTES_MAX) -> list[list[r.Record]]:
    """Group records in order, so that each group fits into one append; one empty group if there are none."""
    return pack(((record, encoded_bytes((record,))) for record in records), bytes_max) or [[]]


def too_large(size: int) -> str:
    """The error message for a change that does not fit into one append."""
    return (
        f"this change has {size} bytes in the metadata log, the maximum is {APPEND_BYTES_MAX}: nothing was changed. "
        "Split it into several requests with fewer partitions or shorter settings"
    )
