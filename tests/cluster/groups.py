"""Groups of readers, as applications have them, while things are done to the cluster; and what came of it.

Each group has two members with a client's defaults, but that they begin at the start of a topic and commit what they have read
themselves, now and then, and wait for the answer. Whatever a client raises or reports is kept. Beside them somebody looks at the
committed offsets all the time: none goes back, and none that was acknowledged is missing.
"""

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, Self

import aiokafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla.ports.coordination import partition_of
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.topics import QUIET
from tests.crash.broker_process import Wire

OFFSETS_TOPIC = "__consumer_offsets"
PARTITIONS = 4
FIND_COORDINATOR, OFFSET_FETCH, ELECT_LEADERS, ALTER_REASSIGNMENTS = 10, 9, 43, 45
#: So often a member commits, if it has read something.
_COMMIT_S = 0.1
_LOOK_S = 0.1
_FEED_S = 0.01

Offsets = dict[int, int]


class Feed:
    """Writes to all partitions of a topic; `with` begins, and its end waits until everything is acknowledged."""

    def __init__(self, cluster: RunningCluster, topic: str) -> None:
        self.topic = topic
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, **QUIET})
        #: By partition: how many were acknowledged.
        self.ends: Offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.errors: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0
        assert self.errors == []

    def _run(self) -> None:
        for number in itertools.count():
            if self._ended.wait(_FEED_S):
                return
            self._producer.produce(
                self.topic, b"x", partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.ends[message.partition()] = max(self.ends[message.partition()], message.offset() + 1)


class Reader:
    """A member in a thread of its own."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.read: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
        self.parts: frozenset[int] = frozenset()
        #: What was acknowledged, and when.
        self.commits: list[tuple[float, Offsets]] = []
        self.errors: list[str] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.errors.append(repr(error))

    def run(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.ended.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"a member of {self.group} does not end"


class ConfluentReader(Reader):
    protocol = "classic"

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": self.group, "group.protocol": self.protocol,
                "auto.offset.reset": "earliest", "enable.auto.commit": False, **QUIET,
            }
        )  # fmt: skip
        unread: Offsets = {}

        def revoked(_consumer: Consumer, parts: list[TopicPartition]) -> None:
            # They are another member's from now on, who reads again what was not committed.
            for part in parts:
                unread.pop(part.partition, None)

        consumer.subscribe([self.topic], on_revoke=revoked, on_lost=revoked)
        committed_s = time.monotonic()
        try:
            while not self.ended.is_set():
                message = consumer.poll(0.05)
                self.parts = frozenset(each.partition for each in consumer.assignment())
                if message is not None and message.error():
                    self.errors.append(str(message.error()))
                elif message is not None:
                    self.read[message.partition()].add(message.offset())
                    unread[message.partition()] = message.offset() + 1
                if unread and time.monotonic() - committed_s > _COMMIT_S:
                    self._commit(consumer, unread)
                    unread.clear()
                    committed_s = time.monotonic()
        finally:
            consumer.close()

    def _commit(self, consumer: Consumer, offsets: Offsets) -> None:
        rows = [TopicPartition(self.topic, number, offset) for number, offset in offsets.items()]
        try:
            done = consumer.commit(offsets=rows, asynchronous=False)
        except KafkaException as error:
            self.errors.append(str(error))
            return
        self.errors += [str(row.error) for row in done if row.error is not None]
        self.commits.append(
            (time.monotonic(), {row.partition: row.offset for row in done if row.error is None})
        )


class NewReader(ConfluentReader):
    """Of a group of KIP-848."""

    protocol = "consumer"


class AiokafkaReader(Reader):
    def run(self) -> None:
        # It tells of every connection that breaks; here they do.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        asyncio.run(self._run())

    async def _run(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic, bootstrap_servers=self.bootstrap, group_id=self.group, auto_offset_reset="earliest",
            enable_auto_commit=False,
        )  # fmt: skip
        await consumer.start()
        unread: Offsets = {}
        committed_s = time.monotonic()
        try:
            while not self.ended.is_set():
                found = await consumer.getmany(timeout_ms=50)
                self.parts = frozenset(each.partition for each in consumer.assignment())
                for place, records in found.items():
                    self.read[place.partition].update(record.offset for record in records)
                    unread[place.partition] = records[-1].offset + 1
                if unread and time.monotonic() - committed_s > _COMMIT_S:
                    rows = {aiokafka.TopicPartition(self.topic, number): at for number, at in unread.items()}
                    await consumer.commit(rows)
                    self.commits.append((time.monotonic(), unread))
                    unread, committed_s = {}, time.monotonic()
        finally:
            await consumer.stop()


KINDS = (ConfluentReader, NewReader, AiokafkaReader)


class Watch:
    """Looks at a group's committed offsets again and again."""

    def __init__(self, cluster: RunningCluster, group: str, topic: str) -> None:
        self._cluster, self._group, self._topic = cluster, group, topic
        self.last: Offsets = {}
        self.went_back: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            found = committed(self._cluster, self._group, self._topic)
            for number, offset in (found or {}).items():
                if offset < self.last.get(number, 0):
                    self.went_back.append(f"{number}: {offset} after {self.last[number]}")
                self.last[number] = offset


def committed(cluster: RunningCluster, group: str, topic: str) -> Offsets | None:
    """What the group's coordinator knows; None if nobody answers just now."""
    with contextlib.suppress(OSError, StopIteration):
        coordinator = coordinator_of(cluster, group)
        if coordinator is None:
            return None
        rows = [{"name": topic, "partition_indexes": list(range(PARTITIONS))}]
        with Wire(cluster.nodes[coordinator].address, timeout_s=1) as wire:
            answer = wire.ask(OFFSET_FETCH, 7, group_id=group, topics=rows, require_stable=False)
        if answer.error_code.value == 0:
            return {
                row.partition_index: row.committed_offset
                for row in answer.topics[0].partitions
                if row.committed_offset >= 0
            }
    return None


def coordinator_of(cluster: RunningCluster, group: str) -> int | None:
    """As some broker that answers says."""
    for node in cluster.running():
        with contextlib.suppress(OSError), Wire(cluster.nodes[node].address, timeout_s=1) as wire:
            [row] = wire.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group]).coordinators
            if row.error_code.value == 0:
                return int(row.node_id)
    return None


