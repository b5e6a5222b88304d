"""Options of the source. Names, meanings and defaults are those of Spark's Kafka connector.

Differences: the source reads only committed records by default, and it commits offsets if a group is named.
Options of the other kind of query (batch or stream) are rejected or ignored, as in the connector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.metadata import TopicPartition
from ottla.client.offsets import EARLIEST, LATEST
from ottla.spark.clients import check_settings
from ottla.spark.options import KAFKA, Option, OptionError, boolean, one_of, read_options, text, whole_number
from ottla.spark.source.offsets import AtEnd, AtOffsets, AtTimes, Place, read_json, read_place, read_times

Kind = Literal["batch", "stream"]

_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|min|m|h|d)?")
_UNITS_MS: Final = {
    "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000
}  # fmt: skip


def duration_ms(value: str) -> int:
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None:
        raise OptionError(f"must be a duration like 500ms, 10s, 15m or 1h, not {value!r}")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def topic_list(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise OptionError("must name a topic, or several separated by commas")
    return names


def pattern(value: str) -> re.Pattern[str]:
    try:
        return re.compile(text(value))
    except re.error as error:
        raise OptionError(f"is not a regular expression ({error}): {value!r}") from None


def partition_list(value: str) -> tuple[TopicPartition, ...]:
    found = read_json(value)
    if not isinstance(found, dict) or not all(isinstance(each, list) for each in found.values()):
        raise OptionError('must be JSON like {"topicA":[0,1],"topicB":[2]}')
    partitions = [(topic, partition) for topic, each in found.items() for partition in each]
    for topic, partition in partitions:
        if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
            raise OptionError(f"has a partition {partition!r} of topic {topic}: write a number, 0 or more")
    if not partitions:
        raise OptionError('must name a partition, as in {"topicA":[0]}')
    return tuple(sorted({TopicPartition(*each) for each in partitions}))


#: Exactly one of these is required.
CHOICES: Final = (
    Option("subscribe", topic_list, None, "Topics to read, separated by commas."),
    Option("subscribePattern", pattern, None,
           "Read all topics whose whole name matches this regular expression, including topics created later."),
    Option("assign", partition_list, None, 'Partitions to read, as JSON: `{"topicA":[0,1],"topicB":[2]}`.'),
)  # fmt: skip

BOTH: Final = (
    Option("startingOffsets", read_place, None,
           'Where to start: `earliest` (default of a batch), `latest` (default of a stream; not allowed in a batch), or JSON '
           'with an offset for every partition, -2 for the earliest, -1 for the latest: `{"topicA":{"0":23,"1":-2}}`. '
           'A restarted stream continues from its checkpoint instead.'),
    Option("startingTimestamp", whole_number(0), None,
           "Start at the first record at or after this time, in ms since 1970. Overrides the other two starting options."),
    Option("startingOffsetsByTimestamp", read_times, None,
           'The same, with a time for every partition: `{"topicA":{"0":1000,"1":2000}}`. Overrides startingOffsets.'),
    Option("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error",
           "If a partition has no record at or after the time: fail (`error`), or start at the end (`latest`)."),
    Option("failOnDataLoss", boolean, True,
           "Whether the query fails if records are lost before they are read (retention, a deleted topic, "
           "a truncated log). "
           "The error lists the lost offsets. With `false` the query logs them and continues after them."),
    Option("minPartitions", whole_number(1), None,
           "Minimum number of tasks: offset ranges are split, longer ranges into more parts."),
    Option("maxRecordsPerPartition", whole_number(1), None, "Maximum number of records per task: longer offset ranges are split."),
    Option("includeHeaders", boolean, False, "Whether to add the column `headers`."),
    Option("groupIdPrefix", text, None,
           "Accepted for compatibility and ignored: this source creates no consumer groups."),
    Option("kafkaConsumer.pollTimeoutMs", whole_number(1), 120_000,
           "How long a task waits for records before it fails."),
    Option("fetchOffset.numRetries", whole_number(0), 3, "How often a failed request for topics or offsets is retried."),
    Option("fetchOffset.retryIntervalMs", whole_number(0), 1_000, "Pause between these retries."),
)  # fmt: skip

BATCH: Final = (
    Option("endingOffsets", read_place, None,
           "Where to end (exclusive): `latest` (default), or JSON with an offset for every partition, -1 for the latest."),
    Option("endingTimestamp", whole_number(0), None,
           "End before the first record at or after this time; at the latest offset if there is none."),
    Option("endingOffsetsByTimestamp", read_times, None, "The same, with a time for every partition."),
    Option("filterPushdown", boolean, False,
           "Whether filters on topic, partition, offset and timestamp reduce what is read. Read the section below first."),
)  # fmt: skip

STREAM: Final = (
    Option("maxOffsetsPerTrigger", whole_number(1), None,
           "Maximum number of offsets per micro-batch, divided among partitions in proportion to their backlog."),
    Option("minOffsetsPerTrigger", whole_number(1), None,
           "A micro-batch waits until this many offsets are available, or `maxTriggerDelay` has passed."),
    Option("maxTriggerDelay", duration_ms, 900_000,
           "Maximum delay of a micro-batch by `minOffsetsPerTrigger`; the default is `15m`."),
    Option("groupId", text, None,
           "A consumer group to which the stream commits its offsets after each micro-batch, so that Kafka "
           "tools show the lag. "
           "The query itself continues from its checkpoint, never from the group. `group.id` and `kafka.group.id` mean the same."),
    Option("group.id", text, None, "See groupId."),
)  # fmt: skip

TABLE: Final = (*CHOICES, *BOTH, *BATCH, *STREAM)

#: Consumer settings that cannot be set here, and what to use instead.
_REFUSED: Final = {
    "auto.offset.reset": "use startingOffsets; a restarted query continues from its checkpoint",
    "key.deserializer": "keys are bytes; decode them with column functions",
    "value.deserializer": "values are bytes; decode them with column functions",
    "enable.auto.commit": "offsets are committed after each micro-batch if groupId is set",
    "auto.commit.interval.ms": "offsets are committed after each micro-batch if groupId is set",
    "interceptor.classes": "interceptors could change what is read; use column functions",
    "interceptors": "interceptors could change what is read; use column functions",
    "offset.store": "a query continues from its checkpoint",
    "on.poison": "nothing is deserialized here; decode with column functions",
}  # fmt: skip


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options. `kafka` holds the client settings, without a group."""

    # May contain passwords.
    kafka: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...] | None
    topic_pattern: re.Pattern[str] | None
    partitions: tuple[TopicPartition, ...] | None
    starting: Place | None
    #: The name of the option, for error messages.
    starting_option: str
    ending: Place | None
    ending_option: str
    fail_on_data_loss: bool
    partitions_min: int | None
    task_records_max: int | None
    include_headers: bool
    group_id: str | None
    poll_timeout_ms: int
    retries: int
    retry_interval_ms: int
    trigger_offsets_max: int | None
    trigger_offsets_min: int | None
    trigger_delay_ms_max: int
    filter_pushdown: bool

    @property
    def isolation_level(self) -> Literal["read_committed", "read_uncommitted"]:
        return "read_uncommitted" if self.kafka["isolation.level"] == "read_uncommitted" else "read_committed"


