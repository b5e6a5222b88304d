"""`ottla config`: show and change the configs of topics and brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ottla.cli.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from ottla.cli.outcome import pairs, print_json, print_table, show
from ottla.cli.topic import open_admin

if TYPE_CHECKING:
    from ottla.client.admin.core import Resource

app = typer.Typer(
    help="""Show, set and unset configs of topics and brokers.

\b
Example:
  ottla config describe topic orders
  ottla config set topic orders retention.ms=3600000
""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Kind = Annotated[Literal["topic", "broker"], typer.Argument(help="Whose configs.")]
Name = Annotated[
    str, typer.Argument(help="A topic name, a broker id, or `default` for the cluster-wide broker default.")
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="config")


def resource(kind: Literal["topic", "broker"], name: str) -> Resource:
    from ottla.client.admin.core import Resource

    return Resource(kind, "" if kind == "broker" and name == "default" else name)


@app.command()
def describe(
    kind: Kind,
    name: Name,
    names: Annotated[list[str] | None, typer.Argument(help="Configs to show; default: all.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only non-default values.")] = False,
    documentation: Annotated[
        bool, typer.Option("--doc", help="Include the documentation of each config.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show configs with their value and source.

    \b
    Example:
      ottla config describe broker 1 --changed
    """
    with open_admin(bootstrap) as admin:
        found = admin.describe_configs(
            resource(kind, name), names or None, documentation=documentation, synonyms=True
        )
    entries = [entry for entry in found.values() if not (changed and entry.is_default)]
    if as_json:
        keys = ("name", "value", "source", "read_only", "sensitive", "type", "documentation")
        print_json([{key: getattr(entry, key) for key in keys} for entry in entries])
        return
    head = ["CONFIG", "VALUE", "SOURCE"]
    rows = [[entry.name, "(hidden)" if entry.sensitive else entry.value, entry.source] for entry in entries]
    if documentation:
        head.append("MEANING")
        for row, entry in zip(rows, entries, strict=True):
            row.append(entry.documentation or "")
    print_table(head, rows)


@app.command("set")
def set_configs(
    kind: Kind,
    name: Name,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Configs to set.")],
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Check only; change nothing.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Set configs; all others stay unchanged.

    \b
    Example:
      ottla config set topic orders retention.ms=3600000 cleanup.policy=compact
    """
    changes = pairs(settings, "set")
    _change(kind, name, dict(changes), validate_only, bootstrap, as_json)


@app.command()
def unset(
    kind: Kind,
    name: Name,
    names: Annotated[list[str], typer.Argument(help="Configs to reset to their default.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Reset configs to their defaults.

    \b
    Example:
      ottla config unset topic orders retention.ms
    """
    _change(kind, name, dict.fromkeys(names), False, bootstrap, as_json)


def _change(
    kind: Literal["topic", "broker"],
    name: str,
    changes: dict[str, str | None],
    validate_only: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    with open_admin(bootstrap) as admin:
        admin.alter_configs(resource(kind, name), changes, validate_only=validate_only)
    if as_json:
        print_json({"type": kind, "name": name, "changes": changes, "validate_only": validate_only})
    else:
        show(f"{'valid for' if validate_only else 'changed'} {kind} {name}: {', '.join(changes)}")
