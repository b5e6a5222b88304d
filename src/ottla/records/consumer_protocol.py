"""The embedded protocol of classic consumers: subscriptions in JoinGroup, assignments in SyncGroup.

The client writes and reads them as a member and as the leader of a group. The broker reads them to migrate
groups to KIP-848.

    subscription  int16 version | topics | user data | owned partitions (from version 1) | generation (2) | rack (3)
    assignment    int16 version | partitions | user data

Both use the non-flexible encoding. A newer version is read as the newest known one, with bytes left over.
Some clients send a version without its fields: then only the topics are read, which come first in all
versions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from ottla.records.layout import Array, Field, Malformed, Struct, fields, read, write

NEWEST: Final = 3

#: (topic, number)
NamedPlace: TypeAlias = tuple[str, int]

_PARTITIONS: Final = Array(Struct(fields(("topic", "string"), ("partitions", Array("int32")))))
_TOPICS: Final = Struct(fields(("topics", Array("string"))))
_SUBSCRIPTION: Final = Struct(
    fields(
        ("topics", Array("string")),
        ("user_data", "?bytes"),
        Field("owned_partitions", _PARTITIONS, since=1, default=()),
        Field("generation", "int32", since=2, default=-1),
        Field("rack", "?string", since=3),
    )
)
_ASSIGNMENT: Final = Struct(fields(("partitions", _PARTITIONS), ("user_data", "?bytes")))
_STICKY: Final = Struct(
    fields(("partitions", _PARTITIONS), Field("generation", "int32", since=1, default=-1))
)
_VERSION: Final = struct.Struct(">h")


class Wanted(NamedTuple):
    """A subscription. `owned`: the partitions of the member when it joined; empty if it revokes everything
    first.
    """

    topics: frozenset[str]
    owned: frozenset[NamedPlace] = frozenset()
    rack: str | None = None
    #: The generation in which it got them; -1: unknown.
    generation: int = -1
    #: Data of the assignor.
    user_data: bytes = b""


def version_of(data: bytes) -> int:
    """The version that a client uses; raises Malformed if there is none."""
    if len(data) < _VERSION.size:
        raise Malformed("bytes without a version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise Malformed(f"version {version}")
    return version


def read_subscription(data: bytes) -> Wanted:
    """Raises Malformed."""
    version = min(version_of(data), NEWEST)
    try:
        row = read(_SUBSCRIPTION, version, data, _VERSION.size, may_go_on=True)
    except Malformed:
        return Wanted(frozenset(read(_TOPICS, 0, data, _VERSION.size, may_go_on=True)["topics"]))
    owned = _places(row["owned_partitions"])
    return Wanted(
        frozenset(row["topics"]), owned, row["rack"] or None, row["generation"], row["user_data"] or b""
    )


def read_topics(data: bytes, limit: int) -> frozenset[str]:
    """The topics of a subscription. Raises Malformed, also if there are more than the limit."""
    version_of(data)
    if int.from_bytes(data[2:6], "big") > limit:
        raise Malformed(f"more than {limit} topics")
    return frozenset(read(_TOPICS, 0, data, _VERSION.size, may_go_on=True)["topics"])


def write_subscription(wanted: Wanted) -> bytes:
    row = {
        "topics": sorted(wanted.topics), "user_data": wanted.user_data or None, "owned_partitions": _rows(wanted.owned),
        "generation": wanted.generation, "rack": wanted.rack,
    }  # fmt: skip
    return _VERSION.pack(NEWEST) + write(_SUBSCRIPTION, NEWEST, row)


def read_assignment(data: bytes) -> tuple[frozenset[NamedPlace], bytes]:
    """The partitions, and the user data of a custom assignor. Empty bytes are an empty assignment. Raises
    Malformed.
    """
    if not data:
        return frozenset(), b""
    version_of(data)
    row = read(_ASSIGNMENT, 0, data, _VERSION.size, may_go_on=True)
    return _places(row["partitions"]), row["user_data"] or b""


def write_assignment(version: int, places: Iterable[NamedPlace], user_data: bytes = b"") -> bytes:
    """An assignment in this version."""
    version = min(version, NEWEST)
    row = {"partitions": _rows(places), "user_data": user_data or None}
    return _VERSION.pack(version) + write(_ASSIGNMENT, version, row)


def read_partitions(data: bytes) -> tuple[frozenset[NamedPlace], int]:
    """The user data of Kafka's sticky assignor: the partitions of the member, and their generation (-1:
    unknown). Raises Malformed.
    """
    try:
        row = read(_STICKY, 1, data, 0, may_go_on=True)
    except Malformed:
        row = read(_STICKY, 0, data, 0, may_go_on=True)
    return _places(row["partitions"]), row["generation"]


def write_partitions(places: Iterable[NamedPlace], generation: int) -> bytes:
    return write(_STICKY, 1, {"partitions": _rows(places), "generation": generation})


def _rows(places: Iterable[NamedPlace]) -> list[dict[str, object]]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(places):
        by_topic.setdefault(topic, []).append(number)
    return [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic.items()]


def _places(rows: Iterable[dict[str, object]]) -> frozenset[NamedPlace]:
    return frozenset((row["topic"], number) for row in rows for number in row["partitions"])  # type: ignore[attr-defined,misc]
