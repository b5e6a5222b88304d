"""Staged batches: encoded batches on their way from the tasks to the commit.

They travel in the tasks' messages; batches above a size limit go to the sink's staging topic. A staged batch
is the value of one record of `ottla-staging-…`, which only the sink reads. The tasks' messages name the
staged records that belong to a commit. Records of failed tasks and dead drivers are ignored; a later commit
or the topic's retention removes them.
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
#: Retention of staged batches: a micro-batch must be committed within this time.
RETENTION_MS: Final = 24 * 3600 * 1000
#: The size of the record around a staged batch.
OVERHEAD_BYTES: Final = 4096
#: Spark rejects task results above 1 GiB in total (spark.driver.maxResultSize), and a task does not know the
#: number of tasks. Tasks after the first ones therefore send smaller messages.
FULL_MESSAGES: Final = 256
LATER_PART: Final = 32
#: Timeout for reading staged batches without progress.
READ_TIMEOUT_S: Final = 60.0


@dataclass
class TaskOutput(WriterCommitMessage):
    """What a task sends to the commit: its batches in order, first `here`, then the staged ones."""

    #: The id of the streaming query, or of the write.
    owner: str
    rows: int
    here: list[EncodedBatch] = field(default_factory=list)
    #: The staging partition, and the target topic, target partition and staging offset of each staged batch.
    staging: TopicPartition | None = None
    staged: list[tuple[str, int, int]] = field(default_factory=list)
    #: For a write in foreachBatch: its micro-batch.
    batch_id: int | None = None


class Stage:
    """Collects the batches of a task."""

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
        """Return the message, after all staged batches are acknowledged."""
        staged = [(topic, partition, sent.result().offset) for topic, partition, sent in self._futures]
        return TaskOutput(self._owner, rows, self._here, self._place if staged else None, staged)


def staging_topic(plan: Plan, owner: str) -> str:
    return PREFIX + (plan.sink_id or owner)


def create_staging(plan: Plan, owner: str) -> None:
    """Create the staging topic if it is missing."""
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
    """The producer of a task: for staging, and for partition counts."""
    # Batches are already compressed, if configured. A duplicate would do no harm, because the message names
    # one offset. But batches are read in log order, and only an idempotent producer keeps the order across
    # retries.
    return clients.producer(
        plan.kafka,
        acks="all",
        enable_idempotence=True,
        compression_type="none",
        max_request_size=plan.record_bytes + OVERHEAD_BYTES,
    )


def batches_of(plan: Plan, messages: Sequence[TaskOutput]) -> Iterator[EncodedBatch]:
    """All batches of these tasks; the batches of one task are in order."""
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
        progress_s = time.monotonic()
        while left:
            for place, records in consumer.poll(500).items():
                for record in records:
                    target = wanted[place].get(record.offset)
                    if target is None:
                        # Staged by a failed task or an earlier driver.
                        continue
                    left -= 1
                    progress_s = time.monotonic()
                    yield EncodedBatch(*target, record.value)
            if time.monotonic() - progress_s > READ_TIMEOUT_S:
                raise KafkaError(
                    f"{left} staged batch(es) of {', '.join(map(str, wanted))} were not received within "
                    f"{READ_TIMEOUT_S:g} s",
                    advice="Check the brokers, then restart the query: it repeats the micro-batch",
                )
        consumer.assign(())


def clean(plan: Plan, messages: Sequence[TaskOutput | None]) -> None:
    """Delete the staged batches of these tasks. Errors are ignored: retention removes the batches later."""
    ends: dict[TopicPartition, int] = {}
    for message in messages:
        if message is not None and message.staging is not None:
            end = max(offset for _, _, offset in message.staged) + 1
            ends[message.staging] = max(end, ends.get(message.staging, 0))
    if ends:
        with contextlib.suppress(KafkaError), clients.admin(plan.shared) as admin:
            admin.delete_records(ends)
