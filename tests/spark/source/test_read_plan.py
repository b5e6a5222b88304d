"""Ranges are split, limited and compared with the logs, without a broker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.metadata import TopicPartition
from ottla.spark.source.read_plan import (
    Log,
    Loss,
    Range,
    advanced,
    is_held_back,
    limited,
    lost,
    not_before,
    ranges_of,
    split,
)

partitions = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 3))
offsets = st.integers(0, 50)
places = st.dictionaries(partitions, offsets, max_size=6)
ranges = st.dictionaries(partitions, st.tuples(offsets, offsets), max_size=6).map(
    lambda found: [Range(tp, min(two), max(two)) for tp, two in found.items()]
)
logs_strategy = st.dictionaries(partitions, st.tuples(offsets, offsets), max_size=8).map(
    lambda found: {tp: Log(min(two), max(two)) for tp, two in found.items()}
)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def every(found: list[Range]) -> list[tuple[TopicPartition, int]]:
    return sorted((part.tp, offset) for part in found for offset in range(part.start, part.end))


@given(found=ranges, least=st.none() | st.integers(1, 40), most=st.none() | st.integers(1, 20))
def test_parts_are_the_whole(found: list[Range], least: int | None, most: int | None) -> None:
    parts = split(found, least=least, records_max=most)
    assert every(parts) == every(found)
    assert all(part.size > 0 for part in parts)
    if most is not None:
        assert all(part.size <= most for part in parts)
    if least is not None:
        assert len(parts) >= min(least, sum(part.size for part in found))


def test_longer_ranges_are_cut_into_more_parts() -> None:
    parts = split([Range(T0, 0, 90), Range(T1, 0, 10)], least=10, records_max=None)
    assert [part.tp for part in parts].count(T0) == 9
    assert {part.size for part in parts} == {10}
    assert split([Range(T0, 5, 6)], least=10, records_max=None) == [Range(T0, 5, 6)]
    assert split([], least=3, records_max=3) == []


@given(starts=places, ends=places, most=st.integers(1, 100))
def test_a_limit_is_kept_and_moves_everybody(
    starts: dict[TopicPartition, int], ends: dict[TopicPartition, int], most: int
) -> None:
    found = limited(starts, ends, most)
    waiting = {tp for tp, end in ends.items() if end > starts.get(tp, 0)}
    taken = {tp: found[tp] - starts.get(tp, 0) for tp in waiting}
    assert found.keys() == ends.keys()
    assert all(found[tp] <= ends[tp] for tp in waiting) and all(taken[tp] >= 1 for tp in waiting)
    assert sum(taken.values()) == max(min(most, advanced(starts, ends)), len(waiting))


def test_a_limit_is_shared_out_by_what_there_is() -> None:
    assert limited({T0: 10}, {T0: 910, T1: 100}, 100) == {T0: 100, T1: 10}
    assert limited({T0: 10}, {T0: 20, T1: 5}, 100) == {T0: 20, T1: 5}


@given(starts=places, ends=places, logs=logs_strategy)
def test_what_is_read_and_what_is_lost_is_what_was_asked_for(
    starts: dict[TopicPartition, int], ends: dict[TopicPartition, int], logs: dict[TopicPartition, Log]
) -> None:
    found, losses = ranges_of(starts, ends, logs)
    for part in found:
        assert logs[part.tp].begin <= part.start < part.end <= logs[part.tp].end
    gone = [
        (loss.tp, offset)
        for loss in losses
        if loss.end is not None and ends.get(loss.tp, -1) >= starts.get(loss.tp, 0)
        for offset in range(loss.start, min(loss.end, ends[loss.tp]))
        if offset >= starts.get(loss.tp, 0)
    ]
    asked = [(tp, offset) for tp, end in ends.items() for offset in range(starts.get(tp, 0), end)]
    if all(starts.get(tp, 0) <= log.end for tp, log in logs.items() if tp in ends):
        assert sorted(every(found) + gone) == sorted(asked)
    assert {loss.tp for loss in losses} >= set(starts) - set(ends)


def test_losses_are_told_in_words() -> None:
    found, losses = ranges_of({T0: 5, T1: 0}, {T0: 50, T1: 9}, {T0: Log(20, 60)})
    assert found == [Range(T0, 20, 50)]
    assert [str(loss) for loss in losses] == [
        "topic t partition 0: offsets 5 to 19 are lost (at most 15 records): the log starts at 20",
        "topic t partition 1: offsets 0 to 8 are lost (at most 9 records): the partition was deleted",
    ]
    assert "failOnDataLoss=false" in str(lost(losses))
    many = [Loss(T0, 0, None, "the partition was deleted")] * 30
    assert "and 10 more" in str(lost(many))


@pytest.mark.parametrize(
    ("starts", "ends", "log", "words"),
    [
        ({T0: 70}, {T0: 70}, Log(0, 60), "offsets 60 to 69 are lost .* the log ends at 60"),
        ({T0: 50}, {T0: 70}, Log(0, 60), "offsets 60 to 69 are lost .* the log ends at 60"),
        ({T0: 50}, {T0: 40}, Log(0, 40), "offsets 40 to 49 are lost .* re-created or truncated"),
        ({}, {T0: 40}, Log(10, 40), r"offsets 0 to 9 are lost .* \(the partition is new\)"),
    ],
)
def test_a_log_that_ends_early_or_begins_late(
    starts: dict[TopicPartition, int], ends: dict[TopicPartition, int], log: Log, words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        raise lost(ranges_of(starts, ends, {T0: log})[1])


def test_nothing_is_lost_where_nothing_is_wanted() -> None:
    assert ranges_of({T0: 5}, {T0: 5}, {T0: Log(20, 60)}) == ([], [])


def test_between_an_end_and_a_later_start_there_is_nothing_to_lose() -> None:
    starts, ends, logs = {T0: 20, T1: 70}, {T0: 10, T1: 10}, {T0: Log(20, 60), T1: Log(0, 60)}
    moved = not_before(starts, ends, logs)
    found, losses = ranges_of(starts, moved, logs)
    assert (moved, found) == ({T0: 20, T1: 10}, []) and [loss.tp for loss in losses] == [T1], (
        "its log was cut off"
    )


def test_a_batch_waits_for_more_but_not_for_ever() -> None:
    assert is_held_back(5, least=10, waited_ms=10, wait_ms_max=100)
    assert not is_held_back(5, least=10, waited_ms=100, wait_ms_max=100)
    assert not is_held_back(10, least=10, waited_ms=0, wait_ms_max=100)
    assert not is_held_back(0, least=None, waited_ms=0, wait_ms_max=100)
