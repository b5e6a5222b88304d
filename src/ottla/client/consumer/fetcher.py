"""The fetcher: one Fetch request at a time to each broker, and the effect of responses on positions.

Each broker has a connection for fetches (a lane) and may hold a request for `fetch_max_wait_ms`. It is asked
again as soon as the buffers of all its partitions have room, so the next data arrives while the caller works.
If one partition's buffer is full, its broker is not asked: otherwise the broker would hold a fetch for idle
partitions while busy ones run dry. If that lasts because the caller is slow, the other partitions are fetched
now and then, without waiting at the broker. A partition is read from its leader, or from the replica in the
client's rack that the leader names (KIP-392), until that fails or `metadata_max_age_ms` have passed. It runs
on the event loop; any thread may call `pump_soon`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import BrokerConnection
from ottla.client.consumer.decoder import DecoderSelector
from ottla.client.consumer.fetch_session import Place, request_body
from ottla.client.consumer.fetched import FetchBuffer
from ottla.client.consumer.partition import Partition
from ottla.client.consumer.poison import RecordMaker
from ottla.client.consumer.positions import Positions
from ottla.client.consumer.resets import reset_timestamp
from ottla.client.consumer.settings import ISOLATION_LEVELS, ConsumerConfig
from ottla.client.consumer.sources import Asked, Room, Source
from ottla.client.errors import CorruptBatch, KafkaError, LogTruncated, refused
from ottla.client.metadata import Node, TopicPartition
from ottla.client.serialization import deserializer_of
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.wire.fetched import FETCH_BY_NAME, FetchAnswer, FetchedPartition

FETCH_LANE = "fetch"

_log = logging.getLogger("ottla.client")


def now_ms() -> float:
    return time.monotonic() * 1000


def fetch_buffer(settings: ConsumerConfig) -> FetchBuffer:
    """The fetch buffer for these settings."""
    maker = RecordMaker(
        deserializer_of(settings.key_deserializer, "key_deserializer"),
        deserializer_of(settings.value_deserializer, "value_deserializer"),
        settings.on_poison,
    )
    return FetchBuffer(
        partition_bytes_max=settings.max_partition_fetch_bytes,
        bytes_max=settings.queued_max_bytes,
        maker=maker,
        decoding=DecoderSelector(settings.record_decoder),
        check_crcs=settings.check_crcs,
        read_committed=settings.isolation_level == "read_committed",
    )


class Fetcher:
    """Keeps the buffer filled. `arrived` is set whenever a waiting caller should look."""

    def __init__(self, cluster: Cluster, settings: ConsumerConfig, buffer: FetchBuffer) -> None:
        self.cluster = cluster
        self.settings = settings
        self.buffer = buffer
        self.isolation_level = ISOLATION_LEVELS.index(settings.isolation_level)
        self.arrived = asyncio.Event()
        self.fetches = 0
        self.latency_ms_sum = 0.0
        self.latency_ms_max = 0.0
        self._positions = Positions(self)
        self._sources: dict[int, Source] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pumping = False
        self._closed = False

    @property
    def reset(self) -> int | None:
        """The start of partitions without a position, as a timestamp of ListOffsets; None raises."""
        return reset_timestamp(self.settings.auto_offset_reset, round(time.time() * 1000))

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def pump_soon(self) -> None:
        """Send the fetches that are possible, from any thread."""
        if self._pumping or self._loop is None:
            return
        self._pumping = True
        try:
            self._loop.call_soon_threadsafe(self.pump)
        except RuntimeError:  # the loop ended with the client
            self._pumping = False

    def call_soon(self, work: Callable[[], object]) -> None:
        """Call a function on the loop, from any thread; do nothing if the loop has ended."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(work)

    def arrived_soon(self) -> None:
        """Wake waiting callers, from any thread."""
        self.call_soon(self.arrived.set)

    def pump(self) -> None:
        """Send every fetch that may be sent, and look up missing positions."""
        self._pumping = False
        if self._closed:
            return
        now = now_ms()
        able = self.buffer.fetchable(now)
        by_node: dict[Node, list[Partition]] = {}
        waits: list[float] = [] if able.wake_ms is None else [able.wake_ms - now]
        # A broker with a full partition waits: see the module docstring.
        busy = {node.id for partition in able.full if (node := self._node(partition, now)) is not None}
        for partition in able.fetch:
            node = self._node(partition, now)
            if node is None:
                self.cluster.watch((partition.tp.topic,))
                self.cluster.refresh_soon()
                waits.append(self.settings.retry_backoff_ms)
            else:
                by_node.setdefault(node, []).append(partition)
        for node, partitions in by_node.items():
            source = self._sources.setdefault(node.id, Source())
            is_busy = node.id in busy
            wait_ms = max(source.not_before_ms - now, source.patience_ms(is_busy, now))
            if wait_ms > 0:
                waits.append(wait_ms)
            elif not source.is_fetching:
                source.is_fetching = True
                room = Room(able.room_bytes, 0 if is_busy else self.settings.fetch_max_wait_ms)
                self._fetch(node, partitions, room)
        self._positions.look_up(able.look_up)
        if waits:
            self._pump_in(min(waits))

    def _node(self, partition: Partition, now: float) -> Node | None:
        """The broker to fetch a partition from: the preferred read replica while it is valid, else the
        leader.
        """
        metadata = self.cluster.metadata
        if partition.preferred is not None:
            node_id, until_ms = partition.preferred
            node = metadata.nodes.get(node_id)
            if node is not None and now < until_ms:
                return node
            partition.preferred = None
        return metadata.leader(*partition.tp)

    def _pump_in(self, delay_ms: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(delay_ms, 1) / 1000, self.pump)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends or the consumer is closed."""
        assert self._loop is not None
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Requests

    def _fetch(self, node: Node, partitions: list[Partition], room: Room) -> None:
        connection = self.cluster.connected(node, FETCH_LANE)
        if connection is not None:
            self._send(connection, node, partitions, room)
        else:
            self.run(self._connect(node, partitions, room))

    async def _connect(self, node: Node, partitions: list[Partition], room: Room) -> None:
        asked = [(partition, partition.generation) for partition in partitions]
        try:
            connection = await self.cluster.connection(node, FETCH_LANE)
        except KafkaError as error:
            self._source_failed(node, asked, error)
        else:
            # Sessions do not survive connections: another broker may have the address.
            self._sources[node.id].session.restart()
            self._send(connection, node, partitions, room)

    def _send(
        self, connection: BrokerConnection, node: Node, partitions: list[Partition], room: Room
    ) -> None:
        settings, metadata = self.settings, self.cluster.metadata
        source = self._sources[node.id]
        partitions = [p for p in partitions if p.position is not None and self._is_same_topic(p)]
        if not partitions:
            source.is_fetching = False
            return
        wanted: dict[TopicPartition, Place] = {}
        for partition in partitions:
            known = metadata.partition(*partition.tp)
            leader_epoch = -1 if known is None else known.leader_epoch
            wanted[partition.tp] = Place(partition.fetch_offset, leader_epoch, partition.last_epoch)
        ids = {topic: metadata.topic_id(topic) for topic in {tp.topic for tp in wanted}}
        asking = source.session.ask(wanted, ids)
        body = request_body(asking, ids, source.session, settings, *room)
        asked = Asked(
            node,
            connection.address,
            {partition.tp: (partition, partition.generation) for partition in partitions},
            {topic_id: topic for topic, topic_id in ids.items() if topic_id is not None},
            now_ms(),
        )
        try:
            answer = connection.send(
                ApiKey.FETCH,
                body,
                version_max=None if all(ids.values()) else FETCH_BY_NAME,
                timeout_ms=settings.fetch_max_wait_ms + settings.request_timeout_ms,
            )
        except KafkaError as error:
            self._source_failed(node, list(asked.partitions.values()), error)
            return
        answer.add_done_callback(partial(self._answered, asked))

    def _is_same_topic(self, partition: Partition) -> bool:
        """Whether the position belongs to the current topic of that name; if not, it is out of range."""
        tp, topic_id = partition.tp, self.cluster.metadata.topic_id(partition.tp.topic)
        if topic_id is None or partition.topic_id is None or topic_id == partition.topic_id:
            partition.topic_id = topic_id or partition.topic_id
            return True
        error = refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"topic {tp.topic!r} was deleted and re-created: "
            f"offset {partition.fetch_offset} of {tp} no longer exists",
            topic=tp.topic,
            partition=tp.partition,
        )
        partition.last_epoch = -1
        self._out_of_range(partition, partition.generation, error)
        self.arrived.set()
        self.pump_soon()
        return False

    # Responses

    def _answered(self, asked: Asked, future: asyncio.Future[Any]) -> None:
        source = self._sources[asked.node.id]
        source.is_fetching = False
        if future.cancelled():
            return
        error = future.exception()
        if self._closed:
            return
        partitions = list(asked.partitions.values())
        if error is not None:
            if not isinstance(error, KafkaError):
                error = KafkaError(f"fetching failed: {error}", broker=asked.broker)
            self._source_failed(asked.node, partitions, error)
            return
        answer: FetchAnswer = future.result()
        latency_ms = now_ms() - asked.since_ms
        self.fetches += 1
        self.latency_ms_sum += latency_ms
        self.latency_ms_max = max(self.latency_ms_max, latency_ms)
        if answer.throttle_ms > 0:
            # KIP-219: the broker does not read from this connection before that.
            source.not_before_ms = now_ms() + answer.throttle_ms
        if answer.error_code:
            failure = refused(answer.error_code, "fetching", broker=asked.broker)
            self._source_failed(asked.node, partitions, failure)
            return
        source.failures = 0
        source.session.answered(answer.session_id)
        for topic in answer.topics:
            name = topic.name or asked.names.get(topic.topic_id, "")
            for part in topic.partitions:
                found = asked.partitions.get(TopicPartition(name, part.partition))
                if found is not None and found[0].generation == found[1]:
                    self._receive(*found, part, asked, answer)
        self.arrived.set()
        self.pump()

    def _receive(
        self, partition: Partition, generation: int, part: FetchedPartition, asked: Asked, answer: FetchAnswer
    ) -> None:
        if part.error_code:
            self._refused(partition, generation, part, asked, answer)
        elif part.diverging_epoch is not None:
            self._diverged(partition, generation, part.diverging_epoch[1])
        else:
            if part.preferred_read_replica >= 0:
                until_ms = now_ms() + self.settings.metadata_max_age_ms
                partition.preferred = (part.preferred_read_replica, until_ms)
            partition.high_watermark = part.high_watermark
            partition.last_stable_offset = part.last_stable_offset
            partition.log_start_offset = part.log_start_offset
            is_new = self.buffer.put(partition, generation, part.records, part.aborted)
            if part.records and not is_new and partition.generation == generation:
                # A retry at once would return the same: a truncated batch, or one with a wrong offset.
                partition.not_before_ms = now_ms() + self.settings.retry_backoff_ms

    def _refused(
        self, partition: Partition, generation: int, part: FetchedPartition, asked: Asked, answer: FetchAnswer
    ) -> None:
        tp = partition.tp
        error = refused(
            part.error_code,
            f"fetching {tp} at offset {partition.fetch_offset}",
            broker=asked.broker,
            topic=tp.topic,
            partition=tp.partition,
        )
        if partition.preferred is not None:
            # Ask the leader, after a while: it may name the same replica again.
            partition.preferred = None
            partition.not_before_ms = now_ms() + self.settings.retry_backoff_ms
        elif part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(partition, generation, error)
        elif part.error_code == ErrorCode.CORRUPT_MESSAGE:
            self.buffer.fail(
                partition,
                generation,
                CorruptBatch(
                    f"{error.message}: the broker's copy is damaged",
                    code=ErrorCode.CORRUPT_MESSAGE,
                    broker=asked.broker,
                    topic=tp.topic,
                    partition=tp.partition,
                    advice="Seek past it; inspect the segment with `ottla log dump`",
                ),
            )
        elif part.current_leader is not None and self.cluster.hint(
            tp.topic, tp.partition, *part.current_leader, answer.nodes
        ):
            # KIP-951: the response contains the new leader.
            pass
        else:
            self.failed([(partition, generation)], error)

    def _out_of_range(self, partition: Partition, generation: int, error: KafkaError) -> None:
        reset = self.reset
        with self.buffer.lock:
            if partition.generation != generation:
                return
            if partition.last_epoch >= 0:
                # The leader may not know the last fetched epoch: retry with the offset alone.
                partition.last_epoch = -1
                return
            if partition.batches:
                # The buffered batches are valid: retry when the caller has taken them.
                partition.not_before_ms = now_ms() + self.settings.retry_backoff_ms
                return
            if reset is not None:
                _log.info("%s; resetting by auto_offset_reset", error.message)
                partition.clear()
                partition.topic_id = None
                partition.position, partition.reset = None, reset
                return
        self.buffer.fail(partition, generation, error)

    def _diverged(self, partition: Partition, generation: int, end_offset: int) -> None:
        """KIP-320: records from `end_offset` on, which this consumer has read, are no longer in the log."""
        tp, resets = partition.tp, self.reset is not None
        with self.buffer.lock:
            if partition.generation != generation:
                return
            lost_from, read_to = end_offset, partition.position or 0
            partition.clear()
            partition.last_epoch = -1
            partition.position = partition.fetch_offset = min(read_to, end_offset)
        error = LogTruncated(
            f"{tp} was truncated at offset {lost_from}, and this consumer had read up to {read_to}: "
            "a replica without the last records was elected leader",
            topic=tp.topic,
            partition=tp.partition,
            offset=lost_from,
            advice=f"Seek to {lost_from} to continue; the records from that offset on may be different",
        )
        if resets:
            _log.warning("%s; continuing at offset %d", error.message, partition.position)
        else:
            self.buffer.fail(partition, partition.generation, error)

    def _source_failed(self, node: Node, asked: list[tuple[Partition, int]], error: KafkaError) -> None:
        """A whole fetch failed."""
        source = self._sources[node.id]
        source.is_fetching = False
        source.session.restart()
        source.failures += 1
        for partition, _ in asked:
            partition.preferred = None
        self.failed(asked, error, source.failures)

    def failed(self, asked: list[tuple[Partition, int]], error: KafkaError, attempt: int = 1) -> None:
        """Retry these with fresh metadata after the back-off, or report the error to the caller."""
        wait_ms = backoff_ms(self.settings, attempt)
        for partition, generation in asked:
            if error.retriable:
                partition.not_before_ms = now_ms() + wait_ms
            else:
                self.buffer.fail(partition, generation, error)
        if error.retriable:
            self.cluster.refresh_soon()
            self._pump_in(wait_ms)
        self.arrived.set()
