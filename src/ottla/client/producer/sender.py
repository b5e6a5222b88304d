"""The sender: one task that asks the accumulator what may leave, writes Produce requests and settles batches by their answers.

It groups ready batches by leader into one request each and encodes a batch once; it makes a task only to connect or to ask for a
producer id, so that an await never holds up other brokers. A broker gets `max_in_flight_requests_per_connection` requests at a time,
nothing while it is not connected (batches stay where they are and expire in their time), and nothing for as long as it asked to be
left alone (`throttle_time_ms`). Everything here runs on the client's event loop; `wake` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientClosed, KafkaError, refused
from ottla.client.metadata import Node, TopicPartition
from ottla.client.producer.accumulator import Accumulator, Drained
from ottla.client.producer.batches import Batch, ProducerId, SendFuture
from ottla.client.producer.settings import COMPRESSIONS, Producing
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.producer.transactions import Transactions

PRODUCE = 0
INIT_PRODUCER_ID = 22
#: The last version that names topics; later ones carry ids.
PRODUCE_BY_NAME = 12
#: The last version that wants partitions to be announced to the coordinator (KIP-890).
PRODUCE_ANNOUNCED = 11
#: The end of the transaction before is written within moments: try again soon.
CONCURRENT_BACKOFF_MS = 20
UNSENT_WAIT_MS = 5
TRANSACTION_TIMEOUT_NONE_MS = (1 << 31) - 1

#: How long a thread lets the sender have its turn, at most: as long as the interpreter lets a thread run.
LOOK_S_MAX = 0.005

logger = logging.getLogger(__name__)


def now_ms() -> float:
    return time.monotonic() * 1000


class Link:
    """What the sender keeps of a broker: how many requests it has to answer, and until when it is left alone."""

    __slots__ = ("failures", "in_flight", "not_before_ms", "opening")

    def __init__(self) -> None:
        self.in_flight = 0
        self.not_before_ms = 0.0
        self.failures = 0
        self.opening: asyncio.Task[None] | None = None


class Sender:
    def __init__(
        self,
        cluster: Cluster,
        settings: Producing,
        accumulator: Accumulator,
        transactions: Transactions | None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._accumulator = accumulator
        self._transactions = transactions
        self._counts = accumulator.counts
        self._codec = COMPRESSIONS.index(settings.compression_type)
        self._acks = settings.acks_number
        self._links: dict[int, Link] = {}
        self._producer: ProducerId | None = None
        self._asking: asyncio.Task[None] | None = None
        self._attempts = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._waking = False
        self._looked = threading.Event()
        self._closing = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._accumulator.sender_thread = threading.get_ident()
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def wake(self) -> None:
        """Make the sender look, from any thread; calls before it has looked cost nothing."""
        if self._waking or self._loop is None:
            return
        try:
            self._waking = True
            self._loop.call_soon_threadsafe(self._woken.set)
        except BaseException as error:
            # The loop ended with the client; or a signal raised here, and nobody else would wake the sender for this batch.
            self._waking = False
            if not isinstance(error, RuntimeError):
                self._loop.call_soon_threadsafe(self._woken.set)
                raise

    def let_look(self) -> None:
        """Wake the sender and wait, in another thread, until it has looked; not for what it sends.

        A thread that sends without pause holds the interpreter for as long as it may, and the sender gets it for moments only: records
        would pile up until `buffer_memory` is full. To wait for it costs nothing, as its work has to be done anyway.
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
        """Wait until everything that was queued before is acknowledged or has failed."""
        batches = self._accumulator.begin_flush()
        try:
            self._woken.set()
            for batch in batches:
                # Whoever holds the future of the record hears of its error.
                with contextlib.suppress(KafkaError):
                    await SendFuture(batch, 0)
        finally:
            self._accumulator.end_flush()

    async def close(self, timeout_s: float | None) -> None:
        """Send what is queued, for at most so long, then fail the rest."""
        self._closing = True
        self._woken.set()
        try:
            if self._task is not None:
                await self._let_leave(self._task, timeout_s)
        finally:
            # Whoever gives up closing leaves nobody waiting either.
            self._fail_the_rest()
            tasks = [self._task, self._asking, *(link.opening for link in self._links.values())]
            running = [task for task in tasks if task is not None]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _let_leave(self, task: asyncio.Task[None], timeout_s: float | None) -> None:
        deadline_s = time.monotonic() + (
            self._settings.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        )
        await asyncio.wait([task], timeout=timeout_s)
        # Records that nobody acknowledges are done when they are written; those that are not out yet would be lost.
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
        """A sender that died of a fault of its own leaves nobody waiting."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        logger.error("the sender ended", exc_info=error)
        failure = KafkaError(f"the producer's sender ended: {error!r}", advice="Make a new producer")
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
                # Others have their turn before the next request.
                await asyncio.sleep(0)
                continue
            timer = loop.call_later(wait_ms / 1000, self._woken.set)
            await self._woken.wait()
            timer.cancel()

    def _step(self, now: float) -> float | None:
        """Send what may leave; how long until something else is due."""
        waits = []
        producer = self._identity()
        if producer is not None or not self._settings.idempotent:
            drained = self._accumulator.drain(
                now,
                self._leader,
                free=partial(self._free, now),
                admitted=self._admitted,
                producer=producer,
            )
            for node_id, batches in drained.ready.items():
                self._produce(node_id, batches)
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

    def _explain_leaderless(self, batches: list[Batch]) -> None:
        """Whoever expires for want of a leader shall say whether the topic is still there."""
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
            # Without acknowledgements nothing else bounds what a slow broker has coming.
            link.not_before_ms = now + UNSENT_WAIT_MS
            return False
        return True

    def _admitted(self, tp: TopicPartition) -> bool:
        return self._transactions is None or self._transactions.states.admitted(tp)

    async def _connect(self, node_id: int, link: Link) -> None:
        node: Node | None = self._cluster.metadata.nodes.get(node_id)
        try:
            if node is None:
                raise refused(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node_id} is not known any more")
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

    # Requests and answers

    def _produce(self, node_id: int, batches: list[Batch]) -> None:
        connection = self._connection(node_id)
        assert connection is not None, "a broker that is not connected is not free"
        topics: dict[str, list[dict[str, Any]]] = {}
        sent = []
        for batch in batches:
            try:
                encoded = self._encode(batch)
            except Exception as error:
                failure = KafkaError(
                    f"{len(batch.records)} record(s) for {batch.tp} cannot be encoded: {error}",
                    topic=batch.tp.topic,
                    partition=batch.tp.partition,
                )
                failure.__cause__ = error
                self._accumulator.finish(batch, failure)
                continue
            topics.setdefault(batch.tp.topic, []).append({"index": batch.tp.partition, "records": encoded})
            self._counts.left(batch)
            sent.append(batch)
        if not sent:
            return
        metadata = self._cluster.metadata
        ids = {topic: metadata.topic_id(topic) for topic in topics}
        body = {
            "transactional_id": self._settings.transactional_id,
            "acks": self._acks,
            "timeout": self._settings.request_timeout_ms,
            "topic_data": [
                {"name": topic, "topic_id": ids[topic], "partition_data": parts}
                for topic, parts in topics.items()
            ],
        }
        version_max = None if all(ids.values()) else PRODUCE_BY_NAME
        if self._transactions is not None and not self._transactions.states.implicit:
            version_max = PRODUCE_ANNOUNCED
        self._counts.requests += 1
        link = self._link(node_id)
        try:
            if self._acks == 0:
                connection.post(PRODUCE, body, version_max=version_max)
                for batch in sent:
                    self._accumulator.finish(batch, None)
                return
            answer = connection.send(PRODUCE, body, version_max=version_max)
        except KafkaError as error:
            self._failed(sent, error)
            return
        link.in_flight += 1
        # By the ids that were sent: what the metadata says by then may be another topic of the name, or nothing.
        names = {topic_id: topic for topic, topic_id in ids.items() if topic_id}
        answer.add_done_callback(partial(self._answered, connection.address, link, sent, names, now_ms()))

    def _encode(self, batch: Batch) -> bytes:
        if batch.encoded is None:
            if batch.producer is None:
                batch.encoded = batch.records.encode(codec=self._codec)
            else:
                batch.encoded = batch.records.encode(
                    codec=self._codec,
                    producer_id=batch.producer[0],
                    producer_epoch=batch.producer[1],
                    base_sequence=batch.sequence,
                    transactional=self._transactions is not None,
                )
        return batch.encoded

    def _answered(
        self,
        broker: str,
        link: Link,
        batches: list[Batch],
        names: dict[bytes, str],
        sent_ms: float,
        answer: asyncio.Future[Any],
    ) -> None:
        link.in_flight -= 1
        self._woken.set()
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            failure = (
                error
                if isinstance(error, KafkaError)
                else KafkaError(f"producing failed: {error}", broker=broker)
            )
            self._failed(batches, failure)
            return
        now, response = now_ms(), answer.result()
        self._counts.answered(now - sent_ms)
        throttle_ms = response.throttle_time.total_seconds() * 1000
        if throttle_ms > 0:
            self._counts.throttled_ms += throttle_ms
            link.not_before_ms = max(link.not_before_ms, now + throttle_ms)
        waiting = {batch.tp: batch for batch in batches}
        for topic in response.responses:
            name = getattr(topic, "name", None) or names.get(
                topic.topic_id.bytes if topic.topic_id else b"", ""
            )
            for part in topic.partition_responses:
                batch = waiting.pop(TopicPartition(str(name), int(part.index)), None)
                if batch is not None:
                    self._settle(batch, part, broker)
        for batch in waiting.values():
            # The broker left it out: whether it has it is unknown.
            topic, partition = batch.tp
            self._failed(
                [batch],
                refused(
                    ErrorCode.UNKNOWN_TOPIC_ID,
                    f"the answer about {batch.tp}",
                    broker=broker,
                    topic=topic,
                    partition=partition,
                ),
            )

    def _settle(self, batch: Batch, part: Any, broker: str) -> None:
        code = int(part.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            stamp = part.log_append_time
            append_time_ms = -1 if stamp is None else round(stamp.timestamp() * 1000)
            self._accumulator.finish(batch, None, int(part.base_offset) if not code else -1, append_time_ms)
            return
        refusal = partial(
            refused, code, "producing", broker=broker, topic=batch.tp.topic, partition=batch.tp.partition
        )
        message = getattr(part, "error_message", None)
        guilty = {
            int(row.batch_index): refusal(message=row.batch_index_error_message or message)
            for row in getattr(part, "record_errors", ()) or ()
        }
        if guilty and len(batch.records) > 1:
            # KIP-467: the others failed only for the company they were in.
            rest = refusal(message=f"{message or ''} (another record of the batch was refused)".strip())
            self._accumulator.finish(batch, rest, record_errors=guilty)
        elif guilty:
            self._accumulator.finish(batch, next(iter(guilty.values())))
        else:
            self._failed([batch], refusal(message=message))

    def _failed(self, batches: list[Batch], error: KafkaError) -> None:
        now = now_ms()
        for batch in batches:
            wait_ms = backoff_ms(self._settings, batch.attempts + 1)
            if error.code == ErrorCode.CONCURRENT_TRANSACTIONS:
                wait_ms = min(wait_ms, CONCURRENT_BACKOFF_MS)
            self._accumulator.fail(batch, error, now, wait_ms)
        if error.retriable:
            self._cluster.refresh_soon()
        if self._transactions is not None:
            self._transactions.give_up_waiting()
        self._woken.set()

    # Idempotence

    def _identity(self) -> ProducerId | None:
        """The producer id and epoch to send under; None if there is none yet, or if none is needed."""
        if self._transactions is not None:
            return self._transactions.states.producer
        if (
            self._settings.idempotent
            and self._asking is None
            and (self._producer is None or self._accumulator.exhausted)
        ):
            self._accumulator.exhausted = False
            self._producer = None
            self._asking = asyncio.get_running_loop().create_task(self._ask_for_id())
        return self._producer

    async def _ask_for_id(self) -> None:
        body = {
            "transactional_id": None,
            "transaction_timeout": TRANSACTION_TIMEOUT_NONE_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        try:
            response = await self._cluster.ask_any(INIT_PRODUCER_ID, body)
            if response.error_code:
                raise refused(int(response.error_code), "asking for a producer id")
            self._producer = (int(response.producer_id), int(response.producer_epoch))
            self._attempts = 0
        except KafkaError as error:
            if error.retriable:
                self._accumulator.unreachable([batch.tp for batch in self._accumulator.outstanding()], error)
            else:
                self._accumulator.fail_waiting(error)
            # The coordinator is loading or brokers are away: batches wait, and expire in their time.
            self._attempts += 1
            await asyncio.sleep(backoff_ms(self._settings, self._attempts) / 1000)
        finally:
            self._asking = None
            self._woken.set()
