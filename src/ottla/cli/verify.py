"""`ottla log verify`: the texts of its findings. Each says what is damaged, what it means and what to do.

`server/data_dir_check.py` and `log/log_check.py` find the damage. Each kind of finding has a level:

    note    no damage; nothing to do
    mend    damage that is repaired at the next start or by the operator; no record is lost
    loss    acknowledged records are lost, unreadable or doubtful
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ottla.log.log_check import Finding


class Words(NamedTuple):
    level: str
    what: str
    means: str
    do: str


_NEW_INDEX: Final = "nothing is lost: it can be rebuilt from the log; until then lookups may fail or be slow"
_DELETE_INDEX: Final = "stop the broker and delete the file; the next start rebuilds it"
_RESTORE: Final = "restore the partition's folder from a backup or another replica"

WORDS: Final[dict[str, Words]] = {
    "bad-crc": Words(
        "loss",
        "the batch's CRC is wrong ({detail})",
        "its bytes changed after they were written; consumers will reject it",
        f"{_RESTORE}; to go on without the batch, delete all records up to it (DeleteRecords) or skip its "
        "offsets",
    ),
    "torn-tail": Words(
        "mend",
        "the last batch is incomplete ({detail})",
        "a crash interrupted a write that was never acknowledged",
        "nothing: the next start truncates the log to offset {offset}",
    ),
    "torn": Words(
        "loss",
        "a batch is incomplete ({detail})",
        "the log was synced beyond this point: acknowledged records are missing",
        f"{_RESTORE}; otherwise ottla serves up to offset {{offset}} and truncates the rest if it is at the "
        "end",
    ),
    "zeros": Words(
        "loss",
        "zeros instead of batches ({detail})",
        "the disk lost synced data, or the file was preallocated and never filled",
        f"{_RESTORE}; otherwise ottla serves up to offset {{offset}}",
    ),
    "not-a-batch": Words(
        "loss",
        "no batch starts here ({detail} left)",
        "the file was overwritten or damaged; nothing after this position can be found",
        f"{_RESTORE}; otherwise ottla serves up to offset {{offset}}",
    ),
    "old-format": Words(
        "loss",
        "a message in the format before Kafka 0.11",
        "ottla does not support this format",
        "mirror the topic to a new one with Kafka before the import",
    ),
    "out-of-order": Words(
        "loss",
        "offsets decrease ({detail})",
        "the file mixes two histories; ottla stops reading here",
        _RESTORE,
    ),
    "foreign-base": Words(
        "loss",
        "the first batch does not belong to a file of this name ({detail})",
        "the file was renamed, or comes from another partition",
        f"rename it to the offset of its first batch, or {_RESTORE}",
    ),
    "overlap": Words(
        "loss",
        "the segment overlaps the previous one ({detail})",
        "one of the two belongs to another history, or compaction should have deleted it",
        f"compare the two with `ottla log dump` and move the wrong one away, or {_RESTORE}",
    ),
    "gap": Words(
        "loss",
        "{detail} are missing",
        "the topic is not compacted, so records were lost here",
        f"{_RESTORE}; otherwise consumers skip the gap",
    ),
    "gap-unknown": Words(
        "note",
        "{detail} are missing",
        "correct if the topic is, or was, compacted; its configs are not known here",
        "nothing if it is compacted; otherwise restore it from a backup",
    ),
    "records": Words(
        "loss",
        "the records cannot be decoded: {detail}",
        "the CRC is correct, so a client or a broker wrote them like this",
        "find their producer with `ottla log dump`; consumers will fail on them",
    ),
    "recovery-point-beyond": Words(
        "loss",
        "the recovery point is {detail}",
        "synced records are missing at the end",
        f"{_RESTORE}; otherwise ottla serves up to offset {{offset}} and reuses later offsets",
    ),
    "watermark-beyond": Words(
        "loss",
        "the high watermark is {detail}",
        "consumers may have read records that are missing now",
        f"{_RESTORE}; otherwise ottla serves up to offset {{offset}} and reuses later offsets",
    ),
    "start-beyond": Words(
        "loss",
        "the log start offset is {detail}",
        "the records after the deleted ones are missing",
        f"{_RESTORE}; otherwise ottla starts an empty log at that offset",
    ),
    "index-missing": Words("mend", "the index is missing", _NEW_INDEX, "nothing: the next start rebuilds it"),
    "index-odd": Words("mend", "the index ends with an incomplete entry", _NEW_INDEX, _DELETE_INDEX),
    "index-order": Words("mend", "the index's entries are out of order", _NEW_INDEX, _DELETE_INDEX),
    "index-beyond": Words(
        "mend", "the index points beyond the end of the log ({detail})", _NEW_INDEX, _DELETE_INDEX
    ),
    "index-wrong": Words(
        "mend", "the index does not match the log ({detail})", _NEW_INDEX, _DELETE_INDEX
    ),
    "index-short": Words("mend", "the index is incomplete: {detail}", _NEW_INDEX, _DELETE_INDEX),
    "index-without-log": Words(
        "mend", "an index without its log", "its segment was deleted", "nothing: the next start deletes it"
    ),
    "time-wrong": Words("mend", "a timestamp of the index is wrong ({detail})", _NEW_INDEX, _DELETE_INDEX),
    "txn-index-wrong": Words(
        "mend",
        "the index of aborted transactions does not match the log {detail}",
        "read_committed consumers could see aborted records until it is rebuilt",
        _DELETE_INDEX,
    ),
    "snapshot-damaged": Words(
        "mend",
        "the producer snapshot is damaged",
        "nothing is lost: the producer state is rebuilt from an older snapshot and the log",
        "nothing; or stop the broker and delete it",
    ),
    "snapshot-beyond": Words(
        "mend", "a producer snapshot beyond the end of the log "
            "({detail})", "the log was truncated", "nothing: the next start deletes it"
    ),
    "epochs-damaged": Words(
        "mend",
        "the leader epoch checkpoint is damaged",
        "nothing is lost: it is rebuilt from the log",
        "nothing: the next start rebuilds it",
    ),
    "epochs-beyond": Words(
        "mend", "a leader epoch starts beyond the end of the log "
            "({detail})", "the log was truncated", "nothing: the next start repairs it"
    ),
    "epochs-missing": Words(
        "mend",
        "leader epochs of the log are missing in the checkpoint: {detail}",
        "other replicas could not find the offset where their history diverges from this one",
        "stop the broker and delete the file; the next start rebuilds it from the log",
    ),
    "partition-metadata-damaged": Words(
        "mend",
        "the file with the topic id is damaged",
        "the partition is assigned to the topic by its name only",
        "stop the broker and delete it",
    ),
    "partition-metadata-foreign": Words(
        "loss",
        "the folder belongs to another topic with the same name",
        "the next start deletes it as a deleted topic",
        "to keep its records, move the folder away before the next start",
    ),
    "no-segments": Words("note", "no segment yet", "nothing was ever written here", "nothing"),
    "leftover": Words(
        "note",
        "a leftover of an interrupted write, compaction or deletion",
        "it is not part of the log",
        "nothing: the next start deletes or finishes it",
    ),
    "stray-file": Words("note", "not a file of a broker", "the broker ignores it", "nothing; it can be "
        "moved away"),
    "stray-folder": Words(
        "mend",
        "a partition without a topic",
        "its topic was deleted, or the metadata belongs to another directory. The next start deletes it; in "
        "an imported "
        "Kafka directory it is renamed to …-stray",
        "to keep its records, move the folder away before the next start",
    ),
    "folder-delete": Words(
        "note", "a partition that is being deleted", "its topic was deleted", "nothing: the next start "
            "deletes it"
    ),
    "folder-stray": Words(
        "note",
        "a stray partition",
        "it had no topic at an earlier start",
        "look at it with `ottla log dump`, and delete it when it is not needed",
    ),
    "folder-future": Words(
        "note",
        "an incomplete copy of a partition between log directories",
        "the move is not finished; the partition is complete without the copy",
        "nothing; to give up the move, stop the broker and delete the copy",
    ),
    "duplicate-partition": Words(
        "loss",
        "the partition is also in {detail}",
        "two directories have it, and it is unknown which one is newer",
        "compare their ends with `ottla log dump` and move one of them away",
    ),
    "partition-missing": Words(
        "loss",
        "the folder is missing",
        "the partition had records up to offset {offset}; the next start would re-create it empty",
        "restore the folder from a backup before the next start",
    ),
    "checkpoint-damaged": Words(
        "mend",
        "the checkpoint is damaged",
        "nothing is lost: the next start reads the logs from their start; records deleted by DeleteRecords "
        "may come back",
        "restore it from a backup, or let the next start rebuild it",
    ),
    "properties-missing": Words(
        "mend",
        "the file with the directory's cluster and node id is missing",
        "ottla rewrites it from its journal; Kafka refuses the directory",
        "restore it from a backup",
    ),
    "properties-damaged": Words(
        "mend", "it has no cluster.id or no version", "the file is incomplete or was "
            "edited", "restore it from a backup"
    ),
    "properties-foreign": Words(
        "loss",
        "the directory belongs to another broker ({detail})",
        "the broker refuses to start on it",
        "start each broker with its own directories",
    ),
    "journal-missing": Words(
        "loss",
        "the metadata journal is missing",
        "topics and settings are unknown; the broker refuses to start",
        "restore metadata.journal from a backup",
    ),
    "journal-damaged": Words(
        "loss",
        "the metadata journal is damaged, with whole entries after the damage",
        "topics, settings or deletions are missing; the broker refuses to start",
        "restore metadata.journal from a backup",
    ),
    "journal-torn": Words(
        "mend",
        "the last entry of the journal is incomplete ({detail})",
        "a crash interrupted a change that was never acknowledged",
        "nothing: the next start truncates it",
    ),
}  # fmt: skip
_KAFKA_METADATA: Final = "kafka-metadata:"
#: To query the lock without taking it: struct flock as in `runtime/platform.py`.
_FLOCK: Final = "hhqqi0q"


class Report(NamedTuple):
    kind: str
    level: str
    file: str
    position: int | None
    offset: int | None
    what: str
    means: str
    do: str


def worded(finding: Finding) -> Report:
    kind = finding.kind.removeprefix(_KAFKA_METADATA)
    words = WORDS[kind]
    level, means, do = words.level, words.means, words.do
    if kind != finding.kind:
        # ottla does not need Kafka's metadata after the import.
        means = "this is Kafka's metadata log; ottla reads it once, when it imports the directory"
        do = "before the import: restore the folder from a backup or another controller. After it: nothing"
        level = "mend" if level == "loss" else level
    # Findings about an index have no offset, and their texts use none.
    fields = {"detail": finding.detail, "offset": finding.offset}
    return Report(
        finding.kind, level, finding.path, finding.position, finding.offset,
        words.what.format(**fields).replace(" ()", "").strip(), means.format(**fields), do.format(**fields),
    )  # fmt: skip


class ReadOnlyFiles:
    """Read-only access to the file system."""

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return 0

    def read(self, path: str, position: int, size: int) -> bytes:
        try:
            with open(path, "rb") as file:
                file.seek(position)
                return file.read(size)
        except FileNotFoundError:
            # A running broker has deleted it meanwhile.
            return b""

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None


def in_use(path: str) -> bool:
    """Whether a broker (ottla or Kafka) runs on a data directory. Queries its lock without taking it."""
    try:
        fd = os.open(f"{path}/.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        answer = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    finally:
        os.close(fd)
    return bool(answer[0] != fcntl.F_UNLCK)