_NAMES = itertools.count()


def move(cluster: RunningCluster, via: int, replicas: Iterable[Iterable[int]]) -> None:
    """Give each partition of the groups' topic these replicas, the first of which leads; wait until that is so."""
    wanted = [tuple(each) for each in replicas]
    rows = [{"partition_index": number, "replicas": list(each)} for number, each in enumerate(wanted)]
    numbers = [{"topic": OFFSETS_TOPIC, "partitions": list(range(len(wanted)))}]
    with Wire(cluster.nodes[via].address) as wire:
        answer = wire.ask(
            ALTER_REASSIGNMENTS, 1, timeout=10_000, allow_replication_factor_change=True,
            topics=[{"name": OFFSETS_TOPIC, "partitions": rows}],
        )  # fmt: skip
        assert answer.error_code.value == 0

        def is_moved() -> bool:
            wire.ask(ELECT_LEADERS, 2, election_type=0, topic_partitions=numbers, timeout=10_000)
            known = cluster.partitions(OFFSETS_TOPIC, via)
            return all(
                (known[at].leader, known[at].isr) == (each[0], tuple(sorted(each)))
                for at, each in enumerate(wanted)
            )

        cluster.wait_until(is_moved, "the groups' partitions have moved")


def names_led_by(cluster: RunningCluster, leader: int, count: int) -> list[str]:
    """Names of groups that this broker coordinates now, whoever did before."""
    cluster.wait_until(lambda: coordinator_of(cluster, "any") is not None, "there are coordinators")
    partitions = len(cluster.partitions(OFFSETS_TOPIC, leader))
    nodes = sorted(cluster.nodes)
    spread = [nodes[at % len(nodes) :] + nodes[: at % len(nodes)] for at in range(partitions)]
    move(cluster, leader, spread)
    names = (f"readers-{number}" for number in _NAMES)
    led = (name for name in names if spread[partition_of(name, partitions)][0] == leader)
    return list(itertools.islice(led, count))


