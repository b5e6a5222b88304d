"""The records of `__consumer_offsets`, in Kafka's own formats, readable for Kafka's tools.

A key is its kind (int16) and its fields, never flexible. A value is its version (int16) and its fields.

    kind  key                        value (version written)                       meaning
    0, 1  group, topic, partition    offset, epoch, text, time, id (4; 1)          a committed offset (0: old)
    2     group                      generation, protocol, leader, members (3)     a classic group
    3     group                      epoch, hash of the metadata (0)               a consumer group (KIP-848)
    5     group, member              subscription, racks, client (0)               a member of one
    6     group                      epoch, time (0)                               its target assignment
    7     group, member              partitions by topic id (0)                    target of a member
    8     group, member              epochs, state, partitions (0)                 its current assignment
    16    group, pattern             topics, version, time (0)                     topics that match a pattern

A record without a value is a tombstone. `decode` returns None for unknown kinds and newer versions. The key
of a `Record` is a tuple (kind, fields…). Its value is a dict by Kafka's names, or a `Committed` for the many
offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.model.limits import STRING_BYTES_MAX
from ottla.model.steps import Steps
from ottla.model.strings import is_longer
from ottla.records.layout import Array, Field, Malformed, Struct, fields, read, write, write_in_steps
from ottla.wire.encode import uvarint

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2
CONSUMER_GROUP_METADATA: Final = 3
CONSUMER_GROUP_MEMBER: Final = 5
TARGET_ASSIGNMENT: Final = 6
TARGET_ASSIGNMENT_MEMBER: Final = 7
CURRENT_ASSIGNMENT: Final = 8
REGULAR_EXPRESSION: Final = 16

#: An unknown topic id: in commits of old brokers.
NO_ID: Final = bytes(16)

#: (kind, fields of the key…)
Key: TypeAlias = tuple[Any, ...]


class Committed(NamedTuple):
    """A committed offset. Old clients could set `expire_ms`; -1 if the broker decides."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1
    topic_id: bytes = NO_ID


class Record(NamedTuple):
    key: Key
    value: Any


class Encoded(NamedTuple):
    """An encoded record. The state is already up to date with it."""

    key: bytes
    value: bytes | None


_GROUP: Final = (("group", "string"),)
_MEMBER: Final = (("group", "string"), ("member", "string"))
_KEYS: Final[Mapping[int, Struct]] = {
    kind: Struct(fields(*rows))
    for kind, rows in {
        LEGACY_OFFSET_COMMIT: (*_GROUP, ("topic", "string"), ("partition", "int32")),
        OFFSET_COMMIT: (*_GROUP, ("topic", "string"), ("partition", "int32")),
        GROUP_METADATA: _GROUP,
        CONSUMER_GROUP_METADATA: _GROUP,
        CONSUMER_GROUP_MEMBER: _MEMBER,
        TARGET_ASSIGNMENT: _GROUP,
        TARGET_ASSIGNMENT_MEMBER: _MEMBER,
        CURRENT_ASSIGNMENT: _MEMBER,
        REGULAR_EXPRESSION: (*_GROUP, ("regular_expression", "string")),
    }.items()
}

