"""The Python clients behind one interface, so that they can do the same work: written as in their own guides.

The interface is asynchronous, and blocks if its client does: a process holds one client and does nothing
else. The settings are equal where they exist (batches, linger, acks=all, idempotent, no compression). A
writer checks the delivery of every message. A reader accesses key, value and offset of every message. The
workloads are in `bench.client_loads`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import aiokafka
import confluent_kafka
import kafka

import ottla
from ottla import aio
from ottla.client.consumer.decoder import RecordDecoder

BATCH_BYTES = 262_144
#: Kafka's default of max.poll.records, for all clients. With ten thousand records, which exceed the cache,
#: ottla and confluent-kafka need twice the CPU.
POLL_RECORDS = 500
POLL_MS = 1000
#: Messages that are sent between two checks of earlier deliveries.
STRIDE = 256
#: Messages in flight, for clients without their own limit.
UNDER_WAY_MAX = 20_000
#: A timeout that is reached only on errors.
LIMIT_S = 60.0

OTTLA, OTTLA_AIO = "ottla", "ottla.aio"
#: Other ways to read with ottla's client.
OTTLA_PURE, OTTLA_COLUMNS = "ottla, pure", "ottla, columns"
CONFLUENT_TUNED = "confluent-kafka, tuned"
CONFLUENT, AIOKAFKA, KAFKA_PYTHON = "confluent-kafka", "aiokafka", "kafka-python"

Pairs = Iterable[tuple[bytes | None, bytes]]


class Failed(RuntimeError):
    """A client did not do its work, so its figures would be meaningless."""


class Writer(ABC):
    """Sends to one topic. `waiting` holds the futures of messages in flight, oldest first."""

    def __init__(self, address: str, topic: str, linger_ms: int) -> None:
        self.address = address
        self.topic = topic
        self.linger_ms = linger_ms
        self.waiting: deque[Any] = deque()
        self.delivered = 0

    @abstractmethod
    async def open(self) -> None: ...
    @abstractmethod
    async def write(self, pairs: Pairs) -> None:
        """Send these keys and values, whatever the number of messages in flight."""

    @abstractmethod
    async def finish(self) -> None:
        """Wait until all messages are delivered, and count them. Raises if one was not."""

    @abstractmethod
    async def close(self) -> None: ...


class Reader(ABC):
    """Reads all partitions of one topic from the start: assigned, or as the only member of a group."""

    def __init__(self, address: str, topic: str, partitions: int, group: str | None = None) -> None:
        self.address = address
        self.topic = topic
        self.partitions = partitions
        self.group = group
        #: Records read so far.
        self.seen = 0

    @abstractmethod
    async def open(self) -> None: ...
    @abstractmethod
    async def rewind(self) -> None: ...
    @abstractmethod
    async def poll(self) -> Mapping[Any, Sequence[Any]]:
        """Records by partition, as the client returns them; empty after a second without any."""

    @abstractmethod
    async def close(self) -> None: ...

    async def read(self, until: int) -> int:
        """Read at least this many records. Returns the bytes of their keys and values."""
        size, last = 0, time.monotonic()
        while self.seen < until:
            polled = await self.poll()
            for records in polled.values():
                for record in records:
                    size += len(record.value or b"") + len(record.key or b"")
                    if record.offset < 0:
                        raise Failed("a record without its offset")
                self.seen += len(records)
            if polled:
                last = time.monotonic()
            elif time.monotonic() - last > LIMIT_S:
                raise Failed(f"{self.seen} of {until} records came, and no more within {LIMIT_S:.0f} s")
        return size

    async def values(self) -> AsyncIterator[list[bytes]]:
        """The values of available records, repeatedly; an empty list after a second without any."""
        while True:
            polled = await self.poll()
            yield [record.value or b"" for records in polled.values() for record in records]


class OttlaWriter(Writer):
    async def open(self) -> None:
        self._producer = ottla.Producer(self.address, linger_ms=self.linger_ms, batch_size=BATCH_BYTES)

    async def write(self, pairs: Pairs) -> None:
        topic, waiting, send = self.topic, self.waiting, self._producer.send
        for number, (key, value) in enumerate(pairs, 1):
            waiting.append(send(topic, value, key))
            if not number % STRIDE:
                while waiting and waiting[0].done():
                    waiting.popleft().result()
                    self.delivered += 1

    async def finish(self) -> None:
        self._producer.flush()
        while self.waiting:
            self.waiting.popleft().result()
            self.delivered += 1

    async def close(self) -> None:
        self._producer.close()


class OttlaAioWriter(Writer):
    async def open(self) -> None:
        self._producer = aio.Producer(self.address, linger_ms=self.linger_ms, batch_size=BATCH_BYTES)
        await self._producer.start()

    async def write(self, pairs: Pairs) -> None:
        topic, waiting, send = self.topic, self.waiting, self._producer.send
        for number, (key, value) in enumerate(pairs, 1):
            waiting.append(await send(topic, value, key=key))
            if not number % STRIDE:
                while waiting and waiting[0].done():
                    waiting.popleft().result()
                    self.delivered += 1

    async def finish(self) -> None:
        await self._producer.flush()
        while self.waiting:
            await self.waiting.popleft()
            self.delivered += 1

    async def close(self) -> None:
        await self._producer.close()


class OttlaReader(Reader):
    # The default switches to compiled code after 100,000 records, in the middle of the measurement.
    decoder: RecordDecoder = "compiled"

    async def open(self) -> None:
        self.consumer = ottla.Consumer(
            self.address,
            group_id=self.group,
            max_poll_records=POLL_RECORDS,
            auto_offset_reset="earliest",
            record_decoder=self.decoder,
        )
        if self.group is not None:
            self.consumer.subscribe([self.topic])
            return
        self.consumer.assign([(self.topic, number) for number in range(self.partitions)])

    async def rewind(self) -> None:
        self.consumer.seek_to_beginning()

    async def poll(self) -> Mapping[Any, Sequence[Any]]:
        return self.consumer.poll(POLL_MS)

    async def close(self) -> None:
        self.consumer.close()


class OttlaPureReader(OttlaReader):
    """ottla without numba."""

    decoder: RecordDecoder = "pure"


class OttlaColumnsReader(OttlaReader):
    """ottla's column interface: all available records as arrays, without an object per record."""

    async def read(self, until: int) -> int:
        size, last = 0, time.monotonic()
        while self.seen < until:
            polled = self.consumer.poll_columns(POLL_MS)
            for columns in polled.values():
                for column in (columns.keys, columns.values):
                    size += int((column.ends - column.starts).sum())
                if columns.offsets[0] < 0:
                    raise Failed("records without their offsets")
                self.seen += len(columns)
            if polled:
                last = time.monotonic()
            elif time.monotonic() - last > LIMIT_S:
                raise Failed(f"{self.seen} of {until} records came, and no more within {LIMIT_S:.0f} s")
        return size


