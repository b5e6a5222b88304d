"""The state in Kafka's metadata log: `__cluster_metadata-0`, replayed into a `KraftState`.

The folder has segments of batches, and snapshots `<end offset, 20 digits>-<epoch, 10 digits>.checkpoint`. A
snapshot has batches too, between a header and a footer record. The newest complete snapshot and the records
from its end offset on are the state. Records between BeginTransaction and EndTransaction are applied together
or not at all.

With one voter everything in the log is committed. A torn last batch was never acknowledged and is ignored.
Damage before complete batches is refused, since later records may depend on it. Nothing is written.

Called when a Kafka data directory is imported (`broker/storage/kafka_import.py`) or checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from ottla.log.names import segment_base
from ottla.metadata.kraft import Malformed, MetadataRecord, UnknownKind, decode, decode_control
from ottla.ports.disk import Disk
from ottla.records.batch import (
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_START,
    crc_of,
)
from ottla.records.record import CorruptRecords, decode_batch

_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_NO_LEADER: Final = -1

#: Kinds that ottla keeps or does not need; all others are reported as left out.
_WITHOUT_LOSS: Final = frozenset(
    {"NoOp", "RegisterBroker", "UnregisterBroker", "FenceBroker", "UnfenceBroker", "BrokerRegistrationChange"}
    | {"RegisterController", "FeatureLevel", "ZkMigrationState", "ClearElr"}
)
#: The kind that each removal undoes.
_REMOVALS: Final = {
    "RemoveAccessControlEntry": "AccessControlEntry",
    "RemoveUserScramCredential": "UserScramCredential",
    "RemoveDelegationToken": "DelegationToken",
}


class DamagedMetadata(Exception):
    """Kafka's metadata log is damaged; the message says where."""


class KraftPartition:
    __slots__ = ("leader", "leader_epoch", "partition_epoch", "replicas")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.replicas: list[int] = fields["replicas"]
        self.leader: int = fields["leader"]
        self.leader_epoch: int = fields["leader_epoch"]
        self.partition_epoch: int = fields["partition_epoch"]

    def change(self, fields: dict[str, Any]) -> None:
        replicas = fields.get("replicas")
        if replicas is not None:
            self.replicas = replicas
        if "leader" in fields:
            self.leader = fields["leader"]
            self.leader_epoch += 1
        self.partition_epoch += 1


class KraftState:
    """Topics, settings and producer ids after all committed records, and the number of other records."""

    def __init__(self) -> None:
        self.names: dict[bytes, str] = {}
        self.partitions: dict[bytes, dict[int, KraftPartition]] = {}
        #: (resource type, resource name) → its settings; the types are the protocol's.
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.next_producer_id = 0
        #: Records that ottla does not support, by kind.
        self.left_out: Counter[str] = Counter()
        self.voters: set[int] = set()
        #: The offset after the last record.
        self.end = 0
        #: Bytes of a torn last batch.
        self.torn_bytes = 0
        self._transaction: list[MetadataRecord] | None = None

    def apply(self, record: MetadataRecord) -> None:
        match record.name:
            case "BeginTransaction":
                self._transaction = []
            case "AbortTransaction":
                self._transaction = None
            case "EndTransaction":
                ended, self._transaction = self._transaction, None
                for each in ended or ():
                    self._replay(each)
            case _ if self._transaction is not None:
                self._transaction.append(record)
            case _:
                self._replay(record)

    def _replay(self, record: MetadataRecord) -> None:
        fields = record.fields
        match record.name:
            case "Topic":
                self.names[fields["topic_id"]] = fields["name"]
                self.partitions[fields["topic_id"]] = {}
            case "Partition":
                self._topic(fields)[fields["partition_id"]] = KraftPartition(fields)
            case "PartitionChange":
                partition = self._topic(fields).get(fields["partition_id"])
                if partition is None:
                    raise DamagedMetadata(
                        f"a change of partition {fields['partition_id']}, which is not there"
                    )
                partition.change(fields)
            case "RemoveTopic":
                name = self.names.pop(fields["topic_id"], "")
                self.partitions.pop(fields["topic_id"], None)
                self.configs.pop((2, name), None)
            case "Config":
                self._configure(fields)
            case "ProducerIds":
                self.next_producer_id = fields["next_producer_id"]
            case name if name in _REMOVALS:
                self.left_out[_REMOVALS[name]] -= 1
            case name if name not in _WITHOUT_LOSS:
                self.left_out[name] += 1

    def _topic(self, fields: dict[str, Any]) -> dict[int, KraftPartition]:
        topic = self.partitions.get(fields["topic_id"])
        if topic is None:
            raise DamagedMetadata(f"partition {fields['partition_id']} of a topic that is not there")
        return topic

    def _configure(self, fields: dict[str, Any]) -> None:
        settings = self.configs.setdefault((fields["resource_type"], fields["resource_name"]), {})
        if fields["value"] is None:
            settings.pop(fields["name"], None)
        else:
            settings[fields["name"]] = fields["value"]