_OFFSET: Final = Struct(
    fields(
        ("offset", "int64"),
        Field("leader_epoch", "int32", since=3, default=-1),
        ("metadata", "string"),
        ("commit_timestamp", "int64"),
        Field("expire_timestamp", "int64", since=1, until=1, default=-1),
        Field("topic_id", "uuid", since=4, tag=0, default=NO_ID),
    ),
    flexible=4,
)
_CLASSIC_MEMBER: Final = Struct(
    fields(
        ("member_id", "string"),
        Field("group_instance_id", "?string", since=3),
        ("client_id", "string"),
        ("client_host", "string"),
        Field("rebalance_timeout", "int32", since=1, default=-1),
        ("session_timeout", "int32"),
        ("subscription", "bytes"),
        ("assignment", "bytes"),
    )
)
_CLASSIC: Final = Struct(
    fields(
        ("protocol_type", "string"),
        ("generation", "int32"),
        ("protocol", "?string"),
        ("leader", "?string"),
        Field("current_state_timestamp", "int64", since=2, default=-1),
        ("members", Array(_CLASSIC_MEMBER)),
    ),
    flexible=4,
)
_TOPIC: Final = Struct(fields(("topic_id", "uuid"), ("partitions", Array("int32"))), flexible=0)
_TOPIC_WITH_EPOCHS: Final = Struct(
    fields(
        ("topic_id", "uuid"),
        ("partitions", Array("int32")),
        Field("assignment_epochs", Array("int32", nullable=True), tag=0),
    ),
    flexible=0,
)
_PROTOCOL: Final = Struct(fields(("name", "string"), ("metadata", "bytes")), flexible=0)
_CLASSIC_MEMBER_METADATA: Final = Struct(
    fields(("session_timeout_ms", "int32"), ("supported_protocols", Array(_PROTOCOL))), flexible=0
)
_VALUES: Final[Mapping[int, Struct]] = {
    LEGACY_OFFSET_COMMIT: _OFFSET,
    OFFSET_COMMIT: _OFFSET,
    GROUP_METADATA: _CLASSIC,
    CONSUMER_GROUP_METADATA: Struct(
        fields(("epoch", "int32"), Field("metadata_hash", "int64", tag=0, default=0)), flexible=0
    ),
    CONSUMER_GROUP_MEMBER: Struct(
        fields(
            ("instance_id", "?string"),
            ("rack_id", "?string"),
            ("client_id", "string"),
            ("client_host", "string"),
            ("subscribed_topic_names", Array("string")),
            ("subscribed_topic_regex", "?string"),
            ("rebalance_timeout_ms", "int32"),
            ("server_assignor", "?string"),
            Field("classic_member_metadata", _CLASSIC_MEMBER_METADATA, tag=0, nullable=True),
        ),
        flexible=0,
    ),
    TARGET_ASSIGNMENT: Struct(
        fields(("assignment_epoch", "int32"), Field("assignment_timestamp", "int64", tag=0, default=0)),
        flexible=0,
    ),
    TARGET_ASSIGNMENT_MEMBER: Struct(fields(("topic_partitions", Array(_TOPIC))), flexible=0),
    CURRENT_ASSIGNMENT: Struct(
        fields(
            ("member_epoch", "int32"),
            ("previous_member_epoch", "int32"),
            ("state", "int8"),
            ("assigned_partitions", Array(_TOPIC_WITH_EPOCHS)),
            ("partitions_pending_revocation", Array(_TOPIC_WITH_EPOCHS)),
        ),
        flexible=0,
    ),
    REGULAR_EXPRESSION: Struct(
        fields(("topics", Array("string")), ("version", "int64"), ("timestamp", "int64")), flexible=0
    ),
}
#: The newest readable version, and the written one: those of Kafka 4. Kinds not listed: 0.
_NEWEST: Final = {LEGACY_OFFSET_COMMIT: 4, OFFSET_COMMIT: 4, GROUP_METADATA: 4}
_WRITTEN: Final = {GROUP_METADATA: 3}

_INT16: Final = struct.Struct(">h")
_KEY_HEAD: Final = struct.Struct(">hh")
_INT32: Final = struct.Struct(">i")
_OFFSET_HEAD: Final = struct.Struct(">hqi")
_INT64: Final = struct.Struct(">q")
#: Rebalance and session timeout of a classic member, and the length of its subscription.
_TIMEOUTS: Final = struct.Struct(">iii")
_new: Final = tuple.__new__
#: Keys of groups with longer names are not cached: clients could fill the memory.
_KEPT_LENGTH_MAX: Final = 256
#: One tagged field, number 0, of 16 bytes.
_ID_FOLLOWS: Final = b"\1\0\x10"
#: The value of most commits: without metadata.
_TEXTLESS: Final = struct.Struct(">hqibq3s16s")


