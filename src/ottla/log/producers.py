"""Producer state of a partition: epoch, last five batches (R14) and open transaction of each producer.

    .snapshot    version i16 = 1 | crc u32 (CRC-32C of the rest) | count i32 | entries of 46 bytes:
                 producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 |
                 timestamp i64 | coordinator epoch i32 | first offset of the ongoing transaction i64 (-1: none)

The format is Kafka's. A producer has one entry per batch, oldest first, so that all five survive a restart. A
reader that expects one entry per producer keeps the last one, which is the newest.
"""

from __future__ import annotations

import struct
from heapq import nsmallest
from typing import Final, TypeAlias

from crc32c import crc32c

from ottla.log.transactions import Ended, Transactions
from ottla.model import limits
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import PRODUCER_BATCHES_REMEMBERED

_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_SEQUENCE_MASK: Final = 0x7FFFFFFF
#: The coordinator epoch before the first marker.
NO_COORDINATOR: Final = -1

#: (first sequence, last sequence, base offset, last offset, timestamp)
Batch: TypeAlias = tuple[int, int, int, int, int]


class Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "next_sequence", "timestamp", "transaction_start")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        #: Oldest first. Not a deque, which takes six times the memory.
        self.batches: list[Batch] = []
        #: The sequence after the newest batch; -1 before the first batch.
        self.next_sequence = -1
        self.timestamp = -1
        #: The epoch of the coordinator that wrote the last marker.
        self.coordinator_epoch = NO_COORDINATOR
        #: The first offset of the open transaction; -1: none.
        self.transaction_start = -1

    def begin(self, epoch: int) -> None:
        """A new epoch starts without batches."""
        self.epoch = epoch
        self.batches.clear()
        self.next_sequence = -1


