"""Commits a micro-batch: writes the batches of all tasks and the marker in one transaction.

    InitProducerId     fences the previous producer of this transactional id and ends its open transaction
    OffsetFetch        reads the marker: is this micro-batch already written?
    Produce …          writes the tasks' batches, with this producer's id, epoch and sequence numbers
    TxnOffsetCommit    writes the marker, in the same transaction
    EndTxn             commits

If a driver dies before EndTxn, nothing is committed: the next driver aborts the transaction and repeats the
micro-batch. If it dies after EndTxn, everything is committed, and the next driver finds the marker. The
process that commits keeps its producer between commits. If two drivers commit at once, the later
InitProducerId fences the other. In every order, the marker prevents a micro-batch from being written twice.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.client.errors import KafkaError, ProducerFenced, TopicNotFound, TransactionAbortable
from ottla.client.metadata import OffsetAndMetadata, TopicPartition
from ottla.client.producer.settings import ProducerConfig
from ottla.client.producer.sync import Producer
from ottla.client.properties import settings_from
from ottla.spark import clients
from ottla.spark.topic_sink.marker import is_done, last_place
from ottla.spark.topic_sink.plan import Plan
from ottla.spark.topic_sink.staged_batches import TaskOutput, batches_of, clean, create_staging, staging_topic
from ottla.spark.topic_sink.task import TOPIC_S

if TYPE_CHECKING:
    from ottla.client.producer.batches import SendFuture

PREFIX: Final = "ottla-sink-"
#: A commit that fails with a retriable error is repeated once. The marker shows whether the first attempt
#: committed.
ATTEMPTS_MAX: Final = 2

#: Producers that have committed before. Another process may have used their transactional id since.
_used: weakref.WeakSet[Producer] = weakref.WeakSet()

_log = logging.getLogger("ottla.spark")


def commit_micro_batch(plan: Plan, messages: Sequence[TaskOutput], batch_id: int) -> None:
    """Write the output of these tasks, unless it is already written."""
    owners = {message.owner for message in messages}
    if not owners:
        return
    assert len(owners) == 1, "all tasks of a micro-batch belong to one query"
    query_id = owners.pop()
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            _commit_micro_batch(plan, messages, batch_id, query_id)
            break
        except KafkaError as error:
            passes = error.retriable or isinstance(error, TransactionAbortable)
            if isinstance(error, ProducerFenced) or not passes or attempt == ATTEMPTS_MAX:
                raise
            _log.warning("retrying the commit of micro-batch %d: %s", batch_id, error)
    clean(plan, messages)


def _commit_micro_batch(plan: Plan, messages: Sequence[TaskOutput], batch_id: int, query_id: str) -> None:
    sink_id = plan.sink_id or query_id
    name = PREFIX + sink_id
    with clients.producer(plan.kafka, transactional_id=name) as producer:
        # Spark may move commits between workers. Each worker keeps a producer with this transactional id.
        if producer in _used:
            producer.renew()
        _used.add(producer)
        place = _marker_place(plan, messages)
        # Only after InitProducerId: other transactions of this transactional id have ended.
        markers = _read_markers(plan, name, place, query_id)
        if is_done(markers, query_id, batch_id, sink_id, named=plan.sink_id is not None, adopts=plan.adopts):
            return
        if not (plan.sink_id or any(message.rows for message in messages)):
            # Nothing to write. Only a sink with a sinkId needs the marker of an empty micro-batch later.
            return
        if place is None:
            # Rows name their topics, and there are no rows.
            place = last_place(markers, query_id)
        if place is None:
            # The marker needs a partition: use the sink's staging topic.
            create_staging(plan, query_id)
            place = TopicPartition(staging_topic(plan, query_id), 0)
        if not any(message.rows for message in messages):
            # No task has requested the topic's metadata, which creates the topic.
            producer.partitions_for(place.topic, TOPIC_S)
        marker = OffsetAndMetadata(batch_id + 1, query_id)
        # Overwrite the markers of earlier queries with this sink id. Otherwise such a query could find its
        # own and continue.
        others = [each for each, theirs in markers.items() if theirs.metadata != query_id]
        places = dict.fromkeys((place, *others), marker)
        _write(plan, producer, messages, lambda: producer.send_offsets(places, name))


def _read_markers(
    plan: Plan, name: str, place: TopicPartition | None, query_id: str
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Read all committed markers of the sink.

    The classic group coordinator of Kafka 3.x reports a transaction as ended before its offsets are applied.
    A request for all offsets of a group returns only applied offsets; a request for named partitions waits
    for pending ones. The marker of a repeated micro-batch is in the same partition, so that partition is
    requested by name first.
    """
    with clients.admin(plan.shared) as admin:
        if place is not None:
            admin.list_group_offsets([name], stable=True, partitions=[place])
        markers = admin.list_group_offsets([name], stable=True)[name]
        if all(marker.metadata == query_id for marker in markers.values()):
            return markers
        # Another query has used this sink id. It cannot overwrite markers of deleted topics, which the broker
        # removes a little later.
        topics = admin.list_topics()
        return {place: marker for place, marker in markers.items() if place.topic in topics}


def commit_write(plan: Plan, messages: Sequence[TaskOutput], write_id: str) -> None:
    """Write the output of the tasks of one `df.write`.

    It is not retried: without a marker, the result of a failed attempt is unknown.
    """
    if any(message.rows for message in messages):
        settings = {
            "client_id": "ottla-spark",
            **settings_from(plan.kafka, ProducerConfig),
            "transactional_id": PREFIX + write_id,
        }
        with Producer(plan.kafka["bootstrap.servers"], **settings) as producer:
            _write(plan, producer, messages, lambda: None)
    if any(message.staging is not None for message in messages):
        forget_write(plan, write_id)


def forget_write(plan: Plan, write_id: str) -> None:
    """Delete the staging topic of one write, if there is one."""
    try:
        with clients.admin(plan.shared) as admin:
            admin.delete_topics([staging_topic(plan, write_id)])
    except TopicNotFound:
        pass
    except KafkaError as error:
        _log.warning("cannot delete the staging topic of a finished write: %s", error)


def _write(plan: Plan, producer: Producer, messages: Sequence[TaskOutput], mark: Callable[[], None]) -> None:
    begun_s = time.monotonic()
    with producer.transaction():
        sent: list[SendFuture] = []
        for encoded in batches_of(plan, messages):
            sent.append(producer.send_batch(*encoded))
            if sent[0].done() and (error := sent.pop(0).exception()) is not None:
                raise error
        mark()
    took_s = time.monotonic() - begun_s
    limit_s = plan.transaction_ms / 1000
    if took_s > limit_s / 2:
        _log.warning(
            "a commit took %.1f s; after kafka.transaction.timeout.ms (%g s) the broker aborts it: "
            "raise that setting, or write fewer rows per micro-batch",
            took_s,
            limit_s,
        )


def _marker_place(plan: Plan, messages: Sequence[TaskOutput]) -> TopicPartition | None:
    """The partition for the marker; None if there are no rows and no topic option."""
    if plan.topic is not None:
        return TopicPartition(plan.topic, 0)
    here = {encoded.topic for message in messages for encoded in message.here}
    staged = {topic for message in messages for topic, _, _ in message.staged}
    topics = here | staged
    return TopicPartition(min(topics), 0) if topics else None
