"""`ottla partition`: list, reassign, balance and drain partitions; elect leaders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from ottla.cli.outcome import (
    FAILED,
    NOT_FOUND,
    CommandError,
    end_on_signals,
    print_json,
    print_table,
    say,
    show,
    usage_error,
)
from ottla.cli.plans import assignments_of, drained, ids, named, wanted
from ottla.cli.topic import open_admin, reassignments, state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.cli.reassignment import Replicas
    from ottla.client.admin.partitions import Election
    from ottla.client.admin.sync import Admin
    from ottla.client.metadata import TopicPartition

app = typer.Typer(
    help="""List partitions, move them between brokers, elect leaders, drain a broker.

\b
Example:
  ottla partition reassign --balance --throttle 50000000   after a broker joined
  ottla partition drain 3                                  before a broker leaves
""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        min=1,
        metavar="BYTES/S",
        help="Replication throttle per broker (KIP-73) until the move is done.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Start the move and do not wait for its end.")]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="partition")


@app.command("list")
def list_partitions(
    topics: Annotated[list[str] | None, typer.Argument(help="Topics; default: all.")] = None,
    unwell: Annotated[
        bool,
        typer.Option(
            "--unwell",
            help="Only partitions that are offline, under-replicated, moving or without their preferred "
            "leader.",
        ),
    ] = False,
    broker: Annotated[
        int | None, typer.Option("--broker", help="Only partitions with a replica on this broker.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List partitions with leader, replicas, ISR and problems (STATE).

    \b
    Example:
      ottla partition list --unwell
    """
    with open_admin(bootstrap) as admin:
        found = admin.describe_topics(topics) if topics else admin.list_topics(internal=True)
        moving = reassignments(admin)
    rows: list[dict[str, Any]] = [
        {
            "topic": name, "partition": part.partition, "leader": part.leader if part.leader >= 0 else None,
            "replicas": list(part.replicas), "isr": list(part.isr),
            "state": state(part, moving.get(named(name, part.partition))),
        }
        for name, topic in found.items()
        for part in topic.partitions.values()
        if broker is None or broker in part.replicas
    ]  # fmt: skip
    rows = [row for row in rows if row["state"] or not unwell]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "STATE"),
            [
                (
                    row["topic"], row["partition"], "none" if row["leader"] is None else row["leader"],
                    ids(row["replicas"]), ids(row["isr"]), ", ".join(row["state"]),
                )
                for row in rows
            ],
        )  # fmt: skip
    else:
        say("all partitions are healthy" if unwell else "no partitions")


@app.command()
def reassign(
    balance: Annotated[
        bool, typer.Option("--balance", help="Spread replicas and leaders evenly with the fewest copies.")
    ] = False,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="The topic to move.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Its partition; default: all.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ID,ID,…", help="The new replicas, preferred leader first."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", help="Change the number of replicas of the topic."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="A JSON plan of --dry-run --json, or of kafka-reassign-partitions."),
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Show ongoing moves.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel ongoing moves; replicas go back.")] = False,
    unthrottle: Annotated[
        bool, typer.Option("--unthrottle", help="Remove the throttles that a move left behind.")
    ] = False,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move partitions to other brokers and wait for the end. Ctrl-C leaves the move running.

    \b
    Example:
      ottla partition reassign --balance --dry-run
      ottla partition reassign --topic orders --partition 0 --to 2,3,1
      ottla partition reassign --topic orders --replication-factor 3
      ottla partition reassign --file plan.json --throttle 50000000
      ottla partition reassign --status
    """
    by_hand = to is not None or replication_factor is not None
    modes = (balance, by_hand, file is not None, status, cancel, unthrottle)
    if sum(modes) != 1 or (to is not None and replication_factor is not None):
        raise usage_error(
            "give exactly one of --balance, --to, --replication-factor, --file, --status, --cancel and "
            "--unthrottle"
        )
    if by_hand and topic is None:
        raise usage_error(
            "--to and --replication-factor need --topic, and --partition for a single partition"
        )
    if partition is not None and to is None and not cancel:
        raise usage_error("--partition can only be used with --to or --cancel")
    if topic is not None and (balance or file is not None or unthrottle):
        raise usage_error("--topic can only be used with --to, --replication-factor, --status or --cancel")
    end_on_signals()
    with open_admin(bootstrap) as admin:
        if status:
            _show_status(admin, topic, as_json)
        elif cancel:
            _cancel(admin, topic, partition, as_json)
        elif unthrottle:
            _unthrottle(admin, as_json)
        else:
            before = assignments_of(admin)
            plan = wanted(admin, before, topic, partition, to, replication_factor, file)
            _move(admin, before, plan, throttle, dry_run=dry_run, no_wait=no_wait, as_json=as_json)


@app.command()
def elect(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="A topic; default: all. Repeat for several.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="A partition of the one topic.")
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Elect any live replica if a partition has no leader. Records that it lacks are lost.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation of an unclean election.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Elect the preferred leaders, or unclean leaders for partitions without one.

    \b
    Example:
      ottla partition elect --topic orders
      ottla partition elect --unclean --topic orders --partition 2 --yes
    """
    if partition and (not topic or len(topic) != 1):
        raise usage_error("--partition needs exactly one --topic")
    if unclean and not yes and sys.stdin.isatty() and sys.stdout.isatty():
        typer.confirm("Elect unclean leaders? Acknowledged records may be lost.", abort=True)
    with open_admin(bootstrap) as admin:
        chosen = None
        if topic:
            described = admin.describe_topics(topic)
            chosen = [
                named(name, number) for name in topic for number in partition or described[name].partitions
            ]
        results = admin.elect_leaders(chosen, unclean=unclean)
    _print_elections(results, as_json)
    if any(result.failed for result in results.values()):
        raise SystemExit(FAILED)


@app.command()
def drain(
    broker: Annotated[int, typer.Argument(help="The id of the broker to empty.")],
    unregister: Annotated[
        bool, typer.Option("--unregister", help="Remove the stopped broker from the cluster.")
    ] = False,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move all replicas away from a broker before it is stopped; then --unregister it.

    \b
    Example:
      ottla partition drain 3 --throttle 50000000
      ottla partition drain 3 --unregister            after the broker is stopped
    """
    end_on_signals()
    with open_admin(bootstrap) as admin:
        cluster = admin.describe_cluster(include_fenced=True)
        live = {node.id: node.rack for node in cluster.nodes}
        before = assignments_of(admin)
        holds = [tp for tp, replicas in before.items() if broker in replicas]
        if broker not in live and broker not in {node.id for node in cluster.fenced} and not holds:
            raise CommandError(
                f"the cluster has no broker {broker}: its brokers are {ids(sorted(live))}", NOT_FOUND
            )
        if unregister:
            _unregister(admin, broker, live=broker in live, holds=len(holds), as_json=as_json)
            return
        plan = drained(admin, before, live, broker) if holds else {}
        _move(
            admin, before, plan, throttle, dry_run=dry_run, no_wait=no_wait, as_json=as_json,
            nothing=f"broker {broker} has no replicas",
        )  # fmt: skip
    if not dry_run and not no_wait:
        say(f"broker {broker} is empty: stop it, then run `ottla partition drain {broker} --unregister`")


# --- execution ----------------------------------------------------------------------------------------------


def _move(
    admin: Admin,
    before: Replicas,
    plan: Replicas,
    throttle: int | None,
    *,
    dry_run: bool,
    no_wait: bool,
    as_json: bool,
    nothing: str = "nothing to move: all replicas are as requested",
) -> None:
    from ottla.cli.reassignment import Move, copies, plan_json

    if not plan:
        if as_json:
            print_json({"partitions": 0, "copies": 0} if not dry_run else plan_json(plan))
        else:
            show(nothing)
        return
    copied = copies(before, plan)
    if dry_run and as_json:
        print_json(plan_json(plan))
        return
    if not as_json:
        print_table(
            ("TOPIC", "PARTITION", "FROM", "TO"),
            [(tp.topic, tp.partition, ids(before[tp]), ids(to)) for tp, to in sorted(plan.items())],
        )
        show(f"{len(plan)} partition(s), {copied} replica(s) to copy")
    if dry_run:
        return
    elected = Move(admin, before, plan, throttle, watched=not no_wait).carry_out()
    failed = sorted(tp for tp, election in elected.items() if election.failed)
    if as_json:
        print_json(
            {
                "partitions": len(plan),
                "copies": copied,
                "done": not no_wait,
                "leaders_not_moved": list(map(str, failed)),
            }
        )
    elif not no_wait:
        show("done")
    if failed:
        say(
            f"{len(failed)} partition(s) do not have their preferred leader yet, such as {failed[0]}: "
            "run `ottla partition elect`"
        )


def _show_status(admin: Admin, topic: str | None, as_json: bool) -> None:
    moving = {tp: each for tp, each in reassignments(admin).items() if topic in (None, tp.topic)}
    if as_json:
        print_json(
            [
                {
                    "topic": tp.topic, "partition": tp.partition, "replicas": list(each.replicas),
                    "adding": list(each.adding), "removing": list(each.removing),
                }
                for tp, each in sorted(moving.items())
            ]
        )  # fmt: skip
    elif moving:
        print_table(
            ("TOPIC", "PARTITION", "TO", "ADDING", "REMOVING"),
            [
                (tp.topic, tp.partition, ids(each.target), ids(each.adding), ids(each.removing))
                for tp, each in sorted(moving.items())
            ],
        )
    else:
        show("no partition is being moved")


def _cancel(admin: Admin, topic: str | None, partition: int | None, as_json: bool) -> None:
    if partition is not None and topic is None:
        raise usage_error("--partition needs --topic")
    moving = [
        tp for tp in reassignments(admin) if topic in (None, tp.topic) and partition in (None, tp.partition)
    ]
    if moving:
        admin.alter_partition_reassignments(dict.fromkeys(moving))
    if as_json:
        print_json({"cancelled": [str(tp) for tp in sorted(moving)]})
    else:
        show(f"cancelled the move of {len(moving)} partition(s)" if moving else "no partition is being moved")


def _unthrottle(admin: Admin, as_json: bool) -> None:
    from ottla.cli.reassignment import remove_throttle

    cluster = admin.describe_cluster(include_fenced=True)
    brokers = {node.id for node in (*cluster.nodes, *cluster.fenced)}
    topics = set(admin.list_topics(internal=True))
    remove_throttle(admin, brokers, topics)
    if as_json:
        print_json({"brokers": sorted(brokers), "topics": sorted(topics)})
    else:
        show(f"removed throttles from {len(brokers)} broker(s) and {len(topics)} topic(s)")


def _print_elections(results: Mapping[TopicPartition, Election], as_json: bool) -> None:
    rows = [
        (
            tp.topic, tp.partition,
            "failed" if each.failed else "elected" if each.code == 0 else "not needed",
            each.code.name if each.failed else None, each.message if each.failed else None,
        )
        for tp, each in sorted(results.items())
    ]  # fmt: skip
    if as_json:
        keys = ("topic", "partition", "result", "error", "message")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    elif rows:
        print_table(("TOPIC", "PARTITION", "RESULT", "ERROR", "MESSAGE"), rows)
    else:
        show("no election was needed")


def _unregister(admin: Admin, broker: int, *, live: bool, holds: int, as_json: bool) -> None:
    if holds:
        raise CommandError(
            f"broker {broker} has replicas of {holds} partition(s): run `ottla partition drain {broker}` "
            "first"
        )
    if live:
        raise CommandError(f"broker {broker} is running and would register again: stop it first")
    admin.unregister_broker(broker)
    if as_json:
        print_json({"unregistered": broker})
    else:
        show(f"unregistered broker {broker}")
