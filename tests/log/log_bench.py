"""Logs and batches for the tests of this folder: on the real disk, small enough to be torn byte by byte."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.log.flush import stale_snapshots
from ottla.log.markers import decode_marker
from ottla.log.partition_log import PartitionLog, Slice
from ottla.log.recovery import Recovered, open_log
from ottla.ports.disk import Buffer, DiskError, File
from ottla.records.batch import CONTROL_BIT, HEADER, TRANSACTIONAL_BIT
from ottla.records.record import Record, decode_batch, decode_batches, encode_batch, whole_batches
from ottla.runtime.disk import SystemDisk

NOW = 1_700_000_000_000
BROKER = BrokerConfig.from_properties({"log.dirs": "/nowhere", "node.id": "1"})
TOPIC_ID_FILE = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


def config(**settings: Any) -> TopicConfig:
    """Topic settings by their names with underscores."""
    return TopicConfig.resolve(
        {name.replace("_", "."): str(value) for name, value in settings.items()}, BROKER
    )


def batch(
    *values: bytes, timestamp: int = NOW, timestamps: Sequence[int] | None = None, **fields: Any
) -> bytes:
    """One batch of these values, all with one timestamp or with one each."""
    times = timestamps or [timestamp] * len(values)
    return encode_batch(
        [Record(0, time, None, value) for value, time in zip(values, times, strict=True)], **fields
    )


def sequenced(
    sequence: int,
    *values: bytes,
    producer: int = 7,
    epoch: int = 0,
    timestamp: int = NOW,
    transactional: bool = False,
) -> bytes:
    return batch(
        *values,
        timestamp=timestamp,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


class CountingDisk(SystemDisk):
    """The real disk, which counts reads and can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []
        self.largest_read = 0
        #: Called with each write; may raise.
        self.before_write: Callable[[str], None] | None = None

    def read(self, file: File, position: int, size: int) -> bytes:
        data = super().read(file, position, size)
        self.reads.append(len(data))
        return data

    def write(self, file: File, position: int, parts: Sequence[Buffer]) -> int:
        if self.before_write is not None:
            self.before_write(file.path)
        return super().write(file, position, parts)

    @property
    def bytes_read(self) -> int:
        return sum(self.reads)


def full(what: str) -> Callable[[str], None]:
    """For `before_write`: no disk space for files with this suffix."""

    def fail(path: str) -> None:
        if path.endswith(what):
            raise DiskError(f"{path}: no space left on device", full=True)

    return fail


class Bench:
    """A directory for one log, which can be flushed, stopped and opened again in all possible ways."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "t-0"
        self.directory = str(self.path)
        self.disk = CountingDisk()
        self.config = config()
        #: The content of the checkpoint files.
        self.recovery_point = 0
        self.log_start_offset = 0

    def create(self, start_offset: int = 0, **settings: Any) -> PartitionLog:
        self.config = config(**settings)
        return PartitionLog.create(
            self.disk, self.directory, self.config,
            start_offset=start_offset, now_ms=NOW, topic_id_file=TOPIC_ID_FILE,
        )  # fmt: skip

    def flush(self, log: PartitionLog) -> None:
        """A background flush, as the broker does it."""
        flush = log.begin_flush()
        if flush is not None:
            for file in flush.files:
                self.disk.sync(file)
            self.disk.replace_file(log.snapshot_path(flush.end_offset), flush.snapshot)
            log.flushed(flush)
            for path in stale_snapshots(log, flush.end_offset):
                self.disk.remove(path)
        self.recovery_point = log.recovery_point

    def stop(self, log: PartitionLog) -> None:
        self.flush(log)
        self.log_start_offset = log.log_start_offset
        log.close()

    def recover(self, *, clean: bool = False, may_have_gaps: bool = False, **settings: Any) -> Recovered:
        """Open the log as another process would, without state in memory."""
        self.disk.release()
        self.disk = CountingDisk()
        if settings:
            self.config = config(**settings)
        recovered = open_log(
            self.disk, self.directory, self.config,
            recovery_point=self.recovery_point, log_start_offset=self.log_start_offset, clean=clean, now_ms=NOW,
            may_have_gaps=may_have_gaps,
        )  # fmt: skip
        assert recovered is not None
        return recovered

    def file(self, name: str) -> Path:
        return self.path / name

    def names(self, suffix: str) -> list[str]:
        return sorted(path.name for path in self.path.iterdir() if path.name.endswith(suffix))

    def remove(self, segments: Sequence[Any]) -> None:
        """Remove dropped segments, as the owner of a log does."""
        for segment in segments:
            segment.close()
            for suffix in ("log", "index", "timeindex"):
                self.file(f"{segment.base_offset:020d}.{suffix}").unlink()
            self.file(f"{segment.base_offset:020d}.txnindex").unlink(missing_ok=True)


def read_slice(log: PartitionLog, piece: Slice) -> bytes:
    return log.disk.read(piece.file, piece.position, piece.size)


def records(log: PartitionLog, offset: int | None = None, bytes_max: int = 1 << 30) -> list[Record]:
    """Everything from an offset on, read slice by slice as a consumer does."""
    found: list[Record] = []
    at = log.log_start_offset if offset is None else offset
    while (piece := log.slice(at, log.next_offset, bytes_max, whole_first=True)) is not None:
        data = read_slice(log, piece)
        found += [record for record in decode_batches(data) if record.offset >= at]
        ends = [head[0] + head[6] for head in map(HEADER.unpack_from, whole_batches(data))]
        assert ends, "a slice holds at least one whole batch"
        at = ends[-1] + 1
    return found


def committed(log: PartitionLog, end_offset: int, bytes_max: int = 1 << 30) -> list[Record]:
    """What a read_committed consumer gets from its slices, up to the last stable offset."""
    found: list[Record] = []
    at = log.log_start_offset
    while (piece := log.slice(at, end_offset, bytes_max, whole_first=True)) is not None:
        to_come = sorted(log.aborted(at, end_offset, piece), key=lambda ended: -ended.first_offset)
        aborted: set[int] = set()
        for data in whole_batches(read_slice(log, piece)):
            base, _, _, _, _, attributes, delta, _, _, producer, *_ = HEADER.unpack_from(data)
            while to_come and to_come[-1].first_offset <= base + delta:
                aborted.add(to_come.pop().producer_id)
            if attributes & CONTROL_BIT:
                marker = decode_marker(bytes(data))
                assert marker is not None
                if not marker.commit:
                    aborted.discard(producer)
            elif not (attributes & TRANSACTIONAL_BIT and producer in aborted):
                found += [record for record in decode_batch(data) if record.offset >= at]
            next_at = base + delta + 1
        at = next_at
    return found


def values(log: PartitionLog, offset: int | None = None) -> list[bytes | None]:
    return [record.value for record in records(log, offset)]


def fill(log: PartitionLog, count: int, *, size: int = 40, step_ms: int = 0) -> None:
    """One-record batches; the value begins with its offset."""
    for _ in range(count):
        offset = log.next_offset
        value = b"%d." % offset
        log.append(
            batch(value.ljust(size, b"."), timestamp=NOW + offset * step_ms), 0, NOW + offset * step_ms
        )
