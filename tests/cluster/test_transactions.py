"""Messages are copied in transactions while brokers are killed and stopped: each is there once, for a concurrent reader too."""

import threading

import ottla
from ottla import KafkaError, TopicPartition
from tests.cluster.copies import Reader, new_wide_topic, wait_stable
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.topics import write

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

    def _copy(self) -> None:
        """With ottla's own clients: librdkafka waits for ever for a coordinator that has left the cluster (its #5511)."""
        bootstrap, name = self._cluster.bootstrap, f"copy-{self._source}"
        places = [TopicPartition(self._source, number) for number in range(PARTITIONS)]
        with ottla.Consumer(
            bootstrap, group_id=name, isolation_level="read_committed", enable_auto_commit=False,
            auto_offset_reset="earliest", max_poll_records=SIZE,
        ) as consumer:  # fmt: skip
            consumer.assign(places)
            producer = ottla.Producer(bootstrap, transactional_id=name)
            while self.copied < MESSAGES:
                messages = consumer.poll(1000)
                if not messages:
                    continue
                try:
                    with producer.transaction():
                        for (_, number), records in messages.items():
                            for record in records:
                                producer.send(self._target, record.value, partition=number)
                        after = {place: records[-1].offset + 1 for place, records in messages.items()}
                        producer.send_offsets(after, consumer.group_metadata())
                except KafkaError:
                    self.aborted += 1
                    producer.close(0)
                    producer = ottla.Producer(bootstrap, transactional_id=name)
                    known = consumer.committed(places)
                    for place in places:
                        consumer.seek(place, known[place].offset if place in known else 0)
                self.copied = sum(row.offset for row in consumer.committed(places).values())
            producer.close()


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