def encode(record: Record | Encoded) -> tuple[bytes, bytes | None]:
    """Key and value in the log. Raises Malformed if the record cannot be written, as with too long
    strings."""
    if isinstance(record, Encoded):
        return record
    key, value = record
    kind = key[0]
    if kind == OFFSET_COMMIT:
        return _encode_offset(key, value)
    head = _encode_key(key)
    if value is None:
        return head, None
    if kind == GROUP_METADATA:
        return head, _encode_classic(value)
    version = _WRITTEN.get(kind, 0)
    return head, _INT16.pack(version) + write(_VALUES[kind], version, value)


def encode_in_steps(record: Record) -> Steps[Encoded]:
    """Like `encode`, for a record with very many rows; not for offsets and tombstones."""
    kind = record.key[0]
    version = _WRITTEN.get(kind, 0)
    value = yield from write_in_steps(_VALUES[kind], version, record.value)
    return Encoded(_encode_key(record.key), _INT16.pack(version) + value)


def _encode_classic(value: Mapping[str, Any]) -> bytes:
    """A classic group. It may have thousands of members; `write` takes 10 µs for each."""
    body = write(_CLASSIC, _WRITTEN[GROUP_METADATA], {**value, "members": ()})
    try:
        rows = [_classic_member(row) for row in value["members"]]
    except (struct.error, UnicodeError, TypeError, KeyError) as error:
        raise Malformed(f"cannot be written: {error!r}") from error
    # Members are the last field; their count is an int32.
    return b"".join((_INT16.pack(_WRITTEN[GROUP_METADATA]), body[:-4], _INT32.pack(len(rows)), *rows))


def _classic_member(row: Mapping[str, Any]) -> bytes:
    member_id, client_id, host = (
        row["member_id"].encode(),
        row["client_id"].encode(),
        row["client_host"].encode(),
    )
    instance = row["group_instance_id"]
    instance_id = b"" if instance is None else instance.encode()
    subscription, assignment = row["subscription"], row["assignment"]
    return b"".join(
        (
            _INT16.pack(len(member_id)), member_id,
            _INT16.pack(-1 if instance is None else len(instance_id)), instance_id,
            _INT16.pack(len(client_id)), client_id, _INT16.pack(len(host)), host,
            _TIMEOUTS.pack(row["rebalance_timeout"], row["session_timeout"], len(subscription)), subscription,
            _INT32.pack(len(assignment)), assignment,
        )
    )  # fmt: skip


def _encode_key(key: Key) -> bytes:
    layout = _KEYS[key[0]]
    names = [field.name for field in layout.fields]
    return _INT16.pack(key[0]) + write(layout, 0, dict(zip(names, key[1:], strict=True)))


def _encode_offset(key: Key, value: Committed | None) -> tuple[bytes, bytes | None]:
    # This kind of record is written thousands of times a second.
    try:
        head = _kept_offset_key(*key) if len(key[1]) <= _KEPT_LENGTH_MAX else _offset_key(*key)
        if value is None:
            return head, None
        offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id = value
        if expire_ms >= 0:
            # Only version 1 has the expiration; it has no epoch, as in Kafka.
            row = {
                "offset": offset,
                "metadata": metadata,
                "commit_timestamp": commit_ms,
                "expire_timestamp": expire_ms,
            }
            return head, _INT16.pack(1) + write(_OFFSET, 1, row)
        if not metadata and topic_id != NO_ID:
            return head, _TEXTLESS.pack(4, offset, leader_epoch, 1, commit_ms, _ID_FOLLOWS, topic_id)
        text = metadata.encode()
        return head, b"".join(
            (
                _OFFSET_HEAD.pack(4, offset, leader_epoch), uvarint(len(text) + 1), text, _INT64.pack(commit_ms),
                b"\0" if topic_id == NO_ID else _ID_FOLLOWS + topic_id,
            )
        )  # fmt: skip
    except struct.error as error:
        raise Malformed(f"cannot be written: {error!r}") from error


