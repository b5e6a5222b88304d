"""`ottla up` and `ottla broker` without typer.

typer and its dependencies would double the start-up time of a broker and add 15 MB to its memory. So `main`
first tries `quick_start`, which parses the plain options of these two commands. Help, errors and everything
unusual go to the typer commands in `up.py` and `broker.py`, which call the functions here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import ottla
from ottla.cli.outcome import NOT_FOUND, CommandError, pairs, say, usage_error

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.server.node import Node

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA_DIR = "ottla-data"

#: The options of each command, by every spelling. `set` may be repeated; `no_console` takes no value.
OPTIONS = {
    "up": {
        "--listen": "listen",
        "-l": "listen",
        "--data-dir": "data_dir",
        "-d": "data_dir",
        "--brokers": "brokers",
        "-n": "brokers",
        "--zookeeper": "zookeeper",
        "-z": "zookeeper",
        "--no-console": "no_console",
        "--set": "set",
        "-s": "set",
    },
    "broker": {"--config": "config", "-c": "config", "--set": "set", "-s": "set"},
}


def quick_start(arguments: Sequence[str]) -> bool:
    """Run `up` or `broker` if the arguments are plain; False if typer has to parse them."""
    if not arguments or arguments[0] not in OPTIONS:
        return False
    found = read_options(OPTIONS[arguments[0]], arguments[1:])
    if found is None:
        return False
    settings = found.pop("set", [])
    values = {name: texts[-1] for name, texts in found.items()}
    if arguments[0] == "up":
        brokers = values.get("brokers")
        if brokers is not None and not brokers.isdigit():
            return False
        up(
            values.get("listen", DEFAULT_LISTEN),
            values.get("data_dir", DEFAULT_DATA_DIR),
            settings,
            brokers=int(brokers) if brokers is not None else None,
            zookeeper=values.get("zookeeper"),
        )
    elif "config" in values:
        broker(values["config"], settings)
    else:
        return False
    return True


def read_options(known: dict[str, str], arguments: Sequence[str]) -> dict[str, list[str]] | None:
    """The values of each option; None if the arguments are not plain."""
    found: dict[str, list[str]] = {}
    rest = list(arguments)
    while rest:
        spelling, equals, value = rest.pop(0).partition("=")
        name = known.get(spelling)
        if name is None or (equals and not spelling.startswith("--")):
            return None
        if name == "no_console":
            if equals:
                return None
        elif not equals:
            if not rest or rest[0].startswith("-"):
                return None
            value = rest.pop(0)
        found.setdefault(name, []).append(value)
    return found


def up(
    listen: str,
    data_dir: str,
    settings: Sequence[str],
    *,
    brokers: int | None = None,
    zookeeper: str | None = None,
) -> None:
    """One broker; with `zookeeper` in a cluster; with `brokers` a local cluster of that many brokers."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise usage_error(f"--listen takes HOST:PORT, but got {listen!r}")
    given = pairs(settings, "--set")
    if brokers is not None:
        raise SystemExit(_local_cluster(brokers, host, int(port), data_dir, zookeeper, given))
    properties = {
        "listeners": f"PLAINTEXT://{host}:{port}",
        "log.dirs": os.path.abspath(data_dir),
        **given,
    }
    if zookeeper is not None:
        properties["zookeeper.connect"] = zookeeper
    serve(properties)


def _local_cluster(
    brokers: int, host: str, port: int, data_dir: str, zookeeper: str | None, settings: dict[str, str]
) -> int:
    from pathlib import Path

    from ottla.config.broker import BrokerConfig
    from ottla.runtime.local_zookeeper import NoZookeeper
    from ottla.server.directories import BadDirectories
    from ottla.server.local_cluster import ClusterFailed, LocalCluster

    if brokers < 1 or port + brokers > 65_536:
        raise usage_error(
            f"--brokers {brokers} is not possible from port {port} on: give at least 1, and a port of "
            "--listen that "
            "leaves one port per broker below 65536"
        )
    for name in ("node.id", "broker.id", "listeners", "log.dirs", "log.dir", "zookeeper.connect"):
        if name in settings:
            raise usage_error(f"--set {name} cannot be used with --brokers: each broker gets its own {name}")
    if zookeeper is not None:
        settings = {**settings, "zookeeper.connect": zookeeper}
    # Report an invalid setting once, not once per broker.
    BrokerConfig.from_properties({"log.dirs": data_dir, **settings})
    settings.pop("zookeeper.connect", None)
    cluster = LocalCluster(
        Path(os.path.abspath(data_dir)),
        brokers,
        host=host,
        port=port,
        zookeeper=zookeeper,
        settings=settings,
        say=say,
    )
    try:
        code = cluster.run()
    except (ClusterFailed, NoZookeeper, BadDirectories) as error:
        raise CommandError(str(error)) from error
    say("stopped cleanly" if code == 0 else f"stopped with code {code}")
    return code


def broker(config: str, settings: Sequence[str]) -> None:
    from ottla.config.properties import parse_properties, parse_toml

    try:
        with open(config, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise CommandError(
            f"{config}: no such file; give the broker's configuration file with --config FILE", NOT_FOUND
        ) from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{config} is not a text file: {error}") from error
    properties = parse_toml(text) if config.endswith(".toml") else parse_properties(text)
    serve({**properties, **pairs(settings, "--set")})


def serve(properties: dict[str, str]) -> None:
    """Run a broker with these settings until a signal stops it, then exit with its code."""
    from ottla.config.broker import BrokerConfig

    config = BrokerConfig.from_properties(properties)
    from ottla.server.node import CannotStart, run

    # Set by a parent whose brokers must not outlive it (`server/local_cluster.py`).
    lifeline = 0 if os.environ.pop("OTTLA_STOP_WITH_STDIN", None) else None
    try:
        code = run(
            config,
            lambda node: announce(node, config),
            say=say if lifeline is None else _say_if_open,
            lifeline=lifeline,
        )
    except CannotStart as error:
        raise CommandError(str(error)) from error
    say("stopped cleanly" if code == 0 else f"stopped with code {code}")
    raise SystemExit(code)


def _say_if_open(text: str) -> None:
    """The parent may end first; a closed standard error must not break the shutdown."""
    with suppress(OSError):
        say(text)


def announce(node: Node, config: BrokerConfig) -> None:
    """Print the address, the data directories and how to stop."""
    say(f"ottla {ottla.__version__} listens on {node.address}")
    say(f"data in {', '.join(config.log_dirs)}")
    say("stop with Ctrl-C")
