"""Taking the directories of a node for this process: they are made, told apart and locked before anything is read.

`claim` returns which of them cannot be used, and why; the broker's core goes on without those. What must not be is
refused: the same directory twice, one inside another, one that another process has, a metadata directory that cannot be
used, and a metadata journal that is not where this start would look for it.

What a broker knew alone and what a cluster knows cannot be joined. So a directory belongs to one of the two: to a broker of
its own if it has a journal with topics, to a cluster if it has this mark:

    ottla-cluster     one JSON object: {"zookeeper": "host:port/path", "cluster_id": …} as of the last start
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.metadata.image import Image
from ottla.ports.disk import Disk, DiskError
from ottla.runtime.disk import SystemDisk
from ottla.runtime.embedded_store import JOURNAL, read_journal

CLUSTER_MARK: Final = "ottla-cluster"
#: In the directory of the metadata: the process of the broker that has it.
PID_FILE: Final = "ottla.pid"


class BadDirectories(Exception):
    """The directories cannot be used as they are configured; the message says why and what to do."""


def with_absolute_paths(config: BrokerConfig) -> BrokerConfig:
    """The same settings, with directories that mean the same from anywhere: clients see them and name them."""
    log_dirs = [os.path.abspath(path) for path in config.log_dirs]
    metadata_dir = os.path.abspath(config.metadata_log_dir)
    if (*log_dirs, metadata_dir) == (*config.log_dirs, config.metadata_log_dir):
        return config
    changed = {**config.properties, "log.dirs": ",".join(log_dirs), "metadata.log.dir": metadata_dir}
    return BrokerConfig.from_properties(changed)


def claim(disk: SystemDisk, config: BrokerConfig) -> dict[str, str]:
    """Lock all directories; returns why some of them cannot be used. Raises BadDirectories."""
    metadata_dir = config.metadata_log_dir
    paths = dict.fromkeys((*config.log_dirs, metadata_dir))
    _check_apart(config.log_dirs)
    if metadata_dir not in config.log_dirs:
        _check_apart(tuple(paths))
    unusable: dict[str, str] = {}
    for path in paths:
        try:
            if not disk.lock(path):
                raise BadDirectories(
                    f"another broker is running on {path}: stop it, or choose another --data-dir"
                )
        except DiskError as error:
            if path == metadata_dir or error.short:
                raise BadDirectories(f"the directory of the metadata cannot be used: {error}") from error
            unusable[path] = str(error)
    for path in config.log_dirs:
        has_journal = os.path.exists(f"{path}/{JOURNAL}")
        if path != metadata_dir and has_journal and not os.path.exists(f"{metadata_dir}/{JOURNAL}"):
            raise BadDirectories(
                f"the metadata is in {path}, not in {metadata_dir}: name that directory first in log.dirs, "
                f"or set metadata.log.dir={path}"
            )
    return unusable


def _check_apart(paths: Sequence[str]) -> None:
    real = [os.path.realpath(path) for path in paths]
    for at, path in enumerate(real):
        for other_at, other in enumerate(real):
            if at < other_at and path == other:
                raise BadDirectories(
                    f"{paths[at]} and {paths[other_at]} are the same directory: name it once"
                )
            if at != other_at and path.startswith(other.rstrip("/") + "/"):
                raise BadDirectories(
                    f"{paths[at]} is inside {paths[other_at]}: choose directories that stand apart"
                )


def is_a_clusters(disk: Disk, config: BrokerConfig) -> bool:
    """Whether any of the directories was in a cluster before."""
    for path in config.log_dirs:
        with suppress(DiskError):
            if disk.read_file(f"{path}/{CLUSTER_MARK}") is not None:
                return True
    return False


def refuse_a_clusters(disk: Disk, config: BrokerConfig) -> None:
    """Before a broker starts alone. Raises BadDirectories."""
    for path in dict.fromkeys((*config.log_dirs, config.metadata_log_dir)):
        data = None
        with suppress(DiskError):
            data = disk.read_file(f"{path}/{CLUSTER_MARK}")
        if data is None:
            continue
        try:
            mark = json.loads(data)
            zookeeper = str(mark["zookeeper"])
            brokers = int(mark.get("brokers", 0))
        except (ValueError, KeyError, TypeError, AttributeError):
            zookeeper, brokers = "HOST:PORT", 0
        if brokers:
            raise BadDirectories(
                f"{path} holds a local cluster: start it with --brokers {brokers}, or choose another --data-dir"
            )
        raise BadDirectories(
            f"{path} belongs to a broker of a cluster, whose metadata is in ZooKeeper: start it with "
            f"--zookeeper {zookeeper}, or choose another --data-dir"
        )


def refuse_a_single_brokers(disk: Disk, config: BrokerConfig, unusable: Container[str]) -> None:
    """Before a broker joins a cluster. A journal that no topic was ever in is removed. Raises BadDirectories."""
    for path in dict.fromkeys((*config.log_dirs, config.metadata_log_dir)):
        data = disk.read_file(f"{path}/{JOURNAL}") if path not in unusable else None
        if data is None:
            continue
        image = Image().apply(read_journal(data)[0])
        if image.topics:
            raise BadDirectories(
                f"{path} holds {len(image.topics)} topics of a broker of its own, which a cluster cannot take over: "
                "choose another --data-dir, and copy what is to be kept with a consumer and a producer"
            )
        disk.remove(f"{path}/{JOURNAL}")
        disk.sync_dir(path)


def mark_a_clusters(disk: Disk, path: str, **fields: object) -> None:
    """Say in a directory that it belongs to a cluster."""
    data = json.dumps(fields).encode() + b"\n"
    if disk.read_file(f"{path}/{CLUSTER_MARK}") != data:
        disk.replace_file(f"{path}/{CLUSTER_MARK}", data)