def read(disk: Disk, folder: str) -> KraftState | None:
    """The state in the folder of a metadata log; None if it has neither a segment nor a snapshot."""
    names = disk.list(folder)
    bases = sorted(base for name in names if (base := segment_base(name)) is not None)
    state = _newest_snapshot(disk, folder, names)
    if state is None:
        if not bases:
            return None
        if bases[0] > 0:
            raise DamagedMetadata(
                f"{folder} begins at offset {bases[0]} and has no whole snapshot up to there: restore it from a copy"
            )
        state = KraftState()
    for at, base in enumerate(bases):
        last = at + 1 == len(bases)
        if last or bases[at + 1] > state.end:
            _replay_segment(disk, f"{folder}/{base:020d}.log", state, last=last)
    return state


def end_offset(disk: Disk, folder: str) -> int:
    """The log end offset, found without decoding records; 0 if there is no log."""
    names = disk.list(folder)
    end = max((int(match[1]) for name in names if (match := _SNAPSHOT.fullmatch(name))), default=0)
    bases = [base for name in names if (base := segment_base(name)) is not None]
    if bases:
        for _position, header, _batch in batches(disk.read_file(f"{folder}/{max(bases):020d}.log") or b""):
            end = max(end, header[0] + header[6] + 1)
    return end


def batches(data: bytes) -> Iterator[tuple[int, tuple[int, ...], memoryview]]:
    """(position, header, batch) of each complete batch, up to the first that is not."""
    view, at = memoryview(data), 0
    while len(view) - at >= HEADER_BYTES:
        header = HEADER.unpack_from(view, at)
        size = header[1] + LENGTH_OVERHEAD
        if header[3] != MAGIC or not HEADER_BYTES <= size <= len(view) - at:
            return
        batch = view[at : at + size]
        if crc_of(batch) != header[4]:
            return
        yield at, header, batch
        at += size


def _newest_snapshot(disk: Disk, folder: str, names: list[str]) -> KraftState | None:
    found = [(int(match[1]), name) for name in names if (match := _SNAPSHOT.fullmatch(name))]
    for end, name in sorted(found, reverse=True):
        state = KraftState()
        data = disk.read_file(f"{folder}/{name}") or b""
        whole, at = False, 0
        for position, header, batch in batches(data):
            for control in _apply_batch(state, header, batch, f"{folder}/{name}"):
                whole = control == "SnapshotFooter"
            at = position + len(batch)
        if whole and at == len(data):
            state.end = end
            return state
    return None


def _replay_segment(disk: Disk, path: str, state: KraftState, *, last: bool) -> None:
    data = disk.read_file(path) or b""
    at = 0
    for position, header, batch in batches(data):
        base, next_offset = header[0], header[0] + header[6] + 1
        if next_offset > state.end:
            if base > state.end:
                raise DamagedMetadata(f"{path}: offsets {state.end} to {base - 1} are missing")
            for _control in _apply_batch(state, header, batch, path):
                pass
            state.end = next_offset
        at = position + len(batch)
    rest = data[at:]
    if not rest.strip(b"\0"):
        # Zeros are preallocated space.
        return
    if not last or _whole_batch_in(rest):
        raise DamagedMetadata(
            f"{path} is damaged at byte {at} of {len(data)}, with whole records behind it: restore it from a copy"
        )
    state.torn_bytes = len(rest)


def _whole_batch_in(data: bytes) -> bool:
    """Whether a complete batch follows a damaged one, whose length may be wrong."""
    found = data.find(MAGIC, MAGIC_START + 1)
    while found >= 0:
        start = found - MAGIC_START
        length = int.from_bytes(data[start + 8 : start + 12], "big")
        if HEADER_BYTES <= length + LENGTH_OVERHEAD <= len(data) - start and next(
            batches(data[start:]), None
        ):
            return True
        found = data.find(MAGIC, found + 1)
    return False


def _apply_batch(state: KraftState, header: tuple[int, ...], batch: memoryview, path: str) -> Iterator[str]:
    """Replay a batch; yields the names of its control records."""
    try:
        records = decode_batch(batch)
        if header[5] & CONTROL_BIT:
            for record in records:
                control = decode_control(record.key or b"", record.value or b"")
                if control is not None:
                    if control.name == "LeaderChange" and control.fields:
                        state.voters = {voter["voter_id"] for voter in control.fields["voters"]}
                    yield control.name
            return
        for record in records:
            try:
                state.apply(decode(record.value or b""))
            except UnknownKind as unknown:
                state.left_out[f"unknown kind {unknown.kind}"] += 1
    except (CorruptRecords, Malformed, DamagedMetadata) as error:
        raise DamagedMetadata(f"{path}: the records at offset {header[0]} cannot be read: {error}") from error