class Producers:
    __slots__ = ("_trim_at", "by_id", "transactions")

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}
        #: Above this number of producers some are forgotten.
        self._trim_at = limits.PARTITION_PRODUCERS_MAX
        #: None until the first transaction: most logs never have one.
        self.transactions: Transactions | None = None

    def check(self, producer_id: int, epoch: int, sequence: int, count: int) -> Batch | None:
        """None if the batch is the next one of its producer, the original batch if it is a duplicate; else
        raises Refusal.
        """
        producer = self.by_id.get(producer_id)
        if producer is None or (sequence == producer.next_sequence and epoch == producer.epoch):
            return None
        if epoch != producer.epoch or not producer.batches:
            if epoch < producer.epoch:
                raise _old_epoch(producer_id, epoch, producer.epoch)
            # The producer has no batch: its epoch is known from a marker.
            if sequence != 0:
                raise Refusal(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} begins epoch {epoch} with sequence {sequence} instead of 0",
                )
            return None
        newest = producer.batches[-1]
        last = (sequence + count - 1) & _SEQUENCE_MASK
        for batch in producer.batches:
            if batch[0] == sequence and batch[1] == last:
                return batch
        # A sequence less than half the number space behind the newest batch is in the past. It was accepted
        # once, unless all batches of this epoch are remembered. A producer whose first batch was refused must
        # not get "duplicate" for it.
        if (newest[1] - last) & _SEQUENCE_MASK < 1 << 30 and not self._is_before_all(producer, last):
            raise Refusal(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                f"producer {producer_id} repeats sequence {sequence}, which is older than its last batches",
            )
        raise Refusal(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} sent sequence {sequence} after {newest[1]}",
        )

    def _is_before_all(self, producer: Producer, sequence: int) -> bool:
        """Whether this sequence is before the first batch that was accepted in this epoch."""
        batches = producer.batches
        return (
            len(batches) < PRODUCER_BATCHES_REMEMBERED
            and 0 < (batches[0][0] - sequence) & _SEQUENCE_MASK < 1 << 30
        )

    def appended(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        count: int,
        base_offset: int,
        last_offset: int,
        timestamp: int,
        transactional: int = 0,
    ) -> None:
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, epoch)
        elif producer.epoch != epoch:
            producer.begin(epoch)
        if sequence >= 0:
            # A batch of a group coordinator in a transaction has no sequence: it is never resent.
            following = (sequence + count) & _SEQUENCE_MASK
            producer.next_sequence = following
            batches = producer.batches
            batches.append((sequence, (following - 1) & _SEQUENCE_MASK, base_offset, last_offset, timestamp))
            if len(batches) > PRODUCER_BATCHES_REMEMBERED:
                del batches[0]
        producer.timestamp = timestamp
        if transactional and producer.transaction_start < 0:
            producer.transaction_start = base_offset
            if self.transactions is None:
                self.transactions = Transactions()
            self.transactions.begin(base_offset, producer_id)

    def check_outside(self, producer_id: int) -> None:
        """Refuse a non-transactional batch of a producer with an open transaction."""
        producer = self.by_id.get(producer_id)
        if producer is not None and producer.transaction_start >= 0:
            raise Refusal(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has an open transaction and sent a batch outside it",
            )

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Refuse a batch that a coordinator writes for an older producer epoch."""
        producer = self.by_id.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise _old_epoch(producer_id, epoch, producer.epoch)

    def check_first(self, producer_id: int, sequence: int) -> None:
        """Refuse a first batch with a sequence above 0 if its producer gets a new epoch for each transaction
        (KIP-890): earlier batches are missing. With other producers the state may have expired.
        """
        if sequence and producer_id not in self.by_id:
            raise Refusal(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins its transaction with sequence {sequence} instead of 0",
            )

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this producer and epoch is open here."""
        producer = self.by_id.get(producer_id)
        return producer is not None and producer.transaction_start >= 0 and producer.epoch == epoch

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, raises_epoch: bool = False
    ) -> None:
        """Refuse a marker of an older producer epoch or of an older coordinator epoch.

        In transactions v2 a marker has an epoch above that of its transaction (`raises_epoch`). If a
        transaction is open in the epoch of the marker, it is the next one, and the marker is a late
        duplicate.
        """
        producer = self.by_id.get(producer_id)
        if producer is None:
            if coordinator_epoch < NO_COORDINATOR:
                raise _old_coordinator(producer_id, coordinator_epoch, NO_COORDINATOR)
            return
        if epoch < producer.epoch:
            raise _old_epoch(producer_id, epoch, producer.epoch)
        if raises_epoch and epoch == producer.epoch and producer.transaction_start >= 0:
            raise Refusal(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} is at its next transaction: the marker of epoch {epoch} has been written",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise _old_coordinator(producer_id, coordinator_epoch, producer.coordinator_epoch)

    def ended(
        self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, timestamp: int
    ) -> Ended | None:
        """Apply a marker that was written; returns the transaction that it ended, None if none was open here."""
        producer = self._in_epoch(producer_id, epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.timestamp = timestamp
        first, producer.transaction_start = producer.transaction_start, -1
        if first < 0 or self.transactions is None:
            return None
        return Ended(producer_id, first, offset, self.transactions.end(first, offset))

    def _in_epoch(self, producer_id: int, epoch: int) -> Producer:
        """The producer state, moved to this epoch. `appended` does the same inline."""
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, epoch)
        elif producer.epoch != epoch:
            producer.begin(epoch)
        return producer

    def _add(self, producer_id: int, epoch: int) -> Producer:
        if len(self.by_id) >= self._trim_at:
            # A tenth at a time, because each call visits all producers.
            self.trim(limits.PARTITION_PRODUCERS_MAX * 9 // 10)
            self._trim_at = max(limits.PARTITION_PRODUCERS_MAX, len(self.by_id) * 11 // 10)
        producer = self.by_id[producer_id] = Producer(epoch)
        return producer

    def trim(self, count: int) -> None:
        """Forget all but this many producers. Producers with a single batch go first, because a client may
        have invented them, and the oldest of each kind. Producers in transactions go last; one with an open
        transaction is never forgotten.
        """
        idle = (
            (producer.coordinator_epoch != NO_COORDINATOR, len(producer.batches) > 1, producer.timestamp, producer_id)
            for producer_id, producer in self.by_id.items()
            if producer.transaction_start < 0
        )  # fmt: skip
        for *_rank, producer_id in nsmallest(len(self.by_id) - count, idle):
            del self.by_id[producer_id]

    def expire(self, before_ms: int) -> None:
        for producer_id in [
            producer_id
            for producer_id, producer in self.by_id.items()
            if producer.timestamp < before_ms and producer.transaction_start < 0
        ]:
            del self.by_id[producer_id]

    def render(self) -> bytes:
        pack = _ENTRY.pack
        rows: list[bytes] = []
        for producer_id, producer in self.by_id.items():
            epoch, coordinator_epoch = producer.epoch, producer.coordinator_epoch
            if not producer.batches:
                rows.append(
                    pack(
                        producer_id, epoch, -1, -1, 0, producer.timestamp, coordinator_epoch, producer.transaction_start
                    )
                )  # fmt: skip
                continue
            newest = producer.batches[-1]
            for batch in producer.batches:
                _first, last, base_offset, last_offset, timestamp = batch
                # Only the newest entry of a producer can have an open transaction.
                transaction_start = producer.transaction_start if batch is newest else -1
                rows.append(
                    pack(
                        producer_id, epoch, last, last_offset, last_offset - base_offset, timestamp,
                        coordinator_epoch, transaction_start,
                    )
                )  # fmt: skip
        body = struct.pack(">i", len(rows)) + b"".join(rows)
        return struct.pack(">hI", 1, crc32c(body)) + body

    @classmethod
    def parse(cls, data: bytes | None) -> Producers | None:
        """None if the snapshot is missing, torn or invalid."""
        if data is None or len(data) < _HEAD.size:
            return None
        version, crc, count = _HEAD.unpack_from(data)
        if (
            version != 1
            or count < 0
            or len(data) != _HEAD.size + count * _ENTRY.size
            or crc32c(data[6:]) != crc
        ):
            return None
        producers = cls()
        for position in range(_HEAD.size, len(data), _ENTRY.size):
            (
                producer_id,
                epoch,
                last,
                last_offset,
                delta,
                timestamp,
                coordinator_epoch,
                transaction_start,
            ) = _ENTRY.unpack_from(data, position)
            producer = producers._in_epoch(producer_id, epoch)
            producer.timestamp = timestamp
            producer.coordinator_epoch = coordinator_epoch
            producer.transaction_start = transaction_start
            if last >= 0:
                first = (last - delta) & _SEQUENCE_MASK
                producer.batches.append((first, last, last_offset - delta, last_offset, timestamp))
                del producer.batches[:-PRODUCER_BATCHES_REMEMBERED]
                producer.next_sequence = (last + 1) & _SEQUENCE_MASK
        producers._find_open()
        return producers

    def _find_open(self) -> None:
        """Rebuild the transactions from the producers."""
        begun = sorted(
            (producer.transaction_start, producer_id)
            for producer_id, producer in self.by_id.items()
            if producer.transaction_start >= 0
        )
        self.transactions = Transactions() if begun else None
        if self.transactions is not None:
            for first_offset, producer_id in begun:
                self.transactions.begin(first_offset, producer_id)


def _old_coordinator(producer_id: int, epoch: int, current: int) -> Refusal:
    return Refusal(
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        f"a coordinator of epoch {epoch} ends a transaction of producer {producer_id}, but a newer one has epoch {current}",
    )


def _old_epoch(producer_id: int, epoch: int, current: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} has epoch {epoch}, but a newer instance has {current}",
    )
