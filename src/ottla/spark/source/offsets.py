"""Offsets as people and checkpoints write them, and the places at which a read may begin or end.

In JSON offsets are `{"topic": {"partition": offset}}`, as in Spark's Kafka connector; -2 stands for the earliest and -1 for the latest. Spark
tells two offsets apart by their text, so `to_json` always writes topics and partitions in the same order.

A `Place` says where in each partition: at an end of the log, at offsets that were given, or at times. It is resolved in two pure
steps: `times_of` is what to ask the brokers for (times of ListOffsets), `offsets_of` makes offsets of their answers.
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

#: What ListOffsets answers where no record is as young as asked for.
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
    #: Whether a partition without such a record is taken at its end; else that is an error.
    or_latest: bool


Place: TypeAlias = AtEnd | AtOffsets | AtTimes


def to_json(offsets: Mapping[TopicPartition, int]) -> JsonOffsets:
    found: JsonOffsets = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def from_json(found: Any) -> Offsets:
    """Raises `OptionError` for what has another form."""
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise OptionError('must be JSON like {"topic":{"0":23,"1":-2}}, with the partitions of each topic')
    offsets: Offsets = {}
    for topic, partitions in found.items():
        for partition, offset in partitions.items():
            if not str(partition).isdecimal():
                raise OptionError(f"has a partition {partition!r} of topic {topic}: it must be a number")
            if isinstance(offset, bool) or not isinstance(offset, int):
                raise OptionError(f"has {offset!r} for {topic} partition {partition}: it must be a number")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"is no JSON ({error}): {text!r}") from None


def read_place(text: str) -> Place:
    """`earliest`, `latest`, or JSON of offsets."""
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
    """What to ask ListOffsets for. Raises `OptionError` where `place` names other partitions than there are."""
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
            f"option {option} must name every partition that is read and no other"
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
    """The offset in each partition; `answers` are those to `times_of`, `latest` the ends of the logs."""
    found: Offsets = {}
    for tp in partitions:
        offset = answers.get(tp, NO_RECORD)
        if isinstance(place, AtOffsets) and place.offsets[tp] >= 0:
            offset = place.offsets[tp]
        elif offset == NO_RECORD and isinstance(place, AtTimes):
            if not place.or_latest:
                raise OptionError(
                    f"option {option}: {tp} has no record at or after that time, so there is nowhere to begin; "
                    "with startingOffsetsByTimestampStrategy=latest it begins at the end"
                )
            offset = latest[tp]
        found[tp] = offset
    return found
