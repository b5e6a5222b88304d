"""`ottla topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.client_config import client_settings
from ottla.cli.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from ottla.cli.outcome import pairs, print_json, print_table, say, show, usage_error

if TYPE_CHECKING:
    from ottla.client.admin.partitions import Reassignment
    from ottla.client.admin.sync import Admin
    from ottla.client.metadata import PartitionInfo, TopicInfo, TopicPartition

app = typer.Typer(
    help="""Create, list, describe, alter and delete topics.

\b
Example:
  ottla topic create orders --partitions 3 --config retention.ms=86400000
""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic config; repeat for several."),
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="topic")


def open_admin(bootstrap: str) -> Admin:
    from ottla.client.admin.sync import Admin

    return Admin(bootstrap, **client_settings("ottla-cli"))


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the new topic.")],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="Number of partitions; -1: the broker's num.partitions.")
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option("--replication-factor", "-r", help="Replicas per partition; -1: the broker's default."),
    ] = -1,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed without a change if the topic exists.")
    ] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Check only; create nothing.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create a topic.

    \b
    Example:
      ottla topic create orders --partitions 3 --config cleanup.policy=compact
    """
    from ottla.client.errors import TopicExists

    configs = pairs(config or (), "--config")
    with open_admin(bootstrap) as admin:
        created = True
        try:
            admin.create_topic(name, partitions, replication_factor, configs, validate_only=validate_only)
        except TopicExists:
            if not if_not_exists:
                raise
            created = False
        if validate_only:
            found = {"topic": name, "valid": True}
        else:
            topic = admin.describe_topics([name])[name]
            found = {"topic": name, "created": created, "partitions": len(topic.partitions)}
    if as_json:
        print_json(found)
    elif validate_only:
        show(f"topic {name} is valid; nothing was created (--validate-only)")
    else:
        count = found["partitions"]
        show(f"{'created topic' if created else 'topic exists already:'} {name} with {count} partition(s)")


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the topics.

    \b
    Example:
      ottla topic list --json
    """
    with open_admin(bootstrap) as admin:
        topics = admin.list_topics(internal=internal)
    rows = [
        (name, len(topic.partitions), max((len(p.replicas) for p in topic.partitions.values()), default=0))
        for name, topic in topics.items()
    ]
    if as_json:
        print_json(
            [dict(zip(("topic", "partitions", "replication_factor"), row, strict=True)) for row in rows]
        )
    elif rows:
        print_table(("TOPIC", "PARTITIONS", "REPLICAS"), rows)
    else:
        say("no topics; create one with `ottla topic create NAME`")


