"""`ottla txn`: list, describe and abort transactions; find hanging transactions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from ottla.cli.outcome import NOT_FOUND, CommandError, print_json, print_table, say, show, usage_error
from ottla.cli.plans import named
from ottla.cli.text import duration_ms, duration_text, time_text
from ottla.cli.topic import open_admin

if TYPE_CHECKING:
    from ottla.client.admin.sync import Admin
    from ottla.client.admin.transactions import HangingTransaction
    from ottla.client.metadata import TopicPartition

app = typer.Typer(
    help="""List, describe and abort transactions; find hanging transactions.

\b
Example:
  ottla txn list --state Ongoing --longer-than 5m
  ottla txn list --hanging
""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

#: Kafka's default, for brokers that do not report the setting.
MAX_TIMEOUT_MS = 900_000
MAX_TIMEOUT = "transaction.max.timeout.ms"


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="txn")


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only this state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, "
            "CompleteAbort; repeat for "
            "several.",
        ),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", help="Only this producer id; repeat for several."),
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option(
            "--longer-than", metavar="TIME", help="Only transactions open for longer than this: 30s, 15m, 2h."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern", metavar="REGEX", help="Only transactional ids that fully match: 'orders-.*'."
        ),
    ] = None,
    hanging: Annotated[
        bool,
        typer.Option(
            "--hanging",
            help="Transactions that are open in a partition but unknown to their coordinator. They block "
            "read_committed "
            "consumers.",
        ),
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:N,N]",
            help="With --hanging: only this topic, or these partitions of it; repeat for several.",
        ),
    ] = None,
    broker: Annotated[
        int | None, typer.Option("--broker", help="With --hanging: only partitions that this broker leads.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help=f"With --hanging: no write for longer than this; default: the brokers' {MAX_TIMEOUT}.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with their state, or hanging transactions.

    \b
    Example:
      ottla txn list --state Ongoing
      ottla txn list --longer-than 5m --pattern 'orders-.*'
      ottla txn list --hanging --topic orders
    """
    if hanging:
        if state or producer_id or longer_than is not None or pattern is not None:
            raise usage_error("--hanging can only be used with --topic, --broker and --older-than")
        age_ms = None if older_than is None else duration_ms(older_than, "--older-than")
        with open_admin(bootstrap) as admin:
            if age_ms is None:
                age_ms = _max_timeout_ms(admin)
            found = admin.find_hanging_transactions(_places(admin, topic or [], broker), age_ms)
        _print_hanging(found, age_ms, as_json)
        return
    if topic or broker is not None or older_than is not None:
        raise usage_error("--topic, --broker and --older-than need --hanging")
    states = [_state(each) for each in state or ()]
    longer_ms = None if longer_than is None else duration_ms(longer_than, "--longer-than")
    if longer_ms is not None and not states:
        # Without states, brokers include completed transactions.
        states = ["Ongoing", "PrepareCommit", "PrepareAbort"]
    with open_admin(bootstrap) as admin:
        listed = admin.list_transactions(
            states=states, producer_ids=producer_id or (), longer_than_ms=longer_ms, pattern=pattern
        )
    rows = [(each.transactional_id, each.state, each.producer_id, each.coordinator) for each in listed]
    if as_json:
        keys = ("transactional_id", "state", "producer_id", "coordinator")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    elif rows:
        print_table(("TRANSACTIONAL ID", "STATE", "PRODUCER ID", "COORDINATOR"), rows)
    else:
        say("no transactions found")


@app.command()
def describe(
    transactional_id: Annotated[str | None, typer.Argument(help="The transactional id.")] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="Instead of an id: the producers of this topic."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Only this partition of the topic.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the state and partitions of a transactional id; or the producers of a topic.

    \b
    Example:
      ottla txn describe orders-1
      ottla txn describe --topic orders --partition 0
    """
    if (transactional_id is None) == (topic is None):
        raise usage_error("give either a transactional id or --topic")
    if partition is not None and topic is None:
        raise usage_error("--partition needs --topic")
    with open_admin(bootstrap) as admin:
        if topic is not None:
            numbers = (
                [partition] if partition is not None else admin.describe_topics([topic])[topic].partitions
            )
            _print_producers(admin, [named(topic, number) for number in numbers], as_json)
            return
        assert transactional_id is not None
        info = admin.describe_transactions([transactional_id])[transactional_id]
    if as_json:
        print_json(
            {
                "transactional_id": info.transactional_id, "state": info.state, "producer_id": info.producer_id,
                "producer_epoch": info.producer_epoch, "timeout_ms": info.timeout_ms, "started_ms": info.started_ms,
                "coordinator": info.coordinator,
                "partitions": [{"topic": each.topic, "partition": each.partition} for each in info.partitions],
            }
        )  # fmt: skip
        return
    show(
        f"{info.transactional_id}  {info.state}  producer {info.producer_id} epoch {info.producer_epoch}  "
        f"timeout {duration_text(info.timeout_ms)}  coordinator {info.coordinator}"
    )
    if info.started_ms is not None and info.partitions:
        show(f"started {time_text(info.started_ms)}, {duration_text(_now_ms() - info.started_ms)} ago")
    if info.partitions:
        print_table(("TOPIC", "PARTITION"), [(each.topic, each.partition) for each in info.partitions])


@app.command()
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(help="The transactional id of an ongoing transaction.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="For a hanging transaction, instead of an id: its topic."),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Its partition.")] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", help="Its start offset, from `ottla txn list --hanging`."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Abort an ongoing transaction and fence its producer; or abort a hanging transaction in its partition.

    \b
    Example:
      ottla txn abort orders-1
      ottla txn abort --topic orders --partition 0 --start-offset 4711
    """
    place = (topic, partition, start_offset)
    if (transactional_id is None) == (place == (None, None, None)):
        raise usage_error(
            "give either a transactional id, or --topic, --partition and --start-offset of a hanging "
            "transaction"
        )
    with open_admin(bootstrap) as admin:
        if transactional_id is not None:
            before = admin.abort_transaction(transactional_id)
            aborted: dict[str, Any] = {
                "transactional_id": transactional_id, "producer_id": before.producer_id,
                "producer_epoch": before.producer_epoch, "partitions": [str(each) for each in before.partitions],
            }  # fmt: skip
            words = (
                f"aborted the transaction of {transactional_id} in {len(before.partitions)} partition(s); "
                "its producer is fenced"
            )
        else:
            if topic is None or partition is None or start_offset is None:
                raise usage_error(
                    "a hanging transaction needs all of --topic, --partition and --start-offset"
                )
            found = _hanging_at(admin, named(topic, partition), start_offset)
            admin.abort_hanging_transaction(found)
            aborted = _row(found)
            words = (
                f"aborted the hanging transaction of producer {found.producer.producer_id} in "
                f"{found.partition} "
                f"from offset {start_offset} on"
            )
    if as_json:
        print_json(aborted)
    else:
        show(words)


# --- hanging transactions------------------------------------------------------------------------------------


def _hanging_at(admin: Admin, place: TopicPartition, start_offset: int) -> HangingTransaction:
    """The hanging transaction that starts there.

    A transaction that its coordinator knows is refused: aborting it in one partition would leave the others
    open.
    """
    opened = {
        each.transaction_start: each
        for each in admin.describe_producers([place])[place]
        if each.transaction_start is not None
    }
    if start_offset not in opened:
        others = f"; open transactions start at {', '.join(map(str, sorted(opened)))}" if opened else ""
        raise CommandError(
            f"{place} has no open transaction that starts at offset {start_offset}{others}", NOT_FOUND
        )
    for each in admin.find_hanging_transactions([place]):
        if each.producer.transaction_start == start_offset:
            return each
    producer = opened[start_offset]
    owner = [each.transactional_id for each in admin.list_transactions(producer_ids=[producer.producer_id])]
    if not owner:
        raise CommandError(f"the transaction in {place} has just ended")
    raise CommandError(
        f"the transaction in {place} does not hang, it belongs to {owner[0]!r}: "
        f"abort it with `ottla txn abort {owner[0]}`"
    )


def _places(admin: Admin, texts: list[str], broker: int | None) -> list[TopicPartition]:
    """The selected partitions that have a leader."""
    from ottla.cli.group import named_partitions

    if broker is not None and broker not in {node.id for node in admin.describe_cluster().nodes}:
        raise CommandError(f"the cluster has no broker {broker}", NOT_FOUND)
    wanted = set(named_partitions(admin, texts))
    leaders = {
        named(name, part.partition): part.leader
        for name, topic in admin.list_topics(internal=True).items()
        for part in topic.partitions.values()
        if not texts or named(name, part.partition) in wanted
    }
    silent = [place for place, leader in leaders.items() if leader < 0]
    if silent:
        say(f"{len(silent)} partition(s) without a leader cannot be checked, such as {silent[0]}")
    return [place for place, leader in leaders.items() if leader >= 0 and broker in (None, leader)]


def _max_timeout_ms(admin: Admin) -> int:
    """The largest transaction timeout of all brokers: an older open transaction has missed its timeout."""
    from ottla.client.admin.core import Resource

    found = []
    for node in admin.describe_cluster().nodes:
        entry = admin.describe_configs(Resource("broker", str(node.id)), [MAX_TIMEOUT]).get(MAX_TIMEOUT)
        if entry is not None and entry.value is not None:
            found.append(int(entry.value))
    return max(found, default=MAX_TIMEOUT_MS)


def _row(found: HangingTransaction) -> dict[str, Any]:
    producer = found.producer
    return {
        "topic": found.partition.topic, "partition": found.partition.partition, "start_offset": producer.transaction_start,
        "producer_id": producer.producer_id, "producer_epoch": producer.epoch,
        "coordinator_epoch": producer.coordinator_epoch, "last_written_ms": producer.last_written_ms,
        "transactional_id": found.transactional_id,
    }  # fmt: skip


def _print_hanging(found: list[HangingTransaction], age_ms: int, as_json: bool) -> None:
    rows = [_row(each) for each in found]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say(f"no hanging transactions (checked: transactions without a write for {duration_text(age_ms)})")
        return
    head = ("topic", "partition", "start_offset", "producer_id", "producer_epoch", "transactional_id")
    now_ms = _now_ms()
    print_table(
        [name.upper().replace("_", " ") for name in (*head, "last_written")],
        [
            (*("-" if row[name] is None else row[name] for name in head), f"{duration_text(now_ms - row['last_written_ms'])} ago")
            for row in rows
        ],
    )  # fmt: skip
    first = rows[0]
    say(
        "abort one with `ottla txn abort"
        f" --topic {first['topic']} --partition {first['partition']} --start-offset {first['start_offset']}`"
    )


# --- output and options -------------------------------------------------------------------------------------


def _print_producers(admin: Admin, places: list[TopicPartition], as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "topic": place.topic, "partition": place.partition, "producer_id": each.producer_id,
            "producer_epoch": each.epoch, "last_sequence": each.last_sequence,
            "last_written_ms": each.last_written_ms, "coordinator_epoch": each.coordinator_epoch,
            "start_offset": each.transaction_start,
        }
        for place, producers in sorted(admin.describe_producers(places).items())
        for each in producers
    ]  # fmt: skip
    if as_json:
        print_json(rows)
    elif rows:
        head = (
            "topic",
            "partition",
            "producer_id",
            "producer_epoch",
            "last_sequence",
            "coordinator_epoch",
            "start_offset",
        )
        print_table(
            [*(name.upper().replace("_", " ") for name in head), "LAST WRITTEN"],
            [
                [*("-" if row[name] is None else row[name] for name in head), time_text(row["last_written_ms"])]
                for row in rows
            ],
        )  # fmt: skip
    else:
        say("no producers")


def _state(text: str) -> str:
    """The state as the protocol spells it."""
    from ottla.client.admin.transactions import STATES

    known = {name.lower(): name for name in STATES}
    if text.lower() not in known:
        raise usage_error(f"--state {text!r} is unknown: use one of {', '.join(STATES)}")
    return known[text.lower()]


def _now_ms() -> int:
    return round(time.time() * 1000)
