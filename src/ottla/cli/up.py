"""`ottla up`: one broker without dependencies, or a local cluster, in the foreground until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import run_broker


def register(parent: typer.Typer) -> None:
    parent.command()(up)


def up(
    listen: Annotated[
        str,
        typer.Option(
            "--listen", "-l", metavar="HOST:PORT", help="Address for clients; port 0 takes a free one."
        ),
    ] = run_broker.DEFAULT_LISTEN,
    data_dir: Annotated[
        str,
        typer.Option("--data-dir", "-d", metavar="DIR", help="Data directory; created if missing."),
    ] = run_broker.DEFAULT_DATA_DIR,
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            "-n",
            metavar="N",
            help="Start a local cluster of N brokers on the port of --listen and the next ones.",
        ),
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper",
            "-z",
            metavar="HOST:PORT",
            help="Join the cluster of this ZooKeeper; with --brokers, use it instead of starting one.",
        ),
    ] = None,
    no_console: Annotated[
        bool, typer.Option("--no-console", help="No web console (this version has none).")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="Any broker config; repeat for several."),
    ] = None,
) -> None:
    """Start one broker with embedded metadata, or a local cluster, in the foreground.

    Ctrl-C or SIGTERM stops it cleanly; the data is kept for the next start. A cluster keeps its metadata in
    ZooKeeper. --brokers starts a ZooKeeper (pip install "ottla[cluster]") unless --zookeeper names one.

    \b
    Example:
      ottla up
      ottla up --brokers 3
      ottla up --listen 0.0.0.0:9092 --data-dir /var/lib/ottla --set num.partitions=3
    """
    del no_console  # accepted for scripts; there is no console
    run_broker.up(listen, data_dir, settings or (), brokers=brokers, zookeeper=zookeeper)
