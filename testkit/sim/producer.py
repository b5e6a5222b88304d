"""Producers: idempotent ones, which retry until they have an answer, and plain ones, which never retry.

Up to five batches are in flight. When one of an idempotent producer fails, or the connection breaks, it waits
until nothing is in flight. Then it resends everything unanswered, in order and with the same sequences.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.records.record import Record, encode_batch
from testkit.checkers.partition import Anomaly, key_of
from testkit.sim.clients import Client, SentBatch, Shared

_IN_FLIGHT_MAX: Final = 5
#: Errors after which the same batch is resent.
_RETRIABLE: Final = (
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
)  # fmt: skip


class Producer(Client):
    def __init__(
        self, shared: Shared, name: str, *, is_idempotent: bool, is_durable: bool, pause_ms: int
    ) -> None:
        super().__init__(shared, name)
        self._is_idempotent = is_idempotent
        self._is_durable = is_durable
        self._pause_ms = pause_ms
        self._producer_id = -1
        self._number = 0
        self._sequences: dict[tuple[bytes, int], int] = {}
        #: Unanswered batches, in order. Idempotent producers keep them until they are answered.
        self.unanswered: list[SentBatch] = []
        self._in_flight = 0
        self._must_repeat = False
        self._generation = 0

    def connected(self) -> None:
        self._generation += 1
        self._in_flight = 0
        if self._is_idempotent and self._producer_id < 0:
            self._ask_for_id()
            return
        if self._is_idempotent:
            self._repeat()
        else:
            # The outcome of these stays unknown.
            self.unanswered.clear()
        self._next()

    def _ask_for_id(self) -> None:
        def answered(response: Any) -> None:
            if response.error_code != 0:
                self.world.later(200, lambda: self._ask_for_id() if self.is_connected else None)
                return
            taken = self.shared.producer_ids.setdefault(response.producer_id, self.name)
            if taken != self.name:
                raise Anomaly(
                    "producer-id-reused", f"{response.producer_id} was {taken}'s, now {self.name} has it"
                )
            self._producer_id = response.producer_id
            self._sequences.clear()
            self._next()

        self.request(
            ApiKey.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout": 1000}, answered
        )

    def _next(self) -> None:
        """Send a new batch now and then."""
        generation = self._generation

        def go_on() -> None:
            if generation != self._generation or not self.is_connected:
                return
            if self.world.chance(0.01):
                self.hang_up()
                return
            may = self.shared.is_open and not self._must_repeat and len(self.unanswered) < _IN_FLIGHT_MAX
            if may and (not self._is_idempotent or self._producer_id >= 0):
                self._produce()
            self._next()

        self.world.later(1 + self.world.below(self._pause_ms), go_on)

    def _produce(self) -> None:
        topics = self.shared.live(is_durable=self._is_durable)
        if not topics:
            return
        topic = topics[self.world.below(len(topics))]
        partition = self.world.below(len(topic.partitions))
        history = topic.partitions[partition]
        values = []
        for _ in range(1 + self.world.below(3)):
            self._number += 1
            value = f"{self.name}.{self._number}.".encode() + b"x" * self.world.below(60)
            history.send(value, self.name, self._number, self.world.now_ms)
            values.append(value)
        sequence = -1
        if self._is_idempotent:
            key = (topic.topic_id, partition)
            sequence = self._sequences.get(key, 0)
            self._sequences[key] = sequence + len(values)
        batch = SentBatch(topic, partition, tuple(values), sequence, self.world.now_ms)
        self.unanswered.append(batch)
        self._send(batch)

    def _send(self, batch: SentBatch) -> None:
        idempotent = self._is_idempotent
        data = encode_batch(
            [
                Record(0, batch.timestamp_ms, key_of(value) if batch.topic.is_compacted else None, value)
                for value in batch.values
            ],
            producer_id=self._producer_id if idempotent else -1,
            producer_epoch=0 if idempotent else -1,
            base_sequence=batch.sequence,
        )
        acks = 1 if self.world.chance(0.2) else -1
        self._in_flight += 1
        rows = [{"index": batch.partition, "records": data}]
        self.request(
            ApiKey.PRODUCE,
            {
                "transactional_id": None, "acks": acks, "timeout": 30_000,
                "topic_data": [{"topic_id": batch.topic.topic_id, "partition_data": rows}],
            },
            lambda response: self._answered(batch, response.responses[0].partition_responses[0]),
        )  # fmt: skip

    def _answered(self, batch: SentBatch, row: Any) -> None:
        self._in_flight -= 1
        error = row.error_code
        if error == 0:
            self.world.log(f"{self.name}: {batch.values[0]!r} x{len(batch.values)} is at {row.base_offset}")
            self.unanswered.remove(batch)
            history = batch.topic.partitions[batch.partition]
            for at, value in enumerate(batch.values):
                history.acknowledge(value, row.base_offset + at)
        else:
            self.world.log(f"{self.name}: {batch.values[0]!r} is refused: {error!r}")
            self._refused(batch, error)
        if self._must_repeat and self._in_flight == 0:
            generation = self._generation
            self.world.later(
                100,
                lambda: self._repeat() if generation == self._generation and self.is_connected else None,
            )

    def _refused(self, batch: SentBatch, error: int) -> None:
        if error in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            if batch.topic.live:
                raise Anomaly(
                    "topic-lost", f"{batch.topic.name} {batch.topic.topic_id.hex()} is unknown to the broker"
                )
            self.unanswered.remove(batch)
        elif not self._is_idempotent:
            self.unanswered.remove(batch)
        elif error not in _RETRIABLE:
            raise Anomaly("refused", f"{self.name}: {batch.values[0]!r} with {ErrorCode(error)!r}")
        elif error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._is_first_of_its_partition(batch):
            if self._is_durable:
                raise Anomaly(
                    "lost-write",
                    f"{self.name}: {batch.values[0]!r} is out of order, all before were acknowledged",
                )
            # The producer state was lost, which is allowed: begin again with another producer id.
            self.unanswered.clear()
            self._must_repeat = False
            self._producer_id = -1
            self.hang_up()
        else:
            self._must_repeat = True

    def _is_first_of_its_partition(self, batch: SentBatch) -> bool:
        key = (batch.topic.topic_id, batch.partition)
        return next(b for b in self.unanswered if (b.topic.topic_id, b.partition) == key) is batch

    def _repeat(self) -> None:
        self._must_repeat = False
        for batch in self.unanswered:
            self._send(batch)
