"""The data directories of a broker: created, checked and locked before anything is read.

`claim` returns the unusable directories with the reason; the broker starts without them. It refuses the start
if

- a directory is configured twice, is inside another, or is locked by another process,
- the metadata directory is unusable, or
- a metadata journal is in another directory than the configured one.

The metadata of a single broker cannot be merged into a cluster. So a directory belongs either to a single
broker (it has a journal with topics) or to a cluster (it has this mark):

    ottla-cluster     one JSON object: {"zookeeper": "host:port/path", "cluster_id": …} of the last start
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
#: In the metadata directory: the process id of the running broker.
PID_FILE: Final = "ottla.pid"


class BadDirectories(Exception):
    """The configured directories cannot be used; the message says why and what to do."""


def with_absolute_paths(config: BrokerConfig) -> BrokerConfig:
    """The same settings with absolute directories: clients see and name them (DescribeLogDirs)."""
    log_dirs = [os.path.abspath(path) for path in config.log_dirs]
    metadata_dir = os.path.abspath(config.metadata_log_dir)
    if (*log_dirs, metadata_dir) == (*config.log_dirs, config.metadata_log_dir):
        return config
    changed = {**config.properties, "log.dirs": ",".join(log_dirs), "metadata.log.dir": metadata_dir}
    return BrokerConfig.from_properties(changed)


def claim(disk: SystemDisk, config: BrokerConfig) -> dict[str, str]:
    """Lock all directories; returns the unusable ones with the reason. Raises BadDirectories."""
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
                raise BadDirectories(f"cannot use the metadata directory: {error}") from error
            unusable[path] = str(error)
    for path in config.log_dirs:
        has_journal = os.path.exists(f"{path}/{JOURNAL}")
        if path != metadata_dir and has_journal and not os.path.exists(f"{metadata_dir}/{JOURNAL}"):
            raise BadDirectories(
                f"the metadata journal is in {path}, not in {metadata_dir}: put {path} first in log.dirs, "
                f"or set metadata.log.dir={path}"
            )
    return unusable


def _check_apart(paths: Sequence[str]) -> None:
    real = [os.path.realpath(path) for path in paths]
    for at, path in enumerate(real):
        for other_at, other in enumerate(real):
            if at < other_at and path == other:
                raise BadDirectories(
                    f"{paths[at]} and {paths[other_at]} are the same directory: remove one of them"
                )
            if at != other_at and path.startswith(other.rstrip("/") + "/"):
                raise BadDirectories(
                    f"{paths[at]} is inside {paths[other_at]}: choose directories outside of each other"
                )


def is_a_clusters(disk: Disk, config: BrokerConfig) -> bool:
    """Whether any of the directories belongs to a cluster."""
    for path in config.log_dirs:
        with suppress(DiskError):
            if disk.read_file(f"{path}/{CLUSTER_MARK}") is not None:
                return True
    return False


def refuse_a_clusters(disk: Disk, config: BrokerConfig) -> None:
    """Called before a single broker starts. Raises BadDirectories for a directory of a cluster."""
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
                f"{path} is the directory of a local cluster: start it with --brokers {brokers}, or choose "
                "another "
                "--data-dir"
            )
        raise BadDirectories(
            f"{path} belongs to a broker of a cluster with its metadata in ZooKeeper: start it with "
            f"--zookeeper {zookeeper}, or choose another --data-dir"
        )


def refuse_a_single_brokers(disk: Disk, config: BrokerConfig, unusable: Container[str]) -> None:
    """Called before a broker joins a cluster. Deletes a journal without topics. Raises BadDirectories."""
    for path in dict.fromkeys((*config.log_dirs, config.metadata_log_dir)):
        data = disk.read_file(f"{path}/{JOURNAL}") if path not in unusable else None
        if data is None:
            continue
        image = Image().apply(read_journal(data)[0])
        if image.topics:
            raise BadDirectories(
                f"{path} has {len(image.topics)} topics of a single broker, which a cluster cannot import: "
                "choose another --data-dir, and copy the topics with a consumer and a producer"
            )
        disk.remove(f"{path}/{JOURNAL}")
        disk.sync_dir(path)


def mark_a_clusters(disk: Disk, path: str, **fields: object) -> None:
    """Mark a directory as belonging to a cluster."""
    data = json.dumps(fields).encode() + b"\n"
    if disk.read_file(f"{path}/{CLUSTER_MARK}") != data:
        disk.replace_file(f"{path}/{CLUSTER_MARK}", data)
