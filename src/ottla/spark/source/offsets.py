"""Offsets in options and checkpoints, and the places where a read may start or end.

As JSON, offsets are `{"topic": {"partition": offset}}`, as in Spark's Kafka connector; -2 is the earliest
offset and -1 the latest. Spark compares offsets as strings, so `to_json` always sorts topics and partitions.

A `Place` is a position in each partition: an end of the log, a given offset, or a timestamp. Two pure
functions resolve it: `times_of` returns the timestamps to send in ListOffsets, `offsets_of` converts the
answers to offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ottla.client.metadata import TopicPartition
from ottla.client.offsets import EARLIEST, LATEST
from ottla.spark.options import OptionError

Offsets: TypeAlias = dict[TopicPartition, int]
JsonOffsets: TypeAlias = dict[str, dict[str, int]]

#: The answer of ListOffsets if no record is at or after the timestamp.
NO_RECORD: Final = -1


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The same end of every partition: `EARLIEST` or `LATEST`."""

    end: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, or `EARLIEST` or `LATEST`."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first record at or after a time in ms: one time for all partitions, or one for each."""

    times: int | Mapping[TopicPartition, int]
    #: Use the end of a partition without such a record. Otherwise, that is an error.
    or_latest: bool


Place: TypeAlias = AtEnd | AtOffsets | AtTimes


def to_json(offsets: Mapping[TopicPartition, int]) -> JsonOffsets:
    found: JsonOffsets = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def from_json(found: Any) -> Offsets:
    """Parse offsets. Raises `OptionError` for JSON of another form."""
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise OptionError('must be JSON like {"topic":{"0":23,"1":-2}}, with the partitions of each topic')
    offsets: Offsets = {}
    for topic, partitions in found.items():
        for partition, offset in partitions.items():
            if not str(partition).isdecimal():
                raise OptionError(f"has a partition {partition!r} of topic {topic}: write a number")
            if isinstance(offset, bool) or not isinstance(offset, int):
                raise OptionError(f"has {offset!r} for {topic} partition {partition}: write a number")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"is not JSON ({error}): {text!r}") from None


def read_place(text: str) -> Place:
    """Parse `earliest`, `latest`, or JSON of offsets."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return AtEnd(EARLIEST if word == "earliest" else LATEST)
    if not word.startswith("{"):
        raise OptionError(f"must be earliest, latest or JSON of offsets, not {text!r}")
    offsets = from_json(read_json(text))
    for tp, offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError(
                f"has {offset} for {tp}: write an offset, -1 for the latest or -2 for the earliest"
            )
    return AtOffsets(offsets)


def read_times(text: str) -> dict[TopicPartition, int]:
    times = from_json(read_json(text))
    for tp, time_ms in times.items():
        if time_ms < 0:
            raise OptionError(f"has {time_ms} for {tp}: write milliseconds since 1970")
    return times


def times_of(place: Place, partitions: Iterable[TopicPartition], option: str) -> dict[TopicPartition, int]:
    """The timestamps to send in ListOffsets.

    Raises `OptionError` if `place` does not name exactly these partitions.
    """
    wanted = sorted(partitions)
    if isinstance(place, AtEnd):
        return dict.fromkeys(wanted, place.end)
    if isinstance(place, AtTimes) and isinstance(place.times, int):
        return dict.fromkeys(wanted, place.times)
    given = place.offsets if isinstance(place, AtOffsets) else place.times
    assert isinstance(given, Mapping)
    if set(given) != set(wanted):
        missing = ", ".join(str(tp) for tp in wanted if tp not in given)
        strange = ", ".join(str(tp) for tp in sorted(given) if tp not in wanted)
        raise OptionError(
            f"option {option} must name exactly the partitions that are read"
            + (f"; missing: {missing}" if missing else "")
            + (f"; not read: {strange}" if strange else "")
            + (" (-1 is the latest, -2 the earliest)" if isinstance(place, AtOffsets) else "")
        )
    if isinstance(place, AtOffsets):
        return {tp: given[tp] for tp in wanted if given[tp] < 0}
    return {tp: given[tp] for tp in wanted}


def offsets_of(
    place: Place,
    partitions: Iterable[TopicPartition],
    answers: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    option: str,
) -> Offsets:
    """The offset in each partition. `answers` belong to `times_of`; `latest` are the log end offsets."""
    found: Offsets = {}
    for tp in partitions:
        offset = answers.get(tp, NO_RECORD)
        if isinstance(place, AtOffsets) and place.offsets[tp] >= 0:
            offset = place.offsets[tp]
        elif offset == NO_RECORD and isinstance(place, AtTimes):
            if not place.or_latest:
                raise OptionError(
                    f"option {option}: {tp} has no record at or after that time: set an earlier time, or "
                    "startingOffsetsByTimestampStrategy=latest to start at the end"
                )
            offset = latest[tp]
        found[tp] = offset
    return found