def source_options(given: Mapping[str, str], kind: Kind | None = None) -> SourceOptions:
    """Parse and check options.

    `kind` None checks only what batches and streams share. Raises `OptionError`.
    """
    values, kafka = read_options(given, TABLE, 'the source "ottla"')
    chosen = [option.name for option in CHOICES if values[option.name] is not None]
    if len(chosen) != 1:
        raise OptionError(
            'the source "ottla" needs exactly one of subscribe, subscribePattern and assign, not '
            f"{' and '.join(chosen) or 'none'}"
        )
    group_id = _group_id(values, kafka)
    kafka = _client_settings(kafka)
    starting, starting_option = _starting(values)
    ending, ending_option = _ending(values)
    if kind == "stream" and ending is not None:
        raise OptionError(f"option {ending_option} is for batches; a stream has no end: leave it out")
    if kind == "stream" and values["filterPushdown"]:
        raise OptionError(
            "option filterPushdown is for batches; Spark pushes no filters to Python streams: leave it out"
        )
    if kind == "batch":
        _check_batch(starting, starting_option, ending, ending_option)
    if kind == "stream":
        _check_limits(values)
    return SourceOptions(
        kafka=kafka,
        topics=values["subscribe"],
        topic_pattern=values["subscribePattern"],
        partitions=values["assign"],
        starting=starting,
        starting_option=starting_option,
        ending=ending,
        ending_option=ending_option,
        fail_on_data_loss=values["failOnDataLoss"],
        partitions_min=values["minPartitions"],
        task_records_max=values["maxRecordsPerPartition"],
        include_headers=values["includeHeaders"],
        group_id=group_id,
        poll_timeout_ms=values["kafkaConsumer.pollTimeoutMs"],
        retries=values["fetchOffset.numRetries"],
        retry_interval_ms=values["fetchOffset.retryIntervalMs"],
        trigger_offsets_max=values["maxOffsetsPerTrigger"],
        trigger_offsets_min=values["minOffsetsPerTrigger"],
        trigger_delay_ms_max=values["maxTriggerDelay"],
        filter_pushdown=values["filterPushdown"],
    )


