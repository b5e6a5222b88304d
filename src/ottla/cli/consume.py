"""`ottla consume`: print the messages of a topic, from any offset, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.client_config import client_settings
from ottla.cli.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from ottla.cli.outcome import NOT_FOUND, CommandError, Stop, print_json, say, show_data, usage_error
from ottla.cli.text import Format, shown, time_ms, time_text

if TYPE_CHECKING:
    from ottla.client.consumer.fetched import ConsumerRecord
    from ottla.client.consumer.settings import OffsetReset
    from ottla.client.consumer.sync import Consumer
    from ottla.client.metadata import TopicPartition

#: Upper bound on the reaction time to Ctrl-C.
POLL_MS = 200


def register(parent: typer.Typer) -> None:
    parent.command()(consume)


def consume(
    topic: Annotated[str, typer.Argument(help="The topic to read.")],
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", "-B", help="Start at the oldest message (default: only new messages)."
        ),
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option("--offset", "-o", help="Start at this offset; -N: N before the end."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--time", "-t", metavar="TIME", help="Start at a time: ISO 8601, ms since 1970, or -5m."
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Only this partition; repeat for several.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after this many messages.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="Stop after this long without a message."),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", "-e", help="Stop at the end offsets of the command's start.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Join this group: start at its committed offsets, and commit."),
    ] = None,
    keys: Annotated[bool, typer.Option("--key", "-k", help="Print keys.")] = False,
    headers: Annotated[bool, typer.Option("--headers", "-H", help="Print headers.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamp", help="Print timestamps.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Print partition and offset.")] = False,
    form: Annotated[Format, typer.Option("--format", "-f", help="Format of keys and values.")] = "text",
    separator: Annotated[str, typer.Option("--separator", help="Separates the parts of a line.")] = "\t",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic, one per line, until Ctrl-C.

    Messages go to standard output, everything else to standard error. --json prints each message as an object
    with all its fields. Null is printed as `null`.

    \b
    Example:
      ottla consume orders --from-beginning --key --headers --max-messages 10
      ottla consume orders --time -1h --until-end --json
      ottla consume orders --group billing
    """
    if sum((from_beginning, offset is not None, start is not None)) > 1:
        raise usage_error("give at most one of --from-beginning, --offset and --time")
    if group is not None and (offset is not None or start is not None or partition or until_end):
        raise usage_error(
            "--group cannot be used with --offset, --time, --partition or --until-end: the group assigns "
            "partitions and "
            "starts at its committed offsets"
        )
    stop = Stop()
    from ottla.client.consumer.sync import Consumer

    shape = Shape(keys, headers, timestamps, offsets, form, separator, as_json)
    count = 0
    reset: OffsetReset = "earliest" if group is None or from_beginning else "latest"
    settings = client_settings("ottla-cli")
    with Consumer(bootstrap, auto_offset_reset=reset, group_id=group, **settings) as consumer:
        try:
            with stop.waiting():
                if group is None:
                    _place(consumer, topic, partition, from_beginning, offset, start)
                else:
                    consumer.partitions_for(topic)
                    consumer.subscribe([topic])
                ends = consumer.end_offsets(consumer.assignment()) if until_end else None
            quiet_since = time.monotonic()
            while not stop.asked and not (ends is not None and _at_end(consumer, ends)):
                wanted = None if max_messages is None else max_messages - count
                for records in consumer.poll(_wait_ms(timeout, quiet_since), wanted).values():
                    for record in records:
                        shape.print(record)
                    count += len(records)
                    quiet_since = time.monotonic()
                sys.stdout.flush()
                if max_messages is not None and count >= max_messages:
                    break
                if timeout is not None and time.monotonic() - quiet_since >= timeout:
                    say(f"no message for {timeout:g} s")
                    break
        except KeyboardInterrupt:
            stop.asked = True
    sys.stdout.flush()
    if stop.asked:
        say("stopped")
    if not as_json:
        say(f"consumed {count} message(s) from {topic}")


def _wait_ms(timeout: float | None, quiet_since: float) -> float:
    if timeout is None:
        return POLL_MS
    return min(POLL_MS, max(0.0, (quiet_since + timeout - time.monotonic()) * 1000))


def _place(
    consumer: Consumer,
    topic: str,
    partitions: list[int] | None,
    from_beginning: bool,
    offset: int | None,
    start: str | None,
) -> None:
    """Assign the partitions and seek to the start."""
    from ottla.client.metadata import TopicPartition

    there = consumer.partitions_for(topic)
    wanted = there if not partitions else [TopicPartition(topic, number) for number in partitions]
    missing = [tp for tp in wanted if tp not in there]
    if missing:
        raise CommandError(
            f"topic {topic!r} has no partition {missing[0].partition}: its partitions are 0 to "
            f"{len(there) - 1}",
            NOT_FOUND,
        )
    consumer.assign(wanted)
    if from_beginning:
        consumer.seek_to_beginning()
    elif start is not None:
        consumer.seek_to_time(time_ms(start, int(time.time() * 1000)))
    elif offset is not None:
        starts, ends = consumer.beginning_offsets(wanted), consumer.end_offsets(wanted)
        for tp in wanted:
            place = offset if offset >= 0 else ends[tp] + offset
            consumer.seek(tp, min(max(place, starts[tp]), ends[tp]))
    else:
        consumer.seek_to_end()


def _at_end(consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    return all(consumer.position(tp) >= end for tp, end in ends.items())


class Shape:
    """The output format of messages."""

    def __init__(
        self,
        keys: bool,
        headers: bool,
        timestamps: bool,
        offsets: bool,
        form: Format,
        separator: str,
        as_json: bool,
    ) -> None:
        self._keys, self._headers, self._timestamps, self._offsets = keys, headers, timestamps, offsets
        self._form, self._separator, self._as_json = form, separator, as_json

    def print(self, record: ConsumerRecord) -> None:
        if self._as_json:
            print_json(self._object(record))
            return
        parts: list[str] = []
        if self._timestamps:
            parts.append(time_text(record.timestamp))
        if self._offsets:
            parts.append(f"{record.partition}:{record.offset}")
        if self._headers:
            parts.append(",".join(f"{name}={self._text(value)}" for name, value in record.headers))
        if self._keys:
            parts.append(self._text(record.key))
        parts.append(self._text(record.value))
        show_data(self._separator.join(parts))

    def _text(self, data: bytes | None) -> str:
        return "null" if data is None else shown(data, self._form) or ""

    def _object(self, record: ConsumerRecord) -> dict[str, Any]:
        return {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": record.timestamp_type,
            "key": shown(record.key, self._form),
            "value": shown(record.value, self._form),
            "headers": [[name, shown(value, self._form)] for name, value in record.headers],
        }
