"""`ottla log verify`: what is wrong with a data directory, what that means, and what to do about it.

`server/data_dir_check.py` and `log/log_check.py` find; here stands what is said about each kind of finding, and how bad it is:

    note    nothing is lost and nothing needs doing
    mend    something is damaged that is made anew, or that a person should put right; no record is lost by it
    loss    records that were acknowledged cannot be read, or cannot be relied on
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


_NEW_INDEX: Final = (
    "nothing is lost: it can be made anew from the log, until then look-ups may fail or be slow"
)
_DELETE_INDEX: Final = "stop the broker and delete the file; the next start makes it anew"
_RESTORE: Final = "restore the partition's folder from a copy or another replica"

WORDS: Final[dict[str, Words]] = {
    "bad-crc": Words(
        "loss",
        "the batch's CRC is wrong ({detail})",
        "its bytes changed after they were written; readers will refuse it",
        f"{_RESTORE}; to go on without it, delete the records up to it (DeleteRecords) or skip its offsets",
    ),
    "torn-tail": Words(
        "mend",
        "the last batch is cut off ({detail})",
        "a crash interrupted a write that was never acknowledged",
        "nothing: the next start cuts it off, the log then ends at offset {offset}",
    ),
    "torn": Words(
        "loss",
        "a batch is cut off ({detail})",
        "the log had counted as durable beyond this point: acknowledged records are missing",
        f"{_RESTORE}; else ottla serves up to offset {{offset}} and cuts off the rest if it is at the end",
    ),
    "zeros": Words(
        "loss",
        "zeros instead of batches ({detail})",
        "the disk lost what had counted as durable, or the file was allocated ahead and never filled",
        f"{_RESTORE}; else ottla serves up to offset {{offset}}",
    ),
    "not-a-batch": Words(
        "loss",
        "no batch begins here ({detail} left)",
        "the file was overwritten or damaged; nothing after this place can be found",
        f"{_RESTORE}; else ottla serves up to offset {{offset}}",
    ),
    "old-format": Words(
        "loss",
        "a message of the format before Kafka 0.11",
        "ottla does not read it",
        "let Kafka rewrite the topic (mirror it to a new one) before the move",
    ),
    "out-of-order": Words(
        "loss",
        "offsets go back ({detail})",
        "two histories were mixed in one file; ottla stops reading here",
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
        "the segment begins before the one before it ends ({detail})",
        "a segment of another history, or one that compaction should have removed, lies here",
        f"compare the two with `ottla log dump` and move the wrong one away, or {_RESTORE}",
    ),
    "gap": Words(
        "loss",
        "{detail} are missing",
        "the topic is not compacted, so records were lost here",
        f"{_RESTORE}; else consumers pass over the gap",
    ),
    "gap-unknown": Words(
        "note",
        "{detail} are not there",
        "right if the topic is, or was, compacted; its settings are not known here",
        "nothing, if it is; else restore it from a copy",
    ),
    "records": Words(
        "loss",
        "the records cannot be decoded: {detail}",
        "the CRC is right, so they were written like this: by a faulty client, or by a fault of a broker",
        "find out who produced them (`ottla log dump`); consumers will fail on them",
    ),
    "recovery-point-beyond": Words(
        "loss",
        "the recovery point is {detail}",
        "what had been made durable is missing at the end",
        f"{_RESTORE}; else ottla serves up to offset {{offset}} and gives later offsets out again",
    ),
    "watermark-beyond": Words(
        "loss",
        "the high watermark is {detail}",
        "consumers may have read records that are missing now",
        f"{_RESTORE}; else ottla serves up to offset {{offset}} and gives later offsets out again",
    ),
    "start-beyond": Words(
        "loss",
        "the log start is {detail}",
        "the records after those that were deleted are missing",
        f"{_RESTORE}; else ottla begins an empty log at that offset",
    ),
    "index-missing": Words("mend", "the index is missing", _NEW_INDEX, "nothing: the next start makes it anew"),
    "index-odd": Words("mend", "the index has bytes that are no entry", _NEW_INDEX, _DELETE_INDEX),
    "index-order": Words("mend", "the index's entries are out of order", _NEW_INDEX, _DELETE_INDEX),
    "index-beyond": Words(
        "mend", "the index points beyond the log ({detail})", _NEW_INDEX, _DELETE_INDEX
    ),
    "index-wrong": Words(
        "mend", "the index does not fit the log ({detail})", _NEW_INDEX, _DELETE_INDEX
    ),
    "index-short": Words("mend", "the index is short: {detail}", _NEW_INDEX, _DELETE_INDEX),
    "index-without-log": Words(
        "mend", "an index without its log", "its segment is gone", "nothing: the next start removes it"
    ),
    "time-wrong": Words("mend", "a timestamp of the index is wrong ({detail})", _NEW_INDEX, _DELETE_INDEX),
    "txn-index-wrong": Words(
        "mend",
        "the index of aborted transactions does not fit the log {detail}",
        "readers of committed records could see aborted ones until it is made anew",
        _DELETE_INDEX,
    ),
    "snapshot-damaged": Words(
        "mend",
        "the producer snapshot is damaged",
        "nothing is lost: the states of producers are made anew from an older one and the log",
        "nothing; or stop the broker and delete it",
    ),
    "snapshot-beyond": Words(
        "mend", "a producer snapshot of what is not there ({detail})", "the log was cut", "nothing: the next start removes it"
    ),
    "epochs-damaged": Words(
        "mend",
        "the leader epochs are damaged",
        "nothing is lost: they are made anew from the log",
        "nothing: the next start makes them anew",
    ),
    "epochs-beyond": Words(
        "mend", "a leader epoch begins beyond the log's end ({detail})", "the log was cut", "nothing: the next start mends it"
    ),
    "epochs-missing": Words(
        "mend",
        "leader epochs of the log are missing in the checkpoint: {detail}",
        "another replica could not find out where its history parts from this one",
        "stop the broker and delete the file; the next start makes it anew from the log",
    ),
    "partition-metadata-damaged": Words(
        "mend",
        "the file with the topic's id is damaged",
        "the partition is taken for that of the topic of its name",
        "stop the broker and delete it",
    ),
    "partition-metadata-foreign": Words(
        "loss",
        "the folder belongs to another topic of this name",
        "a start removes it as one of a deleted topic",
        "if you want its records, move the folder away before the next start",
    ),
    "no-segments": Words("note", "no segment yet", "nothing was ever written here", "nothing"),
    "leftover": Words(
        "note",
        "a leftover of a write, a compaction or a deletion that was interrupted",
        "it is not part of the log",
        "nothing: the next start removes or finishes it",
    ),
    "stray-file": Words("note", "not a file of a broker", "it is not in the way", "nothing; move it away if you like"),
    "stray-folder": Words(
        "mend",
        "a partition that no topic knows",
        "its topic was deleted, or the metadata is not this directory's; a start removes it, or sets it aside in a "
        "directory that was Kafka's",
        "if you want its records, move the folder away before the next start",
    ),
    "folder-delete": Words(
        "note", "a partition that is being deleted", "its topic was deleted", "nothing: the next start removes it"
    ),
    "folder-stray": Words(
        "note",
        "a partition that was set aside",
        "no topic knew it at a start",
        "look at it with `ottla log dump`, and delete it when nobody needs it",
    ),
    "folder-future": Words(
        "note",
        "a copy of a partition on its way between directories",
        "the move was not finished; the partition itself is complete without it",
        "nothing; delete it once the broker is stopped if the move is not wanted",
    ),
    "duplicate-partition": Words(
        "loss",
        "the partition is also in {detail}",
        "two directories claim it; which one is newer nobody knows",
        "compare their ends with `ottla log dump` and move one of them away",
    ),
    "partition-missing": Words(
        "loss",
        "the folder is missing",
        "the partition had records up to offset {offset}; a start would begin it anew, empty",
        "restore the folder from a copy before the next start",
    ),
    "checkpoint-damaged": Words(
        "mend",
        "the checkpoint is damaged",
        "nothing is lost: the logs are read again from their start, and records deleted by request may come back",
        "restore it from a copy, or let the next start make it anew",
    ),
    "properties-missing": Words(
        "mend",
        "the file that says whose directory this is is missing",
        "ottla writes it anew from its journal; Kafka refuses the directory",
        "restore it from a copy",
    ),
    "properties-damaged": Words(
        "mend", "it does not name its cluster", "the file is cut off or was edited", "restore it from a copy"
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
        "topics and settings are not known; the broker refuses to start",
        "restore metadata.journal from a copy",
    ),
    "journal-damaged": Words(
        "loss",
        "the metadata journal is damaged, with whole entries behind",
        "topics, settings or deletions are missing; the broker refuses to start",
        "restore metadata.journal from a copy",
    ),
    "journal-torn": Words(
        "mend",
        "the journal's last entry is cut off ({detail})",
        "a crash interrupted a change that was never acknowledged",
        "nothing: the next start cuts it off",
    ),
}  # fmt: skip
_KAFKA_METADATA: Final = "kafka-metadata:"
#: Only asked whether somebody has it: struct flock as `runtime/platform.py` lays it out.
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
        # Kafka's own metadata: of no use to ottla once it has been taken over.
        means = "this is Kafka's metadata log; ottla reads it once, when it takes the directory over"
        do = "before a take-over: restore the folder from a copy or another controller. After it: nothing"
        level = "mend" if level == "loss" else level
    # A position of an index says nothing of offsets; what has no offset is not asked for one.
    fields = {"detail": finding.detail, "offset": finding.offset}
    return Report(
        finding.kind, level, finding.path, finding.position, finding.offset,
        words.what.format(**fields).replace(" ()", "").strip(), means.format(**fields), do.format(**fields),
    )  # fmt: skip


class ReadOnlyFiles:
    """The file system, for looking only."""

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
            # Deleted meanwhile by a broker at work.
            return b""

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None


def in_use(path: str) -> bool:
    """Whether a broker, ottla or Kafka, is at work on a data directory. Asks for its lock without taking it."""
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
