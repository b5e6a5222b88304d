"""The commit: everything that the tasks of a micro-batch prepared becomes visible in one transaction, together with the marker.

    InitProducerId     whoever wrote under this name before is fenced, and what it left open has ended
    OffsetFetch        the marker: is this micro-batch written already?
    Produce …          the tasks' batches, with this producer's numbers in their headers
    TxnOffsetCommit    the marker, in the same transaction
    EndTxn             all of it counts

A driver that dies before EndTxn has written nothing that counts: its successor, which runs the same micro-batch again, aborts what it left. One that dies
later has written all of it, and the marker tells its successor so. The producer's connections are kept from commit to commit in the process where commits run.
Of two drivers that commit at once the later InitProducerId fences the other; whichever is first, the marker lets no micro-batch be written again.
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
from ottla.spark.topic_sink.staged_batches import Prepared, batches_of, clean, create_staging, staging_topic
from ottla.spark.topic_sink.task import TOPIC_S

if TYPE_CHECKING:
    from ottla.client.producer.batches import SendFuture

PREFIX: Final = "ottla-sink-"
#: A commit that fails for reasons that may pass is begun once more: the marker tells whether the first came through.
ATTEMPTS_MAX: Final = 2

#: Those that have committed before: meanwhile others may have used their names.
_used: weakref.WeakSet[Producer] = weakref.WeakSet()

_log = logging.getLogger("ottla.spark")


def commit_micro_batch(plan: Plan, messages: Sequence[Prepared], batch_id: int) -> None:
    """Write what these tasks have prepared, unless it is written already."""
    owners = {message.owner for message in messages}
    if not owners:
        return
    assert len(owners) == 1, "the tasks of a micro-batch are of one query"
    query_id = owners.pop()
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            _commit_micro_batch(plan, messages, batch_id, query_id)
            break
        except KafkaError as error:
            passes = error.retriable or isinstance(error, TransactionAbortable)
            if isinstance(error, ProducerFenced) or not passes or attempt == ATTEMPTS_MAX:
                raise
            _log.warning("the commit of micro-batch %d is begun again: %s", batch_id, error)
    clean(plan, messages)


def _commit_micro_batch(plan: Plan, messages: Sequence[Prepared], batch_id: int, query_id: str) -> None:
    sink_id = plan.sink_id or query_id
    name = PREFIX + sink_id
    with clients.producer(plan.kafka, transactional_id=name) as producer:
        # Spark's commits may go from one of its workers to another and back, where each has kept a producer of this name.
        if producer in _used:
            producer.renew()
        _used.add(producer)
        place = _marker_place(plan, messages)
        # Only now: what others had under way under this name has ended.
        markers = _read_markers(plan, name, place, query_id)
        if is_done(markers, query_id, batch_id, sink_id, named=plan.sink_id is not None, adopts=plan.adopts):
            return
        if not (plan.sink_id or any(message.rows for message in messages)):
            # Nothing to write; only of a sink with a name is the marker asked for later, whatever was written.
            return
        if place is None:
            # Rows name their topics, and there are none.
            place = last_place(markers, query_id)
        if place is None:
            # A marker needs a partition, and the sink has a topic of its own.
            create_staging(plan, query_id)
            place = TopicPartition(staging_topic(plan, query_id), 0)
        if not any(message.rows for message in messages):
            # No task has asked for the topic, which makes brokers make it.
            producer.partitions_for(place.topic, TOPIC_S)
        marker = OffsetAndMetadata(batch_id + 1, query_id)
        # Queries that had the name before have left theirs: they are written over, or such a query would find its own and go on.
        others = [each for each, theirs in markers.items() if theirs.metadata != query_id]
        places = dict.fromkeys((place, *others), marker)
        _write(plan, producer, messages, lambda: producer.send_offsets(places, name))


def _read_markers(
    plan: Plan, name: str, place: TopicPartition | None, query_id: str
) -> dict[TopicPartition, OffsetAndMetadata]:
    """All markers of the sink that count.

    The classic coordinator of Kafka (3.x) says that a transaction has ended while its offsets wait for a thread of the scheduler to count them, and whoever asks
    for all offsets of a group is told of those that count. For what is asked for by name it waits. A micro-batch that is written again has its marker in the
    same place, so that one is asked for by name.
    """
    with clients.admin(plan.shared) as admin:
        if place is not None:
            admin.list_group_offsets([name], stable=True, partitions=[place])
        markers = admin.list_group_offsets([name], stable=True)[name]
        if all(marker.metadata == query_id for marker in markers.values()):
            return markers
        # Another query has or had the name, and could not write over the marker with a topic that is gone, of which the broker forgets the offsets a little later.
        topics = admin.list_topics()
        return {place: marker for place, marker in markers.items() if place.topic in topics}


def commit_write(plan: Plan, messages: Sequence[Prepared], write_id: str) -> None:
    """Write what the tasks of one `df.write` have prepared. It is tried once: nothing would tell whether a first try came through."""
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
    """Remove the topic in which one write has staged, if it has."""
    try:
        with clients.admin(plan.shared) as admin:
            admin.delete_topics([staging_topic(plan, write_id)])
    except TopicNotFound:
        pass
    except KafkaError as error:
        _log.warning("the topic of a write that is done could not be deleted: %s", error)


def _write(plan: Plan, producer: Producer, messages: Sequence[Prepared], mark: Callable[[], None]) -> None:
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
            "a commit took %.1f s; at kafka.transaction.timeout.ms (%g s) the broker would have aborted it: "
            "raise that, or write less in a micro-batch",
            took_s,
            limit_s,
        )


def _marker_place(plan: Plan, messages: Sequence[Prepared]) -> TopicPartition | None:
    """A partition that the query writes to; None if there is nothing to write, and nowhere."""
    if plan.topic is not None:
        return TopicPartition(plan.topic, 0)
    here = {encoded.topic for message in messages for encoded in message.here}
    staged = {topic for message in messages for topic, _, _ in message.staged}
    topics = here | staged
    return TopicPartition(min(topics), 0) if topics else None
