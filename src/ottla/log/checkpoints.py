"""The small text files beside the logs: parsing and rendering. Nothing here touches the disk.

    offset checkpoints        0 \\n <count> \\n <topic> <partition> <offset> …
    leader-epoch-checkpoint   0 \\n <count> \\n <epoch> <start offset> …
    meta.properties           version=1, cluster.id, node.id, directory.id
    partition.metadata        version: 0, topic_id: <id>

A file that does not parse is treated as missing (None). Its content can be rebuilt from the log, which takes
longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ottla.log.names import id_text, parse_id

Partition: TypeAlias = tuple[str, int]


class OffsetLines:
    """An offset checkpoint kept as lines: writing it again renders only the lines that changed."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[Partition, str] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def put(self, topic: str, partition: int, offset: int) -> None:
        self._lines[topic, partition] = f"{topic} {partition} {offset}\n"

    def drop(self, topic: str, partition: int) -> None:
        self._lines.pop((topic, partition), None)

    def render(self) -> bytes:
        return "".join(["0\n", f"{len(self._lines)}\n", *self._lines.values()]).encode()


def parse_offsets(data: bytes | None) -> dict[Partition, int] | None:
    rows = _rows(data, columns=3)
    if rows is None:
        return None
    try:
        return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except ValueError:
        return None


def render_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    lines = [f"{epoch} {offset}\n" for epoch, offset in epochs]
    return "".join(["0\n", f"{len(lines)}\n", *lines]).encode()


def parse_epochs(data: bytes | None) -> list[tuple[int, int]] | None:
    rows = _rows(data, columns=2)
    if rows is None:
        return None
    try:
        return [(int(epoch), int(offset)) for epoch, offset in rows]
    except ValueError:
        return None


def _rows(data: bytes | None, *, columns: int) -> list[list[str]] | None:
    if data is None or not data.endswith(b"\n"):
        # Without the final newline the last number may be truncated and still look like a number.
        return None
    try:
        lines = data.decode().splitlines()
        if len(lines) < 2 or lines[0].strip() != "0":
            return None
        rows = [line.split() for line in lines[2:] if line.strip()]
        if len(rows) != int(lines[1]) or any(len(row) != columns for row in rows):
            return None
    except ValueError:
        return None
    return rows


def render_properties(properties: Mapping[str, str]) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in properties.items()).encode()


def parse_properties(data: bytes | None) -> dict[str, str]:
    pairs = (line.partition("=") for line in (data or b"").decode(errors="replace").splitlines())
    return {
        name.strip(): value.strip() for name, equals, value in pairs if equals and not name.startswith("#")
    }


def render_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {id_text(topic_id)}".encode()


def parse_partition_metadata(data: bytes | None) -> bytes | None:
    for line in (data or b"").decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            try:
                topic_id = parse_id(value.strip())
            except ValueError:
                return None
            return topic_id if len(topic_id) == 16 else None
    return None
