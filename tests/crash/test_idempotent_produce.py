"""kill -9 at random points of an idempotent produce: everything acknowledged is there, in order, once."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.broker_process import PATIENCE_S, BrokerProcess

PARTITIONS = 3
#: Several requests of at most this many messages are always on their way.
MESSAGES_PER_REQUEST = 20
#: How far the application runs ahead of the acknowledgements.
AHEAD_MAX = 2_000


class Workload:
    """A producer of numbered messages that never gives up, and what the broker has acknowledged of them."""

    def __init__(self, address: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 5,
                "batch.num.messages": MESSAGES_PER_REQUEST,
                "linger.ms": 1,
                "delivery.timeout.ms": 600_000,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 50,
                "reconnect.backoff.ms": 5,
                "reconnect.backoff.max.ms": 50,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
                "error_cb": self._broken,
            }
        )
        self._fatal: KafkaError | None = None
        self.sent: list[list[int]] = [[] for _ in range(PARTITIONS)]
        #: By partition: the offset that was acknowledged for each value.
        self.offsets: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self._next = 0
        self.acknowledged = 0

    def _broken(self, error: KafkaError) -> None:
        # Lost connections are the point here; a fatal error means that the sequences no longer fit.
        if error.fatal():
            self._fatal = error

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        value = int(message.value())
        assert value not in self.offsets[message.partition()]
        self.offsets[message.partition()][value] = message.offset()
        self.acknowledged += 1

    def run_until(self, acknowledged: int) -> None:
        """Produce until this many messages have been acknowledged; a few hundred more are on their way then."""
        while self.acknowledged < acknowledged:
            while self._next - self.acknowledged < AHEAD_MAX:
                partition = self._next % PARTITIONS
                self._producer.produce(
                    "numbers", str(self._next).encode(), partition=partition, on_delivery=self._delivered
                )
                self.sent[partition].append(self._next)
                self._next += 1
            self._producer.poll(0.05)
            assert self._fatal is None, self._fatal

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0, "messages were left behind"
        assert self._fatal is None, self._fatal


def read_back(address: str) -> list[list[tuple[int, int]]]:
    """By partition, (offset, value) of everything in the topic."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    found: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
    try:
        partitions = [TopicPartition("numbers", number, 0) for number in range(PARTITIONS)]
        wanted = sum(consumer.get_watermark_offsets(each, timeout=PATIENCE_S)[1] for each in partitions)
        consumer.assign(partitions)
        while (left := wanted - sum(map(len, found))) > 0:
            messages = consumer.consume(min(left, 1_000), timeout=PATIENCE_S)
            assert messages, "the consumer waits for messages that the watermark promised"
            for message in messages:
                assert message.error() is None, message.error()
                found[message.partition()].append((message.offset(), int(message.value())))
    finally:
        consumer.close()
    return found


# Half a minute on an idle machine; most of it are starts of processes, which a busy one stretches.
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("policy", "kills", "segment_bytes"),
    [
        ("durable", 50, 1 << 30),
        ("page-cache", 15, 1 << 30),
        ("durable", 8, 20_000),
        ("page-cache", 8, 20_000),
    ],
)
def test_kill_9_loses_nothing_repeats_nothing_and_keeps_the_order(
    policy: str,
    kills: int,
    segment_bytes: int,
    tmp_path: Path,
    free_port: int,
    seed: Callable[[], int],
) -> None:
    random_ = random.Random(seed())
    settings = {"log.flush.policy": policy, "log.segment.bytes": str(segment_bytes)}
    with BrokerProcess(tmp_path / "data", free_port, settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("numbers", PARTITIONS, 1)])["numbers"].result(PATIENCE_S)
        workload = Workload(broker.address)
        for _ in range(kills):
            # From "before the first answer since the restart" to "in the middle of a long run".
            workload.run_until(workload.acknowledged + random_.randrange(1, random_.choice((5, 100, 3_000))))
            broker.kill()
            broker.start()
        workload.finish()
        found = read_back(broker.address)
        for number in range(PARTITIONS):
            assert [value for _, value in found[number]] == workload.sent[number], f"partition {number}"
            assert [offset for offset, _ in found[number]] == list(range(len(found[number])))
            assert {value: offset for offset, value in found[number]} == workload.offsets[number]
    print(f"{kills} kills under {policy}: {workload.acknowledged} messages, each once and in order")
