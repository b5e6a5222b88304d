"""Three clients, unmodified, behind one small face, so that each claim about the broker is shown with all of them.

Every call opens its client and closes it again: what a test sees comes from the broker, not from a client's memory.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin

#: Longer than anything healthy takes.
PATIENCE_S = 30
LARGEST_BYTES = 8 << 20
#: Below what a topic takes by default.
BATCH_BYTES = 512 << 10

#: librdkafka tells of every broker that goes away; here they do.
QUIET: dict[str, Any] = {"log_level": 0}


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class Seen(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Confluent:
    name = "confluent"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, address: str) -> None:
        self.address = address

    def admin(self) -> Any:
        """To be held until the answer is there: a handle that goes ends what it has under way."""
        return confluent_kafka.admin.AdminClient({"bootstrap.servers": self.address, **QUIET})

    def create(
        self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None,
        assignment: list[list[int]] | None = None,
    ) -> None:  # fmt: skip
        given: dict[str, Any] = (
            {"replica_assignment": assignment} if assignment else {"replication_factor": 1}
        )
        count = len(assignment) if assignment else partitions
        new = confluent_kafka.admin.NewTopic(topic, count, config=configs or {}, **given)
        admin = self.admin()
        admin.create_topics([new])[topic].result(PATIENCE_S)

    def delete(self, topic: str) -> None:
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(PATIENCE_S)

    def widen(self, topic: str, count: int) -> None:
        new = confluent_kafka.admin.NewPartitions(topic, count)
        admin = self.admin()
        admin.create_partitions([new])[topic].result(PATIENCE_S)

    def topics(self) -> dict[str, int]:
        admin = self.admin()
        listed = admin.list_topics(timeout=PATIENCE_S).topics
        return {name: len(topic.partitions) for name, topic in listed.items()}

    def configs(self, topic: str) -> dict[str, str]:
        resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.TOPIC, topic)
        admin = self.admin()
        found = admin.describe_configs([resource])[resource].result(PATIENCE_S)
        return {name: entry.value for name, entry in found.items()}

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        target = confluent_kafka.TopicPartition(topic, partition, offset)
        admin = self.admin()
        [future] = admin.delete_records([target]).values()
        low: int = future.result(PATIENCE_S).low_watermark
        return low

    def produce(
        self, topic: str, messages: Sequence[Message], *, partition: int = 0, acks: int | str = "all",
        codec: str = "none", idempotent: bool = False, batched: bool = True,
    ) -> list[int]:  # fmt: skip
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                raise confluent_kafka.KafkaException(error)
            offsets.append(message.offset())

        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.address, "acks": acks, "compression.type": codec, **QUIET,
                "enable.idempotence": idempotent, "message.max.bytes": LARGEST_BYTES,
                "linger.ms": 5 if batched else 0, "batch.size": BATCH_BYTES, "batch.num.messages": 10_000 if batched else 1,
            }
        )  # fmt: skip
        for message in messages:
            stamp = {} if message.timestamp_ms is None else {"timestamp": message.timestamp_ms}
            producer.produce(
                topic, message.value, message.key, partition,
                headers=list(message.headers), on_delivery=delivered, **stamp,
            )  # fmt: skip
        assert producer.flush(PATIENCE_S) == 0
        return offsets

    def consumer(self) -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address, "group.id": "unused", "enable.auto.commit": False,
                "fetch.wait.max.ms": 100, "fetch.message.max.bytes": LARGEST_BYTES,
                "message.max.bytes": LARGEST_BYTES, "auto.offset.reset": "error", **QUIET,
            }
        )  # fmt: skip

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Seen]:
        consumer = self.consumer()
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
            seen: list[Seen] = []
            deadline = time.monotonic() + PATIENCE_S
            while len(seen) < count and time.monotonic() < deadline:
                message = consumer.poll(1)
                if message is None:
                    continue
                if message.error():
                    raise confluent_kafka.KafkaException(message.error())
                headers = tuple(message.headers() or ())
                key, value = message.key(), message.value()
                seen.append(Seen(message.offset(), key, value, headers, message.timestamp()[1]))
            return seen
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        consumer = self.consumer()
        try:
            asked = [confluent_kafka.TopicPartition(topic, partition, timestamp_ms)]
            [found] = consumer.offsets_for_times(asked, timeout=PATIENCE_S)
            # librdkafka gives the end (-1) for a time that no record reaches.
            return found.offset if found.offset >= 0 else None
        finally:
            consumer.close()

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = self.consumer()
        try:
            asked = confluent_kafka.TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(asked, timeout=PATIENCE_S)
            return low, high
        finally:
            consumer.close()


class KafkaPython:
    name = "kafka-python"
    #: The others need packages that only this client would use.
    codecs = ("none", "gzip")

    def __init__(self, address: str) -> None:
        self.address = address

    def admin(self) -> Any:
        return kafka.KafkaAdminClient(bootstrap_servers=self.address)

    def _administer(self, action: Callable[[Any], Any]) -> Any:
        admin = self.admin()
        try:
            return action(admin)
        finally:
            admin.close()

    def create(
        self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None,
        assignment: list[list[int]] | None = None,
    ) -> None:  # fmt: skip
        options: dict[str, Any] = {"configs": configs or {}}
        if assignment is None:
            options |= {"num_partitions": partitions, "replication_factor": 1}
        else:
            options |= {"assignments": dict(enumerate(assignment))}
        self._administer(lambda admin: admin.create_topics({topic: options}))

    def delete(self, topic: str) -> None:
        self._administer(lambda admin: admin.delete_topics([topic]))

    def widen(self, topic: str, count: int) -> None:
        self._administer(lambda admin: admin.create_partitions({topic: count}))

    def topics(self) -> dict[str, int]:
        listed = self._administer(lambda admin: admin.describe_topics())
        return {topic["name"]: len(topic["partitions"]) for topic in listed}

    def configs(self, topic: str) -> dict[str, str]:
        resource = kafka.admin.ConfigResource("topic", topic)
        found = self._administer(lambda admin: admin.describe_configs([resource], config_filter="all"))
        rows = found[0] if isinstance(found, list) else found["topic"][topic]
        return {name: row["value"] for name, row in rows.items()}

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        target = kafka.TopicPartition(topic, partition)
        found = self._administer(lambda admin: admin.delete_records({target: offset}))
        low: int = found[target]["low_watermark"]
        return low

    def produce(
        self, topic: str, messages: Sequence[Message], *, partition: int = 0, acks: int | str = "all",
        codec: str = "none", idempotent: bool = False, batched: bool = True,
    ) -> list[int]:  # fmt: skip
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.address, acks=acks, enable_idempotence=idempotent,
            compression_type=None if codec == "none" else codec, max_request_size=LARGEST_BYTES,
            batch_size=BATCH_BYTES if batched else 0, linger_ms=5 if batched else 0,
        )  # fmt: skip
        try:
            sent = [
                producer.send(
                    topic, message.value, message.key, list(message.headers), partition, message.timestamp_ms
                )
                for message in messages
            ]
            producer.flush(PATIENCE_S)
            return [future.get(PATIENCE_S).offset for future in sent]
        finally:
            producer.close(PATIENCE_S)

    def consumer(self) -> Any:
        return kafka.KafkaConsumer(
            bootstrap_servers=self.address, group_id=None, enable_auto_commit=False, auto_offset_reset="none",
            fetch_max_wait_ms=100, max_partition_fetch_bytes=LARGEST_BYTES,
        )  # fmt: skip

    def _consume(self, action: Callable[[Any], Any]) -> Any:
        consumer = self.consumer()
        try:
            return action(consumer)
        finally:
            consumer.close()

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Seen]:
        target = kafka.TopicPartition(topic, partition)

        def action(consumer: Any) -> list[Seen]:
            consumer.assign([target])
            consumer.seek(target, offset)
            seen: list[Seen] = []
            deadline = time.monotonic() + PATIENCE_S
            while len(seen) < count and time.monotonic() < deadline:
                seen += [
                    Seen(r.offset, r.key, r.value, tuple(r.headers), r.timestamp)
                    for r in consumer.poll(1000).get(target, ())
                ]
            return seen[:count]

        found: list[Seen] = self._consume(action)
        return found

    def offset_for_time(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        target = kafka.TopicPartition(topic, partition)
        found = self._consume(lambda consumer: consumer.offsets_for_times({target: timestamp_ms})[target])
        return None if found is None else int(found.offset)

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        target = kafka.TopicPartition(topic, partition)
        return (
            self._consume(lambda consumer: consumer.beginning_offsets([target])[target]),
            self._consume(lambda consumer: consumer.end_offsets([target])[target]),
        )


class AioKafka:
    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, address: str) -> None:
        self.address = address

    def administer(self, action: Callable[[Any], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                return await action(admin)
            finally:
                await admin.close()

        return asyncio.run(asyncio.wait_for(run(), PATIENCE_S))

    def create(
        self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None,
        assignment: list[list[int]] | None = None,
    ) -> None:  # fmt: skip
        by_hand = dict(enumerate(assignment)) if assignment else None
        count, factor = (-1, -1) if assignment else (partitions, 1)
        new = aiokafka.admin.NewTopic(topic, count, factor, by_hand, configs)
        answer = self.administer(lambda admin: admin.create_topics([new]))
        _raise(answer.topic_errors)

    def delete(self, topic: str) -> None:
        answer = self.administer(lambda admin: admin.delete_topics([topic]))
        _raise(answer.topic_error_codes)

    def widen(self, topic: str, count: int) -> None:
        new = {topic: aiokafka.admin.NewPartitions(count)}
        self.administer(lambda admin: admin.create_partitions(new))

    def topics(self) -> dict[str, int]:
        listed = self.administer(lambda admin: admin.describe_topics())
        return {topic["topic"]: len(topic["partitions"]) for topic in listed}

    def configs(self, topic: str) -> dict[str, str]:
        resource = aiokafka.admin.config_resource.ConfigResource(
            aiokafka.admin.config_resource.ConfigResourceType.TOPIC, topic
        )
        [answer] = self.administer(lambda admin: admin.describe_configs([resource]))
        [(_code, _message, _kind, _name, rows)] = answer.resources
        return {row[0]: row[1] for row in rows}

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        target = aiokafka.TopicPartition(topic, partition)
        wanted = {target: aiokafka.admin.RecordsToDelete(offset)}
        low: int = self.administer(lambda admin: admin.delete_records(wanted))[target]
        return low

    def produce(
        self, topic: str, messages: Sequence[Message], *, partition: int = 0, acks: int | str = "all",
        codec: str = "none", idempotent: bool = False, batched: bool = True,
    ) -> list[int]:  # fmt: skip
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.address, acks=acks, enable_idempotence=idempotent,
                compression_type=None if codec == "none" else codec, max_request_size=LARGEST_BYTES,
                max_batch_size=BATCH_BYTES if batched else 1, linger_ms=5 if batched else 0,
            )  # fmt: skip
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        message.value,
                        message.key,
                        partition,
                        message.timestamp_ms,
                        list(message.headers),
                    )
                    for message in messages
                ]
                answers = [await future for future in sent]
                # With acks=0 there is no answer to learn an offset from.
                return [-1 if answer is None else answer.offset for answer in answers]
            finally:
                await producer.stop()

        return asyncio.run(asyncio.wait_for(run(), PATIENCE_S))

    def _consume(self, action: Callable[[Any], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self.address, group_id=None, enable_auto_commit=False, auto_offset_reset="none",
                fetch_max_wait_ms=100, max_partition_fetch_bytes=LARGEST_BYTES,
            )  # fmt: skip
            await consumer.start()
            try:
                return await action(consumer)
            finally:
                await consumer.stop()

        return asyncio.run(asyncio.wait_for(run(), PATIENCE_S))

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Seen]:
        target = aiokafka.TopicPartition(topic, partition)

        async def action(consumer: Any) -> list[Seen]:
            consumer.assign([target])
            consumer.seek(target, offset)
            seen: list[Seen] = []
            while len(seen) < count:
                r = await consumer.getone()
                seen.append(Seen(r.offset, r.key, r.value, tuple(r.headers), r.timestamp))
            return seen

        found: list[Seen] = self._consume(action)
        return found

    def offset_for_time(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        target = aiokafka.TopicPartition(topic, partition)
        found = self._consume(lambda consumer: consumer.offsets_for_times({target: timestamp_ms}))[target]
        return None if found is None else int(found.offset)

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        target = aiokafka.TopicPartition(topic, partition)
        low = self._consume(lambda consumer: consumer.beginning_offsets([target]))[target]
        high = self._consume(lambda consumer: consumer.end_offsets([target]))[target]
        return low, high


def _raise(rows: Any) -> None:
    for topic, code, *message in rows:
        if code:
            raise aiokafka.errors.for_code(code)(f"{topic}: {message}")


CLIENTS = (Confluent, KafkaPython, AioKafka)
