"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        envvar="OTTLA_BOOTSTRAP",
        help="Bootstrap brokers of the cluster, separated by commas.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
