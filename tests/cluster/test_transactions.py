"""Messages are copied in transactions while brokers are killed and stopped: each is there once, for a concurrent reader too."""

import threading
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.cluster.copies import Reader, new_wide_topic, wait_stable
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.topics import QUIET, write

ALL = (1, 2, 3)
PARTITIONS = 3
MESSAGES = 3_000
#: As many are copied in one transaction.
SIZE = 75


class Copier:
    """Consume, transform, produce; what fails in a way that may be aborted is, and then read again."""

    def __init__(self, cluster: RunningCluster, source: str, target: str) -> None:
        self._cluster, self._source, self._target = cluster, source, target
        self.copied = 0
        self.aborted = 0
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._thread.join(3 * PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.copied} were copied"
        assert self.errors == []

    def _run(self) -> None:
        try:
            self._copy()
        except Exception as error:  # it is told by `end`
            self.errors.append(repr(error))

    def _begin_producer(self) -> Any:
        producer = Producer(
            {
                "bootstrap.servers": self._cluster.bootstrap,
                "transactional.id": f"copy-{self._source}",
                # librdkafka #5511: after it has begun anew with its bootstrap servers it waits for a coordinator that it has given up.
                "metadata.recovery.strategy": "none",
                **QUIET,
            }
        )
        producer.init_transactions(PATIENCE_S)
        return producer

    def _copy(self) -> None:
        producer = self._begin_producer()
        consumer = Consumer(
            {
                "bootstrap.servers": self._cluster.bootstrap, "group.id": f"copy-{self._source}",
                "isolation.level": "read_committed", "enable.auto.commit": False, "auto.offset.reset": "earliest", **QUIET,
            }
        )  # fmt: skip
        places = [TopicPartition(self._source, number, 0) for number in range(PARTITIONS)]
        consumer.assign(places)
        at = dict.fromkeys(range(PARTITIONS), 0)
        while self.copied < MESSAGES:
            messages = [each for each in consumer.consume(SIZE, 1.0) if each.error() is None]
            if not messages:
                continue
            after = at | {each.partition(): each.offset() + 1 for each in messages}
            try:
                producer.begin_transaction()
                for each in messages:
                    producer.produce(self._target, each.value(), partition=each.partition())
                offsets = [TopicPartition(self._source, number, offset) for number, offset in after.items()]
                producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
                producer.commit_transaction(PATIENCE_S)
            except KafkaException as error:
                self.aborted += 1
                if error.args[0].txn_requires_abort():
                    producer.abort_transaction(PATIENCE_S)
                else:
                    producer = self._begin_producer()
                for number in at:
                    known = consumer.committed([TopicPartition(self._source, number)], PATIENCE_S)[0].offset
                    at[number] = max(known, 0)
                    consumer.seek(TopicPartition(self._source, number, at[number]))
                self.copied = sum(at.values())
                continue
            at = after
            self.copied = sum(at.values())
        consumer.close()


def test_what_is_copied_is_there_once_whatever_dies(shared: RunningCluster) -> None:
    source, target = new_wide_topic(shared, PARTITIONS), new_wide_topic(shared, PARTITIONS)
    each = MESSAGES // PARTITIONS
    values = {number: [b"%d-%d" % (number, at) for at in range(each)] for number in range(PARTITIONS)}
    for number, own in values.items():
        write(shared, source, *own, number=number)
    copier, reader = Copier(shared, source, target), Reader(shared, target, PARTITIONS)
    copier.begin()
    for step, node in enumerate(ALL):
        reader.read(MESSAGES * (step + 1) // 5)
        if step == 1:
            shared.stop(node)
        else:
            shared.kill(node)
        reader.read(MESSAGES * (step + 2) // 5 - SIZE)
        shared.restart(node)
        for topic in (source, target):
            shared.wait_in_sync(topic, node % 3 + 1, ALL, range(PARTITIONS))
    copier.end()
    reader.read(MESSAGES)
    reader.close()
    assert reader.values == values
    wait_stable(shared, target, PARTITIONS)
    fresh = Reader(shared, target, PARTITIONS)
    fresh.read(MESSAGES)
    fresh.close()
    assert fresh.values == values
    print(f"{copier.copied} were copied, {copier.aborted} transactions were aborted")
