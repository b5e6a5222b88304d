"""Check whole data directories: their identity, metadata, checkpoints, and every partition.

Read-only; the owning broker may be running. `log/log_check.py` checks the files of a partition. This module
compares them with the metadata journal (or Kafka's metadata log), the checkpoints, and the other directories.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ottla.broker.storage.kafka_import import MARK
from ottla.log import checkpoints, names
from ottla.log.log_check import Expected, Files, Finding, verify_partition
from ottla.metadata.image import Image
from ottla.runtime.embedded_store import JOURNAL, entry_after, read_journal
from ottla.server.directories import CLUSTER_MARK, PID_FILE

_OFFSET_FILES: Final = (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS, names.CLEANED_OFFSETS)
_KNOWN_FILES: Final = frozenset(
    {
        *_OFFSET_FILES,
        names.META_PROPERTIES,
        names.CLEAN_SHUTDOWN,
        JOURNAL,
        PID_FILE,
        MARK,
        CLUSTER_MARK,
        ".lock",
    }
    | {"bootstrap.checkpoint", names.KAFKA_METADATA}
)
_RENAMED: Final = re.compile(r".+\.[0-9a-f]{32}-(delete|stray|future)")
_TEMPORARY: Final = re.compile(r".+\.tmp")


class Directory:
    """The identity, journal and checkpoints of one data directory."""

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self.names = files.list(path)
        self.properties = checkpoints.parse_properties(files.read_file(f"{path}/{names.META_PROPERTIES}"))
        self.clean = names.CLEAN_SHUTDOWN in self.names
        self.journal = files.read_file(f"{path}/{JOURNAL}")
        # Kafka creates a checkpoint empty and fills it later.
        self.offsets = {
            name: checkpoints.parse_offsets(data) if (data := files.read_file(f"{path}/{name}")) else {}
            for name in _OFFSET_FILES
        }

    def partitions(self) -> Iterator[tuple[str, tuple[str, int]]]:
        for name in self.names:
            parsed = names.parse_partition_dir(name)
            if parsed is not None:
                yield f"{self.path}/{name}", parsed


def is_data_dir(files: Files, path: str) -> bool:
    return bool({names.META_PROPERTIES, JOURNAL, *_OFFSET_FILES} & set(files.list(path)))


def verify(
    files: Files,
    paths: Sequence[str],
    *,
    changing: bool,
    deep: bool,
    progress: Callable[[str], None] = lambda _path: None,
) -> Iterator[Finding]:
    """Yield all findings in the directories of one broker, or in single partition folders."""
    directories = [Directory(files, path) for path in paths if is_data_dir(files, path)]
    image = _image(directories)
    yield from _identities(directories)
    seen: dict[tuple[str, int], str] = {}
    for directory in directories:
        yield from _directory_files(files, directory, image, changing=changing)
        for folder, partition in directory.partitions():
            progress(folder)
            if partition in seen:
                yield Finding("duplicate-partition", folder, detail=seen[partition])
            seen.setdefault(partition, folder)
            expected = _expected(directory, partition, image, changing=changing, deep=deep)
            if image is not None and not _known(image, partition):
                yield Finding("stray-folder", folder)
                expected = expected._replace(topic_id=None, compacted=None)
            yield from verify_partition(files, folder, expected)
    for path in paths:
        if not is_data_dir(files, path):
            progress(path)
            yield from verify_partition(files, path, Expected(changing=changing, deep=deep))
    if image is not None and not changing:
        yield from _missing(image, seen, directories)


def _image(directories: list[Directory]) -> Image | None:
    for directory in directories:
        if directory.journal:
            records, _end = read_journal(directory.journal)
            return Image().apply(records)
    return None


def _known(image: Image, partition: tuple[str, int]) -> bool:
    topic = image.topics.get(partition[0])
    return topic is not None and partition[1] < len(topic.partitions)


def _expected(
    directory: Directory,
    partition: tuple[str, int],
    image: Image | None,
    *,
    changing: bool,
    deep: bool,
) -> Expected:
    def at(name: str) -> int | None:
        return (directory.offsets[name] or {}).get(partition)

    topic = image.topics.get(partition[0]) if image is not None else None
    compacted: bool | None = None
    if image is not None and topic is not None:
        policy = image.topic_config(partition[0]).get("cleanup.policy", "delete")
        # A topic that was compacted earlier still has its gaps.
        compacted = "compact" in policy or partition in (directory.offsets[names.CLEANED_OFFSETS] or {})
    return Expected(
        recovery_point=at(names.RECOVERY_POINTS) or 0,
        high_watermark=at(names.HIGH_WATERMARKS),
        log_start=at(names.LOG_STARTS),
        compacted=compacted,
        topic_id=topic.topic_id if topic is not None else None,
        clean=directory.clean,
        changing=changing,
        deep=deep,
    )


def _identities(directories: list[Directory]) -> Iterator[Finding]:
    for directory in directories:
        path = f"{directory.path}/{names.META_PROPERTIES}"
        if not directory.properties:
            yield Finding("properties-missing", path)
            continue
        if not {"cluster.id", "version"} <= directory.properties.keys():
            yield Finding("properties-damaged", path)
        first = directories[0].properties
        for name in ("cluster.id", "node.id"):
            ours, theirs = first.get(name), directory.properties.get(name)
            if ours is not None and theirs is not None and ours != theirs:
                yield Finding(
                    "properties-foreign", path, detail=f"{name} {theirs}, {directories[0].path} has {ours}"
                )


def _directory_files(
    files: Files, directory: Directory, image: Image | None, *, changing: bool
) -> Iterator[Finding]:
    path = directory.path
    for name in _OFFSET_FILES:
        if directory.offsets[name] is None:
            yield Finding("checkpoint-damaged", f"{path}/{name}")
    if directory.journal is not None:
        yield from _journal(directory, changing=changing)
    elif (
        # A broker of a cluster has no journal, and Kafka has its own metadata log.
        not {CLUSTER_MARK, names.KAFKA_METADATA} & set(directory.names)
        and any(directory.partitions())
        and image is None
    ):
        yield Finding("journal-missing", f"{path}/{JOURNAL}")
    if image is not None and directory.properties.get("cluster.id", image.cluster_id) != image.cluster_id:
        detail = f"cluster.id {directory.properties['cluster.id']}, the journal has {image.cluster_id}"
        yield Finding("properties-foreign", f"{path}/{names.META_PROPERTIES}", detail=detail)
    for name in directory.names:
        renamed = _RENAMED.fullmatch(name)
        if renamed:
            yield Finding(f"folder-{renamed[1]}", f"{path}/{name}")
        elif _TEMPORARY.fullmatch(name):
            yield Finding("leftover", f"{path}/{name}")
        elif name not in _KNOWN_FILES and names.parse_partition_dir(name) is None:
            yield Finding("stray-file", f"{path}/{name}")
    if names.KAFKA_METADATA in directory.names:
        yield from _kafka_metadata(files, f"{path}/{names.KAFKA_METADATA}", changing=changing)


def _journal(directory: Directory, *, changing: bool) -> Iterator[Finding]:
    data = directory.journal or b""
    _records, end = read_journal(data)
    if end < len(data):
        path = f"{directory.path}/{JOURNAL}"
        if entry_after(data, end):
            yield Finding("journal-damaged", path, end)
        elif not changing:
            yield Finding("journal-torn", path, end, detail=f"{len(data) - end} bytes")


def _kafka_metadata(files: Files, folder: str, *, changing: bool) -> Iterator[Finding]:
    # Kafka deletes segments behind a snapshot, and its Raft log may then skip offsets.
    expected = Expected(recovery_point=0, compacted=True, changing=changing)
    for finding in verify_partition(files, folder, expected):
        if finding.kind not in ("stray-file", "leftover"):
            yield finding._replace(kind=f"kafka-metadata:{finding.kind}")


def _missing(
    image: Image, seen: dict[tuple[str, int], str], directories: list[Directory]
) -> Iterator[Finding]:
    """Missing partitions that had records according to metadata and checkpoint."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            place = (topic.name, partition.partition)
            if place not in seen:
                for directory in directories:
                    end = (directory.offsets[names.HIGH_WATERMARKS] or {}).get(place, 0)
                    if end > 0:
                        folder = f"{directory.path}/{names.partition_dir(*place)}"
                        yield Finding("partition-missing", folder, None, end)
