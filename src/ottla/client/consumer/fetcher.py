"""The fetcher: one Fetch at a time to each leader, and positions that are not known yet.

Each leader is asked on a lane of its own, and may hold the request for `fetch_max_wait_ms`. It is asked again as soon as the buffer
of each of its partitions has room; the next data is on its way while the caller works. When one partition's buffer is full its
leader waits, so that no fetch is held for the idle partitions while the busy ones run dry. Positions that are not known yet
(start, reset) are looked up with ListOffsets. It fills the `FetchBuffer` and runs on the event loop; `pump_soon` may be called from
any thread.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import BrokerConnection
from ottla.client.consumer.decoding import Decoding
from ottla.client.consumer.fetched import FetchBuffer, Partition
from ottla.client.consumer.poison import RecordMaker
from ottla.client.consumer.settings import ISOLATION_LEVELS, Consuming
from ottla.client.errors import KafkaError, refused
from ottla.client.metadata import Node, TopicPartition
from ottla.client.offsets import EARLIEST, LATEST, list_offsets
from ottla.client.serialization import deserializer_of
from ottla.model.errors import ErrorCode

FETCH = 1
#: The last version that names topics; later ones carry ids.
FETCH_BY_NAME = 12
FETCH_LANE = "fetch"

RESETS: dict[str, int | None] = {"earliest": EARLIEST, "latest": LATEST, "none": None}


def now_ms() -> float:
    return time.monotonic() * 1000


def fetch_buffer(settings: Consuming) -> FetchBuffer:
    """The buffer that these settings ask for."""
    maker = RecordMaker(
        deserializer_of(settings.key_deserializer, "key_deserializer"),
        deserializer_of(settings.value_deserializer, "value_deserializer"),
        settings.on_poison,
    )
    return FetchBuffer(
        partition_bytes_max=settings.max_partition_fetch_bytes,
        bytes_max=settings.queued_max_bytes,
        maker=maker,
        decoding=Decoding(settings.record_decoder),
        check_crcs=settings.check_crcs,
        read_committed=settings.isolation_level == "read_committed",
    )


class Fetcher:
    """Keeps the buffer filled. `arrived` is set whenever something came that a waiting caller wants to see."""

    def __init__(self, cluster: Cluster, settings: Consuming, buffer: FetchBuffer) -> None:
        self.cluster = cluster
        self.settings = settings
        self.buffer = buffer
        self.isolation_level = ISOLATION_LEVELS.index(settings.isolation_level)
        self.reset = RESETS[settings.auto_offset_reset]
        self.arrived = asyncio.Event()
        self._fetching: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking_up: set[TopicPartition] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pumping = False
        self._closed = False

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
        """Look for fetches to send, from any thread."""
        if self._pumping or self._loop is None:
            return
        self._pumping = True
        try:
            self._loop.call_soon_threadsafe(self._pump)
        except RuntimeError:  # the loop ended with the client
            self._pumping = False

    def _pump(self) -> None:
        self._pumping = False
        if self._closed:
            return
        now = now_ms()
        able = self.buffer.fetchable(now)
        by_leader: dict[Node, list[Partition]] = {}
        waits: list[float] = [] if able.wake_ms is None else [able.wake_ms - now]
        metadata = self.cluster.metadata
        # A leader one of whose partitions is full waits, as the text at the top says.
        busy = {leader.id for p in able.full if (leader := metadata.leader(*p.tp)) is not None}
        for partition in able.fetch:
            leader = metadata.leader(*partition.tp)
            if leader is None:
                self.cluster.refresh_soon()
                waits.append(self.settings.retry_backoff_ms)
            else:
                by_leader.setdefault(leader, []).append(partition)
        for node, partitions in by_leader.items():
            if node.id not in self._fetching and node.id not in busy:
                self._fetching.add(node.id)
                self._fetch(node, partitions)
        self._look_up(able.look_up)
        if waits:
            self._pump_in(min(waits))

    def _pump_in(self, delay_ms: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(delay_ms, 1) / 1000, self._pump)

    def _run(self, coroutine: Any) -> None:
        assert self._loop is not None
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fetch(self, node: Node, partitions: list[Partition]) -> None:
        connection = self.cluster.connected(node, FETCH_LANE)
        if connection is not None:
            self._send_fetch(connection, node, partitions)
        else:
            self._run(self._connect(node, partitions))

    async def _connect(self, node: Node, partitions: list[Partition]) -> None:
        asked = [(partition, partition.generation) for partition in partitions]
        try:
            connection = await self.cluster.connection(node, FETCH_LANE)
        except KafkaError as error:
            self._fetching.discard(node.id)
            self._fetch_failed(asked, error)
        else:
            self._send_fetch(connection, node, partitions)

    def _send_fetch(self, connection: BrokerConnection, node: Node, partitions: list[Partition]) -> None:
        settings, metadata = self.settings, self.cluster.metadata
        asked: dict[TopicPartition, tuple[Partition, int]] = {}
        topics: dict[str, list[dict[str, Any]]] = {}
        for partition in partitions:
            if partition.position is None:
                continue
            asked[partition.tp] = (partition, partition.generation)
            known = metadata.partition(*partition.tp)
            row = {
                "partition": partition.tp.partition,
                "current_leader_epoch": -1 if known is None else known.leader_epoch,
                "fetch_offset": partition.fetch_offset,
                "partition_max_bytes": settings.max_partition_fetch_bytes,
            }
            topics.setdefault(partition.tp.topic, []).append(row)
        if not asked:
            self._fetching.discard(node.id)
            return
        ids = {topic: metadata.topic_id(topic) for topic in topics}
        body = {
            "replica_id": -1,
            "max_wait": settings.fetch_max_wait_ms,
            "min_bytes": settings.fetch_min_bytes,
            "max_bytes": settings.fetch_max_bytes,
            "isolation_level": self.isolation_level,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {"topic": topic, "topic_id": ids[topic], "partitions": rows} for topic, rows in topics.items()
            ],
            "forgotten_topics_data": (),
            "rack_id": settings.client_rack,
        }
        try:
            answer = connection.send(
                FETCH,
                body,
                version_max=None if all(ids.values()) else FETCH_BY_NAME,
                timeout_ms=settings.fetch_max_wait_ms + settings.request_timeout_ms,
            )
        except KafkaError as error:
            self._fetching.discard(node.id)
            self._fetch_failed(list(asked.values()), error)
            return
        answer.add_done_callback(partial(self._fetched, node.id, connection.address, asked))

    def _fetched(
        self,
        node_id: int,
        broker: str,
        asked: dict[TopicPartition, tuple[Partition, int]],
        answer: asyncio.Future[Any],
    ) -> None:
        self._fetching.discard(node_id)
        if answer.cancelled():
            return
        error = answer.exception()
        if self._closed:
            return
        if error is not None:
            failure = (
                error
                if isinstance(error, KafkaError)
                else KafkaError(f"fetching failed: {error}", broker=broker)
            )
            self._fetch_failed(list(asked.values()), failure)
            return
        response = answer.result()
        if response.error_code:
            self._fetch_failed(
                list(asked.values()), refused(int(response.error_code), "fetching", broker=broker)
            )
            return
        names = self.cluster.metadata.names
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id.bytes if topic.topic_id else b"", "")
            for part in topic.partitions:
                found = asked.get(TopicPartition(str(name), int(part.partition_index)))
                if found is not None:
                    self._receive(*found, part, broker)
        self.arrived.set()
        self._pump()

    def _receive(self, partition: Partition, generation: int, part: Any, broker: str) -> None:
        code = int(part.error_code)
        if not code:
            if partition.generation == generation:
                partition.high_watermark = int(part.high_watermark)
                partition.log_start_offset = int(part.log_start_offset)
                partition.last_stable_offset = int(part.last_stable_offset)
            aborted = [
                (int(row.first_offset), int(row.producer_id)) for row in part.aborted_transactions or ()
            ]
            self.buffer.put(partition, generation, part.records, aborted)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE and self.reset is not None:
            with self.buffer.lock:
                if partition.generation != generation:
                    return
                if partition.batches:
                    # What is buffered is still good: look again when the caller has had it.
                    partition.not_before_ms = now_ms() + self.settings.retry_backoff_ms
                else:
                    partition.clear()
                    partition.position, partition.reset = None, self.reset
        else:
            tp = partition.tp
            offset = f"at offset {partition.fetch_offset}"
            error = refused(
                code, f"fetching {tp} {offset}", broker=broker, topic=tp.topic, partition=tp.partition
            )
            self._fetch_failed([(partition, generation)], error)

    def _fetch_failed(self, asked: list[tuple[Partition, int]], error: KafkaError) -> None:
        wait_ms = backoff_ms(self.settings, 2)
        for partition, generation in asked:
            if error.retriable:
                partition.not_before_ms = now_ms() + wait_ms
            else:
                self.buffer.fail(partition, generation, error)
        if error.retriable:
            self.cluster.refresh_soon()
            self._pump_in(wait_ms)
        self.arrived.set()

    # Positions

    def _look_up(self, partitions: list[Partition]) -> None:
        asked: list[tuple[Partition, int]] = []
        for partition in partitions:
            if partition.tp in self._looking_up:
                continue
            if partition.reset is None:
                tp = partition.tp
                error = refused(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"no position for {tp}",
                    topic=tp.topic,
                    partition=tp.partition,
                )
                self.buffer.fail(partition, partition.generation, error)
                self.arrived.set()
                continue
            asked.append((partition, partition.generation))
        if asked:
            self._looking_up.update(partition.tp for partition, _ in asked)
            self._run(self._find_positions(asked))

    async def _find_positions(self, asked: list[tuple[Partition, int]]) -> None:
        times = {partition.tp: partition.reset for partition, _ in asked if partition.reset is not None}
        try:
            found = await list_offsets(self.cluster, times, isolation_level=self.isolation_level)
        except KafkaError as error:
            self._fetch_failed(asked, error)
            return
        finally:
            self._looking_up.difference_update(partition.tp for partition, _ in asked)
        with self.buffer.lock:
            for partition, generation in asked:
                if partition.generation == generation and partition.tp in found:
                    partition.position = partition.fetch_offset = max(found[partition.tp].offset, 0)
            self.buffer.condition.notify_all()
        self.arrived.set()
        self._pump()
