"""The batches of one partition: buffered ones, in-flight ones, and the sequence numbers that keep them in
order.

Pure: the caller passes the time. The accumulator calls it under its lock. A drained batch is in flight until
it is resolved or put back. These rules keep records in order and write each of them once:

1.  Batches are sent in the order of their creation. A batch that is put back goes before all later ones, and
    is sent again only when no batch of its partition is in flight.
2.  With idempotence a batch gets its sequence number when it is first sent, and keeps it in retries. A broker
    accepts it in its turn, or recognizes a duplicate. Batches behind a failed one are refused as out of
    order, are put back and follow it. Without idempotence they may be written already: a retry can reorder
    records, unless `max_in_flight_requests_per_connection` is 1.
3.  A batch that fails for good leaves a gap in the sequence. The partition continues under the next epoch of
    the producer id, from 0; no other producer has the id, so no broker needs to be asked. In-flight batches
    of the previous epoch are resolved first; one that is refused for the gap gets a new number. The epoch of
    a transactional producer belongs to its coordinator: there a gap ends the transaction.
4.  The first batch of an epoch is sent alone, when all batches of the previous epoch are resolved. A broker
    without state of the producer accepts any first number, so a second batch could be written before it.
5.  All in-flight batches of a partition go to the same broker. Two leaders would write them independently.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from ottla.client.errors import KafkaError
from ottla.client.metadata import TopicPartition
from ottla.client.producer.batches import ProducerBatch, ProducerId
from ottla.model.errors import ErrorCode

SEQUENCE_MASK = 0x7FFFFFFF
EPOCH_MAX = 0x7FFF
#: A batch that is not full is sent after this time behind another batch of its partition, even with
#: linger_ms=0. Waiting costs nothing while the earlier batch is in flight, but on a slow network it would
#: cost a round trip. 5 ms is Kafka's default linger.ms.
COMPANY_MS = 5.0

#: The sequence state of the broker differs from the producer's.
SEQUENCE_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


class Verdict(Enum):
    """What to do with a batch that was not acknowledged."""

    AGAIN = "again"
    AGAIN_WITH_A_NEW_NUMBER = "again with a new number"
    FAILED = "failed"


class PartitionQueue:
    __slots__ = ("base", "identity", "next_sequence", "node", "on_way", "proven", "tp", "waiting")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.waiting: deque[ProducerBatch] = deque()
        self.on_way: list[ProducerBatch] = []
        self.node = -1
        # The producer id and epoch as assigned, and as this partition uses them.
        self.base: ProducerId | None = None
        self.identity: ProducerId | None = None
        self.next_sequence = 0
        self.proven = False

    def due_ms(
        self,
        *,
        linger_ms: float,
        batch_bytes: int,
        hurry: bool,
        in_flight_max: int,
        producer: ProducerId | None,
    ) -> float | None:
        """The time at which the first buffered batch may be sent; None if a response must come first."""
        batch = self.waiting[0]
        on_way = self.on_way
        if on_way:
            if batch.attempts or len(on_way) >= in_flight_max:
                return None
            if producer is not None and (not self.proven or self.base != producer):
                return None
        if batch.attempts or hurry or len(self.waiting) > 1 or batch.size_bytes >= batch_bytes:
            return batch.not_before_ms
        if on_way:
            linger_ms = max(linger_ms, COMPANY_MS)
        return max(batch.not_before_ms, batch.created_ms + linger_ms)

    def take(self, node: int, producer: ProducerId | None, now_ms: float) -> ProducerBatch:
        batch = self.waiting.popleft()
        batch.closed = True
        batch.taken_ms = now_ms
        self.on_way.append(batch)
        self.node = node
        if producer is not None and batch.sequence < 0:
            if self.base != producer:
                self.base = self.identity = producer
                self.next_sequence, self.proven = 0, False
            batch.producer, batch.sequence = self.identity, self.next_sequence
            self.next_sequence = (self.next_sequence + len(batch.records)) & SEQUENCE_MASK
        return batch

    def verdict(self, batch: ProducerBatch, error: KafkaError, *, bumps: bool) -> Verdict:
        """Whether and how to retry. The accumulator checks the time and the number of attempts."""
        if batch.sequence < 0 or error.code not in SEQUENCE_LOST:
            return Verdict.AGAIN if error.retriable else Verdict.FAILED
        if self._earlier(batch):
            return Verdict.AGAIN
        if not bumps:
            return Verdict.FAILED
        if batch.producer != self.identity:
            return Verdict.AGAIN_WITH_A_NEW_NUMBER
        # The broker has no state of the producer. It cannot have written a batch that was sent only once.
        forgotten = error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not batch.attempts
        return Verdict.AGAIN_WITH_A_NEW_NUMBER if forgotten else Verdict.FAILED

    def _earlier(self, batch: ProducerBatch) -> bool:
        """Whether a batch with a lower sequence number of the same epoch is not resolved."""
        return any(
            other.order < batch.order and other.producer == batch.producer
            for others in (self.on_way, self.waiting)
            for other in others
        )

    def put_back(self, batches: list[ProducerBatch], error: KafkaError, not_before_ms: float) -> None:
        """Put batches back in front of all later ones. Several batches are parts of a split one."""
        for batch in batches:
            batch.attempts += 1
            batch.last_error = error
            batch.not_before_ms = not_before_ms
            at = 0
            for at, other in enumerate(self.waiting):  # noqa: B007
                if other.order > batch.order:
                    break
            else:
                at = len(self.waiting)
            self.waiting.insert(at, batch)

    def renumber(self, batch: ProducerBatch) -> None:
        """Remove the sequence number of a batch that no broker has written."""
        batch.sequence, batch.producer, batch.encoded = -1, None, None

    def resolved(self, batch: ProducerBatch) -> None:
        if batch in self.on_way:
            self.on_way.remove(batch)

    def acknowledged(self, batch: ProducerBatch) -> None:
        if batch.producer is not None and batch.producer == self.identity:
            self.proven = True

    def lost(self, batch: ProducerBatch) -> bool:
        """A batch failed for good: continue under the next epoch. False if the producer id has no epochs
        left.
        """
        if batch.sequence < 0 or batch.producer != self.identity or self.identity is None:
            return True
        producer_id, epoch = self.identity
        self.next_sequence, self.proven = 0, False
        if epoch >= EPOCH_MAX:
            self.base = self.identity = None
            return False
        self.identity = (producer_id, epoch + 1)
        return True
