"""Compaction: a log's closed segments are read and written anew with the newest record of each key alone.

`clean` is one pass, a function of the disk and a task; it runs in a worker process (`runtime/worker.py`), in
the simulator inside an event. It reads what was never compacted into a map of keys, as far as that has room
(`log/keymap.py`), then writes all segments from the log's start to the map's end again, several small ones
into one (`log/batch_rewrite.py` says what becomes of a batch). What it writes are files under names of their
own, synced, and nothing else: to put them in the place of the old ones is the broker's (`log/swap.py`), so a
worker that dies or lives too long harms nobody.

The last batch of an output stays, empty if it must be: so the output ends where its last input did, and its
range of offsets says which segments it replaces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ottla.log.batch_rewrite import Rewriter, RewrittenBatch, TransactionsRead, emptied
from ottla.log.index import OFFSET_ENTRY
from ottla.log.keymap import KeyMap
from ottla.log.names import CLEANED, LOG, offset_name
from ottla.log.segment import Segment
from ottla.log.transactions import Ended
from ottla.model.limits import RELATIVE_OFFSET_MAX
from ottla.ports.disk import Buffer, Disk
from ottla.records.batch import HEADER, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC
from ottla.records.errors import CorruptRecords
from ottla.records.record import RECORD_BYTES_MIN

_READ_BYTES: Final = 4 << 20
_WRITE_BYTES: Final = 1 << 20
#: Segments that one output replaces at most: the broker renames their files between two requests.
_INPUTS_MAX: Final = 32
_CRC_FIELD: Final = 4


class Input(NamedTuple):
    base_offset: int
    size: int
    next_offset: int
    index_bytes: int
    max_timestamp: int


class Task(NamedTuple):
    """All that a pass needs to know, in plain values: it crosses to another process."""

    directory: str
    #: Makes the names of the outputs unlike those of any other pass.
    token: str
    #: The segments from the log's start on that may be cleaned, oldest first.
    inputs: tuple[Input, ...]
    #: Nothing before it needs to be in the map.
    first_dirty: int
    #: Where the last input ends.
    end: int
    #: The last offsets of the batches by which live producers are known (R14), where those may be in the
    #: inputs.
    producer_ends: tuple[int, ...]
    #: All aborted transactions that have data in the inputs.
    aborted: tuple[Ended, ...]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    #: How much time an output may span: retention by age goes by its newest record.
    span_ms: int
    memory_bytes: int
    load_factor: float
    bytes_per_second: float

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Task:
        """From what became of `_asdict` in JSON."""
        inputs = tuple(Input(*row) for row in fields.pop("inputs"))
        aborted = tuple(Ended(*row) for row in fields.pop("aborted"))
        ends = tuple(fields.pop("producer_ends"))
        return cls(inputs=inputs, aborted=aborted, producer_ends=ends, **fields)


class Output(NamedTuple):
    """One cleaned segment, and what it takes to use it without reading it."""

    base_offset: int
    #: Which of the inputs it replaces: the first, and how many.
    first_input: int
    inputs: int
    next_offset: int
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    first_timestamp: int
    has_aborted: bool


class Outcome(NamedTuple):
    #: Everything before it is clean now.
    map_end: int
    outputs: tuple[Output, ...]
    keys: int

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Outcome:
        return cls(outputs=tuple(Output(*row) for row in fields.pop("outputs")), **fields)


def _no_pace(_byte_count: int) -> None:
    return


def clean(disk: Disk, task: Task, pace: Callable[[int], None] = _no_pace) -> Outcome:
    """One pass. Raises CorruptRecords where the log cannot be read, DiskError; then its files are of no use.

    `pace` is told of bytes read and written, and may wait.
    """
    try:
        keys, map_end = _build_map(disk, task, pace)
        rewriter = Rewriter(
            keys,
            map_end=map_end,
            transactions=(transactions := TransactionsRead(task.aborted)),
            producer_ends=frozenset(task.producer_ends),
            now_ms=task.now_ms,
            delete_retention_ms=task.delete_retention_ms,
        )
        outputs = []
        first = 0
        while first < len(task.inputs) and task.inputs[first].base_offset < map_end:
            output, changed = _write_output(disk, task, first, rewriter, transactions, map_end, pace)
            if changed:
                outputs.append(output)
            first += output.inputs
    except (struct.error, ValueError) as error:
        # A number that its field cannot hold, in a batch that its producer built by hand.
        raise CorruptRecords(f"{task.directory}: {error}") from error
    return Outcome(map_end, tuple(outputs), keys.size)


def _build_map(disk: Disk, task: Task, pace: Callable[[int], None]) -> tuple[KeyMap, int]:
    """The newest offset of each key from the first dirty offset on, and how far the map reaches."""
    keys = KeyMap(
        memory_bytes=task.memory_bytes,
        load_factor=task.load_factor,
        # No more keys than offsets.
        keys_max=max(1, task.end - task.first_dirty),
    )
    transactions = TransactionsRead(task.aborted)
    first_dirty = task.first_dirty
    for each in task.inputs:
        if each.next_offset <= first_dirty:
            continue
        for batch in _batches(disk, task, each, pace):
            if batch.is_control:
                transactions.is_idle(batch)
                continue
            # Asked of every batch: it follows the transactions.
            is_aborted = transactions.is_aborted(batch)
            if batch.last_offset < first_dirty or is_aborted:
                continue
            is_too_large = keys.size + batch.count > keys.capacity
            if is_too_large:
                if keys.size:
                    return keys, batch.base_offset
                keys = _map_of_one(batch, task.load_factor)
            put, base = keys.put, batch.base_offset
            for _start, _end, _time, delta, key, _has_value in batch.spans():
                if key is not None:
                    put(key, base + delta)
            if is_too_large:
                return keys, batch.last_offset + 1
    return keys, task.end


def _map_of_one(batch: RewrittenBatch, load_factor: float) -> KeyMap:
    """For a batch with more records than a map may hold: better too large a map than none."""
    _data, start, end = batch.payload()
    # Its bytes bound it, not what its header promises.
    keys_max = min(batch.count, (end - start) // RECORD_BYTES_MIN)
    return KeyMap(memory_bytes=1 << 62, load_factor=load_factor, keys_max=keys_max)


def _batches(disk: Disk, task: Task, each: Input, pace: Callable[[int], None]) -> Iterator[RewrittenBatch]:
    """Every batch of an input, each with its CRC checked."""
    file = disk.open(f"{task.directory}/{offset_name(each.base_offset)}{LOG}")
    try:
        position, chunk, unpack = 0, _READ_BYTES, HEADER.unpack_from
        while position < each.size:
            size = min(chunk, each.size - position)
            data = disk.read(file, position, size)
            if len(data) < size:
                raise CorruptRecords(f"{file.path} ends at {position + len(data)} instead of {each.size}")
            pace(size)
            at, limit, wanted = 0, size, HEADER_BYTES
            while limit - at >= HEADER_BYTES:
                header = unpack(data, at)
                wanted = header[1] + LENGTH_OVERHEAD
                if header[3] != MAGIC or wanted < HEADER_BYTES or header[6] < 0:
                    raise CorruptRecords(f"{file.path}: no batch at {position + at}")
                if at + wanted > limit:
                    break
                batch = RewrittenBatch(data, at, wanted, header)
                batch.check(header[_CRC_FIELD])
                yield batch
                at += wanted
            position += at
            if not at and not limit < wanted <= each.size - position:
                # No batch, and none that a larger read would bring.
                raise CorruptRecords(f"{file.path}: a batch is cut off at {position}")
            chunk = max(_READ_BYTES, wanted)
    finally:
        disk.close(file)


class _Writer:
    """An output under its temporary name: batches gather and go to the file in large pieces."""

    def __init__(self, disk: Disk, task: Task, base_offset: int) -> None:
        self._disk = disk
        self._task = task
        self.segment = Segment(
            disk, task.directory, base_offset,
            index_bytes_max=task.index_bytes, created_ms=task.now_ms, create=True, suffix=suffix(task.token),
        )  # fmt: skip
        self._parts: list[Buffer] = []
        self._written = 0

    def add(self, data: Buffer, last_offset: int, max_timestamp: int, pace: Callable[[int], None]) -> None:
        segment = self.segment
        segment.note(last_offset, max_timestamp, segment.size, len(data), self._task.index_interval_bytes)
        self._parts.append(data)
        if segment.size - self._written >= _WRITE_BYTES:
            pace(segment.size - self._written)
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            # Joined: a vector of ten thousand small pieces is dearer, and longer than the system takes.
            self._written = self._disk.write(self.segment.file, self._written, (b"".join(self._parts),))
            self._parts.clear()

    def finish(self) -> None:
        self._flush()
        self.segment.finish()
        disk = self._disk
        # All of it, before anybody may give it the name of what it replaces.
        for file in self.segment.files:
            disk.sync(file)
        self.segment.close()

    def discard(self) -> None:
        self.segment.close()
        for file in self.segment.files:
            self._disk.remove(file.path)


def _write_output(
    disk: Disk,
    task: Task,
    first_input: int,
    rewriter: Rewriter,
    transactions: TransactionsRead,
    map_end: int,
    pace: Callable[[int], None],
) -> tuple[Output, bool]:
    """One output for as many inputs as it has room for, from the first on, and whether it differs from them."""
    first = task.inputs[first_input]
    writer = _Writer(disk, task, first.base_offset)
    segment = writer.segment
    count, changed = 0, False
    #: The last batch of the last input, if nothing of it stays.
    last: RewrittenBatch | None = None
    for each in task.inputs[first_input : first_input + _INPUTS_MAX]:
        # By what the inputs were: what is cleaned is smaller, or as large.
        fits = (
            segment.size + each.size <= task.segment_bytes
            and segment.index.count * OFFSET_ENTRY.size + each.index_bytes <= task.index_bytes
            and each.next_offset - 1 - first.base_offset <= RELATIVE_OFFSET_MAX
            and each.max_timestamp - segment.first_timestamp <= task.span_ms
        )
        if count and (not fits or each.base_offset >= map_end):
            break
        for batch in _batches(disk, task, each, pace):
            written = rewriter.rewrite(batch)
            if written is None:
                last, changed = batch, True
                continue
            data, max_timestamp = written
            changed = changed or type(data) is not memoryview
            writer.add(data, batch.last_offset, max_timestamp, pace)
            last = None
        count += 1
    if last is not None:
        writer.add(emptied(last), last.last_offset, last.max_timestamp, pace)
    for aborted in transactions.take_seen():
        segment.aborted.append(aborted)
    changed = changed or count > 1
    if changed:
        writer.finish()
    else:
        writer.discard()
    return Output(
        segment.base_offset, first_input, count, segment.next_offset, segment.size,
        segment.max_timestamp, segment.max_timestamp_offset, segment.first_timestamp, segment.aborted.count > 0,
    ), changed  # fmt: skip


def suffix(token: str) -> str:
    return f".{token}{CLEANED}"