class OttlaAioReader(Reader):
    async def open(self) -> None:
        self._consumer = aio.Consumer(
            self.address,
            group_id=self.group,
            max_poll_records=POLL_RECORDS,
            auto_offset_reset="earliest",
            record_decoder="compiled",
        )
        await self._consumer.start()
        if self.group is not None:
            await self._consumer.subscribe([self.topic])
            return
        await self._consumer.assign(
            ottla.TopicPartition(self.topic, number) for number in range(self.partitions)
        )

    async def rewind(self) -> None:
        await self._consumer.seek_to_beginning()

    async def poll(self) -> Mapping[Any, Sequence[Any]]:
        return await self._consumer.poll(POLL_MS)

    async def close(self) -> None:
        await self._consumer.close()


class ConfluentWriter(Writer):
    async def open(self) -> None:
        self._failed: list[object] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.address,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": self.linger_ms,
                "batch.size": BATCH_BYTES,
                "on_delivery": self._heard,
            }
        )
        self._producer.list_topics(self.topic, timeout=LIMIT_S)

    def _heard(self, error: object, _message: object) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._failed.append(error)

    async def write(self, pairs: Pairs) -> None:
        topic, produce, poll = self.topic, self._producer.produce, self._producer.poll
        for number, (key, value) in enumerate(pairs, 1):
            try:
                produce(topic, value, key)
            except BufferError:
                self._produce_later(value, key)
            if not number % STRIDE:
                poll(0)

    def _produce_later(self, value: bytes, key: bytes | None) -> None:
        while True:
            self._producer.poll(0.01)
            try:
                return self._producer.produce(self.topic, value, key)
            except BufferError:
                continue

    async def finish(self) -> None:
        unsent = self._producer.flush(LIMIT_S)
        if unsent or self._failed:
            raise Failed(f"{unsent} messages unsent, {len(self._failed)} failed {self._failed[:1]}")

    async def close(self) -> None:
        self._producer.flush(LIMIT_S)


class ConfluentReader(Reader):
    """confluent-kafka: messages have methods instead of fields, and come in one list for all partitions."""

    settings: ClassVar[Mapping[str, int]] = {}

    async def open(self) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.group or "bench",
                "enable.auto.commit": self.group is not None,
                **self.settings,
            }
        )
        self._consumer.list_topics(self.topic, timeout=LIMIT_S)
        if self.group is None:
            await self.rewind()
        else:
            self._consumer.subscribe([self.topic])

    async def rewind(self) -> None:
        beginning = confluent_kafka.OFFSET_BEGINNING
        self._consumer.assign(
            [
                confluent_kafka.TopicPartition(self.topic, number, beginning)
                for number in range(self.partitions)
            ]
        )

    async def poll(self) -> Mapping[Any, Sequence[Any]]:
        message = self._consumer.poll(POLL_MS / 1000)
        return {} if message is None else {0: [message]}

    async def read(self, until: int) -> int:
        size, last = 0, time.monotonic()
        while self.seen < until:
            # Request no more than are left: the call waits for the requested number.
            messages = self._consumer.consume(min(POLL_RECORDS, until - self.seen), POLL_MS / 1000)
            for message in messages:
                if message.error() is not None:
                    raise Failed(str(message.error()))
                size += len(message.value() or b"") + len(message.key() or b"")
                if (message.offset() or 0) < 0:
                    raise Failed("a message without its offset")
            self.seen += len(messages)
            if messages:
                last = time.monotonic()
            elif time.monotonic() - last > LIMIT_S:
                raise Failed(f"{self.seen} of {until} messages came, and no more within {LIMIT_S:.0f} s")
        return size

    async def values(self) -> AsyncIterator[list[bytes]]:
        while True:
            message = self._consumer.poll(POLL_MS / 1000)
            yield [] if message is None or message.error() else [message.value() or b""]

    async def close(self) -> None:
        self._consumer.close()