class Groups:
    """One group of two for each kind of client, on one topic. `with` begins; its end checks everything."""

    def __init__(self, cluster: RunningCluster, topic: str, coordinator: int) -> None:
        self._cluster, self.topic = cluster, topic
        self.names = names_led_by(cluster, coordinator, len(KINDS))
        self.members: dict[str, list[Reader]] = {}
        self._watches: dict[str, Watch] = {}
        self._feed = Feed(cluster, topic)

    def __enter__(self) -> Self:
        self._feed.__enter__()
        for name, kind in zip(self.names, KINDS, strict=True):
            self.members[name] = [kind(self._cluster.bootstrap, name, self.topic) for _ in range(2)]
            self._watches[name] = Watch(self._cluster, name, self.topic)
        self.wait_shared()
        self.wait_for_more()
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        try:
            if kind is None:
                self._feed.end()
                self._check()
        finally:
            for watch in self._watches.values():
                watch.close()
            for member in self._all():
                member.close()

    def _all(self) -> Iterable[Reader]:
        return [member for members in self.members.values() for member in members]

    # --- waiting ----------------------------------------------------------------------------------------------

    def wait_shared(self) -> None:
        """Until each group's members have two partitions each, and all among them."""

        def is_shared(members: list[Reader]) -> bool:
            return sorted(sorted(each.parts) for each in members) in (
                [[0, 1], [2, 3]],
                [[0, 2], [1, 3]],
                [[0, 3], [1, 2]],
            )

        for name, members in self.members.items():
            self._cluster.wait_until(
                lambda members=members: is_shared(members),  # type: ignore[misc]
                f"{name} is shared: {self._story(name)}",
            )

    def wait_for_more(self, count: int = 5) -> None:
        """Until each member has committed so many times more."""
        wanted = {member: len(member.commits) + count for member in self._all()}
        for member, commits in wanted.items():
            self._cluster.wait_until(
                lambda member=member, commits=commits: len(member.commits) >= commits or member.errors,  # type: ignore[misc]
                f"{member.group} commits: {self._story(member.group)}",
            )
            assert member.errors == [], f"{member.group}: {member.errors}\n{self._cluster.said()}"

    def _story(self, name: str) -> str:
        return "; ".join(
            f"{type(each).__name__} has {sorted(each.parts)}, committed {len(each.commits)} times, {each.errors}"
            for each in self.members[name]
        )

    def stalls_s(self, since_s: float) -> dict[str, float]:
        """For each kind of member: the longest time between two commits of a member."""
        found: dict[str, float] = {}
        for member in self._all():
            times = [since_s, *(at for at, _offsets in list(member.commits) if at >= since_s)]
            longest = max(after - before for before, after in itertools.pairwise(times))
            kind = type(member).__name__
            found[kind] = max(found.get(kind, 0.0), longest)
        return found

    # --- what came of it --------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Every record was read by each group, and the group's offsets end where the topic does, without having gone back."""
        ends = self._feed.ends
        for name, members in self.members.items():

            def is_read(members: list[Reader] = members) -> bool:
                return all(
                    set(range(end)) <= set().union(*(member.read[number] for member in members))
                    for number, end in ends.items()
                )

            self._cluster.wait_until(is_read, f"{name} reads everything: {self._story(name)}")
            self._cluster.wait_until(
                lambda name=name: committed(self._cluster, name, self.topic) == ends,  # type: ignore[misc]
                f"{name} commits everything {ends}, not {committed(self._cluster, name, self.topic)}",
            )
            assert self._watches[name].went_back == []
            for member in members:
                assert member.errors == [], f"{name}: {member.errors}"
                for _at, offsets in member.commits:
                    assert all(ends[number] >= offset for number, offset in offsets.items())
