"""Producers of a cluster: idempotent ones, which retry until they have an answer, and plain ones with
acks=all or 1, which never retry.

An idempotent producer keeps the unacknowledged batches of each partition, in order. When one of them fails,
it waits until no request for that partition is in flight, looks up the leader, and resends all of them with
the same sequences. Records acknowledged with acks=all are guaranteed; those with acks=1 are not.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.records.record import Record, encode_batch
from testkit.checkers.partition import Anomaly
from testkit.sim.actors import RETRIABLE, Actor, Common
from testkit.sim.clients import SentBatch

_IN_FLIGHT_MAX: Final = 5
Key = tuple[bytes, int]


class ClusterProducer(Actor):
    def __init__(self, common: Common, name: str, *, is_idempotent: bool, acks: int, pause_ms: int) -> None:
        super().__init__(common, name)
        self._is_idempotent = is_idempotent
        self._acks = acks
        self._pause_ms = pause_ms
        self._producer_id = -1
        self._number = 0
        self._losses = 0
        self._sequences: dict[Key, int] = {}
        #: By partition: unanswered batches, in order. Plain producers have none.
        self.unanswered: dict[Key, list[SentBatch]] = {}
        self._in_flight: dict[Key, int] = {}
        #: By partition: the first acknowledged sequence.
        self._first: dict[Key, int] = {}
        #: Partitions whose batches are all resent when none of their requests is in flight.
        self._failed: dict[Key, None] = {}
        self.acknowledged = 0

    def begin(self) -> None:
        if self._is_idempotent:
            self._ask_for_id()
        else:
            self._next()

    @property
    def is_done(self) -> bool:
        return not any(self.unanswered.values()) and not any(self._in_flight.values())

    def _ask_for_id(self) -> None:
        def answered(response: Any | None) -> None:
            if response is None or response.error_code != 0:
                self.world.later(200, self._ask_for_id)
                return
            taken = self.common.producer_ids.setdefault(response.producer_id, self.name)
            if taken != self.name:
                raise Anomaly(
                    "producer-id-reused", f"{response.producer_id} was {taken}'s, now {self.name} has it"
                )
            self._producer_id = response.producer_id
            self._next()

        body = {"transactional_id": None, "transaction_timeout": 1000}
        self.ask(self.any_broker(), ApiKey.INIT_PRODUCER_ID, body, answered)

    def _next(self) -> None:
        def go_on() -> None:
            if self.common.is_open:
                self._produce()
                self._next()

        self.world.later(1 + self.world.below(self._pause_ms), go_on)

    def _produce(self) -> None:
        topics = self.common.live()
        if not topics:
            return
        topic = topics[self.world.below(len(topics))]
        partition = self.world.below(len(topic.partitions))
        key = (topic.topic_id, partition)
        leader = self.leaders.get(key)
        if leader is None or leader.node_id < 0:
            self.refresh(lambda: None)
            if not self._is_idempotent:
                return
        waiting = self.unanswered.setdefault(key, []) if self._is_idempotent else []
        if len(waiting) >= _IN_FLIGHT_MAX:
            return
        history = topic.partitions[partition]
        # The order of a plain producer is kept only on one connection to one leader.
        whose = (
            self.name
            if self._is_idempotent or leader is None
            else f"{self.name}@{leader.node_id}/{self._losses}"
        )
        values = []
        for _ in range(1 + self.world.below(3)):
            self._number += 1
            value = f"{self.name}.{self._number}.".encode() + b"x" * self.world.below(40)
            history.send(value, whose, self._number, self.world.now_ms)
            values.append(value)
        sequence = -1
        if self._is_idempotent:
            sequence = self._sequences.get(key, 0)
            self._sequences[key] = sequence + len(values)
        batch = SentBatch(topic, partition, tuple(values), sequence, self.world.now_ms)
        waiting.append(batch)
        if key not in self._failed:
            if leader is None or leader.node_id < 0:
                self._fail(key)
            else:
                self._send(batch, leader.node_id)

    def _send(self, batch: SentBatch, node_id: int) -> None:
        idempotent = self._is_idempotent
        data = encode_batch(
            [Record(0, batch.timestamp_ms, None, value) for value in batch.values],
            producer_id=self._producer_id if idempotent else -1,
            producer_epoch=0 if idempotent else -1,
            base_sequence=batch.sequence,
        )
        self._in_flight[batch.key] = self._in_flight.get(batch.key, 0) + 1
        rows = [{"index": batch.partition, "records": data}]
        self.ask(
            node_id,
            ApiKey.PRODUCE,
            {
                "transactional_id": None, "acks": self._acks, "timeout": 1500,
                "topic_data": [{"topic_id": batch.topic.topic_id, "partition_data": rows}],
            },
            lambda response: self._answered(batch, response),
        )  # fmt: skip

    def _answered(self, batch: SentBatch, response: Any | None) -> None:
        key = batch.key
        self._in_flight[key] -= 1
        if response is None:
            self._losses += 1
            self.world.log(f"{self.name}: {batch.values[0]!r} gets no answer")
            self._refused(batch)
        else:
            row = response.responses[0].partition_responses[0]
            if row.error_code == 0:
                self._accepted(batch, row.base_offset)
            elif row.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self._is_idempotent:
                # It is in the log, older than the batches that a leader remembers: later ones went to another
                # leader.
                self.unanswered[key].remove(batch)
                for value in batch.values:
                    batch.topic.partitions[batch.partition].is_there(value)
            elif row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._is_before_all(batch):
                # It was refused when the partition did not know this producer, and the next batch, already in
                # flight, was accepted as its first. A real client begins another epoch then.
                self.unanswered[key].remove(batch)
            else:
                self.world.log(f"{self.name}: {batch.values[0]!r} is refused: {row.error_code!r}")
                self._check(batch, row.error_code)
                self._refused(batch)
        if key in self._failed and self._in_flight[key] == 0:
            self.refresh(lambda: self._repeat(key))

    def _is_before_all(self, batch: SentBatch) -> bool:
        """Whether everything acknowledged in its partition was sent after it."""
        return batch.sequence < self._first.get(batch.key, 0)

    def _accepted(self, batch: SentBatch, offset: int) -> None:
        history = batch.topic.partitions[batch.partition]
        if self.world.traced:
            self.world.log(
                f"{self.name}: {batch.values[0]!r} x{len(batch.values)} is at {offset} of {history.name} acks {self._acks}"
            )
        if self._is_idempotent:
            waiting = self.unanswered[batch.key]
            if batch in waiting:
                waiting.remove(batch)
            self._first[batch.key] = min(batch.sequence, self._first.get(batch.key, batch.sequence))
        if self._acks == -1:
            self.acknowledged += len(batch.values)
            for at, value in enumerate(batch.values):
                history.acknowledge(value, offset + at)

    def _check(self, batch: SentBatch, error: int) -> None:
        """Errors that indicate a bug."""
        if error in RETRIABLE or not batch.topic.live:
            return
        if error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            waiting = self.unanswered.get(batch.key, [])
            if self._is_idempotent and waiting and waiting[0] is batch:
                raise Anomaly(
                    "lost-write",
                    f"{self.name}: {batch.values[0]!r} of {batch.topic.partitions[batch.partition].name} is out of order, "
                    "all before were acknowledged",
                )
            return
        raise Anomaly("refused", f"{self.name}: {batch.values[0]!r} with {ErrorCode(error)!r}")

    def _refused(self, batch: SentBatch) -> None:
        if self._is_idempotent:
            self._failed[batch.key] = None
        else:
            self.refresh(lambda: None)

    def _fail(self, key: Key) -> None:
        self._failed[key] = None
        self.refresh(lambda: self._repeat(key))

    def _repeat(self, key: Key) -> None:
        """Resend all batches of a partition, if its leader is known."""
        if key not in self._failed or self._in_flight.get(key, 0):
            return
        waiting, leader = self.unanswered[key], self.leaders.get(key)
        if not self.common.topics[key[0]].live:
            waiting.clear()
        if not waiting:
            del self._failed[key]
        elif leader is None or leader.node_id < 0:
            self.refresh(lambda: self._repeat(key))
        else:
            del self._failed[key]
            for batch in waiting:
                self._send(batch, leader.node_id)
