"""Pushed-down filters, and the filters that Spark must apply itself."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from ottla.client.metadata import TopicPartition
from ottla.spark.source.filters import push_down
from ottla.spark.source.read_plan import Range

TOPIC, PARTITION, OFFSET, TIMESTAMP = ("topic",), ("partition",), ("offset",), ("timestamp",)
PARTITIONS = [TopicPartition(topic, number) for topic in ("ab", "bc") for number in range(4)]
RANGES = [Range(tp, 10, 20) for tp in PARTITIONS]
A_TIME = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)

KINDS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}
simple: st.SearchStrategy[Filter] = st.one_of(
    st.builds(lambda kind, value: kind(PARTITION, value), st.sampled_from(list(KINDS)), st.integers(-1, 5)),
    st.builds(lambda kind, value: kind(OFFSET, value), st.sampled_from(list(KINDS)), st.integers(5, 25)),
    st.builds(lambda values: In(PARTITION, tuple(values)), st.lists(st.integers(0, 4))),
    st.builds(lambda values: In(OFFSET, tuple(values)), st.lists(st.integers(5, 25))),
    st.sampled_from([StringStartsWith(TOPIC, "a"), StringEndsWith(TOPIC, "c"), StringContains(TOPIC, "b")]),
)
filters = st.lists(simple | simple.map(Not), max_size=4)


def passes(each: Filter, tp: TopicPartition, offset: int) -> bool:
    if isinstance(each, Not):
        return not passes(each.child, tp, offset)
    value: Any = {"topic": tp.topic, "partition": tp.partition, "offset": offset}[each.attribute[0]]  # type: ignore[attr-defined]
    wanted = each.value  # type: ignore[attr-defined]
    if isinstance(each, In):
        return value in wanted
    if isinstance(each, StringStartsWith):
        return bool(value.startswith(wanted))
    if isinstance(each, StringEndsWith):
        return bool(value.endswith(wanted))
    if isinstance(each, StringContains):
        return wanted in value
    return KINDS[type(each)](value, wanted)


@given(filters)
def test_what_is_read_and_passes_the_rest_is_what_passes_all(given_: list[Filter]) -> None:
    wanted, left = push_down(given_)
    assert all(any(each is one for one in given_) for each in left)
    read = [
        (part.tp, offset)
        for part in wanted.cut(RANGES)
        for offset in range(part.start, part.end)
        if all(passes(each, part.tp, offset) for each in left)
    ]
    assert read == [
        (tp, offset)
        for tp in PARTITIONS
        for offset in range(10, 20)
        if all(passes(f, tp, offset) for f in given_)
    ]


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(PARTITION, 2),
        In(TOPIC, ("ab",)),
        Not(EqualTo(TOPIC, "ab")),
        GreaterThan(OFFSET, 3),
        IsNotNull(OFFSET),
    ],
)
def test_spark_need_not_apply_what_is_exact(each: Filter) -> None:
    assert push_down([each])[1] == []


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("key",), b"k"),
        IsNotNull(("key",)),
        IsNull(PARTITION),
        EqualNullSafe(PARTITION, None),
        EqualTo(PARTITION, 2.0),
        In(OFFSET, (1, None)),
        LessThan(TIMESTAMP, A_TIME),
        GreaterThan(TIMESTAMP, A_TIME),
        EqualTo(("headers", "key"), "x"),
        EqualTo(PARTITION, True),
    ],
)
def test_spark_applies_the_rest(each: Filter) -> None:
    wanted, left = push_down([each])
    assert left == [each]
    assert wanted.cut(RANGES) == RANGES


def test_times_say_where_to_begin() -> None:
    later = A_TIME + timedelta(hours=1)
    wanted, _ = push_down([GreaterThan(TIMESTAMP, later), GreaterThanOrEqual(TIMESTAMP, A_TIME)])
    assert wanted.since_ms == int(later.timestamp() * 1000)
    one, other, third = PARTITIONS[:3]
    assert wanted.times([one]) == {one: wanted.since_ms - 1}
    found = wanted.since(
        [Range(one, 0, 9), Range(other, 0, 9), Range(third, 6, 9)], {one: 4, other: -1, third: 2}
    )
    assert found == [Range(one, 4, 9), Range(third, 6, 9)]
    assert push_down([LessThan(TIMESTAMP, A_TIME)])[0].times([one]) == {}
    assert push_down([GreaterThan(TIMESTAMP, A_TIME.replace(tzinfo=None))])[0].since_ms is None
