"""Kafka's own metadata records in `__cluster_metadata-0` (KRaft): decoded, never written.

    record value    frame version uvarint = 1 | kind uvarint | version uvarint | fields | tagged fields
    control value   fields, the first of them its version int16 | tagged fields

All versions are flexible: a length is a uvarint of the length plus one, 0 is null; tagged fields follow at
the end. `LAYOUTS` names the fields of every kind up to Kafka 4.3, so that `ottla log dump` can show them.
`kraft_log.py` uses the kinds that ottla keeps.

Pure. Unreadable records raise `Malformed`. So do kinds and versions newer than the layouts.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.log.names import id_text
from ottla.wire.guard import MalformedMessage, read_uvarint

_FRAME_VERSION: Final = 1

Fields: TypeAlias = tuple["Field", ...]


class Malformed(Exception):
    """The bytes are not a known metadata record; the message says why."""


class Field(NamedTuple):
    name: str
    #: A key of `_NUMBERS`, or string, bytes, uuid; a `[]` prefix makes a list, a `?` suffix allows null.
    #: A tuple of fields is a list of structures.
    kind: str | Fields
    since: int = 0
    tag: int = -1


class Layout(NamedTuple):
    name: str
    #: The newest version whose fields are named here.
    version_max: int
    fields: Fields


class MetadataRecord(NamedTuple):
    name: str
    version: int
    fields: dict[str, Any]


_END_POINTS: Final = (
    Field("name", "string"),
    Field("host", "string"),
    Field("port", "uint16"),
    Field("security_protocol", "int16"),
)
_FEATURES: Final = (
    Field("name", "string"),
    Field("min_supported_version", "int16"),
    Field("max_supported_version", "int16"),
)
_BROKER_AND_EPOCH: Final = (Field("broker_id", "int32"), Field("broker_epoch", "int64"))

LAYOUTS: Final[dict[int, Layout]] = {
    0: Layout(
        "RegisterBroker",
        4,
        (
            Field("broker_id", "int32"),
            Field("is_migrating_zk_broker", "bool", 2),
            Field("incarnation_id", "uuid"),
            Field("broker_epoch", "int64"),
            Field("end_points", _END_POINTS),
            Field("features", _FEATURES),
            Field("rack", "string?"),
            Field("fenced", "bool"),
            Field("in_controlled_shutdown", "bool", 1),
            Field("log_dirs", "[]uuid", 3, tag=0),
            Field("cordoned_log_dirs", "[]uuid?", 4, tag=1),
        ),
    ),
    1: Layout("UnregisterBroker", 0, _BROKER_AND_EPOCH),
    2: Layout("Topic", 0, (Field("name", "string"), Field("topic_id", "uuid"))),
    3: Layout(
        "Partition",
        2,
        (
            Field("partition_id", "int32"),
            Field("topic_id", "uuid"),
            Field("replicas", "[]int32"),
            Field("isr", "[]int32"),
            Field("removing_replicas", "[]int32"),
            Field("adding_replicas", "[]int32"),
            Field("leader", "int32"),
            Field("leader_recovery_state", "int8", tag=0),
            Field("leader_epoch", "int32"),
            Field("partition_epoch", "int32"),
            Field("directories", "[]uuid", 1),
            Field("eligible_leader_replicas", "[]int32?", 2, tag=1),
            Field("last_known_elr", "[]int32?", 2, tag=2),
        ),
    ),
    4: Layout(
        "Config",
        0,
        (
            Field("resource_type", "int8"),
            Field("resource_name", "string"),
            Field("name", "string"),
            Field("value", "string?"),
        ),
    ),
    5: Layout(
        "PartitionChange",
        2,
        (
            Field("partition_id", "int32"),
            Field("topic_id", "uuid"),
            Field("isr", "[]int32?", tag=0),
            Field("leader", "int32", tag=1),
            Field("replicas", "[]int32?", tag=2),
            Field("removing_replicas", "[]int32?", tag=3),
            Field("adding_replicas", "[]int32?", tag=4),
            Field("leader_recovery_state", "int8", tag=5),
            Field("eligible_leader_replicas", "[]int32?", 2, tag=6),
            Field("last_known_elr", "[]int32?", 2, tag=7),
            Field("directories", "[]uuid?", 1, tag=8),
        ),
    ),
    7: Layout("FenceBroker", 0, (Field("id", "int32"), Field("epoch", "int64"))),
    8: Layout("UnfenceBroker", 0, (Field("id", "int32"), Field("epoch", "int64"))),
    9: Layout("RemoveTopic", 0, (Field("topic_id", "uuid"),)),
    10: Layout(
        "DelegationToken",
        0,
        (
            Field("owner", "string"),
            Field("requester", "string"),
            Field("renewers", "[]string"),
            Field("issue_timestamp", "int64"),
            Field("max_timestamp", "int64"),
            Field("expiration_timestamp", "int64"),
            Field("token_id", "string"),
        ),
    ),
    11: Layout(
        "UserScramCredential",
        0,
        (
            Field("name", "string"),
            Field("mechanism", "int8"),
            Field("salt", "bytes"),
            Field("stored_key", "bytes"),
            Field("server_key", "bytes"),
            Field("iterations", "int32"),
        ),
    ),
    12: Layout("FeatureLevel", 0, (Field("name", "string"), Field("feature_level", "int16"))),
    14: Layout(
        "ClientQuota",
        0,
        (
            Field("entity", (Field("entity_type", "string"), Field("entity_name", "string?"))),
            Field("key", "string"),
            Field("value", "float64"),
            Field("remove", "bool"),
        ),
    ),
    15: Layout("ProducerIds", 0, (*_BROKER_AND_EPOCH, Field("next_producer_id", "int64"))),
    17: Layout(
        "BrokerRegistrationChange",
        3,
        (
            *_BROKER_AND_EPOCH,
            Field("fenced", "int8", tag=0),
            Field("in_controlled_shutdown", "int8", 1, tag=1),
            Field("log_dirs", "[]uuid", 2, tag=2),
            Field("cordoned_log_dirs", "[]uuid?", 3, tag=3),
        ),
    ),
    18: Layout(
        "AccessControlEntry",
        0,
        (
            Field("id", "uuid"),
            Field("resource_type", "int8"),
            Field("resource_name", "string"),
            Field("pattern_type", "int8"),
            Field("principal", "string"),
            Field("host", "string"),
            Field("operation", "int8"),
            Field("permission_type", "int8"),
        ),
    ),
    19: Layout("RemoveAccessControlEntry", 0, (Field("id", "uuid"),)),
    20: Layout("NoOp", 0, ()),
    21: Layout("ZkMigrationState", 0, (Field("zk_migration_state", "int8"),)),
    22: Layout("RemoveUserScramCredential", 0, (Field("name", "string"), Field("mechanism", "int8"))),
    23: Layout("BeginTransaction", 0, (Field("name", "string?", tag=0),)),
    24: Layout("EndTransaction", 0, ()),
    25: Layout("AbortTransaction", 0, (Field("reason", "string?", tag=0),)),
    26: Layout("RemoveDelegationToken", 0, (Field("token_id", "string"),)),
    27: Layout(
        "RegisterController",
        0,
        (
            Field("controller_id", "int32"),
            Field("incarnation_id", "uuid"),
            Field("zk_migration_ready", "bool"),
            Field("end_points", _END_POINTS),
            Field("features", _FEATURES),
        ),
    ),
    28: Layout("ClearElr", 0, (Field("topic_name", "string"),)),
}

_VOTER: Final = (Field("voter_id", "int32"), Field("voter_directory_id", "uuid", 1))
#: Control records of the raft log, by the type in their key.
CONTROL_LAYOUTS: Final[dict[int, Layout]] = {
    2: Layout(
        "LeaderChange",
        1,
        (Field("leader_id", "int32"), Field("voters", _VOTER), Field("granting_voters", _VOTER)),
    ),
    3: Layout("SnapshotHeader", 0, (Field("last_contained_log_timestamp", "int64"),)),
    4: Layout("SnapshotFooter", 0, ()),
    5: Layout("KRaftVersion", 0, (Field("k_raft_version", "int16"),)),
    # A voter's range of versions is a structure outside of a list, which layouts do not describe.
    6: Layout("Voters", -1, ()),
}

_NUMBERS: Final = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}
_CONTROL_KEY: Final = struct.Struct(">hh")
_SECRETS: Final = ("salt", "stored_key", "server_key")
_SECRET_SETTINGS: Final = re.compile(r"password|secret|jaas|keystore\.key")


def decode(value: bytes) -> MetadataRecord:
    """A record of the metadata log."""
    reader = _Reader(value)
    frame_version = reader.uvarint()
    if frame_version != _FRAME_VERSION:
        raise Malformed(
            f"unknown frame version {frame_version} of a metadata record; {_FRAME_VERSION} is supported"
        )
    kind, version = reader.uvarint(), reader.uvarint()
    layout = LAYOUTS.get(kind)
    if layout is None:
        raise UnknownKind(kind)
    return _body(reader, layout, version)


def decode_control(key: bytes, value: bytes) -> MetadataRecord | None:
    """A control record of the raft log; None for one of a type without a known layout."""
    layout = CONTROL_LAYOUTS.get(_CONTROL_KEY.unpack_from(key)[1]) if len(key) >= _CONTROL_KEY.size else None
    if layout is None:
        return None
    reader = _Reader(value)
    version = reader.number("int16")
    if version > layout.version_max:
        return MetadataRecord(layout.name, version, {})
    return _body(reader, layout, version)


class UnknownKind(Malformed):
    """A record of an unknown kind, perhaps of a newer Kafka."""

    def __init__(self, kind: int) -> None:
        super().__init__(f"unknown kind {kind} of a metadata record")
        self.kind = kind


def _body(reader: _Reader, layout: Layout, version: int) -> MetadataRecord:
    if version > layout.version_max:
        raise Malformed(
            f"unknown version {version} of {layout.name}; versions up to {layout.version_max} are supported"
        )
    fields = reader.structure(layout.fields, version)
    if reader.at != len(reader.data):
        raise Malformed(f"{layout.name}: {len(reader.data) - reader.at} bytes are left over")
    return MetadataRecord(layout.name, version, fields)


class _Reader:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def structure(self, fields: Fields, version: int) -> dict[str, Any]:
        found = {
            field.name: self.value(field.kind, version)
            for field in fields
            if field.tag < 0 and version >= field.since
        }
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            end = self.at + size
            named = next((f for f in fields if f.tag == tag and version >= f.since), None)
            if named is None:
                self.take(size)
                continue
            found[named.name] = self.value(named.kind, version)
            if self.at != end:
                raise Malformed(f"{named.name} does not fill its tagged field")
        return found

    def value(self, kind: str | Fields, version: int) -> Any:
        if not isinstance(kind, str):
            return [self.structure(kind, version) for _ in range(self._count("a list", False))]
        nullable = kind.endswith("?")
        plain = kind.rstrip("?")
        if plain.startswith("[]"):
            count = self._count(plain, nullable)
            return None if count < 0 else [self.value(plain[2:], version) for _ in range(count)]
        if plain == "uuid":
            return self.take(16)
        if plain in ("string", "bytes"):
            size = self._count(plain, nullable)
            if size < 0:
                return None
            data = self.take(size)
            try:
                return data.decode() if plain == "string" else data
            except UnicodeDecodeError as error:
                raise Malformed(f"a string is not UTF-8: {error}") from error
        return self.number(plain)

    def number(self, kind: str) -> Any:
        layout = _NUMBERS[kind]
        return layout.unpack(self.take(layout.size))[0]

    def take(self, size: int) -> bytes:
        data = self.data[self.at : self.at + size]
        if len(data) != size:
            raise Malformed(f"{size} bytes are announced at byte {self.at}, {len(data)} are there")
        self.at += size
        return data

    def uvarint(self) -> int:
        try:
            value, self.at = read_uvarint(self.data, self.at)
        except (IndexError, MalformedMessage) as error:
            raise Malformed(f"no varint at byte {self.at}: {error}") from None
        return value

    def _count(self, what: str, nullable: bool) -> int:
        count = self.uvarint() - 1
        if count < 0 and not nullable:
            raise Malformed(f"{what} is null, which is not allowed there")
        if count > len(self.data) - self.at:
            raise Malformed(f"{what} of {count} in {len(self.data) - self.at} bytes")
        return count


def shown(record: MetadataRecord) -> dict[str, Any]:
    """The fields for display: ids as Kafka prints them, only the sizes of secrets."""
    fields = {name: _shown(name, value) for name, value in record.fields.items()}
    if record.name == "Config" and _SECRET_SETTINGS.search(record.fields["name"]) and fields["value"]:
        fields["value"] = "(secret)"
    return fields


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return f"({len(value)} secret bytes)" if name in _SECRETS else id_text(value)
    if isinstance(value, list):
        return [_shown(name, each) for each in value]
    if isinstance(value, dict):
        return {key: _shown(key, each) for key, each in value.items()}
    return value
