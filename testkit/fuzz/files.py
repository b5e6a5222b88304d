"""Data directories with damaged files: a broker serves what was really written, or refuses to start with a
reason.

A directory is created once, with topics of several kinds, and saved after a clean shutdown and after a kill.
For each case a copy gets some file changed in some way, and the core opens it. Files are listed at run time,
so new kinds are covered. What must hold:

- it starts, or refuses (or goes offline later) with one line about a file; nothing else is raised, and it
  takes neither much time nor much memory;
- every served record was written to that partition at that offset; a CRC error may stop a reader, but never
  mislead it;
- damage to a file other than a log or the metadata loses no record;
- a broker that started also accepts new records, and has them after the next start.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from ottla.broker.storage.log_directories import NoDirectory
from ottla.broker.storage.log_directory import ForeignDirectory
from ottla.model.api_key import ApiKey
from ottla.model.errors import Refusal
from ottla.ports.disk import DiskError, File
from ottla.records.errors import CorruptRecords
from ottla.records.record import Record, encode_batch
from ottla.replication.replica import Replica
from ottla.runtime.disk import SystemDisk, failures
from ottla.runtime.embedded_store import JOURNAL, DamagedJournal
from testkit.fuzz.harness import Harness, records_from
from testkit.fuzz.outcome import Failed, Tally
from testkit.fuzz.pool import in_processes

#: What `server/node.py` reports as a refused start.
REFUSALS: Final = (DiskError, DamagedJournal, ForeignDirectory, NoDirectory)
#: Longer than any start with so little data.
_SECONDS_MAX: Final = 10.0
#: Directories per process.
_PART: Final = 100
_SMALL: Final = {"index.interval.bytes": "200", "segment.index.bytes": "64"}
#: Topics by their settings, each with one partition with records and one without.
_TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {"index.interval.bytes": "300"},
    "rolled": _SMALL,
    "synced": {"flush.policy": "durable", **_SMALL},
    "shortened": _SMALL,
    "keyed": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"},
}


class QuickDisk(SystemDisk):
    """Without syncs: there are no power cuts here, and a thousand starts would wait for the device."""

    def sync(self, file: File) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass

    def replace_file(self, path: str, data: bytes) -> None:
        with failures(path):
            Path(f"{path}.tmp").write_bytes(data)
            os.replace(f"{path}.tmp", path)


#: (topic, partition) → offset → written value.
Written = dict[tuple[str, int], dict[int, tuple[bytes | None, bytes | None, int]]]


class Original(NamedTuple):
    """A saved directory, its content, and the log start of each partition."""

    path: Path
    written: Written
    starts: dict[tuple[str, int], int]


def make_originals(under: Path) -> list[Original]:
    """The same history, ended by a kill and by a clean shutdown."""
    path = under / "live"
    disk = QuickDisk()
    harness = Harness(disk, str(path), Random(1), {})
    harness.start()
    written: Written = {}
    for topic, settings in _TOPICS.items():
        harness.create(topic, 2, settings)
        written[topic, 0] = {}
    _fill(harness, written, range(60))
    # A background flush: recovery points, snapshots, synced indexes.
    harness.pass_time(120_000)
    _fill(harness, written, range(60, 100))
    rows = [{"partition_index": 0, "offset": 17}]
    harness.ask(ApiKey.DELETE_RECORDS, 2, topics=[{"name": "shortened", "partitions": rows}], timeout=1000)
    harness.pass_time(10)
    starts = {key: 17 if key[0] == "shortened" else 0 for key in written}
    killed = under / "killed"
    shutil.copytree(path, killed)
    harness.stop()
    disk.release()
    stopped = under / "stopped"
    path.rename(stopped)
    return [Original(killed, written, starts), Original(stopped, written, starts)]


def _fill(harness: Harness, written: Written, numbers: range) -> None:
    for topic, partition in written:
        log = written[topic, partition]
        for number in numbers:
            values = [
                b"%s-%d-%d" % (topic.encode(), number, at) * (1 + number % 5) for at in range(1 + number % 3)
            ]
            records = [
                Record(at, harness.now_ms + number, b"key-%d-%d" % (number, at), value)
                for at, value in enumerate(values)
            ]
            batch = encode_batch(
                records, codec=number % 5, producer_id=7, producer_epoch=0, base_sequence=len(log)
            )
            row = harness.produce(topic, partition, batch)
            if row.error_code.value:
                raise Failed(f"the original could not be made: {row}")
            for record in records:
                log[row.base_offset + record.offset] = (record.key, record.value, record.timestamp_ms)


# --- damage ---------------------------------------------------------------------------------------------------------


def _flip(random: Random, file: Path, others: list[Path]) -> None:
    data = bytearray(file.read_bytes() or b"\0")
    for _ in range(random.choice((1, 1, 4))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    file.write_bytes(data)


def _truncate(random: Random, file: Path, others: list[Path]) -> None:
    os.truncate(file, random.randrange(file.stat().st_size + 1))


def _extend(random: Random, file: Path, others: list[Path]) -> None:
    with file.open("ab") as end:
        end.write(random.choice((bytes(100), random.randbytes(100), b"\xff" * 61, b"\n", bytes(1 << 20))))


def _zero(random: Random, file: Path, others: list[Path]) -> None:
    data = bytearray(file.read_bytes())
    start = random.randrange(len(data) + 1)
    size = min(random.choice((1, 8, 64, 4096)), len(data) - start)
    data[start : start + size] = bytes(size)
    file.write_bytes(data)


def _take_out(random: Random, file: Path, others: list[Path]) -> None:
    data = bytearray(file.read_bytes())
    start = random.randrange(len(data) + 1)
    del data[start : start + random.choice((1, 8, 61, 300))]
    file.write_bytes(data)


def _noise(random: Random, file: Path, others: list[Path]) -> None:
    file.write_bytes(random.randbytes(random.choice((1, 8, 12, 100, 5000))))


def _empty(random: Random, file: Path, others: list[Path]) -> None:
    file.write_bytes(b"")


def _delete(random: Random, file: Path, others: list[Path]) -> None:
    file.unlink()


def _swap(random: Random, file: Path, others: list[Path]) -> None:
    """Swap a file with another of its kind. Not logs: with equal names the swap could not be detected."""
    alike = [
        other
        for other in others
        if other.suffix == file.suffix
        and other != file
        and (file.suffix != ".log" or (other.parent == file.parent and other.name != file.name))
    ]
    if alike:
        other = random.choice(alike)
        held = file.read_bytes()
        file.write_bytes(other.read_bytes())
        other.write_bytes(held)


def _directory(random: Random, file: Path, others: list[Path]) -> None:
    file.unlink()
    file.mkdir()


def _stray(random: Random, file: Path, others: list[Path]) -> None:
    """An unknown file beside it, or one with a similar name."""
    name = random.choice(
        ("x", "99999999999999999999.log.x", ".hidden", "0.log", "00000000000000000003.snapshot", "é")
    )
    with suppress(OSError):
        (file.parent / name).write_bytes(random.randbytes(50))


Damage = Callable[[Random, Path, list[Path]], None]
DAMAGES: Final[tuple[Damage, ...]] = (
    _flip, _flip, _flip, _flip, _truncate, _truncate, _extend, _zero, _take_out, _noise, _empty, _delete, _swap, _directory,
    _stray,
)  # fmt: skip


def damage(random: Random, path: Path) -> list[tuple[str, str]]:
    """(damage, file) of each change to a directory."""
    done = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        files = sorted(file for file in path.rglob("*") if file.is_file())
        file = random.choice(files)
        how = random.choice(DAMAGES)
        how(random, file, files)
        done.append((how.__name__.strip("_"), str(file.relative_to(path))))
    return done


# --- what must hold -------------------------------------------------------------------------------------------------


class _Unserved(Failed):
    """An existing partition answers with an error."""


class Case:
    """One damaged copy."""

    def __init__(self, original: Original, path: Path, seed: str) -> None:
        self.original = original
        self.path = path
        self.random = Random(seed)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(original.path, path)
        self.damage = damage(self.random, path)
        self.said: list[str] = []
        touched = [file for _how, file in self.damage]
        self._metadata_touched = any(file in (JOURNAL, "meta.properties") for file in touched)
        #: Partitions whose log was changed, by the name of their directory.
        self._logs_touched = {file.partition("/")[0] for file in touched if file.endswith(".log")}

    def run(self, tally: Tally) -> None:
        disk = QuickDisk()
        started = time.monotonic()
        try:
            harness = Harness(disk, str(self.path), self.random, {})
            try:
                harness.start()
            except REFUSALS as refusal:
                self._check_words(str(refusal))
                tally.add("refused")
                return
            tally.add("started")
            self.said = harness.said
            try:
                served = self._read(harness, tally)
                added = self._write(harness, served)
            except (DiskError, _Unserved):
                # Logs are opened at their first use: a directory may go offline only then, with a reason.
                if not harness.broker.directories.offline:
                    raise
                for directory in harness.broker.directories.offline:
                    self._check_words(str(directory.offline))
                tally.add("went offline")
                return
            try:
                harness.stop()
            except (DiskError, Refusal) as error:
                # The node logs it and leaves no clean-shutdown mark.
                self._check_words(str(error))
                tally.add("could not stop cleanly")
            disk.release()
            self._again(added)
        finally:
            disk.release()
            seconds = time.monotonic() - started
        if seconds > _SECONDS_MAX:
            raise Failed(f"it took {seconds:.1f} s")

    def _check_words(self, words: str) -> None:
        if "\n" in words or str(self.path) not in words:
            raise Failed(f"a refusal without one line that names the file and the problem: {words!r}")

    def _read(self, harness: Harness, tally: Tally) -> set[tuple[str, int]]:
        """Compare every partition with what was written; returns the partitions that can be read to their
        end.
        """
        whole = set()
        for (topic, partition), written in self.original.written.items():
            if topic not in harness.broker.image.topics:
                if not self._metadata_touched:
                    raise Failed(f"the topic {topic} is gone")
                if not self._was_set_aside(topic, partition):
                    raise Failed(f"the topic {topic} is gone, and its records with it")
                tally.add("topics kept aside")
                continue
            replica = harness.broker.partitions.by_name[topic].replicas[partition]
            try:
                offset = start = replica.log.log_start_offset
            except DiskError as error:
                if not self._is_offline_alone(harness, replica, error):
                    raise
                tally.add("partitions offline")
                continue
            seen: set[int] = set()
            try:
                while True:
                    row = harness.fetch(topic, partition, offset)
                    if row.error_code.value and self._is_touched(topic, partition):
                        raise CorruptRecords("it says so itself, or its offsets lead nowhere")
                    if row.error_code.value:
                        raise _Unserved(f"{topic}-{partition} at {offset}: {row.error_code}")
                    records = records_from(row, offset)
                    if not records:
                        break
                    self._compare(topic, partition, records, written)
                    seen.update(record.offset for record in records)
                    offset = records[-1].offset + 1
            except CorruptRecords as error:
                if not self._is_touched(topic, partition):
                    raise Failed(f"{topic}-{partition} at {offset}: {error}") from error
                tally.add("partitions a reader's CRC stops in")
                continue
            whole.add((topic, partition))
            self._check_complete(topic, partition, start, seen, written)
        return whole

    def _is_offline_alone(self, harness: Harness, replica: Replica, error: DiskError) -> bool:
        """One of its files cannot be used, and the broker names it; other partitions of the directory are
        served.

        After a clean shutdown a log is opened at each request until that succeeds.
        """
        own = f"{replica.topic}-{replica.number}/"
        if not any(file.startswith(own) for _how, file in self.damage):
            return False
        self._check_words(str(error))
        return not harness.broker.directories.offline

    def _was_set_aside(self, topic: str, partition: int) -> bool:
        """Not served, because its topic id was damaged; but not lost either, and the broker has logged it."""
        kept = list(self.path.glob(f"{topic}-{partition}.*-stray/*.log"))
        return bool(kept) and any(kept[0].parent.name in text for text in self.said)

    def _is_touched(self, topic: str, partition: int) -> bool:
        return f"{topic}-{partition}" in self._logs_touched

    def _compare(self, topic: str, partition: int, records: list[Record], written: Any) -> None:
        for record in records:
            content = (record.key, record.value, record.timestamp_ms)
            if written.get(record.offset) == content:
                continue
            # The CRC does not cover the first bytes of a batch with its base offset: in a synced log they are
            # trusted.
            if self._is_touched(topic, partition) and content in written.values():
                continue
            raise Failed(
                f"{topic}-{partition} serves {record}, but {written.get(record.offset)} was written there"
            )

    def _check_complete(
        self, topic: str, partition: int, start: int, seen: set[int], written: dict[int, Any]
    ) -> None:
        if self._is_touched(topic, partition) or self._metadata_touched:
            return
        begin = self.original.starts[topic, partition]
        missing = [offset for offset in written if offset >= begin and offset not in seen]
        if missing and not self._was_set_aside(topic, partition):
            raise Failed(
                f"{topic}-{partition} lacks the records at {missing[:5]} of {len(written)}; it starts at {start}"
            )

    def _write(
        self, harness: Harness, served: set[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, bytes]]:
        """Append one more record to each partition and read it back; (offset, value)."""
        added = {}
        for topic, partition in sorted(served):
            value = b"after the damage"
            row = harness.produce(topic, partition, encode_batch([Record(0, harness.now_ms, b"k", value)]))
            if row.error_code.value:
                raise _Unserved(
                    f"{topic}-{partition} accepts no record any more: {row.error_code} {row.error_message}"
                )
            added[topic, partition] = row.base_offset, value
            self._find(harness, topic, partition, *added[topic, partition])
        return added

    def _find(self, harness: Harness, topic: str, partition: int, offset: int, value: bytes) -> None:
        row = harness.fetch(topic, partition, offset)
        if [record.value for record in records_from(row, offset)][:1] != [value]:
            raise Failed(f"{topic}-{partition}: the new record at {offset} is not there: {row.error_code}")

    def _again(self, added: dict[tuple[str, int], tuple[int, bytes]]) -> None:
        """The next start logs no problem."""
        disk = QuickDisk()
        try:
            harness = Harness(disk, str(self.path), self.random, {})
            try:
                harness.start()
            except REFUSALS as refusal:
                raise Failed(f"the first start succeeded, the next one fails: {refusal}") from refusal
            for (topic, partition), (offset, value) in added.items():
                self._find(harness, topic, partition, offset, value)
        finally:
            disk.release()


class Part(NamedTuple):
    """Check this many damaged directories, from a number on."""

    seed: int
    first: int
    size: int
    under: Path

    def run(self) -> Tally:
        self.under.mkdir()
        originals = make_originals(self.under)
        tally = Tally()
        for number in range(self.first, self.first + self.size):
            case = Case(originals[number % len(originals)], self.under / "case", f"{self.seed}:{number}")
            try:
                case.run(tally)
            except Exception as error:
                again = f"python -m testkit.fuzz files --seed {self.seed} --round {number} --requests 1"
                raise Failed(
                    f"{error!r}\n  the damage: {case.damage} after {case.original.path.name}\n  again: {again}"
                ) from error
            tally.add("damaged directories")
        shutil.rmtree(self.under)
        return tally


def run_files(
    count: int,
    seed: int,
    under: Path,
    *,
    first: int = 0,
    jobs: int = 1,
    tell: Callable[[str], None] = lambda _text: None,
) -> Tally:
    """Check this many damaged directories, in parts; `jobs` parts run in parallel, each in its own process."""
    parts = [
        Part(seed, start, min(_PART, first + count - start), under / f"part-{start}")
        for start in range(first, first + count, _PART)
    ]
    tally = Tally()
    for done in in_processes(Part.run, parts, jobs):
        tally.merge(done)
        if tally["damaged directories"] % 500 < _PART:
            tell(f"files: {tally}")
    return tally