@app.command()
def describe(
    names: Annotated[list[str], typer.Argument(help="Topics to describe.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show partitions, leaders, replicas, offsets and non-default configs of topics.

    STATE is empty for a healthy partition: all replicas in sync, preferred leader, no reassignment.

    \b
    Example:
      ottla topic describe orders
    """
    with open_admin(bootstrap) as admin:
        found = [described(admin, topic) for topic in admin.describe_topics(names).values()]
    if as_json:
        print_json(found)
        return
    for number, topic in enumerate(found):
        if number:
            show("")
        configs = "  ".join(f"{name}={value}" for name, value in topic["configs"].items())
        show(f"{topic['topic']}  id {topic['topic_id']}{'  internal' if topic['internal'] else ''}")
        show(f"configs: {configs or 'all default'}")
        columns = ("partition", "leader", "replicas", "isr", "start", "end", "state")
        rows = [
            [
                (", " if key == "state" else ",").join(map(str, row[key]))
                if isinstance(row[key], list)
                else row[key]
                for key in columns
            ]
            for row in topic["partitions"]
        ]
        print_table([column.upper() for column in columns], rows)


def described(admin: Admin, topic: TopicInfo) -> dict[str, Any]:
    """A topic as plain values: partitions with their offsets, and non-default configs."""
    import uuid

    from ottla.client.admin.core import EARLIEST, LATEST, Resource
    from ottla.client.metadata import TopicPartition

    led = [TopicPartition(topic.name, p.partition) for p in topic.partitions.values() if p.leader >= 0]
    starts = admin.list_offsets(dict.fromkeys(led, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(led, LATEST))
    configs = admin.describe_configs(Resource("topic", topic.name))
    moving = reassignments(admin, [TopicPartition(topic.name, number) for number in topic.partitions])
    return {
        "topic": topic.name,
        "topic_id": None if topic.topic_id is None else str(uuid.UUID(bytes=topic.topic_id)),
        "internal": topic.internal,
        "configs": {name: entry.value for name, entry in configs.items() if entry.source == "topic"},
        "partitions": [
            {
                "partition": part.partition,
                "leader": part.leader if part.leader >= 0 else None,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "offline_replicas": list(part.offline_replicas),
                "state": state(part, moving.get(tp)),
                "start": starts[tp].offset if tp in starts else None,
                "end": ends[tp].offset if tp in ends else None,
            }
            for part in topic.partitions.values()
            for tp in [TopicPartition(topic.name, part.partition)]
        ],
    }


def reassignments(
    admin: Admin, partitions: list[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """Ongoing reassignments; empty for brokers that do not support them."""
    from ottla.client.errors import UnsupportedVersion

    try:
        return admin.list_partition_reassignments(partitions)
    except UnsupportedVersion:
        return {}


def state(part: PartitionInfo, moving: Reassignment | None = None) -> list[str]:
    """Problems of a partition as texts; empty if it is healthy."""
    marks = []
    if part.leader < 0:
        marks.append("OFFLINE")
    elif part.replicas and part.leader != part.replicas[0]:
        marks.append("not led by the preferred replica")
    wanted = set(part.replicas) - set(moving.adding if moving else ())
    if not wanted <= set(part.isr):
        marks.append("UNDER-REPLICATED")
    if part.offline_replicas:
        marks.append(f"offline: {','.join(map(str, part.offline_replicas))}")
    if moving is not None:
        moves = [f"+{node}" for node in moving.adding] + [f"-{node}" for node in moving.removing]
        marks.append(f"moving {' '.join(moves) or 'to another replica order'}")
    return marks


@app.command()
def alter(
    name: Annotated[str, typer.Argument(help="The topic to change.")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="Increase to this number of partitions.")
    ] = None,
    config: Configs = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Reset a config to its default; repeat for several."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic, set or unset its configs.

    New partitions change the partition that a key maps to.

    \b
    Example:
      ottla topic alter orders --partitions 6 --config retention.ms=3600000 --unset segment.bytes
    """
    from ottla.client.admin.core import Resource

    changes: dict[str, str | None] = {**pairs(config or (), "--config"), **dict.fromkeys(unset or ())}
    if partitions is None and not changes:
        raise usage_error("nothing to change: give --partitions, --config or --unset")
    with open_admin(bootstrap) as admin:
        if changes:
            admin.alter_configs(Resource("topic", name), changes)
        if partitions is not None:
            admin.create_partitions(name, partitions)
    if as_json:
        print_json({"topic": name, "partitions": partitions, "configs": changes})
    else:
        show(f"changed topic {name}")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(help="Topics to delete with all their records.")],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Ignore topics that do not exist.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete topics and all their records. On a terminal it asks first.

    \b
    Example:
      ottla topic delete orders --yes
    """
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        typer.confirm(f"Delete {', '.join(names)} with all records?", abort=True)
    with open_admin(bootstrap) as admin:
        there = admin.list_topics(internal=True)
        deleted = [name for name in names if name in there]
        if not if_exists:
            # Report a missing topic before anything is deleted.
            admin.describe_topics(names)
        if deleted:
            admin.delete_topics(deleted)
    if as_json:
        print_json({"deleted": deleted})
    else:
        show(f"deleted {', '.join(deleted) or 'nothing'}")