class ConfluentTunedReader(ConfluentReader):
    """With its default settings it pauses for a second when its queue is full."""

    settings: ClassVar[Mapping[str, int]] = {"fetch.queue.backoff.ms": 1}


class AiokafkaWriter(Writer):
    async def open(self) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.address,
            acks="all",
            enable_idempotence=True,
            linger_ms=self.linger_ms,
            max_batch_size=BATCH_BYTES,
        )
        await self._producer.start()

    async def write(self, pairs: Pairs) -> None:
        topic, waiting, send = self.topic, self.waiting, self._producer.send
        for number, (key, value) in enumerate(pairs, 1):
            waiting.append(await send(topic, value, key))
            if not number % STRIDE:
                while waiting and (waiting[0].done() or len(waiting) > UNDER_WAY_MAX):
                    await waiting.popleft()
                    self.delivered += 1

    async def finish(self) -> None:
        await self._producer.flush()
        while self.waiting:
            await self.waiting.popleft()
            self.delivered += 1

    async def close(self) -> None:
        await self._producer.stop()


class AiokafkaReader(Reader):
    async def open(self) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.address, group_id=self.group, auto_offset_reset="earliest"
        )
        await self._consumer.start()
        if self.group is not None:
            self._consumer.subscribe([self.topic])
            return
        self._consumer.assign(
            [aiokafka.TopicPartition(self.topic, number) for number in range(self.partitions)]
        )

    async def rewind(self) -> None:
        await self._consumer.seek_to_beginning()

    async def poll(self) -> Mapping[Any, Sequence[Any]]:
        polled: Mapping[Any, Sequence[Any]] = await self._consumer.getmany(
            timeout_ms=POLL_MS, max_records=POLL_RECORDS
        )
        return polled

    async def close(self) -> None:
        await self._consumer.stop()


class KafkaPythonWriter(Writer):
    async def open(self) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=self.address,
            acks="all",
            enable_idempotence=True,
            linger_ms=self.linger_ms,
            batch_size=BATCH_BYTES,
        )
        self._producer.partitions_for(self.topic)

    async def write(self, pairs: Pairs) -> None:
        topic, waiting, send = self.topic, self.waiting, self._producer.send
        for number, (key, value) in enumerate(pairs, 1):
            waiting.append(send(topic, value, key))
            if not number % STRIDE:
                while waiting and (waiting[0].is_done or len(waiting) > UNDER_WAY_MAX):
                    waiting.popleft().get(LIMIT_S)
                    self.delivered += 1

    async def finish(self) -> None:
        self._producer.flush(LIMIT_S)
        while self.waiting:
            self.waiting.popleft().get(LIMIT_S)
            self.delivered += 1

    async def close(self) -> None:
        self._producer.close()


class KafkaPythonReader(Reader):
    async def open(self) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.address,
            auto_offset_reset="earliest",
            group_id=self.group,
            enable_auto_commit=self.group is not None,
            max_poll_records=POLL_RECORDS,
        )
        if self.group is not None:
            self._consumer.subscribe([self.topic])
            return
        self._consumer.assign([kafka.TopicPartition(self.topic, number) for number in range(self.partitions)])

    async def rewind(self) -> None:
        self._consumer.seek_to_beginning()

    async def poll(self) -> Mapping[Any, Sequence[Any]]:
        polled: Mapping[Any, Sequence[Any]] = self._consumer.poll(POLL_MS)
        return polled

    async def close(self) -> None:
        self._consumer.close()


WRITERS: dict[str, type[Writer]] = {
    OTTLA: OttlaWriter,
    OTTLA_AIO: OttlaAioWriter,
    CONFLUENT: ConfluentWriter,
    AIOKAFKA: AiokafkaWriter,
    KAFKA_PYTHON: KafkaPythonWriter,
}
READERS: dict[str, type[Reader]] = {
    OTTLA: OttlaReader,
    OTTLA_AIO: OttlaAioReader,
    CONFLUENT: ConfluentReader,
    AIOKAFKA: AiokafkaReader,
    KAFKA_PYTHON: KafkaPythonReader,
    OTTLA_PURE: OttlaPureReader,
    OTTLA_COLUMNS: OttlaColumnsReader,
    CONFLUENT_TUNED: ConfluentTunedReader,
}
CLIENTS = tuple(WRITERS)
