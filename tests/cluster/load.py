"""A producer that writes all the time, beside whatever is done to the cluster, and what came of it.

librdkafka with acks=all and idempotence: what it reports as delivered must be there once, in order, whatever happened.
"""

import itertools
import threading
import time
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.cluster.running_cluster import PATIENCE_S, RunningCluster

_PAUSE_S = 0.002


class Load:
    """`with` begins; its end waits until everything was answered, and checks all of it."""

    def __init__(self, cluster: RunningCluster, topic: str, **settings: Any) -> None:
        self.topic = topic
        self._cluster = cluster
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                # librdkafka waits up to a second by default before it tries again, which would be its stall, not ours.
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 20,
                "error_cb": lambda _error: None,
                **names,
            }
        )
        self.sent = 0
        #: What was acknowledged: value → offset.
        self.acknowledged: dict[int, int] = {}
        self.errors: list[str] = []
        #: When each acknowledgement came.
        self.times: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None:
            assert self._producer.flush(PATIENCE_S) == 0, self._cluster.said()
            self.check()

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE_S):
            self._producer.produce(
                self.topic, str(self.sent).encode(), partition=0, on_delivery=self._delivered
            )
            self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self.times.append(time.monotonic())
        self.acknowledged[int(message.value())] = message.offset()

    # --- what came of it --------------------------------------------------------------------------------------

    def wait_for_more(self, count: int = 50) -> None:
        """Until so many more than now were acknowledged."""
        wanted = len(self.times) + count
        self._cluster.wait_until(lambda: len(self.times) >= wanted, f"{count} more are acknowledged")

    def longest_stall_s(self, since_s: float) -> float:
        """The longest time between two acknowledgements."""
        times = [since_s, *(each for each in list(self.times) if each >= since_s)]
        return max(after - before for before, after in itertools.pairwise(times))

    def check(self) -> None:
        """Nothing acknowledged is lost, nothing is there twice, and the order is that of sending."""
        assert self.errors == []
        assert len(self.acknowledged) == self.sent
        # R14: a repetition is answered with the offset of the first time.
        unknown = [value for value, offset in self.acknowledged.items() if offset is None or offset < 0]
        assert unknown == [], self._cluster.said()
        end = max(self.acknowledged.values()) + 1
        found = read_all(self._cluster, self.topic, end)
        assert sorted(found) == list(range(end))
        values = [found[offset] for offset in range(end)]
        assert values == list(range(self.sent))
        assert {value: offset for offset, value in found.items()} == self.acknowledged


def read_all(cluster: RunningCluster, topic: str, end: int) -> dict[int, int]:
    """offset → value, of partition 0 up to an offset."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE_S
    while not found or max(found) < end - 1:
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                assert message.offset() not in found
                found[message.offset()] = int(message.value())
        assert time.monotonic() < deadline, f"read {len(found)} of {end}\n{cluster.said()}"
    consumer.close()
    return found