def _decode_offset(key: bytes, value: bytes) -> Record | None:
    """A committed offset in a current version; None for any other, which `read` decodes.

    A load may decode a million offsets; `read` takes twenty times as long.
    """
    size = len(value)
    try:
        topic_at = 6 + (key[2] << 8 | key[3])
        end = len(key) - 4
        if end - topic_at != key[topic_at - 2] << 8 | key[topic_at - 1]:
            return None
        version, offset, leader_epoch = _OFFSET_HEAD.unpack_from(value)
        if version == 4:
            text_end = 14 + value[14]
            # The length of text over 126 bytes takes more than one byte.
            if value[14] > 0x7F or text_end < 15:
                return None
            text = value[15:text_end]
            if size == text_end + 27 and value[text_end + 8 : text_end + 11] == _ID_FOLLOWS:
                topic_id = value[text_end + 11 :]
            elif size == text_end + 9 and not value[text_end + 8]:
                topic_id = NO_ID
            else:
                return None
        elif version == 3:
            text_end = 16 + (value[14] << 8 | value[15])
            if size != text_end + 8:
                return None
            text, topic_id = value[16:text_end], NO_ID
        else:
            return None
        group_id, topic = key[4 : topic_at - 2].decode(), key[topic_at:end].decode()
        return _new(
            Record,
            (
                (OFFSET_COMMIT, group_id, topic, _INT32.unpack_from(key, end)[0]),
                _new(
                    Committed,
                    (
                        offset, leader_epoch, text.decode() if text else "", _INT64.unpack_from(value, text_end)[0], -1,
                        topic_id,
                    ),
                ),
            ),
        )  # fmt: skip
    except (struct.error, IndexError, UnicodeError):
        return None


def _offset_key(_kind: int, group_id: str, topic: str, partition: int) -> bytes:
    group, name = group_id.encode(), topic.encode()
    return b"".join(
        (_KEY_HEAD.pack(OFFSET_COMMIT, len(group)), group, _INT16.pack(len(name)), name, _INT32.pack(partition))
    )  # fmt: skip


@lru_cache(maxsize=10_000)
def _kept_offset_key(kind: int, group_id: str, topic: str, partition: int) -> bytes:
    return _offset_key(kind, group_id, topic, partition)


def decode(key: bytes | None, value: bytes | None) -> Record | None:
    """The record; None if its kind or version is unknown. Raises Malformed if it is damaged."""
    if key is None or len(key) < 2:
        raise Malformed("a record without a key")
    kind = _INT16.unpack_from(key)[0]
    if kind == OFFSET_COMMIT and value is not None and (usual := _decode_offset(key, value)) is not None:
        return usual
    layout = _KEYS.get(kind)
    if layout is None:
        return None
    known: Key = (
        OFFSET_COMMIT if kind == LEGACY_OFFSET_COMMIT else kind,
        *read(layout, 0, key, 2).values(),
    )
    if value is None:
        return Record(known, None)
    if len(value) < 2:
        raise Malformed("a value without its version")
    version = _INT16.unpack_from(value)[0]
    if not 0 <= version <= _NEWEST.get(kind, 0):
        return None
    row = read(_VALUES[kind], version, value, 2)
    if kind == GROUP_METADATA and version >= _CLASSIC.flexible:
        _check_classic(row)
    if known[0] == OFFSET_COMMIT:
        return Record(
            known,
            Committed(
                row["offset"], row["leader_epoch"], row["metadata"], row["commit_timestamp"], row["expire_timestamp"],
                row["topic_id"],
            ),
        )  # fmt: skip
    return Record(known, row)


def _check_classic(row: Mapping[str, Any]) -> None:
    """Raises Malformed if a string is too long for older versions of DescribeGroups and JoinGroup."""
    strings = [row["protocol_type"], row["protocol"], row["leader"]]
    for member in row["members"]:
        strings += (
            member["member_id"],
            member["group_instance_id"],
            member["client_id"],
            member["client_host"],
        )
    if any(is_longer(text, STRING_BYTES_MAX) for text in strings):
        raise Malformed(f"a string of more than {STRING_BYTES_MAX} bytes")
