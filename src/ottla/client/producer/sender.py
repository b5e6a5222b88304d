"""The sender: one task that drains the accumulator and hands the batches to `requests.py`, by leader.

It creates a task only to connect or to get a producer id, so no broker waits for another one. A broker gets
up to `max_in_flight_requests_per_connection` requests, none while it is not connected (its batches stay in
the accumulator and can expire), and none during its `throttle_time_ms`. Everything here runs on the client's
event loop; any thread may call `wake`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientClosed, KafkaError, refused
from ottla.client.metadata import Node, TopicPartition
from ottla.client.producer.accumulator import Accumulator, Drained
from ottla.client.producer.batches import ProducerBatch, ProducerId, future_of
from ottla.client.producer.identity import Identity
from ottla.client.producer.requests import Link, ProduceRequests, now_ms
from ottla.client.producer.settings import ProducerConfig
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.producer.transactions import Transactions

UNSENT_WAIT_MS = 5

#: The longest time a sending thread waits for the sender: the interpreter's thread switch interval.
LOOK_S_MAX = 0.005

logger = logging.getLogger(__name__)


class Sender:
    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerConfig,
        accumulator: Accumulator,
        transactions: Transactions | None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._accumulator = accumulator
        self._transactions = transactions
        self._links: dict[int, Link] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._requests = ProduceRequests(cluster, settings, accumulator, transactions, self._woken)
        self._own_id = Identity(cluster, settings, accumulator, self._woken)
        self._waking = False
        self._looked = threading.Event()
        self._closing = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._accumulator.sender_thread = threading.get_ident()
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def wake(self) -> None:
        """Wake the sender, from any thread. Further calls before it runs cost nothing."""
        if self._waking or self._loop is None:
            return
        try:
            self._waking = True
            self._loop.call_soon_threadsafe(self._woken.set)
        except BaseException as error:
            # The loop has ended with the client; or a signal handler raised, and no other call would wake the
            # sender.
            self._waking = False
            if not isinstance(error, RuntimeError):
                self._loop.call_soon_threadsafe(self._woken.set)
                raise

    def wake_and_wait(self) -> None:
        """Wake the sender and wait until it has drained the accumulator, but not for its requests.

        A thread that sends without a pause keeps the interpreter lock almost always. The sender would starve,
        and records would fill `buffer_memory`. The wait costs nothing, because the sender's work has to be
        done anyway.
        """
        self._looked.clear()
        self.wake()
        if threading.get_ident() == self._accumulator.sender_thread:
            return
        self._looked.wait(LOOK_S_MAX)

    @property
    def started(self) -> bool:
        return self._task is not None

    @property
    def in_flight(self) -> int:
        return sum(link.in_flight for link in self._links.values())

    async def flush(self) -> None:
        """Wait until every record that was buffered before is acknowledged or has failed."""
        batches = self._accumulator.begin_flush()
        try:
            self._woken.set()
            for batch in batches:
                # The future of the record raises its error.
                with contextlib.suppress(KafkaError):
                    await future_of(batch, 0)
        finally:
            self._accumulator.end_flush()

    async def close(self, timeout_s: float | None) -> None:
        """Send the buffered records within the timeout, then fail the rest."""
        self._closing = True
        self._woken.set()
        try:
            if self._task is not None:
                await self._let_leave(self._task, timeout_s)
        finally:
            # A cancelled close leaves no future waiting.
            self._fail_the_rest()
            tasks = [self._task, self._own_id.asking, *(link.opening for link in self._links.values())]
            running = [task for task in tasks if task is not None]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _let_leave(self, task: asyncio.Task[None], timeout_s: float | None) -> None:
        deadline_s = time.monotonic() + (
            self._settings.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        )
        await asyncio.wait([task], timeout=timeout_s)
        # With acks=0 records are done when they are written to the socket: wait until they are.
        while self._unsent_bytes() and time.monotonic() < deadline_s:  # noqa: ASYNC110  # no transport tells
            await asyncio.sleep(UNSENT_WAIT_MS / 1000)

    def _fail_the_rest(self) -> None:
        for batch in self._accumulator.outstanding():
            self._accumulator.finish(
                batch,
                ClientClosed(
                    f"the producer was closed before {batch.tp} was acknowledged",
                    topic=batch.tp.topic,
                    partition=batch.tp.partition,
                ),
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all batches if the sender task itself failed, so that no future waits."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        logger.error("the sender task failed", exc_info=error)
        failure = KafkaError(f"the producer's sender task failed: {error!r}", advice="Create a new producer")
        failure.__cause__ = error
        self._accumulator.close()
        for batch in self._accumulator.outstanding():
            self._accumulator.finish(batch, failure)

    # The loop

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            self._waking = False
            now = now_ms()
            self._accumulator.expired(now)
            wait_ms = self._step(now)
            self._looked.set()
            if self._closing and self._accumulator.empty:
                return
            if wait_ms is None:
                await self._woken.wait()
                continue
            if wait_ms <= 0:
                # Let other tasks run before the next request.
                await asyncio.sleep(0)
                continue
            timer = loop.call_later(wait_ms / 1000, self._woken.set)
            await self._woken.wait()
            timer.cancel()

    def _step(self, now: float) -> float | None:
        """Send the batches that may be sent. Return the milliseconds until the next step."""
        waits = []
        producer: ProducerId | None = None
        if self._transactions is not None:
            producer = self._transactions.states.producer
        elif self._settings.idempotent:
            producer = self._own_id.current()
        if producer is not None or not self._settings.idempotent:
            drained = self._accumulator.drain(
                now,
                self._leader,
                free=partial(self._free, now),
                admitted=self._admitted,
                producer=producer,
            )
            for node_id, batches in drained.ready.items():
                connection = self._connection(node_id)
                assert connection is not None, "a broker that is not connected is not free"
                self._requests.send(connection, self._link(node_id), batches)
            waits = self._after(drained, now)
        expiry_ms = self._accumulator.next_expiry_ms()
        if expiry_ms is not None:
            waits.append(max(expiry_ms - now, 0))
        return min(waits, default=None)

    def _after(self, drained: Drained, now: float) -> list[float]:
        waits = [] if drained.wait_ms is None else [drained.wait_ms]
        for node_id in drained.wanted:
            link = self._link(node_id)
            if link.not_before_ms > now:
                waits.append(link.not_before_ms - now)
            elif self._connection(node_id) is None and link.opening is None:
                link.opening = asyncio.get_running_loop().create_task(self._connect(node_id, link))
        if drained.leaderless:
            self._explain_leaderless(drained.leaderless)
            self._cluster.refresh_soon()
            waits.append(self._settings.retry_backoff_ms or 1)
        if drained.outside and self._transactions is not None:
            self._transactions.add_partitions()
        return waits

    def _explain_leaderless(self, batches: list[ProducerBatch]) -> None:
        """Record whether the topic still exists, for the error of batches that expire without a leader."""
        metadata = self._cluster.metadata
        for batch in batches:
            code = metadata.errors.get(batch.tp.topic, ErrorCode.LEADER_NOT_AVAILABLE)
            topic, partition = batch.tp
            self._accumulator.unreachable(
                [batch.tp], refused(code, f"the leader of {batch.tp}", topic=topic, partition=partition)
            )

    def _leader(self, tp: TopicPartition) -> int | None:
        node = self._cluster.metadata.leader(*tp)
        return None if node is None else node.id

    def _link(self, node_id: int) -> Link:
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link()
        return link

    def _connection(self, node_id: int) -> BrokerConnection | None:
        node = self._cluster.metadata.nodes.get(node_id)
        return None if node is None else self._cluster.connected(node)

    def _unsent_bytes(self) -> int:
        connections = map(self._connection, self._links)
        return sum(connection.unsent_bytes for connection in connections if connection is not None)

    def _free(self, now: float, node_id: int) -> bool:
        link = self._link(node_id)
        if link.in_flight >= self._settings.max_in_flight_requests_per_connection or link.not_before_ms > now:
            return False
        connection = self._connection(node_id)
        if connection is None:
            return False
        if connection.unsent_bytes > self._settings.max_request_size:
            # Without acknowledgements nothing else limits the bytes that a slow broker has to read.
            link.not_before_ms = now + UNSENT_WAIT_MS
            return False
        return True

    def _admitted(self, tp: TopicPartition) -> bool:
        return self._transactions is None or self._transactions.states.admitted(tp)

    async def _connect(self, node_id: int, link: Link) -> None:
        node: Node | None = self._cluster.metadata.nodes.get(node_id)
        try:
            if node is None:
                raise refused(
                    ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node_id} is no longer in the metadata"
                )
            await self._cluster.connection(node)
            link.failures = 0
        except KafkaError as error:
            link.failures += 1
            link.not_before_ms = now_ms() + backoff_ms(self._settings, link.failures)
            led = [batch.tp for batch in self._accumulator.outstanding() if self._leader(batch.tp) == node_id]
            if error.retriable:
                self._accumulator.unreachable(led, error)
                self._cluster.refresh_soon()
            else:
                self._accumulator.fail_waiting(error, led)
        finally:
            link.opening = None
            self._woken.set()
