"""The consumer on asyncio: assigned partitions, positions, and a fetcher that keeps the buffer filled.

Each leader gets one Fetch at a time, on a lane of its own, which the broker may hold for `fetch_max_wait_ms`. A leader is
asked again as soon as the buffer of each of its partitions has room; the next data is on its way while the caller
works. When one partition's buffer is full its leader waits, so that no fetch is held for the idle partitions while the
busy ones run dry. Positions that are not known yet (start, reset, seek to a time) are looked up with ListOffsets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import BrokerConnection
from ottla.client.errors import KafkaError, SettingError, TopicNotFound, refused
from ottla.client.fetched import ConsumerRecord, FetchBuffer, Partition
from ottla.client.metadata import Node, TopicPartition
from ottla.client.offsets import EARLIEST, LATEST, list_offsets
from ottla.client.settings import Consuming, bootstrap_addresses
from ottla.model.errors import ErrorCode

FETCH = 1
#: The last version that names topics; later ones carry ids.
FETCH_BY_NAME = 12
FETCH_LANE = "fetch"
METADATA_TIMEOUT_MS = 30_000

RESETS: dict[str, int | None] = {"earliest": EARLIEST, "latest": LATEST, "none": None}


def now_ms() -> float:
    return time.monotonic() * 1000


class AsyncConsumer:
    """Use `await start()` first and `await close()` last, or `async with`."""

    def __init__(self, bootstrap_servers: str | Sequence[str], settings: Consuming) -> None:
        if settings.group_id is not None:
            raise SettingError(
                "group_id: this client cannot join groups yet; use assign() without a group, or another client"
            )
        self.settings = settings
        self.cluster = Cluster(bootstrap_addresses(bootstrap_servers), settings)
        self.buffer = FetchBuffer(partition_bytes_max=settings.max_partition_fetch_bytes)
        self._reset = RESETS[settings.auto_offset_reset]
        self._fetching: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking_up: set[TopicPartition] = set()
        self._arrived = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pumping = False
        self._closed = False

    async def __aenter__(self) -> AsyncConsumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.cluster.start()

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cluster.close()
        with self.buffer.lock:
            self.buffer.condition.notify_all()

    # What callers ask

    async def partitions(self, topic: str) -> list[TopicPartition]:
        known = await self.cluster.topic(topic, METADATA_TIMEOUT_MS)
        return [TopicPartition(topic, index) for index in known.partitions]

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions from now on, starting by `auto_offset_reset` unless a seek follows."""
        wanted = list(dict.fromkeys(TopicPartition(*tp) for tp in partitions))
        for topic in {tp.topic for tp in wanted}:
            known = await self.cluster.topic(topic, METADATA_TIMEOUT_MS)
            for tp in wanted:
                if tp.topic == topic and tp.partition not in known.partitions:
                    raise TopicNotFound(
                        f"topic {topic!r} has partitions 0 to {len(known.partitions) - 1}, not {tp.partition}",
                        topic=topic,
                        partition=tp.partition,
                        advice="Look with `ottla topic describe`",
                    )
        self.buffer.assign(wanted, self._reset)
        self.pump_soon()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.buffer.place(tp, offset=offset)
        self.pump_soon()

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        await self._seek_to(partitions, LATEST)

    async def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on at the first record of each partition at or after that time; at the end where there is none."""
        await self._seek_to(partitions, timestamp_ms)

    async def _seek_to(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> None:
        wanted = list(partitions) or list(self.buffer.partitions)
        found = await list_offsets(self.cluster, dict.fromkeys(wanted, timestamp_ms))
        missing = [tp for tp in wanted if found[tp].offset < 0]
        ends = await list_offsets(self.cluster, dict.fromkeys(missing, LATEST)) if missing else {}
        for tp in wanted:
            self.buffer.place(tp, offset=(ends if tp in ends else found)[tp].offset)
        self.pump_soon()

    def pause(self, *partitions: TopicPartition) -> None:
        self.buffer.pause(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        self.buffer.pause(partitions, False)
        self.pump_soon()

    async def position(self, tp: TopicPartition) -> int:
        """The offset of the next record, waiting until the start is known."""
        while True:
            found = self.buffer.position(tp)
            if found is not None:
                return found
            state = self.buffer.partitions[tp]
            if state.error is not None:
                raise state.error
            await self._wait(self.settings.request_timeout_ms)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {
            tp: row.offset
            for tp, row in (await list_offsets(self.cluster, dict.fromkeys(partitions, EARLIEST))).items()
        }

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {
            tp: row.offset
            for tp, row in (await list_offsets(self.cluster, dict.fromkeys(partitions, LATEST))).items()
        }

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """For each partition the offset of its first record at or after that time, or None."""
        found = await list_offsets(self.cluster, times)
        return {tp: row.offset if row.offset >= 0 else None for tp, row in found.items()}

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within the time; an empty dictionary when none do."""
        deadline_ms = now_ms() + timeout_ms
        while True:
            records = self.take(max_records)
            left_ms = deadline_ms - now_ms()
            if records or left_ms <= 0:
                return records
            await self._wait(left_ms)

    def take(self, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """What `poll` would give at once, from any thread."""
        records = self.buffer.take(max_records or self.settings.max_poll_records)
        self.pump_soon()
        return records

    async def _wait(self, timeout_ms: float) -> None:
        self._arrived.clear()
        if self.buffer.ready:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._arrived.wait()
        except TimeoutError:
            pass

    # The fetcher

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
        by_leader: dict[Node, list[Partition]] = {}
        waits: list[float] = []
        unknown: list[Partition] = []
        busy: set[int] = set()
        metadata = self.cluster.metadata
        for partition in list(self.buffer.partitions.values()):
            if partition.paused or partition.error is not None:
                continue
            if partition.not_before_ms > now:
                waits.append(partition.not_before_ms - now)
                continue
            if partition.position is None:
                unknown.append(partition)
                continue
            leader = metadata.leader(*partition.tp)
            if leader is None:
                self.cluster.refresh_soon()
                waits.append(self.settings.retry_backoff_ms)
            elif self.buffer.full(partition):
                busy.add(leader.id)
            else:
                by_leader.setdefault(leader, []).append(partition)
        for node, partitions in by_leader.items():
            if node.id not in self._fetching and node.id not in busy:
                self._fetching.add(node.id)
                self._fetch(node, partitions)
        self._look_up(unknown)
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
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {"topic": topic, "topic_id": ids[topic], "partitions": rows} for topic, rows in topics.items()
            ],
            "forgotten_topics_data": (),
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
        self._arrived.set()
        self._pump()

    def _receive(self, partition: Partition, generation: int, part: Any, broker: str) -> None:
        code = int(part.error_code)
        if not code:
            if partition.generation == generation:
                partition.high_watermark = int(part.high_watermark)
                partition.log_start_offset = int(part.log_start_offset)
            self.buffer.put(partition, generation, part.records)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE and self._reset is not None:
            with self.buffer.lock:
                if partition.generation != generation:
                    return
                if partition.batches or partition.cursor < len(partition.records):
                    # What is buffered is still good: look again when the caller has had it.
                    partition.not_before_ms = now_ms() + self.settings.retry_backoff_ms
                else:
                    partition.clear()
                    partition.position, partition.reset = None, self._reset
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
        self._arrived.set()

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
                self._arrived.set()
                continue
            asked.append((partition, partition.generation))
        if asked:
            self._looking_up.update(partition.tp for partition, _ in asked)
            self._run(self._find_positions(asked))

    async def _find_positions(self, asked: list[tuple[Partition, int]]) -> None:
        times = {partition.tp: partition.reset for partition, _ in asked if partition.reset is not None}
        try:
            found = await list_offsets(self.cluster, times)
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
        self._arrived.set()
        self._pump()
