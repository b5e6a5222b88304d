"""Where encoded batches wait between the tasks and the commit: in the tasks' messages, and beyond a bound in a topic of the sink's own.

A staged batch is the value of one record of `ottla-staging-…`. Nobody but the sink reads that topic; a record there counts for nothing until a commit has
taken it over, and which ones that takes the tasks' messages say. So what failed tasks and dead drivers leave behind is only in the way, until a later
commit, or the topic's retention, removes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import WriterCommitMessage

from ottla.client.errors import KafkaError, TopicExists
from ottla.client.metadata import TopicPartition
from ottla.spark import clients
from ottla.spark.topic_sink.encoder import EncodedBatch
from ottla.spark.topic_sink.plan import Plan

if TYPE_CHECKING:
    from ottla.client.producer.batches import SendFuture
    from ottla.client.producer.sync import Producer

PREFIX: Final = "ottla-staging-"
PARTITIONS: Final = 4
#: A micro-batch must be committed within this time.
RETENTION_MS: Final = 24 * 3600 * 1000
#: A record that holds a batch is larger than the batch by its own header.
OVERHEAD_BYTES: Final = 4096
#: Spark refuses results of more than a gigabyte in sum (spark.driver.maxResultSize), and a task does not know how many there are: of those after
#: the first ones each may hand over only a part of what the first may.
FULL_MESSAGES: Final = 256
LATER_PART: Final = 32
#: So long nothing may come of what is known to be staged.
PATIENCE_S: Final = 60.0


@dataclass
class TaskOutput(WriterCommitMessage):
    """What a task hands to the commit: its batches in their order, first those that are here, then those that are staged."""

    #: Who writes: the stream's query, or the one write.
    owner: str
    rows: int
    here: list[EncodedBatch] = field(default_factory=list)
    #: Where the staged ones stand, and the topic, partition and offset of each.
    staging: TopicPartition | None = None
    staged: list[tuple[str, int, int]] = field(default_factory=list)
    #: Of a write in foreachBatch: the micro-batch that it is part of.
    batch_id: int | None = None


class Stage:
    """Takes a task's batches as they come."""

    def __init__(self, plan: Plan, producer: Producer, owner: str, task: int) -> None:
        self._plan = plan
        self._producer = producer
        self._owner = owner
        self._place = TopicPartition(staging_topic(plan, owner), task % PARTITIONS)
        self._message_bytes = plan.message_bytes // (1 if task < FULL_MESSAGES else LATER_PART)
        self._here: list[EncodedBatch] = []
        self._here_bytes = 0
        self._futures: list[tuple[str, int, SendFuture]] = []

    def put(self, encoded: EncodedBatch) -> None:
        size = len(encoded.batch)
        if not self._futures and self._here_bytes + size <= self._message_bytes:
            self._here.append(encoded)
            self._here_bytes += size
            return
        if not self._futures:
            create_staging(self._plan, self._owner)
        sent = self._producer.send(self._place.topic, encoded.batch, partition=self._place.partition)
        self._futures.append((encoded.topic, encoded.partition, sent))

    def prepared(self, rows: int) -> TaskOutput:
        """The message, when all that was staged is there."""
        staged = [(topic, partition, sent.result().offset) for topic, partition, sent in self._futures]
        return TaskOutput(self._owner, rows, self._here, self._place if staged else None, staged)


def staging_topic(plan: Plan, owner: str) -> str:
    return PREFIX + (plan.sink_id or owner)


def create_staging(plan: Plan, owner: str) -> None:
    """Make the staging topic, if it is not there."""
    with clients.admin(plan.shared) as admin, contextlib.suppress(TopicExists):
        admin.create_topic(
            staging_topic(plan, owner),
            PARTITIONS,
            configs={
                "retention.ms": str(RETENTION_MS),
                "cleanup.policy": "delete",
                "max.message.bytes": str(plan.record_bytes + 2 * OVERHEAD_BYTES),
            },
        )


def staging_producer(plan: Plan) -> contextlib.AbstractContextManager[Producer]:
    """What a task stages with, and asks for partitions."""
    # The batches are compressed already if anybody wanted it. One that is staged twice would do no harm, as the message names one of them; but they are
    # read in the order in which they stand, which only an idempotent producer keeps when it sends one again.
    return clients.producer(
        plan.kafka,
        acks="all",
        enable_idempotence=True,
        compression_type="none",
        max_request_size=plan.record_bytes + OVERHEAD_BYTES,
    )


def batches_of(plan: Plan, messages: Sequence[TaskOutput]) -> Iterator[EncodedBatch]:
    """All batches of these tasks; those of one task in their order."""
    for message in messages:
        yield from message.here
    wanted: dict[TopicPartition, dict[int, tuple[str, int]]] = {}
    for message in messages:
        if message.staging is not None:
            rows = wanted.setdefault(message.staging, {})
            rows |= {offset: (topic, partition) for topic, partition, offset in message.staged}
    if wanted:
        yield from _read(plan, wanted)


def _read(plan: Plan, wanted: Mapping[TopicPartition, dict[int, tuple[str, int]]]) -> Iterator[EncodedBatch]:
    left = sum(map(len, wanted.values()))
    settings: dict[str, Any] = {
        "auto_offset_reset": "none",
        "enable_auto_commit": False,
        "max_partition_fetch_bytes": 8 * (plan.record_bytes + OVERHEAD_BYTES),
        "max_poll_records": 16,
    }
    with clients.consumer(plan.shared, **settings) as consumer:
        consumer.assign(wanted)
        for place, rows in wanted.items():
            consumer.seek(place, min(rows))
        heard_s = time.monotonic()
        while left:
            for place, records in consumer.poll(500).items():
                for record in records:
                    target = wanted[place].get(record.offset)
                    if target is None:
                        # Of a task that failed, or of nobody any more.
                        continue
                    left -= 1
                    heard_s = time.monotonic()
                    yield EncodedBatch(*target, record.value)
            if time.monotonic() - heard_s > PATIENCE_S:
                raise KafkaError(
                    f"{left} staged batch(es) did not come from {', '.join(map(str, wanted))} within {PATIENCE_S:g} s",
                    advice="Look at the brokers; the micro-batch is written again when the query is started again",
                )
        consumer.assign(())


def clean(plan: Plan, messages: Sequence[TaskOutput | None]) -> None:
    """Remove what these tasks have staged. That it fails is no harm: retention removes it later."""
    ends: dict[TopicPartition, int] = {}
    for message in messages:
        if message is not None and message.staging is not None:
            end = max(offset for _, _, offset in message.staged) + 1
            ends[message.staging] = max(end, ends.get(message.staging, 0))
    if ends:
        with contextlib.suppress(KafkaError), clients.admin(plan.shared) as admin:
            admin.delete_records(ends)
