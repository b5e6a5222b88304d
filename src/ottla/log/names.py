"""Names of files and directories in a log directory. They are Kafka's.

<log dir>/meta.properties, .kafka_cleanshutdown, recovery-point-offset-checkpoint,
          replication-offset-checkpoint, log-start-offset-checkpoint, cleaner-offset-checkpoint
<log dir>/<topic>-<partition>/<base offset, 20 digits>.log .index .timeindex .txnindex .snapshot
                              leader-epoch-checkpoint, partition.metadata
<log dir>/<topic>-<partition>.<32 hex digits>-delete       a partition that is being deleted
<log dir>/<topic>-<partition>.<32 hex digits>-future       a partition that moves here from another log directory
<log dir>/<topic>-<partition>.<32 hex digits>-stray        a partition of an unknown topic, kept for inspection
<log dir>/__cluster_metadata-0                             Kafka's metadata log, in an imported directory
"""

from __future__ import annotations

import base64
import re
from typing import Final

from ottla.model.limits import FILE_NAME_BYTES_MAX

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
DELETED: Final = ".deleted"
#: An unfinished output of compaction, and a finished one that does not have its final name yet.
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
META_PROPERTIES: Final = "meta.properties"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
KAFKA_METADATA: Final = "__cluster_metadata-0"
CLEANED_OFFSETS: Final = "cleaner-offset-checkpoint"
#: Only in an imported Kafka data directory.
TAKEN_OVER: Final = "kafka-takeover"

_PARTITION_DIR: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)")
_DELETE_DIR: Final = re.compile(r".+\.(?P<unique>[0-9a-f]{32})-delete")
_FUTURE_DIR: Final = re.compile(r".+-(?P<partition>[0-9]+)\.(?P<unique>[0-9a-f]{32})-future")
_SEGMENT: Final = re.compile(r"([0-9]{20})\.log")
_SNAPSHOT: Final = re.compile(r"([0-9]{20})\.snapshot")


def partition_dir(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_dir(name: str) -> tuple[str, int] | None:
    # Kafka's metadata log looks like a partition. It is neither served nor treated as stray.
    if is_delete_dir(name) or name == KAFKA_METADATA:
        return None
    match = _PARTITION_DIR.fullmatch(name)
    return (match["topic"], int(match["partition"])) if match else None


def delete_dir(topic: str, partition: int, unique: bytes) -> str:
    return _renamed(topic, partition, unique, "delete")


def future_dir(topic: str, partition: int, unique: bytes) -> str:
    return _renamed(topic, partition, unique, "future")


def stray_dir(topic: str, partition: int, unique: bytes) -> str:
    return _renamed(topic, partition, unique, "stray")


def _renamed(topic: str, partition: int, unique: bytes, why: str) -> str:
    # The whole name must be a legal file name, so a long topic name is truncated, as in Kafka.
    suffix = f"-{partition}.{unique.hex()}-{why}"
    return topic[: FILE_NAME_BYTES_MAX - len(suffix)] + suffix


def is_delete_dir(name: str) -> bool:
    return _DELETE_DIR.fullmatch(name) is not None


def delete_dir_unique(name: str) -> str | None:
    """The digits that make the name of a deleted partition unique."""
    match = _DELETE_DIR.fullmatch(name)
    return match["unique"] if match else None


def parse_future_dir(name: str) -> tuple[int, str] | None:
    """(partition, unique digits). The topic name may be truncated: the topic id is in the directory."""
    match = _FUTURE_DIR.fullmatch(name)
    return (int(match["partition"]), match["unique"]) if match else None


def segment_base(name: str) -> int | None:
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def snapshot_offset(name: str) -> int | None:
    match = _SNAPSHOT.fullmatch(name)
    return int(match[1]) if match else None


def offset_name(offset: int) -> str:
    return f"{offset:020d}"


def id_text(topic_id: bytes) -> str:
    """An id as Kafka prints it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def parse_id(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")
