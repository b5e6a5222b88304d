"""Offsets in JSON, and places resolved by the brokers' answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.metadata import TopicPartition
from ottla.client.offsets import EARLIEST, LATEST
from ottla.spark.options import OptionError
from ottla.spark.source.offsets import (
    AtEnd,
    AtOffsets,
    AtTimes,
    from_json,
    offsets_of,
    read_place,
    read_times,
    times_of,
    to_json,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
partitions = st.builds(TopicPartition, st.text(max_size=3), st.integers(0, 12))


@given(st.dictionaries(partitions, st.integers(-2, 1 << 60)))
def test_offsets_survive_json(offsets: dict[TopicPartition, int]) -> None:
    text = json.dumps(to_json(offsets))
    assert from_json(json.loads(text)) == offsets
    # Spark compares texts.
    assert json.dumps(to_json(dict(reversed(offsets.items())))) == text


def test_partitions_stand_in_the_order_of_numbers() -> None:
    offsets = {TopicPartition("t", number): 1 for number in (10, 9, 1)}
    assert list(to_json(offsets)["t"]) == ["1", "9", "10"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("soon", "earliest, latest or JSON"),
        ('{"t":', "not JSON"),
        ("{'t':{}}", "not JSON"),
        ('{"t":5}', "JSON like"),
        ('{"t":{"x":5}}', "partition 'x' of topic t"),
        ('{"t":{"0":"5"}}', "'5' for t partition 0"),
        ('{"t":{"0":true}}', "True for t partition 0"),
        ('{"t":{"0":-3}}', "-3 for t-0"),
    ],
)
def test_what_is_no_place_is_refused(text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_place(text)


def test_times_are_not_negative() -> None:
    assert read_times('{"t":{"0":5}}') == {T0: 5}
    with pytest.raises(OptionError, match="milliseconds since 1970"):
        read_times('{"t":{"0":-1}}')


def test_places_are_resolved_by_what_brokers_answer() -> None:
    both, latest = [T0, T1], {T0: 100, T1: 200}
    assert times_of(read_place("earliest"), both, "o") == {T0: EARLIEST, T1: EARLIEST}
    assert times_of(read_place("LATEST"), both, "o") == {T0: LATEST, T1: LATEST}
    assert offsets_of(AtEnd(LATEST), both, latest, latest, "o") == latest
    exact = AtOffsets({T0: 7, T1: -2})
    assert times_of(exact, both, "o") == {T1: EARLIEST}
    assert offsets_of(exact, both, {T1: 3}, latest, "o") == {T0: 7, T1: 3}
    at_time = AtTimes(1000, or_latest=True)
    assert times_of(at_time, both, "o") == {T0: 1000, T1: 1000}
    assert offsets_of(at_time, both, {T0: 5, T1: -1}, latest, "o") == {T0: 5, T1: 200}
    each = AtTimes({T0: 1, T1: 2}, or_latest=False)
    assert times_of(each, both, "o") == {T0: 1, T1: 2}
    with pytest.raises(
        OptionError, match=r"option o: t-1 has no record .* startingOffsetsByTimestampStrategy=latest"
    ):
        offsets_of(each, both, {T0: 5, T1: -1}, latest, "o")


def test_places_name_every_partition_and_no_other() -> None:
    with pytest.raises(OptionError, match=r"option o must name .* missing: t-1; not read: t-2"):
        times_of(AtOffsets({T0: 1, TopicPartition("t", 2): 0}), [T0, T1], "o")
