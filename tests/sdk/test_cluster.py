"""Leaders and coordinators that move, and hanging brokers, on a cluster of three."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ottla
from ottla import TopicPartition
from tests.cluster.running_cluster import RunningCluster
from tests.cluster.topics import controller_first, lead_by_preference, new_topic, state_of
from tests.sdk.members import Member, wait_shared
from tests.sdk.reading import PATIENCE_S, eventually, within

QUICKLY: dict[str, Any] = {"retry_backoff_ms": 10, "retry_backoff_max_ms": 100, "request_timeout_ms": 3_000}


class Flow:
    """A producer that writes all the time, and a consumer that reads it."""

    def __init__(self, cluster: RunningCluster, topic: str) -> None:
        self._producer = ottla.Producer(cluster.bootstrap, linger_ms=1, **QUICKLY)
        self._consumer = ottla.Consumer(cluster.bootstrap, auto_offset_reset="earliest", **QUICKLY)
        self._topic = topic
        self.sent: list[Any] = []
        self.read: list[int] = []
        self.errors: list[BaseException] = []
        self._ended = threading.Event()
        #: Nothing is added to `sent` any more.
        self._all_sent = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._reads)]
        self._consumer.assign([(topic, 0)])

    def _write(self) -> None:
        try:
            while not self._ended.wait(0.002):
                self.sent.append(self._producer.send(self._topic, b"%d" % len(self.sent), partition=0))
        except BaseException as error:
            self.errors.append(error)

    def _reads(self) -> None:
        try:
            while not self._all_sent.is_set() or len(self.read) < len(self.sent):
                for records in self._consumer.poll(100).values():
                    self.read += [int(record.value) for record in records]
        except BaseException as error:
            self.errors.append(error)

    def wait_for_more(self, count: int = 50) -> None:
        target = len(self.sent) + count
        eventually(lambda: self.errors or len(self.read) >= target, f"{count} more are read")
        assert self.errors == []

    @contextmanager
    def flowing(self) -> Iterator["Flow"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._threads[0].join()
            self._all_sent.set()
            self._producer.close(PATIENCE_S)
            self._threads[1].join(PATIENCE_S)
            self._consumer.close()
        assert self.errors == []
        assert [each.exception(0) for each in self.sent if each.exception(0)] == []
        assert self.read == list(range(len(self.sent)))


def test_producers_and_consumers_follow_a_leader_that_moves(cluster: RunningCluster) -> None:
    """By election, by reassignment, by death, and by standing still until it is missed: nothing is lost, doubled or disordered."""
    controller, second, third = controller_first(cluster)
    topic = new_topic(cluster, (second, third, controller))
    place = TopicPartition(topic, 0)
    with Flow(cluster, topic).flowing() as flow, ottla.Admin(cluster.bootstrap) as admin:
        flow.wait_for_more()
        admin.alter_partition_reassignments({place: [third, second, controller]})
        cluster.wait_until(lambda: state_of(cluster, topic).replicas[0] == third, "moved")
        admin.elect_leaders([place])
        cluster.wait_until(lambda: state_of(cluster, topic).leader == third, "elected")
        flow.wait_for_more()
        cluster.kill(third)
        flow.wait_for_more()
        cluster.restart(third)
        cluster.wait_in_sync(topic, controller, (1, 2, 3))
        leader = state_of(cluster, topic, controller).leader
        if leader != controller:
            # It stands still: its connections stay open, and nobody answers on them.
            cluster.pause(leader)
            cluster.wait_until(
                lambda: state_of(cluster, topic, controller).leader not in (leader, -1), "it is missed"
            )
            with within(40):
                flow.wait_for_more()
            cluster.resume(leader)
        flow.wait_for_more()


def test_a_group_follows_its_coordinator(cluster: RunningCluster) -> None:
    topic = new_topic(cluster, (1, 2, 3), (2, 3, 1))
    # The first question for a coordinator makes the topic.
    with ottla.Consumer(cluster.bootstrap, group_id="followers") as consumer:
        consumer.committed([TopicPartition(topic, 0)])
    lead_by_preference(cluster, "__consumer_offsets", 4)
    with (
        Member(cluster.bootstrap, topic, group="followers", commits=True) as one,
        Member(cluster.bootstrap, topic, group="followers", commits=True) as other,
        ottla.Producer(cluster.bootstrap, **QUICKLY) as producer,
    ):
        wait_shared([one, other], (topic, 0), (topic, 1), each_has=1)
        for node in (1, 2, 3):
            cluster.kill(node)
            for partition in range(2):
                producer.send(topic, b"%d" % node, partition=partition).result(PATIENCE_S)
            eventually(
                lambda node=node: len({*one.seen, *other.seen}) == 2 * node or one.errors or other.errors,
                "both records are read",
            )
            cluster.restart(node)
            cluster.wait_in_sync(topic, node, (1, 2, 3), (0, 1))
            cluster.wait_in_sync("__consumer_offsets", node, (1, 2, 3), range(4))


def test_a_client_starts_though_brokers_that_it_was_given_stand_still(cluster: RunningCluster) -> None:
    """Their ports take connections and nobody answers: the others are tried within the time for connections."""
    controller, second, third = controller_first(cluster)
    topic = new_topic(cluster, (controller,))
    for node in (second, third):
        cluster.pause(node)
    settings = {"socket_connection_setup_timeout_ms": 500}
    with (
        within(20),
        ottla.Producer(cluster.bootstrap, **settings) as producer,
        ottla.Consumer(cluster.bootstrap, auto_offset_reset="earliest", **settings) as consumer,
    ):
        producer.send(topic, b"0", partition=0).result(PATIENCE_S)
        consumer.assign([(topic, 0)])
        eventually(lambda: consumer.poll(100), "it is read")
