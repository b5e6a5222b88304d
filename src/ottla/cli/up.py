"""`ottla up`: one broker that needs nothing else, or a whole cluster, in the foreground until Ctrl-C."""

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
            "--listen", "-l", metavar="HOST:PORT", help="Where clients connect; port 0 takes a free one."
        ),
    ] = run_broker.DEFAULT_LISTEN,
    data_dir: Annotated[
        str,
        typer.Option("--data-dir", "-d", metavar="DIR", help="Where the data lives; made if it is missing."),
    ] = run_broker.DEFAULT_DATA_DIR,
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            "-n",
            metavar="N",
            help="A local cluster of N brokers, on this port and those after it.",
        ),
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper",
            "-z",
            metavar="HOST:PORT",
            help="The ZooKeeper of the cluster to join; with --brokers instead of starting one.",
        ),
    ] = None,
    no_console: Annotated[
        bool, typer.Option("--no-console", help="Without the web console (this version has none yet).")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="Any broker config; may be repeated."),
    ] = None,
) -> None:
    """Start one broker with embedded metadata, or a cluster, in the foreground.

    Ctrl-C or SIGTERM stops it cleanly; its data is there at the next start. A cluster keeps its metadata in
    ZooKeeper: --brokers starts one for it (pip install "ottla[cluster]"), unless --zookeeper names another.

    \b
    Example:
      ottla up
      ottla up --brokers 3
      ottla up --listen 0.0.0.0:9092 --data-dir /var/lib/ottla --set num.partitions=3
    """
    del no_console  # nothing to switch off yet; scripts may already say so
    run_broker.up(listen, data_dir, settings or (), brokers=brokers, zookeeper=zookeeper)
