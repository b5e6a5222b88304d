"""`ottla produce`: write lines of standard input, or one message, to a topic."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from ottla.cli.client_config import client_settings
from ottla.cli.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from ottla.cli.outcome import CommandError, Stop, pairs, print_json, say, usage_error
from ottla.cli.text import Format, time_ms, typed

if TYPE_CHECKING:
    from ottla.client.producer.batches import SendFuture
    from ottla.client.producer.settings import Acks, Compression

#: Upper bound on unacknowledged messages.
WINDOW = 10_000


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp_ms: int | None


def register(parent: typer.Typer) -> None:
    parent.command()(produce)


def produce(
    topic: Annotated[str, typer.Argument(help="The topic to write to.")],
    value: Annotated[
        str | None,
        typer.Option("--value", "-v", help="One message; default: each line of standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every message.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="Separates key and value in each line.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; repeat for several."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="The partition to write to.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp", "-t", metavar="TIME", help="ISO 8601, ms since 1970, or -5m for five minutes ago."
        ),
    ] = None,
    null: Annotated[
        str | None,
        typer.Option("--null", metavar="TEXT", help="Send a value of this text as null (a tombstone)."),
    ] = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="Format of keys and values.")] = "text",
    lines: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--input", help="json: each line is an object with key, value, headers, partition, timestamp."
        ),
    ] = "text",
    acks: Annotated[
        Literal["all", "1", "0"],
        typer.Option("--acks", help="Acknowledgements: all in-sync replicas, the leader (1), or none (0)."),
    ] = "all",
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        typer.Option("--compression", "-z", help="Compression of batches."),
    ] = "none",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Write the lines of standard input, or one message, to a topic.

    Ends at the end of input (Ctrl-D on a terminal). It exits with 0 only after all messages are acknowledged.
    --json prints the partition and offset of each acknowledged message.

    \b
    Example:
      echo hello | ottla produce orders --key customer-7 --header source=shop
      ottla produce orders --key-separator : --compression zstd < messages.txt
    """
    if value is not None and key_separator is not None:
        raise usage_error("--key-separator cannot be used with --value: give the key with --key")
    stop = Stop()
    template = Message(
        None if key is None else typed(key, form),
        None,
        tuple((name, typed(text, form)) for name, text in pairs(header or (), "--header").items()),
        partition,
        None if timestamp is None else time_ms(timestamp, int(time.time() * 1000)),
    )
    if value is not None:
        messages: Iterator[Message] = iter([_from_line(value, template, None, null, form)])
    elif lines == "json":
        messages = (_from_json(line, template, form) for line in _lines(stop))
    else:
        messages = (_from_line(line, template, key_separator, null, form) for line in _lines(stop))
    if value is None and sys.stdin.isatty():
        say(f"type messages for {topic}, one per line; end with Ctrl-D")
    sent = _send_all(topic, messages, bootstrap, acks, compression, as_json)
    if not as_json:
        say(f"produced {sent} message(s) to {topic}")


def _lines(stop: Stop) -> Iterator[str]:
    while True:
        with stop.waiting():
            line = sys.stdin.buffer.readline()
        if not line:
            return
        yield line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")


def _from_line(
    line: str, template: Message, separator: str | None, null: str | None, form: Format
) -> Message:
    key, text = template.key, line
    if separator is not None:
        head, found, text = line.partition(separator)
        if not found:
            raise usage_error(
                f"line {line!r} has no {separator!r}: write KEY{separator}VALUE, or change --key-separator"
            )
        key = typed(head, form)
    value = None if null is not None and text == null else typed(text, form)
    return template._replace(key=key, value=value)


def _from_json(line: str, template: Message, form: Format) -> Message:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise CommandError(f"line {line!r} is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise CommandError(f'line {line!r} is not a JSON object: write {{"key": …, "value": …}}')

    def content(name: str, default: bytes | None) -> bytes | None:
        item = given.get(name, ...)
        if item is ...:
            return default
        if item is None:
            return None
        return typed(item, form) if isinstance(item, str) else json.dumps(item, ensure_ascii=False).encode()

    headers = given.get("headers")
    pairs_given: Any = headers.items() if isinstance(headers, dict) else headers or ()
    return Message(
        content("key", template.key),
        content("value", None),
        tuple((str(name), None if text is None else typed(str(text), form)) for name, text in pairs_given)
        or template.headers,
        given.get("partition", template.partition),
        given.get("timestamp", template.timestamp_ms),
    )


def _send_all(
    topic: str,
    messages: Iterator[Message],
    bootstrap: str,
    acks: Acks,
    compression: Compression,
    as_json: bool,
) -> int:
    from collections import deque

    from ottla.client.producer.sync import Producer

    waiting: deque[SendFuture] = deque()
    sent = 0

    def settle(count: int) -> None:
        nonlocal sent
        while len(waiting) > count:
            result = waiting[0].result()
            waiting.popleft()
            sent += 1
            if as_json:
                print_json(result._asdict())

    with Producer(
        bootstrap, acks=acks, compression_type=compression, **client_settings("ottla-cli")
    ) as producer:
        try:
            for message in messages:
                waiting.append(
                    producer.send(
                        topic,
                        message.value,
                        message.key,
                        message.partition,
                        message.headers,
                        message.timestamp_ms,
                    )
                )
                # On a terminal each line is acknowledged at once; from a pipe, batches form.
                settle(0 if sys.stdin.isatty() else WINDOW)
            settle(0)
        except KeyboardInterrupt:
            settle(0)
            say(f"interrupted after {sent} message(s), all acknowledged")
            raise typer.Exit(130) from None
    return sent