def _group_id(values: Mapping[str, Any], kafka: Mapping[str, str]) -> str | None:
    named = {
        name: value
        for name, value in (
            ("groupId", values["groupId"]),
            ("group.id", values["group.id"]),
            ("kafka.group.id", kafka.get("group.id")),
            ("kafka.group_id", kafka.get("group_id")),
        )
        if value
    }
    if len(set(named.values())) > 1:
        raise OptionError(f"{' and '.join(named)} name different groups: set only one of them")
    return next(iter(named.values()), None)


def _client_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    for name in kafka:
        instead = _REFUSED.get(name.replace("_", "."))
        if instead is not None:
            raise OptionError(f"option {KAFKA}{name} cannot be set here: {instead}")
    found = {name: value for name, value in kafka.items() if name not in ("group.id", "group_id")}
    level = found.pop("isolation_level", found.get("isolation.level", "read_committed"))
    found["isolation.level"] = level.strip().lower()
    check_settings(found, ConsumerConfig)
    return found


def _starting(values: Mapping[str, Any]) -> tuple[Place | None, str]:
    or_latest = values["startingOffsetsByTimestampStrategy"] == "latest"
    for name in ("startingTimestamp", "startingOffsetsByTimestamp"):
        if values[name] is not None:
            return AtTimes(values[name], or_latest), name
    return values["startingOffsets"], "startingOffsets"


def _ending(values: Mapping[str, Any]) -> tuple[Place | None, str]:
    for name in ("endingTimestamp", "endingOffsetsByTimestamp"):
        if values[name] is not None:
            return AtTimes(values[name], True), name
    return values["endingOffsets"], "endingOffsets"


def _check_batch(
    starting: Place | None, starting_option: str, ending: Place | None, ending_option: str
) -> None:
    if starting == AtEnd(LATEST):
        raise OptionError(
            f"option {starting_option}=latest is for streams; a batch would be empty: use earliest or offsets"
        )
    if ending == AtEnd(EARLIEST):
        raise OptionError(f"option {ending_option}=earliest leaves nothing to read: use latest or offsets")
    for place, option, end, word in (
        (starting, starting_option, LATEST, "-1 (latest)"),
        (ending, ending_option, EARLIEST, "-2 (earliest)"),
    ):
        if isinstance(place, AtOffsets):
            wrong = next((tp for tp, offset in place.offsets.items() if offset == end), None)
            if wrong is not None:
                raise OptionError(
                    f"option {option} has {word} for {wrong}, which leaves a batch nothing to read: write "
                    "an offset"
                )
    _check_order(starting, starting_option, ending, ending_option)


def _check_order(
    starting: Place | None, starting_option: str, ending: Place | None, ending_option: str
) -> None:
    """The ending offset or time of a partition must not be before the starting one."""
    if isinstance(starting, AtTimes) and isinstance(ending, AtTimes):
        first, last = starting.times, ending.times
    elif isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        first, last = starting.offsets, ending.offsets
    else:
        return
    for tp in first if isinstance(first, Mapping) else last if isinstance(last, Mapping) else (None,):
        start, end = (
            each if isinstance(each, int) else each.get(cast("TopicPartition", tp), -1)
            for each in (first, last)
        )
        # Negative: an end of the log, or a partition that is not named, which `times_of` reports.
        if 0 <= end < start:
            raise OptionError(
                f"option {ending_option} ({end}) is before {starting_option} ({start})"
                + (f" for {tp}" if tp is not None else "")
                + ": set a later end, or leave it out to read to the end of the log"
            )


def _check_limits(values: Mapping[str, Any]) -> None:
    least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most}): lower the one or raise "
            "the other"
        )
