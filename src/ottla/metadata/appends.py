"""Sizes of metadata changes: what fits into one append of the store, and how a large change is split.

An append is written whole or not at all. Partitions settle one by one, so a change of many partitions may be split anywhere;
a topic with its settings and partitions may not. A record that depends on the others (a broker's, behind its
partitions) is last and stays last.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ottla.metadata import records as r
from ottla.ports.store import APPEND_BYTES_MAX

T = TypeVar("T")


def encoded_bytes(records: Iterable[r.Record]) -> int:
    """What these records take in an append, with the separator behind each."""
    return sum(len(r.encode(record)) + 1 for record in records)


def pack(sized: Iterable[tuple[T, int]], bytes_max: int = APPEND_BYTES_MAX) -> list[list[T]]:
    """Items with their sizes, in order, in lists of which each fits into one append; an oversized item is alone in its list."""
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
    """The records in order, in lists of which each fits into one append; one empty list if there are none."""
    return pack(((record, encoded_bytes((record,))) for record in records), bytes_max) or [[]]


def too_large(size: int) -> str:
    """What a client gets whose change does not fit."""
    return (
        f"this change takes {size} bytes in the metadata log, and one change may take {APPEND_BYTES_MAX}: "
        "nothing of it was made. Make it in several requests, with fewer partitions or shorter settings each"
    )
