"""`ottla group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from ottla.cli.outcome import CommandError, print_json, print_table, say, show, usage_error
from ottla.cli.topic import open_admin

if TYPE_CHECKING:
    from ottla.client.admin.sync import Admin
    from ottla.client.metadata import TopicPartition

app = typer.Typer(
    help="""List, describe, reset and delete consumer groups.

\b
Example:
  ottla group describe billing
""",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="group")


@app.command("list")
def list_groups(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the groups.

    \b
    Example:
      ottla group list --json
    """
    with open_admin(bootstrap) as admin:
        groups = admin.list_groups()
    rows = [(each.group, each.state, each.type, each.protocol_type) for each in groups]
    if as_json:
        print_json([dict(zip(("group", "state", "type", "protocol_type"), row, strict=True)) for row in rows])
    elif rows:
        print_table(("GROUP", "STATE", "TYPE", "PROTOCOL"), rows)
    else:
        say("no groups")


@app.command()
def describe(
    group: Annotated[str, typer.Argument(help="The group.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show committed offsets, lag (records not yet consumed), members and their partitions.

    \b
    Example:
      ottla group describe billing
    """
    with open_admin(bootstrap) as admin:
        info = admin.describe_group(group)
        committed = admin.group_offsets(group)
        readers = {place: member for member in info.members for place in member.partitions}
        ends = _ends(admin, {*committed, *readers})
    rows: list[dict[str, Any]] = []
    for place in sorted({*committed, *readers}):
        offset, end, member = committed.get(place), ends.get(place), readers.get(place)
        lag = None if offset is None or end is None else max(0, end - offset)
        rows.append(
            {
                "topic": place.topic, "partition": place.partition, "offset": offset, "end": end, "lag": lag,
                "member": member and member.member_id, "client": member and member.client_id,
                "host": member and member.host,
            }
        )  # fmt: skip
    lag = sum(row["lag"] or 0 for row in rows)
    if as_json:
        print_json(
            {
                "group": group, "state": info.state, "protocol": info.protocol, "coordinator": info.coordinator,
                "members": [
                    {"member": each.member_id, "instance": each.instance_id, "client": each.client_id, "host": each.host}
                    for each in info.members
                ],
                "lag": lag, "partitions": rows,
            }
        )  # fmt: skip
        return
    show(f"{group}  {info.state}  {len(info.members)} member(s)  lag {lag}  coordinator {info.coordinator}")
    if rows:
        head = ("topic", "partition", "offset", "end", "lag", "member", "host")
        print_table(
            [name.upper() for name in head],
            [["-" if row[name] is None else row[name] for name in head] for row in rows],
        )


@app.command()
def reset(
    group: Annotated[str, typer.Argument(help="The group; it must have no active members.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:N,N]",
            help="Only this topic, or these partitions of it; repeat for several.",
        ),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the start of each partition.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of each partition.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", help="To this offset.")] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            help="To the first record since this time: 2026-01-31T12:00:00+00:00, or milliseconds.",
        ),
    ] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", help="By this many offsets; negative goes back.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new offsets; set nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Set the committed offsets of a group: of all partitions it has committed, or of --topic.

    Offsets outside of a partition are moved to its start or end.

    \b
    Example:
      ottla group reset billing --topic orders:0,1 --to-earliest --dry-run
    """
    ways = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift is not None]
    if sum(ways) != 1:
        raise usage_error(
            "give exactly one of --to-earliest, --to-latest, --to-offset, --to-time and --shift"
        )
    since_ms = None if to_time is None else _time_ms(to_time)
    with open_admin(bootstrap) as admin:
        _refuse_if_active(admin, group)
        committed = admin.group_offsets(group)
        places = named_partitions(admin, topic) if topic else sorted(committed)
        if not places:
            raise CommandError(f"group {group!r} has no committed offsets: name topics with --topic TOPIC")
        starts, ends = _offsets(admin, places, earliest=True), _ends(admin, set(places))
        wanted: dict[TopicPartition, int] = {}
        found = _offsets(admin, places, since_ms) if since_ms is not None else {}
        for place in places:
            start, end = starts[place], ends[place]
            if to_earliest:
                offset = start
            elif to_latest:
                offset = end
            elif since_ms is not None:
                offset = found[place] if found[place] >= 0 else end
            elif shift is not None:
                if place not in committed:
                    raise CommandError(
                        f"group {group!r} has no committed offset in {place} to --shift from: "
                        "use --to-earliest, --to-latest or --to-offset for it"
                    )
                offset = committed[place] + shift
            else:
                assert to_offset is not None
                offset = to_offset
            wanted[place] = min(max(offset, start), end)
        if not dry_run:
            admin.set_group_offsets(group, wanted)
    rows = [
        {
            "topic": place.topic, "partition": place.partition, "from": committed.get(place), "to": offset,
            "lag": ends[place] - offset,
        }
        for place, offset in wanted.items()
    ]  # fmt: skip
    if as_json:
        print_json({"group": group, "dry_run": dry_run, "partitions": rows})
        return
    head = ("topic", "partition", "from", "to", "lag")
    print_table(
        [name.upper() for name in head],
        [["-" if row[name] is None else row[name] for name in head] for row in rows],
    )
    say("no offset was set (--dry-run)" if dry_run else f"set {len(rows)} offset(s) of group {group}")


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(help="Groups to delete; they must have no active members.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete groups with their committed offsets.

    \b
    Example:
      ottla group delete billing
    """
    with open_admin(bootstrap) as admin:
        admin.delete_groups(groups)
    if as_json:
        print_json({"deleted": groups})
    else:
        show(f"deleted group(s) {', '.join(groups)}")


def _refuse_if_active(admin: Admin, group: str) -> None:
    """Active members would not notice the new offsets, and would overwrite them with their next commit."""
    listed = {each.group: each for each in admin.list_groups()}
    known = listed.get(group)
    if known is not None and known.state not in ("Empty", "Dead"):
        raise CommandError(
            f"group {group!r} is {known.state}: stop its active members first, then repeat the command"
        )


def _ends(admin: Admin, places: set[TopicPartition]) -> dict[TopicPartition, int]:
    return _offsets(admin, sorted(places))


def _offsets(
    admin: Admin, places: list[TopicPartition], since_ms: int | None = None, *, earliest: bool = False
) -> dict[TopicPartition, int]:
    """End offsets, start offsets, or the first offsets since a time; deleted topics are left out."""
    from ottla.client.admin.core import EARLIEST, LATEST

    topics = admin.list_topics(internal=True)
    there = [
        place
        for place in places
        if place.topic in topics and place.partition in topics[place.topic].partitions
    ]
    if not there:
        return {}
    target = since_ms if since_ms is not None else EARLIEST if earliest else LATEST
    return {place: each.offset for place, each in admin.list_offsets(dict.fromkeys(there, target)).items()}


def named_partitions(admin: Admin, texts: list[str]) -> list[TopicPartition]:
    """TOPIC or TOPIC:N,N as partitions."""
    from ottla.client.metadata import TopicPartition

    found: list[TopicPartition] = []
    for text in texts:
        name, colon, numbers = text.partition(":")
        partitions: Any = admin.describe_topics([name])[name].partitions
        if colon:
            try:
                asked = [int(number) for number in numbers.split(",")]
            except ValueError:
                raise usage_error(f"--topic takes TOPIC or TOPIC:N,N, but got {text!r}") from None
            missing = [number for number in asked if number not in partitions]
            if missing:
                raise usage_error(f"topic {name!r} has no partition {missing[0]}")
            partitions = asked
        found += [TopicPartition(name, number) for number in partitions]
    return sorted(set(found))


def _time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise usage_error(
            f"--to-time takes a date such as 2026-01-31T12:00:00 or milliseconds, but got {text!r}"
        ) from None
