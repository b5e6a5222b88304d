"""A large change in pieces that the store takes: partitions settle one by one, so a change of many may be cut anywhere.

Whoever depends on all the others (a broker's record, behind its partitions) stands last and stays last.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.controller import records as r
from ottla.ports.store import APPEND_BYTES_MAX


def in_appends(records: Iterable[r.Record], bytes_max: int = APPEND_BYTES_MAX) -> list[list[r.Record]]:
    """The records in order, in lists of which each fits into one append; one empty list if there are none."""
    made: list[list[r.Record]] = [[]]
    bytes_left = bytes_max
    for record in records:
        # With what stands between two records.
        size = len(r.encode(record)) + 1
        if size > bytes_left and made[-1]:
            made.append([])
            bytes_left = bytes_max
        made[-1].append(record)
        bytes_left -= size
    return made
