"""Filter pushdown: filters on topic, partition, offset and minimum timestamp reduce what is read.

Pure functions.

Filters on topic, partition and offset are applied here completely. A filter on timestamp only moves the start
of the read, because timestamps may not grow with offsets; Spark still applies it to every row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from ottla.client.metadata import TopicPartition
from ottla.spark.source.offsets import NO_RECORD
from ottla.spark.source.read_plan import Range

#: Columns that are never null.
_NEVER_NULL: Final = frozenset(("topic", "partition", "offset", "timestamp", "timestampType"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TESTS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, among: value in among,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: lambda value, part: part in value,
}
_COMPARED_WITH: Final = {"topic": str, "partition": int, "offset": int}


@dataclass(frozen=True)
class PushedFilters:
    """The filters that limit the read.

    `tests` are filters on topic or partition; the offset range is half open.
    """

    tests: tuple[Filter, ...] = ()
    offset_start: int = 0
    offset_end: int | None = None
    #: Skip records before this time.
    since_ms: int | None = None

    def cut(self, ranges: Iterable[Range]) -> list[Range]:
        found = []
        for each in ranges:
            start = max(each.start, self.offset_start)
            end = each.end if self.offset_end is None else min(each.end, self.offset_end)
            if start < end and all(_passes(test, each.tp) for test in self.tests):
                found.append(Range(each.tp, start, end))
        return found

    def times(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The timestamps to send in ListOffsets."""
        if self.since_ms is None or self.since_ms <= 1:
            return {}
        # One ms earlier: among records with equal timestamps, a sparse index may return a later one.
        return dict.fromkeys(partitions, self.since_ms - 1)

    def since(self, ranges: Iterable[Range], answers: Mapping[TopicPartition, int]) -> list[Range]:
        """Drop older records. The answers must have been requested after the ends of the ranges."""
        found = []
        for each in ranges:
            first = answers.get(each.tp, each.start)
            start = each.end if first == NO_RECORD else max(each.start, first)
            if start < each.end:
                found.append(Range(each.tp, start, each.end))
        return found


def push_down(filters: Sequence[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """Return the filters that limit the read, and the filters that Spark must apply itself."""
    tests: list[Filter] = []
    left: list[Filter] = []
    start = 0
    end: int | None = None
    since_ms: int | None = None
    for each in filters:
        column = _column(each)
        if isinstance(each, IsNotNull) and column in _NEVER_NULL:
            continue
        if column in ("topic", "partition") and _is_comparable(each, column):
            tests.append(each)
            continue
        bounds = _offsets(each) if column == "offset" and _is_comparable(each, column) else None
        if bounds is not None:
            start = max(start, bounds[0])
            if bounds[1] is not None:
                end = bounds[1] if end is None else min(end, bounds[1])
            continue
        if column == "timestamp" and isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual):
            time_ms = _milliseconds(each.value)
            if time_ms is not None:
                since_ms = time_ms if since_ms is None else max(since_ms, time_ms)
        left.append(each)
    return PushedFilters(tuple(tests), start, end, since_ms), left


def _column(filter_: Filter) -> str | None:
    inner = filter_.child if isinstance(filter_, Not) else filter_
    attribute: tuple[str, ...] = getattr(inner, "attribute", ())
    return attribute[0] if len(attribute) == 1 else None


def _is_comparable(filter_: Filter, column: str) -> bool:
    """Whether the filter is supported, with values of the column's type.

    Comparisons with null are not supported.
    """
    inner = filter_.child if isinstance(filter_, Not) else filter_
    if type(inner) not in _TESTS:
        return False
    value = inner.value  # type: ignore[attr-defined]
    values = value if isinstance(inner, In) else (value,)
    return all(type(each) is _COMPARED_WITH[column] for each in values)


def _passes(test: Filter, tp: TopicPartition) -> bool:
    if isinstance(test, Not):
        return not _passes(test.child, tp)
    value = tp.topic if _column(test) == "topic" else tp.partition
    return _TESTS[type(test)](value, test.value)  # type: ignore[attr-defined]


def _offsets(filter_: Filter) -> tuple[int, int | None] | None:
    """The offsets that pass the filter, if they form one range."""
    match filter_:
        case EqualTo(_, value) | EqualNullSafe(_, value):
            return value, value + 1
        case GreaterThan(_, value):
            return value + 1, None
        case GreaterThanOrEqual(_, value):
            return value, None
        case LessThan(_, value):
            return 0, value
        case LessThanOrEqual(_, value):
            return 0, value + 1
        case Not(LessThan(_, value)):
            return value, None
        case Not(LessThanOrEqual(_, value)):
            return value + 1, None
        case Not(GreaterThan(_, value)):
            return 0, value + 1
        case Not(GreaterThanOrEqual(_, value)):
            return 0, value
    return None


def _milliseconds(value: object) -> int | None:
    """The timestamp in ms, rounded down."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    passed = value - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1000 + passed.microseconds // 1000
