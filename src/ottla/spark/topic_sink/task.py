"""The work of a task: it encodes its rows, and stages them (`exactly-once`) or writes them (`at-least-once`).

Staging commits nothing. Tasks that are retried, run twice at once, or belong to a dead driver therefore do no
harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext

from ottla.client.errors import KafkaError
from ottla.spark import clients
from ottla.spark.options import OptionError
from ottla.spark.topic_sink.encoder import EncodedBatch, Encoder
from ottla.spark.topic_sink.plan import EXACTLY_ONCE, Plan
from ottla.spark.topic_sink.staged_batches import Stage, TaskOutput, staging_producer
from ottla.spark.worker import freeze_loaded_modules

if TYPE_CHECKING:
    from ottla.client.producer.batches import SendFuture
    from ottla.client.producer.sync import Producer

#: How long the broker may take to create a missing topic.
TOPIC_S: Final = 10.0
#: Task properties that Spark sets for a micro-batch, including writes in foreachBatch.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


def write_micro_batch(plan: Plan, batches: Iterator[Any]) -> TaskOutput:
    """Write one task's part of a micro-batch.

    Spark provides the number of the micro-batch only to tasks, and over Spark Connect not at all.
    """
    query_id, batch_id = plan.micro_batch or (_property(_QUERY_ID), _property(_BATCH_ID))
    if query_id is None or batch_id is None:
        raise OptionError(
            "option sinkId is set outside of a micro-batch: use it with writeStream, or with df.write in "
            "foreachBatch; "
            "over Spark Connect, also set the option microBatch in foreachBatch"
        )
    prepared = write_rows(plan, batches, query_id)
    prepared.batch_id = int(batch_id)
    return prepared


def _property(name: str) -> str | None:
    context = TaskContext.get()
    assert context is not None, "runs only in a Spark task"
    found: str | None = context.getLocalProperty(name)
    return found


def write_rows(plan: Plan, batches: Iterator[Any], owner: str) -> TaskOutput:
    """Write one task's rows. `owner` is the id of the streaming query, or of the write."""
    context = TaskContext.get()
    assert context is not None, "runs only in a Spark task"
    prepared = _prepare(plan, batches, owner, context.partitionId())
    freeze_loaded_modules()
    return prepared


def _prepare(plan: Plan, batches: Iterator[Any], owner: str, task: int) -> TaskOutput:
    if plan.guarantee == EXACTLY_ONCE:
        with staging_producer(plan) as producer:
            stage = Stage(plan, producer, owner, task)
            return stage.prepared(_encode(plan, producer, batches, stage.put, task))
    with clients.producer(plan.kafka) as producer:
        sender = _BatchSender(producer)
        rows = _encode(plan, producer, batches, sender.put, task)
        sender.finish()
    return TaskOutput(owner, rows)


def _encode(
    plan: Plan, producer: Producer, batches: Iterator[Any], emit: Callable[[EncodedBatch], object], task: int
) -> int:
    counts: dict[str, int] = {}

    def partitions_of(topic: str) -> int:
        count = counts.get(topic)
        if count is None:
            count = counts[topic] = len(producer.partitions_for(topic, TOPIC_S))
        return count

    # Tasks start at different partitions, and at other ones in the next micro-batch.
    encoder = Encoder(plan, partitions_of, emit, task + time.monotonic_ns() % 1_000_003)
    for batch in batches:
        encoder.add(batch, time.time_ns() // 1_000_000)
    encoder.close()
    return encoder.rows


class _BatchSender:
    """Sends batches directly from the task, and raises the first error as soon as it is known."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._sent: list[SendFuture] = []

    def put(self, encoded: EncodedBatch) -> None:
        if self._sent and self._sent[0].done():
            self._settle([each for each in self._sent if each.done()])
            self._sent = [each for each in self._sent if not each.done()]
        self._sent.append(self._producer.send_batch(*encoded))

    def finish(self) -> None:
        self._producer.flush()
        self._settle(self._sent)

    def _settle(self, sent: list[SendFuture]) -> None:
        for each in sent:
            error: KafkaError | None = each.exception()
            if error is not None:
                raise error
