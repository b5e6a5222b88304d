"""`ottla txn`: list and describe the transactions of any cluster, find those that hang, and abort them."""

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
    help="""List and describe transactions, find those that hang, abort them.

\b
Example:
  ottla txn list --state Ongoing --longer-than 5m
  ottla txn list --hanging
""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

#: Kafka's own, for brokers that do not tell theirs.
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
            help="Only in this state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort; may be repeated.",
        ),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", help="Only of this producer id; may be repeated."),
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option(
            "--longer-than", metavar="TIME", help="Only those going on for longer than that: 30s, 15m, 2h."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="Only ids that match this, as a whole: 'orders-.*'."),
    ] = None,
    hanging: Annotated[
        bool,
        typer.Option(
            "--hanging",
            help="What is open in partitions and no coordinator knows of: readers of committed records wait for it for ever.",
        ),
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:N,N]",
            help="With --hanging: only in this topic, or these partitions of it; may be repeated.",
        ),
    ] = None,
    broker: Annotated[
        int | None, typer.Option("--broker", help="With --hanging: only in what this broker leads.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help=f"With --hanging: nothing written to it for longer than that; the brokers' {MAX_TIMEOUT} if not given.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids and what they are at, or the transactions that hang.

    \b
    Example:
      ottla txn list --state Ongoing
      ottla txn list --longer-than 5m --pattern 'orders-.*'
      ottla txn list --hanging --topic orders
    """
    if hanging:
        if state or producer_id or longer_than is not None or pattern is not None:
            raise usage_error("--hanging goes with --topic, --broker and --older-than alone")
        age_ms = None if older_than is None else duration_ms(older_than, "--older-than")
        with open_admin(bootstrap) as admin:
            if age_ms is None:
                age_ms = _max_timeout_ms(admin)
            found = admin.find_hanging_transactions(_places(admin, topic or [], broker), age_ms)
        _print_hanging(found, age_ms, as_json)
        return
    if topic or broker is not None or older_than is not None:
        raise usage_error("--topic, --broker and --older-than go with --hanging")
    states = [_state(each) for each in state or ()]
    longer_ms = None if longer_than is None else duration_ms(longer_than, "--longer-than")
    if longer_ms is not None and not states:
        # Brokers count those too that have ended.
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
        say("there are no such transactions")


@app.command()
def describe(
    transactional_id: Annotated[str | None, typer.Argument(help="The transactional id.")] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="Instead of an id: the producers that this topic remembers."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Only this partition of the topic.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Tell what a transactional id is at and which partitions are in its transaction; or the producers of a topic.

    \b
    Example:
      ottla txn describe orders-1
      ottla txn describe --topic orders --partition 0
    """
    if (transactional_id is None) == (topic is None):
        raise usage_error("give a transactional id, or --topic")
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
        f"time-out {duration_text(info.timeout_ms)}  coordinator {info.coordinator}"
    )
    if info.started_ms is not None and info.partitions:
        show(f"began {time_text(info.started_ms)}, {duration_text(_now_ms() - info.started_ms)} ago")
    if info.partitions:
        print_table(("TOPIC", "PARTITION"), [(each.topic, each.partition) for each in info.partitions])


@app.command()
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(help="The transactional id whose transaction is going on.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Instead of an id, for one that hangs: its topic.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Its partition.")] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", help="Where it begins, as `ottla txn list --hanging` tells."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Abort a transaction that is going on, and fence its producer; or end one that hangs, in its partition.

    \b
    Example:
      ottla txn abort orders-1
      ottla txn abort --topic orders --partition 0 --start-offset 4711
    """
    place = (topic, partition, start_offset)
    if (transactional_id is None) == (place == (None, None, None)):
        raise usage_error(
            "give a transactional id, or --topic, --partition and --start-offset of one that hangs"
        )
    with open_admin(bootstrap) as admin:
        if transactional_id is not None:
            before = admin.abort_transaction(transactional_id)
            aborted: dict[str, Any] = {
                "transactional_id": transactional_id, "producer_id": before.producer_id,
                "producer_epoch": before.producer_epoch, "partitions": [str(each) for each in before.partitions],
            }  # fmt: skip
            words = f"aborted the transaction of {transactional_id} in {len(before.partitions)} partition(s); its producer is fenced"
        else:
            if topic is None or partition is None or start_offset is None:
                raise usage_error("--topic, --partition and --start-offset go together")
            found = _hanging_at(admin, named(topic, partition), start_offset)
            admin.abort_hanging_transaction(found)
            aborted = _row(found)
            words = (
                f"aborted what producer {found.producer.producer_id} had open in {found.partition} "
                f"since offset {start_offset}"
            )
    if as_json:
        print_json(aborted)
    else:
        show(words)


# --- what hangs ---------------------------------------------------------------------------------------------------


def _hanging_at(admin: Admin, place: TopicPartition, start_offset: int) -> HangingTransaction:
    """The one that begins there. One that somebody will end is not for us: its other partitions would not know."""
    opened = {
        each.transaction_start: each
        for each in admin.describe_producers([place])[place]
        if each.transaction_start is not None
    }
    if start_offset not in opened:
        others = f"; what is open there begins at {', '.join(map(str, sorted(opened)))}" if opened else ""
        raise CommandError(
            f"no transaction that begins at offset {start_offset} is open in {place}{others}", NOT_FOUND
        )
    for each in admin.find_hanging_transactions([place]):
        if each.producer.transaction_start == start_offset:
            return each
    producer = opened[start_offset]
    owner = [each.transactional_id for each in admin.list_transactions(producer_ids=[producer.producer_id])]
    if not owner:
        raise CommandError(f"the transaction in {place} has just ended")
    raise CommandError(
        f"the transaction in {place} does not hang, it is that of {owner[0]!r}: "
        f"abort it everywhere with `ottla txn abort {owner[0]}`"
    )


def _places(admin: Admin, texts: list[str], broker: int | None) -> list[TopicPartition]:
    """The partitions to look at: those that have a leader."""
    from ottla.cli.group import named_partitions

    if broker is not None and broker not in {node.id for node in admin.describe_cluster().nodes}:
        raise CommandError(f"there is no broker {broker} in the cluster", NOT_FOUND)
    wanted = set(named_partitions(admin, texts))
    leaders = {
        named(name, part.partition): part.leader
        for name, topic in admin.list_topics(internal=True).items()
        for part in topic.partitions.values()
        if not texts or named(name, part.partition) in wanted
    }
    silent = [place for place, leader in leaders.items() if leader < 0]
    if silent:
        say(f"{len(silent)} partition(s) have no leader and cannot be looked at, such as {silent[0]}")
    return [place for place, leader in leaders.items() if leader >= 0 and broker in (None, leader)]


def _max_timeout_ms(admin: Admin) -> int:
    """The longest time-out that any broker grants: whatever is older was not ended when it had to be."""
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
        say(f"no transaction hangs (of those that nothing was written to for {duration_text(age_ms)})")
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
        "end one with `ottla txn abort"
        f" --topic {first['topic']} --partition {first['partition']} --start-offset {first['start_offset']}`"
    )


# --- printing and reading -----------------------------------------------------------------------------------------


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
        say("no producer is remembered there")


def _state(text: str) -> str:
    """The state as the protocol spells it."""
    from ottla.client.admin.transactions import STATES

    known = {name.lower(): name for name in STATES}
    if text.lower() not in known:
        raise usage_error(f"there is no state {text!r}; there are {', '.join(STATES)}")
    return known[text.lower()]


def _now_ms() -> int:
    return round(time.time() * 1000)
