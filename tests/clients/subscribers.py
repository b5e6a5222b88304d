"""Members of consumer groups, as each of the clients makes them: each polls in a thread of its own and notes what it has and sees."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.coordinator.assignors.range
import aiokafka.coordinator.assignors.roundrobin
import aiokafka.coordinator.assignors.sticky.sticky_assignor
import confluent_kafka
import kafka
import kafka.coordinator.assignors.cooperative_sticky
import kafka.coordinator.assignors.range
import kafka.coordinator.assignors.roundrobin
import kafka.coordinator.assignors.sticky.sticky_assignor

import ottla
from tests.clients.adapters import PATIENCE_S, QUIET, Confluent, Message

Place = tuple[str, int]


class Subscriber:
    """`parts` is what it was assigned, `seen` what it read, `times` how often it was assigned something, `errors` what it was told."""

    name: str
    assignors: tuple[str, ...] = ()

    def __init__(
        self,
        address: str,
        group: str,
        *topics: str,
        pattern: str | None = None,
        assignor: str = "",
        instance: str | None = None,
        session_ms: int = 6000,
        reset: str = "earliest",
        start_at: Callable[[str, int], int] | None = None,
    ) -> None:
        """`start_at`: where it begins to read what it is assigned, from a store of its own."""
        self.address, self.group, self.topics, self.pattern = address, group, list(topics), pattern
        self.assignor, self.instance, self.session_ms = assignor or self.assignors[0], instance, session_ms
        self.reset, self.start_at = reset, start_at
        self.parts: frozenset[Place] = frozenset()
        self.errors: list[str] = []
        self.seen: list[tuple[str, int, int, bytes]] = []
        self.times = 0
        self.is_committing = False
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        raise NotImplementedError

    def _assigned(self, parts: Iterable[Place]) -> None:
        self.parts |= frozenset(parts)
        self.times += 1

    def _revoked(self, parts: Iterable[Place]) -> None:
        """All of them with the eager assignors, some with the cooperative ones."""
        self.parts -= frozenset(parts)

    def close(self) -> None:
        """Leave, in order; static members leave without a word."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


#: What a commit hears between two generations.
_IN_BETWEEN = ("ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "STALE_MEMBER_EPOCH")


class ConfluentSubscriber(Subscriber):
    name = "confluent"
    assignors = ("range", "roundrobin", "cooperative-sticky")

    def _settings(self) -> dict[str, Any]:
        return {
            "session.timeout.ms": self.session_ms, "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": self.assignor, "topic.metadata.refresh.interval.ms": 500,
        }  # fmt: skip

    def _take(self, consumer: Any, parts: Any) -> None:
        """Take what was assigned, each at its own place."""
        if self.assignor == "cooperative-sticky":
            consumer.incremental_assign(parts)
        else:
            consumer.assign(parts)

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address, "group.id": self.group, "enable.auto.commit": False,
                "auto.offset.reset": "error" if self.reset == "none" else self.reset,
                "fetch.wait.max.ms": 100, **QUIET, **self._settings(),
                **({"group.instance.id": self.instance} if self.instance else {}),
            }
        )  # fmt: skip

        def assigned(_consumer: Any, parts: Any) -> None:
            self.times += 1
            if self.start_at is not None:
                for each in parts:
                    each.offset = self.start_at(each.topic, each.partition)
                self._take(consumer, parts)

        consumer.subscribe([self.pattern] if self.pattern else self.topics, on_assign=assigned)
        uncommitted: dict[Place, Any] = {}
        try:
            while not self._stop.is_set():
                message = consumer.poll(0.05)
                self.parts = frozenset((each.topic, each.partition) for each in consumer.assignment())
                self._commit(consumer, uncommitted)
                if message is None:
                    continue
                if message.error():
                    self.errors.append(str(message.error()))
                    continue
                self.seen.append((message.topic(), message.partition(), message.offset(), message.value()))
                if self.is_committing:
                    uncommitted[message.topic(), message.partition()] = message
                    self._commit(consumer, uncommitted)
        finally:
            consumer.close()

    def _commit(self, consumer: confluent_kafka.Consumer, uncommitted: dict[Place, Any]) -> None:
        """Commit what was read. In the middle of a rebalance that fails: then it is tried again, as long as it is its own."""
        for place, message in list(uncommitted.items()):
            try:
                if place in self.parts:
                    consumer.commit(message, asynchronous=False)
            except confluent_kafka.KafkaException as error:
                if error.args[0].name() not in _IN_BETWEEN:
                    raise
                continue
            del uncommitted[place]


class ConfluentFollower(ConfluentSubscriber):
    """A member that has the broker assign (KIP-848), which also says how long a session is."""

    name = "confluent-consumer"
    assignors = ("uniform", "range")

    def _settings(self) -> dict[str, Any]:
        return {"group.protocol": "consumer", "group.remote.assignor": self.assignor}

    def _take(self, consumer: Any, parts: Any) -> None:
        consumer.incremental_assign(parts)


_KAFKA = {
    "range": kafka.coordinator.assignors.range.RangePartitionAssignor,
    "roundrobin": kafka.coordinator.assignors.roundrobin.RoundRobinPartitionAssignor,
    "sticky": kafka.coordinator.assignors.sticky.sticky_assignor.StickyPartitionAssignor,
    "cooperative-sticky": kafka.coordinator.assignors.cooperative_sticky.CooperativeStickyAssignor,
}


