"""The fetch buffer: positions, buffered batches, and the records that `poll` takes out of them.

No I/O here. The fetcher (event loop) asks what to fetch and adds batches. The caller, possibly in another
thread, takes records; batches are decoded and deserializers run at that moment. One lock guards the queues
and is never held while records are created. Its condition wakes callers that wait for records. A seek starts
a new generation of its partition, so that older fetches and records are dropped.

A partition has two offsets: `position`, the next record for the caller, and `fetch_offset`, the next one to
fetch. The first batch of its queue stays until its last record is taken; `rows` is that batch, decoded.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ottla.client.consumer.aborted import Unwanted
from ottla.client.consumer.columns import Columns
from ottla.client.consumer.decoder import DecoderSelector
from ottla.client.consumer.partition import FetchedBatch, Partition
from ottla.client.consumer.poison import ConsumerRecord, RecordMaker
from ottla.client.errors import CorruptBatch, KafkaError
from ottla.client.metadata import TopicPartition
from ottla.records.batch import HEADER, crc_of
from ottla.records.pieces import Piece
from ottla.records.record import CorruptRecords, whole_batches

__all__ = ["ConsumerRecord", "FetchBuffer", "Fetchable", "Partition"]

QUEUED_BYTES_MAX = 64 * 1024 * 1024


class Fetchable(NamedTuple):
    """What the fetcher may do: partitions to fetch, partitions without a position, partitions with a full
    buffer.
    """

    fetch: list[Partition]
    look_up: list[Partition]
    full: list[Partition]
    #: The earliest time at which a waiting partition may be retried.
    wake_ms: float | None
    #: The number of bytes that fit into the buffer.
    room_bytes: int


class FetchBuffer:
    """The assigned partitions and their fetched batches."""

    def __init__(
        self,
        *,
        partition_bytes_max: int,
        bytes_max: int = QUEUED_BYTES_MAX,
        maker: RecordMaker | None = None,
        decoding: DecoderSelector | None = None,
        check_crcs: bool = True,
        read_committed: bool = False,
    ) -> None:
        # Acquire the lock itself, never its condition: Condition.__enter__ is Python code, and a signal
        # handler that raises inside would leave the lock held.
        self.lock = threading.Lock()
        self.condition = threading.Condition(self.lock)
        self.partitions: dict[TopicPartition, Partition] = {}
        #: Whether a fetch has become possible since the fetcher last looked: it must look again.
        self.has_room = False
        self.records_taken = 0
        self.bytes_fetched = 0
        self.maker = maker or RecordMaker()
        self._decoding = decoding or DecoderSelector()
        self._check_crcs = check_crcs
        self._read_committed = read_committed
        self._partition_bytes_max = partition_bytes_max
        self._bytes_max = bytes_max
        self._turn: OrderedDict[TopicPartition, None] = OrderedDict()
        self._fetch_waits = False

    # The caller, any thread

    def assign(self, wanted: Iterable[TopicPartition], reset: int | None) -> None:
        """Replace the assignment. Partitions that stay keep their position and buffer."""
        with self.lock:
            before = self.partitions
            for tp in before.keys() - set(wanted := list(wanted)):
                # Records of it that are being created are not returned.
                before[tp].clear()
            self.partitions = {tp: before.get(tp) or Partition(tp, reset) for tp in wanted}
            self._turn = OrderedDict.fromkeys(self.partitions)

    def place(self, tp: TopicPartition, *, offset: int | None = None, reset: int | None = None) -> None:
        """Continue at an offset, or at the offset of `reset` (a timestamp of ListOffsets)."""
        with self.lock:
            partition = self._assigned(tp)
            partition.clear()
            partition.position = offset
            partition.fetch_offset = -1 if offset is None else offset
            partition.last_epoch = -1
            partition.topic_id = None
            partition.reset = reset

    def pause(self, tps: Iterable[TopicPartition], paused: bool) -> None:
        with self.lock:
            for tp in tps:
                self._assigned(tp).paused = paused
            self.condition.notify_all()

    def paused(self) -> list[TopicPartition]:
        with self.lock:
            return [tp for tp, partition in self.partitions.items() if partition.paused]

    def position(self, tp: TopicPartition) -> int | None:
        with self.lock:
            return self._assigned(tp).position

    def _assigned(self, tp: TopicPartition) -> Partition:
        found = self.partitions.get(tp)
        if found is None:
            raise KafkaError(f"{tp} is not assigned to this consumer", advice="Call assign() with it first")
        return found

    def take(self, records_max: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Take up to `records_max` records, partitions in turn. Raise a partition's error if no records come
        before it.
        """
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        for partition in self._in_turn():
            self._raise_error_of(partition, unless=taken)
            records, error = self._records_of(partition, records_max)
            if records:
                taken[partition.tp] = records
                records_max -= len(records)
                self.records_taken += len(records)
            if error is not None and not taken:
                raise error
            if records_max <= 0:
                break
        return taken

    def take_columns(self, records_max: int | None) -> dict[TopicPartition, Columns]:
        """Like `take`, as columns; without a limit, everything that is buffered."""
        taken: dict[TopicPartition, Columns] = {}
        for partition in self._in_turn():
            self._raise_error_of(partition, unless=taken)
            pieces = self._pieces_of(partition, records_max)
            if pieces:
                columns = taken[partition.tp] = Columns(*partition.tp, pieces, self._decoding.twin.pack)
                self.records_taken += len(columns)
                if records_max is not None:
                    records_max -= len(columns)
            if records_max is not None and records_max <= 0:
                break
        return taken

    def _in_turn(self) -> Iterator[Partition]:
        """The partitions that have records or errors, the least recently served first."""
        with self.lock:
            ready = [partition for tp in self._turn if (partition := self.partitions[tp]).is_ready]
        for partition in ready:
            with self.lock:
                if self.partitions.get(partition.tp) is not partition:
                    continue
                self._turn.move_to_end(partition.tp)
            yield partition

    def _raise_error_of(self, partition: Partition, unless: object) -> None:
        with self.lock:
            if partition.error is None or unless:
                return
            error, partition.error = partition.error, None
            # It is fetched again, unless the caller seeks.
            self.has_room = True
        raise error

    def _records_of(
        self, partition: Partition, records_max: int
    ) -> tuple[list[ConsumerRecord], Exception | None]:
        found: list[ConsumerRecord] = []
        generation = partition.generation
        twin = self._decoding.twin
        while len(found) < records_max:
            with self.lock:
                if partition.generation != generation or not partition.batches or partition.paused:
                    break
                batch, rows, start = partition.batches[0], partition.rows, partition.position or 0
                # If a signal handler raises here, the rows are dropped: they are past the position.
                partition.rows = None
            try:
                if rows is None:
                    rows = twin.open_rows(batch.data, check_crc=self._check_crcs)
                    if start > batch.base_offset:
                        rows.skip_to(start)
                made, done, error = self.maker.make(
                    rows.take(records_max - len(found), *partition.tp, batch.timestamp_type)
                )
            except CorruptRecords as damage:
                self._damaged(partition, generation, batch, damage)
                break
            with self.lock:
                if partition.generation != generation:
                    return [], None
                found = found + made if found else made
                if error is None and (done < 0 or done + 1 >= batch.end):
                    self._drop_head(partition)
                else:
                    partition.rows = rows if error is None else None
                    partition.position = max(done + 1, start)
            if error is not None:
                return found, error
        self._decoding.read(len(found))
        return found, None

    def _pieces_of(self, partition: Partition, records_max: int | None) -> list[Piece]:
        found: list[Piece] = []
        generation = partition.generation
        twin = self._decoding.twin
        left = sys.maxsize if records_max is None else records_max
        while left > 0:
            with self.lock:
                if partition.generation != generation or not partition.batches or partition.paused:
                    break
                batch, start, rest = partition.batches[0], partition.position or 0, partition.rest
            try:
                piece = rest or twin.piece(batch.data, check_crc=self._check_crcs)
            except CorruptRecords as damage:
                self._damaged(partition, generation, batch, damage)
                break
            if start > batch.base_offset:
                piece = piece.since(bisect_left(piece.offsets, start))
            is_whole = len(piece.offsets) <= left
            if not is_whole:
                rest, piece = piece.since(left), piece.until(left)
            left -= len(piece.offsets)
            with self.lock:
                if partition.generation != generation:
                    return []
                if len(piece.offsets):
                    found.append(piece)
                if is_whole:
                    self._drop_head(partition)
                else:
                    partition.rows, partition.rest = None, rest
                    partition.position = int(piece.offsets[-1]) + 1
            self._decoding.read(len(piece.offsets))
        return found

    def _drop_head(self, partition: Partition) -> None:
        partition.drop_head()
        if self._fetch_waits and not self._is_full(partition):
            self._fetch_waits = False
            self.has_room = True

    def _damaged(
        self, partition: Partition, generation: int, batch: FetchedBatch, damage: CorruptRecords
    ) -> None:
        """Drop the buffer after the position and fetch it again: the damage may have happened on the network.

        The caller gets the error after the records before it.
        """
        topic, index = partition.tp
        error = CorruptBatch(
            f"the batch at offset {batch.base_offset} of {partition.tp} is corrupt: {damage}",
            topic=topic,
            partition=index,
            advice="Seek past it to continue; inspect the segment with `ottla log dump`",
        )
        error.__cause__ = damage
        with self.lock:
            if partition.generation != generation:
                return
            partition.clear()
            partition.fetch_offset = partition.position or 0
            partition.last_epoch = -1
            partition.error = error

    @property
    def ready(self) -> bool:
        """Whether `take` would return records or raise."""
        return any(partition.is_ready for partition in self.partitions.values())

    # The fetcher

    def fetchable(self, now_ms: float) -> Fetchable:
        """What may be done now. A partition with a full buffer waits for the caller, who then sets
        `has_room`.
        """
        fetch: list[Partition] = []
        look_up: list[Partition] = []
        full: list[Partition] = []
        wake_ms: float | None = None
        with self.lock:
            # Bytes of paused partitions do not count: they would block the others.
            held = sum(p.buffered_bytes for p in self.partitions.values() if not p.paused)
            room_bytes = self._bytes_max - held
            for partition in self.partitions.values():
                # A paused partition still needs its start offset, for `position`.
                if partition.error is not None or (partition.paused and partition.position is not None):
                    continue
                if partition.not_before_ms > now_ms:
                    wake_ms = (
                        partition.not_before_ms if wake_ms is None else min(wake_ms, partition.not_before_ms)
                    )
                elif partition.position is None:
                    look_up.append(partition)
                elif self._is_full(partition) or (room_bytes <= 0 and partition.batches):
                    full.append(partition)
                else:
                    fetch.append(partition)
            self._fetch_waits = bool(full)
        # A response has a size limit: the partition that has waited longest comes first.
        fetch.sort(key=lambda partition: partition.fed_at)
        return Fetchable(fetch, look_up, full, wake_ms, max(room_bytes, 1))

    def _is_full(self, partition: Partition) -> bool:
        # Room for one more response: the next fetch is in flight before the caller has finished this one.
        return partition.buffered_bytes >= 2 * self._partition_bytes_max

    def put(
        self,
        partition: Partition,
        generation: int,
        data: bytes | memoryview | None,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> bool:
        """Add the complete batches of a fetch. Return whether there was anything new. Older generations are
        dropped.

        `aborted` lists the aborted transactions in them: first offset and producer id.
        """
        with self.lock:
            if (
                partition.generation != generation
                or self.partitions.get(partition.tp) is not partition
                or not data
            ):
                return False
            self.bytes_fetched += len(data)
            partition.fed_at = self.bytes_fetched
            try:
                batches = list(whole_batches(data))
            except CorruptRecords as error:
                partition.error = CorruptBatch(
                    f"fetched bytes of {partition.tp} are corrupt: {error}",
                    topic=partition.tp.topic,
                    partition=partition.tp.partition,
                    advice=f"Seek past offset {partition.fetch_offset} to continue",
                )
                self.condition.notify_all()
                return True
            unwanted = Unwanted(aborted if self._read_committed else ())
            before = partition.fetch_offset
            for batch in batches:
                self._keep(partition, batch, unwanted)
            if not partition.batches:
                partition.position = partition.fetch_offset
            self.condition.notify_all()
            return partition.fetch_offset > before

    def _keep(self, partition: Partition, batch: memoryview, unwanted: Unwanted) -> None:
        base_offset, _, epoch, _, crc, attributes, last_delta, _, _, producer_id, *_ = HEADER.unpack_from(
            batch
        )
        end = base_offset + last_delta + 1
        is_unwanted = unwanted.has(batch, attributes, producer_id, end - 1)
        # A skipped batch is never decoded, so check it here: a damaged one is kept and raises later.
        is_old = end <= partition.fetch_offset
        is_damaged = last_delta < 0 or ((is_old or is_unwanted) and self._check_crcs and crc_of(batch) != crc)
        if is_old and not is_damaged:
            return
        if is_damaged or not is_unwanted:
            partition.batches.append(FetchedBatch(batch, base_offset, end))
            partition.buffered_bytes += len(batch)
        partition.fetch_offset = max(end, partition.fetch_offset)
        partition.last_epoch = epoch

    def fail(self, partition: Partition, generation: int, error: KafkaError) -> None:
        with self.lock:
            if partition.generation == generation:
                partition.error = error
                self.condition.notify_all()
