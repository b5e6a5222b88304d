"""One compaction pass: closed segments are rewritten with the newest record of each key only.

`clean` is a function of a disk and a task. It runs in a worker process (`runtime/worker.py`), and in the
simulator inside an event. It works in two steps:

1. Read the dirty segments into a map of keys, as far as its memory allows (`log/keymap.py`).
2. Rewrite all segments from the log start to the end of the map. Several small segments become one
   (`log/batch_rewrite.py` rewrites a batch).

The outputs are synced files with temporary names. The broker puts them in place (`log/swap.py`), so a worker
that dies or runs too long does no harm.

The last batch of an output always stays, empty if necessary. So an output ends where its last input ended,
and its range of offsets says which segments it replaces.
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
#: Maximum number of segments that one output replaces: the broker renames their files in one turn of the
#: event loop.
_INPUTS_MAX: Final = 32
_CRC_FIELD: Final = 4


class Input(NamedTuple):
    base_offset: int
    size: int
    next_offset: int
    index_bytes: int
    max_timestamp: int


class Task(NamedTuple):
    """The input of a pass, in plain values, because it is sent to another process."""

    directory: str
    #: Makes the file names of this pass unique.
    token: str
    #: The segments that can be cleaned, oldest first, from the log start on.
    inputs: tuple[Input, ...]
    #: Records before this offset need not be in the map.
    first_dirty: int
    #: The end offset of the last input.
    end: int
    #: Last offsets of the batches that the state of live producers depends on (R14), as far as they can be in
    #: the inputs.
    producer_ends: tuple[int, ...]
    #: All aborted transactions with records in the inputs.
    aborted: tuple[Ended, ...]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    #: Maximum time span of an output: retention by age uses its newest record.
    span_ms: int
    memory_bytes: int
    load_factor: float
    bytes_per_second: float

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Task:
        """From the JSON form of `_asdict`."""
        inputs = tuple(Input(*row) for row in fields.pop("inputs"))
        aborted = tuple(Ended(*row) for row in fields.pop("aborted"))
        ends = tuple(fields.pop("producer_ends"))
        return cls(inputs=inputs, aborted=aborted, producer_ends=ends, **fields)


class Output(NamedTuple):
    """One cleaned segment, with everything needed to use it without reading it."""

    base_offset: int
    #: The inputs that it replaces: index of the first, and count.
    first_input: int
    inputs: int
    next_offset: int
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    first_timestamp: int
    has_aborted: bool


class Outcome(NamedTuple):
    #: The log is clean up to this offset.
    map_end: int
    outputs: tuple[Output, ...]
    keys: int

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Outcome:
        return cls(outputs=tuple(Output(*row) for row in fields.pop("outputs")), **fields)


def _no_pace(_byte_count: int) -> None:
    return


def clean(disk: Disk, task: Task, pace: Callable[[int], None] = _no_pace) -> Outcome:
    """Run one pass. Raises CorruptRecords if the log cannot be read, or DiskError; the outputs are then
    useless.

    `pace` is called with the number of bytes read and written, and may wait.
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
        # A number that does not fit its field, in a batch that a client built by hand.
        raise CorruptRecords(f"{task.directory}: {error}") from error
    return Outcome(map_end, tuple(outputs), keys.size)


def _build_map(disk: Disk, task: Task, pace: Callable[[int], None]) -> tuple[KeyMap, int]:
    """The newest offset of each key from the first dirty offset on, and the end offset of the map."""
    keys = KeyMap(
        memory_bytes=task.memory_bytes,
        load_factor=task.load_factor,
        # There are at most as many keys as offsets.
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
            # Called for every batch: it follows the transactions.
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
    """A batch can have more records than the map holds; then the map is larger than configured."""
    _data, start, end = batch.payload()
    # Limited by its bytes, not by the count in its header.
    keys_max = min(batch.count, (end - start) // RECORD_BYTES_MIN)
    return KeyMap(memory_bytes=1 << 62, load_factor=load_factor, keys_max=keys_max)


def _batches(disk: Disk, task: Task, each: Input, pace: Callable[[int], None]) -> Iterator[RewrittenBatch]:
    """Every batch of an input. The CRC of each is checked."""
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
                # No batch starts here, and a larger read would not change that.
                raise CorruptRecords(f"{file.path}: a batch is cut off at {position}")
            chunk = max(_READ_BYTES, wanted)
    finally:
        disk.close(file)


class _Writer:
    """An output under its temporary name. Batches are collected and written in large chunks."""

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
            # Joined first: a vector of ten thousand small buffers is slower, and exceeds the limit of the
            # system.
            self._written = self._disk.write(self.segment.file, self._written, (b"".join(self._parts),))
            self._parts.clear()

    def finish(self) -> None:
        self._flush()
        self.segment.finish()
        disk = self._disk
        # All files are synced before one of them gets its final name.
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
    """Write one output from as many inputs as fit, starting with the first; also returns whether it differs
    from them.
    """
    first = task.inputs[first_input]
    writer = _Writer(disk, task, first.base_offset)
    segment = writer.segment
    count, changed = 0, False
    #: The last batch of the last input, if nothing of it stays.
    last: RewrittenBatch | None = None
    for each in task.inputs[first_input : first_input + _INPUTS_MAX]:
        # By the size of the inputs: the output is never larger.
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
