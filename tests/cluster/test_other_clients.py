"""kafka-python, aiokafka and librdkafka as they come, while brokers die and are restarted: no error, nothing lost or repeated.

Each writes to a topic of its own with its own defaults; all of them are idempotent by default but aiokafka, which is told to be.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, Self

import aiokafka
import confluent_kafka
import kafka
import pytest

from testkit.checkers.partition import PartitionHistory
from tests.cluster.load import read_all
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.topics import QUIET, new_topic, stall_of, state_of, wait_alike

ALL = (1, 2, 3)
_PAUSE_S = 0.002


class Sink(Protocol):
    """What came of a send."""

    def __call__(self, value: int, offset: int | None, error: object = None) -> None: ...


class Writer:
    """A client in a thread of its own that writes 0, 1, 2, … until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.sent = 0
        self.acknowledged: dict[int, int] = {}
        self.errors: list[object] = []
        self.times: list[float] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._guard, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended.set()
        self._thread.join(PATIENCE_S)

    def _guard(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.errors.append(error)

    def run(self) -> None:
        raise NotImplementedError

    def told(self, value: int, offset: int | None, error: object = None) -> None:
        if offset is None:
            self.errors.append(error)
        else:
            self.times.append(time.monotonic())
            self.acknowledged[value] = offset

    def values(self) -> Any:
        for value in itertools.count():
            if self.ended.wait(_PAUSE_S):
                return
            self.sent = value + 1
            yield value

    def wait_for_more(self, cluster: RunningCluster, count: int = 50) -> None:
        wanted = len(self.times) + count
        cluster.wait_until(
            lambda: len(self.times) >= wanted or self.errors, f"{type(self).__name__}: {count} more"
        )
        assert self.errors == []

    def check(self, cluster: RunningCluster) -> None:
        """Every promise is kept."""
        assert self.errors == []
        assert sorted(self.acknowledged) == list(range(self.sent)), "all were answered"
        history = PartitionHistory(self.topic, is_durable=True)
        for value in range(self.sent):
            history.send(b"%d" % value, "one", value, 0)
        for value, offset in self.acknowledged.items():
            history.acknowledge(b"%d" % value, offset)
        end = history.end_offset_min
        log = {offset: b"%d" % value for offset, value in read_all(cluster, self.topic, end).items()}
        history.check_all(log, log_start_offset=0, end_offset=end)
        assert len(log) == self.sent


class Confluent(Writer):
    def run(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "error_cb": lambda _error: None,
                **QUIET,
            }
        )

        def delivered(error: Any, message: Any) -> None:
            self.told(int(message.value()), None if error else message.offset(), error)

        for value in self.values():
            producer.produce(self.topic, b"%d" % value, partition=0, on_delivery=delivered)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0


class KafkaPython(Writer):
    def run(self) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=self.bootstrap.split(","))
        for value in self.values():
            future = producer.send(self.topic, b"%d" % value, partition=0)
            future.add_callback(lambda metadata, value=value: self.told(value, metadata.offset))
            future.add_errback(lambda error, value=value: self.told(value, None, error))
        producer.flush(PATIENCE_S)
        producer.close(PATIENCE_S)


class AioKafka(Writer):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap.split(","), enable_idempotence=True
        )
        await producer.start()
        futures: set[Any] = set()
        value = 0
        while not self.ended.is_set():
            future = await producer.send(self.topic, b"%d" % value, partition=0)
            future.add_done_callback(lambda done, value=value: self._done(value, done))
            futures.add(future)
            future.add_done_callback(futures.discard)
            value += 1
            self.sent = value
            await asyncio.sleep(_PAUSE_S)
        await producer.flush()
        await producer.stop()

    def _done(self, value: int, done: Any) -> None:
        if done.exception() is None:
            self.told(value, done.result().offset)
        else:
            self.told(value, None, done.exception())


WRITERS = (Confluent, KafkaPython, AioKafka)


def test_all_brokers_are_restarted_one_after_the_other(shared: RunningCluster) -> None:
    topics = [
        new_topic(shared, replicas, min_insync_replicas="2") for replicas in ((1, 2, 3), (2, 3, 1), (3, 1, 2))
    ]
    writers = [made(shared.bootstrap, topic) for made, topic in zip(WRITERS, topics, strict=True)]
    with writers[0], writers[1], writers[2]:
        for node in ALL:
            for writer in writers:
                writer.wait_for_more(shared)
            begun_s = time.monotonic()
            shared.stop(node)
            for writer in writers:
                writer.wait_for_more(shared)
            shared.restart(node)
            for topic in topics:
                shared.wait_in_sync(topic, node, ALL)
            stalls = [stall_of(writer.times, begun_s) for writer in writers]
            print(
                node, *(f"{type(each).__name__} {s:.3f} s" for each, s in zip(writers, stalls, strict=True))
            )
            # With their own pauses between two attempts.
            assert max(stalls) < 3.0
        for writer in writers:
            writer.wait_for_more(shared)
    for writer in writers:
        writer.check(shared)
    for topic in topics:
        wait_alike(shared, topic)


@pytest.mark.parametrize("made", [KafkaPython, AioKafka])
def test_a_leader_is_killed(shared: RunningCluster, made: Callable[[str, str], Writer]) -> None:
    topic = new_topic(shared, ALL, min_insync_replicas="2")
    writer = made(shared.bootstrap, topic)
    with writer:
        for _ in range(2):
            writer.wait_for_more(shared, 100)
            leader = state_of(shared, topic).leader
            killed_s = time.monotonic()
            shared.kill(leader)
            writer.wait_for_more(shared, 100)
            print(f"the longest stall was {stall_of(writer.times, killed_s):.3f} s")
            shared.restart(leader)
            shared.wait_in_sync(topic, leader, ALL)
    writer.check(shared)
    wait_alike(shared, topic)