class KafkaPythonSubscriber(Subscriber):
    name = "kafka-python"
    assignors = tuple(_KAFKA)

    def _run(self) -> None:
        subscriber = self

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                subscriber._revoked((each.topic, each.partition) for each in revoked)

            def on_partitions_assigned(self, assigned: Any) -> None:
                subscriber._assigned((each.topic, each.partition) for each in assigned)
                if subscriber.start_at is not None:
                    for each in assigned:
                        consumer.seek(each, subscriber.start_at(each.topic, each.partition))

        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.address, group_id=self.group, enable_auto_commit=False, auto_offset_reset=self.reset,
            session_timeout_ms=self.session_ms, heartbeat_interval_ms=200, fetch_max_wait_ms=100,
            partition_assignment_strategy=[_KAFKA[self.assignor]], group_instance_id=self.instance,
            metadata_max_age_ms=500,
        )  # fmt: skip
        if self.pattern:
            consumer.subscribe(pattern=self.pattern, listener=Listener())
        else:
            consumer.subscribe(self.topics, listener=Listener())
        try:
            while not self._stop.is_set():
                # Not shorter: a poll whose time is over while it waits for a sync forgets in this client that it joined.
                for records in consumer.poll(1000).values():
                    self.seen += [(each.topic, each.partition, each.offset, each.value) for each in records]
                    if self.is_committing:
                        consumer.commit()
        finally:
            consumer.close()


_AIOKAFKA = {
    "range": aiokafka.coordinator.assignors.range.RangePartitionAssignor,
    "roundrobin": aiokafka.coordinator.assignors.roundrobin.RoundRobinPartitionAssignor,
    "sticky": aiokafka.coordinator.assignors.sticky.sticky_assignor.StickyPartitionAssignor,
}


class AioKafkaSubscriber(Subscriber):
    name = "aiokafka"
    assignors = tuple(_AIOKAFKA)

    def _run(self) -> None:
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        subscriber = self

        class Listener(aiokafka.abc.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                subscriber._revoked((each.topic, each.partition) for each in revoked)

            def on_partitions_assigned(self, assigned: Any) -> None:
                subscriber._assigned((each.topic, each.partition) for each in assigned)
                if subscriber.start_at is not None:
                    for each in assigned:
                        consumer.seek(each, subscriber.start_at(each.topic, each.partition))

        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.address, group_id=self.group, enable_auto_commit=False, auto_offset_reset=self.reset,
            session_timeout_ms=self.session_ms, heartbeat_interval_ms=200, fetch_max_wait_ms=100,
            partition_assignment_strategy=[_AIOKAFKA[self.assignor]], group_instance_id=self.instance,
            metadata_max_age_ms=500,
        )  # fmt: skip
        if self.pattern:
            consumer.subscribe(pattern=self.pattern, listener=Listener())
        else:
            consumer.subscribe(self.topics, listener=Listener())
        await consumer.start()
        try:
            while not self._stop.is_set():
                found = await consumer.getmany(timeout_ms=50)
                for records in found.values():
                    self.seen += [(each.topic, each.partition, each.offset, each.value) for each in records]
                if found and self.is_committing:
                    await consumer.commit()
        finally:
            await consumer.stop()


class OttlaSubscriber(Subscriber):
    """A member of our own, beside the others."""

    name = "ottla"
    assignors = ("range", "roundrobin", "sticky", "cooperative-sticky")

    def _settings(self) -> dict[str, Any]:
        return {"partition_assignment_strategy": self.assignor, "session_timeout_ms": self.session_ms}

    def _run(self) -> None:
        def revoked(parts: list[ottla.TopicPartition]) -> None:
            self._revoked((each.topic, each.partition) for each in parts)

        def assigned(parts: list[ottla.TopicPartition]) -> None:
            self._assigned((each.topic, each.partition) for each in parts)

        settings: dict[str, Any] = {
            "group_id": self.group, "auto_offset_reset": self.reset, "heartbeat_interval_ms": 200,
            "group_instance_id": self.instance, "enable_auto_commit": False, "metadata_max_age_ms": 500,
            **self._settings(),
        }  # fmt: skip
        with ottla.Consumer(self.address, **settings) as consumer:
            consumer.subscribe(self.topics, self.pattern, assigned, revoked)
            while not self._stop.is_set():
                for records in consumer.poll(50).values():
                    self.seen += [(each.topic, each.partition, each.offset, each.value) for each in records]
                    if self.is_committing:
                        consumer.commit()


class OttlaFollower(OttlaSubscriber):
    """One that has the broker assign (KIP-848)."""

    name = "ottla-consumer"
    assignors = ("uniform", "range")

    def _settings(self) -> dict[str, Any]:
        return {"group_protocol": "consumer", "group_remote_assignor": self.assignor}


SUBSCRIBERS = (ConfluentSubscriber, KafkaPythonSubscriber, AioKafkaSubscriber)
#: Both protocols, as far as each client has them.
ALL_SUBSCRIBERS = (*SUBSCRIBERS, ConfluentFollower)


def eventually(wanted: Callable[[], Any], what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < deadline, f"it does not happen: {what}"
        time.sleep(0.02)


def have_all(members: Iterable[Subscriber], *places: Place) -> bool:
    """Whether these members have these partitions among them, each once."""
    held = [place for member in members for place in member.parts]
    return sorted(held) == sorted(places)


def places(topic: str, count: int) -> list[Place]:
    return [(topic, number) for number in range(count)]


def fill(client: Confluent, topic: str, partitions: int, begin: int, end: int) -> None:
    """Numbers from `begin` on, in each of the partitions."""
    for number in range(partitions):
        client.produce(topic, [Message(None, b"%d" % at) for at in range(begin, end)], partition=number)
