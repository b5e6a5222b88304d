"""`ottla broker`: a node in production, from a configuration file."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import run_broker


def register(parent: typer.Typer) -> None:
    parent.command()(broker)


def broker(
    config: Annotated[
        str,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Kafka's server.properties, or TOML with these names."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="A config over the file's; may be repeated."),
    ] = None,
) -> None:
    """Start a broker from a configuration file, in the foreground.

    Names are Kafka's; docs/configuration.md lists them. Ctrl-C or SIGTERM stops it cleanly.

    \b
    Example:
      ottla broker --config /etc/ottla/server.properties --set node.id=2
    """
    run_broker.broker(config, settings or ())
