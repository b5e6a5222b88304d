"""Imports a data directory that Apache Kafka wrote: its metadata becomes the first entry of our journal.

A directory is Kafka's if it has no journal and has either Kafka's metadata log (`__cluster_metadata-0`) or a
`meta.properties` written by Kafka. Log files need no conversion: both brokers write the same formats.
Imported are the cluster id, topics and their ids, partitions, settings and the next producer id.

    kafka-takeover      one JSON object, written before the journal's first entry: the end offset of Kafka's
                        metadata log

Nothing is deleted. Kafka's metadata stays where it is, and the broker renames a log that no topic owns. If
Kafka has run on the directory again, its metadata log has grown and the start fails: the two histories cannot
be merged.

Decisions over the Disk port, without any other I/O. The node calls `import_kafka_directory` at every start,
before it creates the broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, NamedTuple

from ottla.broker.storage.log_directory import ForeignDirectory
from ottla.config.alter import SET, apply_broker_ops, apply_ops
from ottla.config.broker import BrokerConfig
from ottla.log import checkpoints, names
from ottla.log.producers import Producers
from ottla.metadata import kraft_log
from ottla.metadata import records as r
from ottla.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from ottla.metadata.kraft_log import DamagedMetadata, KraftPartition, KraftState
from ottla.model.errors import Refusal
from ottla.model.names import INTERNAL_TOPICS
from ottla.model.resources import resource_type_name
from ottla.ports.disk import Disk
from ottla.records.batch import CONTROL_BIT, HEADER
from ottla.records.layout import Malformed
from ottla.records.record import CorruptRecords, decode_batch, whole_batches
from ottla.transactions import formats as transaction_formats
from ottla.transactions.formats import Record as TransactionRecord

MARK: Final = names.TAKEN_OVER
_NO_LEADER: Final = -1
_TRANSACTIONS_TOPIC: Final = "__transaction_state"
#: The number of names that a note lists.
_NAMED_MAX: Final = 5
_DEFAULTS_NOTE: Final = (
    "settings of Kafka's server.properties are not part of its metadata: retention and other defaults are "
    "those of this start (ottla broker --config server.properties takes Kafka's)"
)
_KAFKA_NOTE: Final = (
    "do not start Kafka on this directory again: it would serve these logs with its old metadata, without "
    "the topics, settings and producer ids that change from now on, and ottla would refuse the directory "
    "afterwards"
)


class KafkaImport(NamedTuple):
    config: BrokerConfig
    #: The first records of the journal; empty if there is nothing to import.
    records: list[r.Record]
    #: Lines for the broker's log.
    notes: list[str]


class _Folders:
    """The partition directories in the log directories."""

    def __init__(self, disk: Disk, paths: Sequence[str]) -> None:
        self.disk = disk
        self.paths = [f"{path}/{name}" for path in paths for name in disk.list(path)]
        self.by_partition = {
            parsed: path
            for path in self.paths
            if (parsed := names.parse_partition_dir(path.rpartition("/")[2])) is not None
        }

    def topic_id(self, partition: tuple[str, int]) -> bytes | None:
        path = self.by_partition.get(partition)
        data = self.disk.read_file(f"{path}/{names.PARTITION_METADATA}") if path else None
        return checkpoints.parse_partition_metadata(data)

    def leader_epoch(self, partition: tuple[str, int]) -> int:
        """The newest leader epoch in the log; -1 if there is none."""
        path = self.by_partition.get(partition)
        epochs = checkpoints.parse_epochs(self.disk.read_file(f"{path}/{names.EPOCHS}")) if path else None
        newest = max((epoch for epoch, _offset in epochs or ()), default=-1)
        return max(newest, self.coordinator_epoch) if partition[0] == _TRANSACTIONS_TOPIC else newest

    @cached_property
    def coordinator_epoch(self) -> int:
        """The newest transaction coordinator epoch in any log, which refuses markers of an earlier one (R18).

        A coordinator may have written markers and no record of its own.
        """
        return max(
            (each.coordinator_epoch for known in self.snapshots() for each in known.by_id.values()),
            default=-1,
        )

    def snapshots(self) -> Iterator[Producers]:
        """The producer snapshots of all partitions."""
        for path in self.by_partition.values():
            for name in self.disk.list(path):
                if names.snapshot_offset(name) is not None:
                    producers = Producers.parse(self.disk.read_file(f"{path}/{name}"))
                    if producers is not None:
                        yield producers

    def transactions(self) -> Iterator[TransactionRecord]:
        """The records of `__transaction_state` that can be read."""
        for (topic, _number), path in self.by_partition.items():
            if topic != _TRANSACTIONS_TOPIC:
                continue
            for name in self.disk.list(path):
                if name.endswith(names.LOG):
                    with suppress(CorruptRecords, Malformed):
                        yield from _transactions_in(self.disk.read_file(f"{path}/{name}") or b"")


def _transactions_in(data: bytes) -> Iterator[TransactionRecord]:
    for batch in whole_batches(data):
        if HEADER.unpack_from(batch)[5] & CONTROL_BIT:
            continue
        for record in decode_batch(batch):
            known = transaction_formats.decode(record.key, record.value)
            if known is not None:
                yield known


def import_kafka_directory(
    disk: Disk,
    config: BrokerConfig,
    journal: Sequence[r.Record | None],
    *,
    unusable: Container[str] = (),
    new_id: Callable[[], bytes],
) -> KafkaImport:
    """The config with the node id of the directory, and the records to import. Raises ForeignDirectory."""
    paths = [path for path in config.log_dirs if path not in unusable]
    if not paths:
        return KafkaImport(config, [], [])
    written = disk.read_file(f"{paths[0]}/{names.META_PROPERTIES}")
    properties = checkpoints.parse_properties(written)
    config = _with_node_id(config, properties)
    metadata = f"{config.metadata_log_dir}/{names.KAFKA_METADATA}"
    marks = [path for path in paths if disk.read_file(f"{path}/{MARK}") is not None]
    if journal:
        if marks:
            _check_unchanged(disk, marks[0], metadata)
        return KafkaImport(config, [], [])
    folders = _Folders(disk, paths)
    try:
        state = kraft_log.read(disk, metadata)
    except DamagedMetadata as error:
        raise ForeignDirectory(f"Kafka's metadata cannot be imported: {error}") from error
    if state is None:
        if not folders.by_partition:
            return KafkaImport(config, [], [])
        _check_kafkas(paths[0], written, properties, folders)
    if "cluster.id" not in properties:
        raise ForeignDirectory(
            f"{paths[0]} holds Kafka's metadata but no {names.META_PROPERTIES} with its cluster.id: restore "
            "that file"
        )
    records, notes = _records(state, folders, config, properties["cluster.id"], new_id)
    mark = {"cluster_id": properties["cluster.id"], "metadata_end": state.end if state else None}
    for path in paths:
        disk.replace_file(f"{path}/{MARK}", json.dumps(mark).encode() + b"\n")
    return KafkaImport(config, records, notes)


def _with_node_id(config: BrokerConfig, properties: dict[str, str]) -> BrokerConfig:
    """The node id of the directory, unless the settings name one."""
    written = properties.get("node.id", properties.get("broker.id", ""))
    if not written.isdigit() or int(written) == config.node_id:
        return config
    if {"node.id", "broker.id"} & config.properties.keys():
        name = "node.id" if "node.id" in properties else "broker.id"
        raise ForeignDirectory(
            f"{config.log_dirs[0]} belongs to {name} {written}, this broker has {config.node_id}: "
            "start it with its own --data-dir, or with the id the directory was made with"
        )
    return BrokerConfig.from_properties({**config.properties, "node.id": written})


def _check_kafkas(path: str, written: bytes | None, properties: dict[str, str], folders: _Folders) -> None:
    """Partitions without metadata: fail if they are ours and the journal is lost.

    Kafka's can be imported without.
    """
    # Java writes a comment at the start of a properties file, ottla does not.
    if written is not None and (written.startswith(b"#") or properties.get("version") == "0"):
        return
    raise ForeignDirectory(
        f"{path} holds {len(folders.by_partition)} partition folders but no metadata.journal that knows "
        "them: restore metadata.journal from a copy. Nothing was changed"
    )


def _check_unchanged(disk: Disk, path: str, metadata: str) -> None:
    """Fail if Kafka has run on the directory since the import."""
    try:
        end: Any = json.loads(disk.read_file(f"{path}/{MARK}") or b"{}").get("metadata_end")
    except ValueError:
        end = None
    now = kraft_log.end_offset(disk, metadata)
    if isinstance(end, int) and now > end:
        raise ForeignDirectory(
            f"Kafka has run on {path} since ottla imported it: its metadata log went on from offset {end} to "
            f"{now}. To import Kafka's metadata again and discard ottla's, remove metadata.journal and "
            f"{MARK}. To go on with ottla's metadata, move {metadata} away. Nothing was changed"
        )


# --- Kafka's metadata as records ----------------------------------------------------------------------------


def _records(
    state: KraftState | None,
    folders: _Folders,
    config: BrokerConfig,
    cluster_id: str,
    new_id: Callable[[], bytes],
) -> tuple[list[r.Record], list[str]]:
    made: list[r.Record] = [r.Cluster(cluster_id)]
    notes: list[str] = []
    if state is not None:
        topics = _topics_of(state, folders, config.node_id, notes)
        settings = _settings_of(state, config, notes)
    else:
        topics = _topics_in_folders(folders, config.node_id, new_id)
        settings = _guessed_settings(topics, folders)
    for topic, partitions in topics:
        made += [topic, *partitions]
    made += settings
    if state is not None and state.next_producer_id:
        made.append(r.ProducerIds(state.next_producer_id))
    else:
        made += _producer_ids_in_folders(folders)
    partitions_count = sum(len(partitions) for _topic, partitions in topics)
    source = "Kafka's metadata" if state is not None else "the partition folders"
    head = (
        f"imported {len(topics)} topics, {partitions_count} partitions of cluster {cluster_id} from "
        f"{source}; this is broker {config.node_id}"
    )
    if state is None:
        notes.append(
            "the settings of the topics are unknown (there is no metadata log): each topic keeps all records "
            "until you set its retention.ms, and topics that Kafka has compacted are compacted"
        )
    return made, [head, *notes, _DEFAULTS_NOTE, _KAFKA_NOTE]


def _topics_of(
    state: KraftState, folders: _Folders, node_id: int, notes: list[str]
) -> list[tuple[r.Topic, list[r.Partition]]]:
    everywhere = [partition for topic in state.partitions.values() for partition in topic.values()]
    if folders.by_partition and not any(node_id in partition.replicas for partition in everywhere):
        raise ForeignDirectory(
            f"Kafka's metadata has no partition on broker {node_id}, but there are "
            f"{len(folders.by_partition)} partition folders here: check node.id in {names.META_PROPERTIES}. "
            "Nothing was changed"
        )
    topics: list[tuple[r.Topic, list[r.Partition]]] = []
    shared: list[str] = []
    elsewhere: list[str] = []
    without: list[str] = []
    for topic_id, name in sorted(state.names.items(), key=lambda item: item[1]):
        partitions = []
        for number, partition in sorted(state.partitions[topic_id].items()):
            here = node_id in partition.replicas
            if not here:
                elsewhere.append(f"{name}-{number}")
            elif len(partition.replicas) > 1:
                shared.append(f"{name}-{number}")
            partitions.append(_partition(topic_id, name, number, partition, folders, node_id, here))
        if partitions and all(partition.leader == _NO_LEADER for partition in partitions):
            without.append(name)
        else:
            topics.append((r.Topic(name, topic_id), partitions))
    if shared:
        notes.append(
            f"{_some(shared)} had several replicas: now this broker has the only one. Records that only "
            "other replicas had are missing"
        )
    elsewhere = [place for place in elsewhere if place.rpartition("-")[0] not in without]
    if elsewhere:
        notes.append(
            f"{_some(elsewhere)} had no replica here: they have no leader and cannot be read or written"
        )
    if without:
        notes.append(f"{_some(without)} had no partition here and were left out")
    _note_rest(state, notes)
    return topics


def _partition(
    topic_id: bytes,
    name: str,
    number: int,
    partition: KraftPartition,
    folders: _Folders,
    node_id: int,
    here: bool,
) -> r.Partition:
    # A new leader needs an epoch above those in the metadata and in the log.
    epoch = max(partition.leader_epoch, folders.leader_epoch((name, number))) + 1
    if here:
        replicas: tuple[int, ...] = (node_id,)
        return r.Partition(
            topic_id, number, replicas, replicas, node_id, epoch, partition.partition_epoch + 1
        )
    return r.Partition(
        topic_id, number, tuple(partition.replicas), (), _NO_LEADER, epoch, partition.partition_epoch + 1
    )


def _note_rest(state: KraftState, notes: list[str]) -> None:
    rest = {kind: count for kind, count in sorted(state.left_out.items()) if count > 0}
    if rest:
        listed = ", ".join(f"{count} {kind}" for kind, count in rest.items())
        notes.append(f"NOT imported, since this version does not support them: {listed}")
    if state.torn_bytes:
        notes.append(f"{state.torn_bytes} bytes of an incomplete last metadata record were ignored")
    if len(state.voters) > 1:
        notes.append(
            f"the metadata was shared by {len(state.voters)} controllers: its last records may not have been "
            "committed, or newer ones may exist on another controller"
        )


def _settings_of(state: KraftState, config: BrokerConfig, notes: list[str]) -> list[r.Record]:
    made: list[r.Record] = []
    refused: list[str] = []
    for (kind, name), settings in sorted(state.configs.items()):
        if kind == TOPIC_RESOURCE:
            if name not in state.names.values():
                continue
        elif kind != BROKER_RESOURCE or name not in ("", str(config.node_id)):
            refused += [f"{setting} of {name or 'all'} ({resource_type_name(kind)})" for setting in settings]
            continue
        kept: dict[str, str] = {}
        for setting, value in settings.items():
            try:
                kept = _altered(kind, kept, setting, value, config)
            except Refusal as refusal:
                refused.append(f"{setting} of {name or 'all brokers'} ({refusal})")
        made += [r.Config(kind, name, setting, value) for setting, value in kept.items()]
    if refused:
        notes.append(f"NOT imported, since this broker does not support these settings: {_some(refused)}")
    return made


def _altered(
    kind: int, kept: dict[str, str], setting: str, value: str, config: BrokerConfig
) -> dict[str, str]:
    operation = ((setting, SET, value),)
    if kind == TOPIC_RESOURCE:
        return apply_ops(kept, operation, config)
    changed = apply_broker_ops(kept, operation)
    # It must also be valid with the settings of the file.
    config.with_dynamic(changed, {})
    return changed


# --- without a metadata log ---------------------------------------------------------------------------------


def _topics_in_folders(
    folders: _Folders, node_id: int, new_id: Callable[[], bytes]
) -> list[tuple[r.Topic, list[r.Partition]]]:
    """Topics from their folders: of a broker without a controller, or of one that used ZooKeeper."""
    ids: dict[str, bytes | None] = {}
    numbers: dict[str, set[int]] = {}
    for name, number in sorted(folders.by_partition):
        topic_id = folders.topic_id((name, number))
        known = ids.setdefault(name, topic_id)
        if topic_id is not None and known is not None and known != topic_id:
            raise ForeignDirectory(
                f"the folders of topic {name} belong to two topics of that name ({names.id_text(known)} and "
                f"{names.id_text(topic_id)}): move the folders of the deleted one away. Nothing was changed"
            )
        ids[name] = known or topic_id
        numbers.setdefault(name, set()).add(number)
    topics = []
    for name, known_id in ids.items():
        topic_id = known_id or new_id()
        partitions = [
            r.Partition(
                topic_id, number, (node_id,), (node_id,),
                node_id if number in numbers[name] else _NO_LEADER,
                folders.leader_epoch((name, number)) + 1,
            )
            for number in range(max(numbers[name]) + 1)
        ]  # fmt: skip
        topics.append((r.Topic(name, topic_id), partitions))
    return topics


def _guessed_settings(
    topics: Iterable[tuple[r.Topic, list[r.Partition]]], folders: _Folders
) -> list[r.Record]:
    """Settings that delete nothing: all records are kept, and compacted topics stay compacted."""
    cleaned: set[str] = set()
    for path in folders.paths:
        if path.endswith(f"/{names.CLEANED_OFFSETS}"):
            offsets = checkpoints.parse_offsets(folders.disk.read_file(path)) or {}
            cleaned |= {topic for topic, _number in offsets}
    made: list[r.Record] = []
    for topic, _partitions in topics:
        if topic.name in cleaned or topic.name in INTERNAL_TOPICS:
            made.append(r.Config(TOPIC_RESOURCE, topic.name, "cleanup.policy", "compact"))
        else:
            made += [
                r.Config(TOPIC_RESOURCE, topic.name, "retention.ms", "-1"),
                r.Config(TOPIC_RESOURCE, topic.name, "retention.bytes", "-1"),
            ]
    return made


def _producer_ids_in_folders(folders: _Folders) -> list[r.Record]:
    """The next producer id, above all ids in snapshots and transactions: no id may be given twice."""
    newest = -1
    for producers in folders.snapshots():
        newest = max([newest, *producers.by_id])
    for record in folders.transactions():
        if record.entry is not None:
            newest = max(newest, record.entry.producer_id, record.entry.next_producer_id)
    # In blocks of a thousand, like Kafka. One block more, for ids that have left no trace.
    return [r.ProducerIds((newest // 1000 + 2) * 1000)] if newest >= 0 else []


def _some(items: list[str]) -> str:
    rest = len(items) - _NAMED_MAX
    return ", ".join(items[:_NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")
