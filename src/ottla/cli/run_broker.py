"""What `ottla up` and `ottla broker` do, and a way to them that does not load the whole command line.

A broker lives long and should start at once: typer and what it brings would double its start-up and add 15 MB to it
for ever. So `main` first tries `quick_start`, which reads these two commands' plain options itself; help, errors and
anything unusual go to the typer commands in `up.py` and `broker.py`, which end here too.
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

#: Each command's options by every spelling. `set` may be repeated; `no_console` takes no value.
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
    """Run `up` or `broker` if the arguments are plain; False when the full command line should read them."""
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
    """The values of each option, or None when something is not plain."""
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
    """One broker: of its own, or with `zookeeper` one of a cluster. With `brokers` a local cluster of so many."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise usage_error(f"--listen takes HOST:PORT, not {listen!r}")
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
            "--brokers takes how many brokers to start, each on its own port from that of --listen on"
        )
    for name in ("node.id", "broker.id", "listeners", "log.dirs", "log.dir", "zookeeper.connect"):
        if name in settings:
            raise usage_error(f"--set {name} is for one broker; with --brokers each has its own")
    if zookeeper is not None:
        settings = {**settings, "zookeeper.connect": zookeeper}
    # What is wrong with a setting is said once, and not by each broker.
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
            f"{config}: no such file; give the broker's configuration with --config", NOT_FOUND
        ) from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{config} is not a text file: {error}") from error
    properties = parse_toml(text) if config.endswith(".toml") else parse_properties(text)
    serve({**properties, **pairs(settings, "--set")})


def serve(properties: dict[str, str]) -> None:
    """Run a broker with these settings until a signal ends it, then exit with its code."""
    from ottla.config.broker import BrokerConfig

    config = BrokerConfig.from_properties(properties)
    from ottla.server.node import CannotStart, run

    # Set by whoever starts brokers that must not outlive it (`server/local_cluster.py`).
    lifeline = 0 if os.environ.pop("OTTLA_STOP_WITH_STDIN", None) else None
    try:
        code = run(
            config,
            lambda node: announce(node, config),
            say=say if lifeline is None else _say_if_heard,
            lifeline=lifeline,
        )
    except CannotStart as error:
        raise CommandError(str(error)) from error
    say("stopped cleanly" if code == 0 else f"stopped with code {code}")
    raise SystemExit(code)


def _say_if_heard(text: str) -> None:
    """Who listens may die before us; that must not disturb how we end."""
    with suppress(OSError):
        say(text)


def announce(node: Node, config: BrokerConfig) -> None:
    """Tell where the broker is and how to stop it."""
    say(f"ottla {ottla.__version__} listens on {node.address}")
    say(f"data in {', '.join(config.log_dirs)}")
    say("stop with Ctrl-C")
