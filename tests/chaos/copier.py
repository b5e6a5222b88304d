"""A program that copies a topic in transactions: read, write, commit the offsets with it. It is killed and paused by its test.

    python copier.py BOOTSTRAP SOURCE TARGET PARTITIONS NAME

It copies every other partition, by its name ("one", "two"), which is its transactional id too. Each time it begins it takes one of the
three libraries, so that they take over from each other. What a library gives up is read again from the committed
offsets, with another producer. It ends with 3 when it hears that another has its name, and with 4 when nothing goes on.
"""

import logging
import os
import random
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.clients.transactors import TRANSACTORS

#: In one transaction.
SIZE = 750
FENCED, STUCK = 3, 4
#: librdkafka may wait for ever for a coordinator that it has given up (librdkafka #5511), aiokafka too (aiokafka #1145).
PATIENCE_S = 40.0


class Source(Consumer):  # type: ignore[misc]
    def __init__(self, bootstrap: str, group_id: str) -> None:
        super().__init__(
            {
                "bootstrap.servers": bootstrap, "group.id": group_id, "isolation.level": "read_committed",
                "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0,
            }
        )  # fmt: skip
        self.group_id = group_id


class Copier:
    def __init__(self, bootstrap: str, source: str, target: str, partitions: int, name: str) -> None:
        self._bootstrap, self._source, self._target, self._name = bootstrap, source, target, name
        first = ("one", "two").index(name)
        self._places = [TopicPartition(source, number) for number in range(first, partitions, 2)]
        self._consumer = Source(bootstrap, f"copy-{source}")
        self._library = random.choice(TRANSACTORS)
        self.went_on_s = time.monotonic()

    def run(self) -> int:
        producer: Any = None
        while True:
            try:
                if producer is None:
                    producer = self._library(self._bootstrap, f"copy-{self._name}", brisk=True)
                    # Only now: nothing of whoever had the name before is under way any more.
                    self._begin_at_committed()
                self._copy_once(producer)
                self.went_on_s = time.monotonic()
            except Exception as error:
                if producer is not None and producer.is_fencing(error):
                    return FENCED
                print(f"{self._name} ({self._library.name}): {error!r}", file=sys.stderr, flush=True)
                if producer is not None:
                    producer.close()
                    producer = None

    def _begin_at_committed(self) -> None:
        known = self._consumer.committed(self._places, PATIENCE_S)
        for each in known:
            if each.error is not None:
                raise KafkaException(each.error)
        self._consumer.assign(
            [TopicPartition(each.topic, each.partition, max(0, each.offset)) for each in known]
        )

    def _copy_once(self, producer: Any) -> None:
        messages = [each for each in self._consumer.consume(SIZE, 1.0) if each.error() is None]
        if not messages:
            return
        producer.begin()
        for each in messages:
            producer.send(self._target, each.value(), partition=each.partition())
        producer.flush()
        offsets = {(self._source, each.partition()): each.offset() + 1 for each in messages}
        producer.send_offsets(self._consumer, offsets)
        producer.commit()


def watch(copier: Copier) -> None:
    """Whoever has stood still finds that time has passed: it gets its turn first."""
    pause, seen_s = threading.Event(), time.monotonic()
    waited_s = 0.0
    while waited_s < PATIENCE_S:
        pause.wait(1)
        waited_s = waited_s + 1 if seen_s == copier.went_on_s else 0.0
        seen_s = copier.went_on_s
    os._exit(STUCK)


if __name__ == "__main__":
    logging.disable()
    copying = Copier(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    threading.Thread(target=watch, args=(copying,), daemon=True).start()
    os._exit(copying.run())
