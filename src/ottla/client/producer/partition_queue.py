"""The batches of one partition: which wait, which are on their way, and the sequence numbers that keep them in order.

Pure, and handed the time; the accumulator calls it under its lock. A batch that was taken is on its way until it is
resolved or put back. The rules that keep records in order and each of them once:

1.  Batches leave in the order in which they were made. One that comes back goes before all that came later, and leaves
    again only when nothing of its partition is on its way.
2.  With idempotence a batch gets its sequence number when it first leaves, and keeps it when it is sent again: a broker
    takes it in its turn, or knows it already. What was sent behind one that failed is refused as out of order, comes back
    and follows it. Without idempotence what was sent behind has been taken by then: a retry may reorder, unless
    `max_in_flight_requests_per_connection` is 1.
3.  A batch that fails for good leaves a gap in the sequence, so the partition goes on under the next epoch of its producer id, from
    0 (nobody else has the id, so that no broker need be asked). What is still on its way under the epoch before is resolved first;
    if it is refused for the gap, it gets a new number. A transactional producer's epoch is its coordinator's: there a gap ends the
    transaction.
4.  The first batch under an epoch travels alone, when all under the epoch before is resolved: a broker that knows nothing of a
    producer takes any number to begin with, so a second batch could go in before the first.
5.  All that is on its way is on its way to one broker, or two leaders would take parts of it in their own time.
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
#: A batch that is not full follows others of its partition after this time, though it need not linger: waiting for company costs nothing
#: while the one before is on its way, but on a slow network it would cost a round trip. Kafka's own default for lingering.
COMPANY_MS = 5.0

#: The broker's idea of the sequence differs from ours.
SEQUENCE_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


class Verdict(Enum):
    """What becomes of a batch that was not taken."""

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
        # The producer id and epoch as they were given, and as this partition uses them now.
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
        """When the first batch that waits may leave; None if an answer must come before."""
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
        """Whether sending again may help, and how; time and the number of attempts are the accumulator's."""
        if batch.sequence < 0 or error.code not in SEQUENCE_LOST:
            return Verdict.AGAIN if error.retriable else Verdict.FAILED
        if self._earlier(batch):
            return Verdict.AGAIN
        if not bumps:
            return Verdict.FAILED
        if batch.producer != self.identity:
            return Verdict.AGAIN_WITH_A_NEW_NUMBER
        # The broker has forgotten the producer. Of a batch that left but once it has certainly nothing.
        forgotten = error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not batch.attempts
        return Verdict.AGAIN_WITH_A_NEW_NUMBER if forgotten else Verdict.FAILED

    def _earlier(self, batch: ProducerBatch) -> bool:
        """Whether a batch with lower numbers of the same epoch is still to be resolved."""
        return any(
            other.order < batch.order and other.producer == batch.producer
            for others in (self.on_way, self.waiting)
            for other in others
        )

    def put_back(self, batches: list[ProducerBatch], error: KafkaError, not_before_ms: float) -> None:
        """They leave again, before all that is later; several are the parts of one that was cut."""
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
        """Forget the number of a batch that no broker has taken."""
        batch.sequence, batch.producer, batch.encoded = -1, None, None

    def resolved(self, batch: ProducerBatch) -> None:
        if batch in self.on_way:
            self.on_way.remove(batch)

    def acknowledged(self, batch: ProducerBatch) -> None:
        if batch.producer is not None and batch.producer == self.identity:
            self.proven = True

    def lost(self, batch: ProducerBatch) -> bool:
        """A batch failed for good: go on under the next epoch. False if the producer id has no more of them."""
        if batch.sequence < 0 or batch.producer != self.identity or self.identity is None:
            return True
        producer_id, epoch = self.identity
        self.next_sequence, self.proven = 0, False
        if epoch >= EPOCH_MAX:
            self.base = self.identity = None
            return False
        self.identity = (producer_id, epoch + 1)
        return True
