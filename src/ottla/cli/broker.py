"""`ottla broker`: a production broker, from a configuration file."""

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
            "--config", "-c", metavar="FILE", help="Kafka's server.properties, or TOML with the same names."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="NAME=VALUE", help="A config that overrides the file; repeat for several."
        ),
    ] = None,
) -> None:
    """Start a broker from a configuration file, in the foreground.

    docs/configuration.md lists the configs, which have Kafka's names. Ctrl-C or SIGTERM stops the broker
    cleanly.

    \b
    Example:
      ottla broker --config /etc/ottla/server.properties --set node.id=2
    """
    run_broker.broker(config, settings or ())
