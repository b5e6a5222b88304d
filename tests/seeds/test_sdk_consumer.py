"""What the notes say of the consumer, claim by claim (A4, A6, D1 to D6), with `ottla.Consumer`."""

# ruff: noqa: N802 (a test bears the id of its claim)

import contextlib
import itertools
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla import TopicPartition
from tests.broker_proxy import FETCH, Proxy
from tests.cluster.running_cluster import RunningCluster
from tests.cluster.topics import new_topic
from tests.sdk.members import QUICKLY, Member, wait_shared
from tests.sdk.reading import PATIENCE_S, eventually, values, within
from tests.seeds.test_coordinators import wait_for_coordinators

_NUMBERS = itertools.count()
JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14
OFFSETS_TOPIC = "__consumer_offsets"


@pytest.fixture
def name() -> str:
    """For a topic, or a group."""
    return f"readers-{next(_NUMBERS)}"


def create(address: str, topic: str, partitions: int = 1) -> None:
    with ottla.Admin(address) as admin:
        admin.create_topic(topic, partitions)


def write(address: str, topic: str, count: int, partition: int = 0, start: int = 0) -> None:
    with ottla.Producer(address) as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % number, partition=partition)


def places(topic: str, count: int) -> list[tuple[str, int]]:
    return [(topic, number) for number in range(count)]


def take(consumer: ottla.Consumer, count: int) -> list[int]:
    """So many values, as they come."""
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        for records in consumer.poll(200, max_records=count - len(found)).values():
            found += [int(record.value) for record in records]
    return found


# --- A4, A6 ---------------------------------------------------------------------------------------------------


def test_A4_an_idle_consumer_does_not_spin_and_hears_at_once_of_what_comes(proxy: Proxy, name: str) -> None:
    create(proxy.address, name)
    with ottla.Consumer(proxy.address, fetch_max_wait_ms=500) as consumer:
        consumer.assign([(name, 0)])
        consumer.poll(300)
        proxy.forget()
        with within(PATIENCE_S, at_least_s=1.99):
            assert consumer.poll(2_000) == {}
        assert 2 <= proxy.requests[FETCH] <= 8
    with ottla.Consumer(proxy.address, fetch_max_wait_ms=20_000) as consumer:
        consumer.assign([(name, 0)])
        consumer.poll(300)
        write(proxy.address, name, 1)
        # The broker holds the fetch for twenty seconds, unless something comes.
        with within(15):
            assert take(consumer, 1) == [0]


def test_A6_groups_are_independent_and_a_consumer_without_a_name_is_in_the_default_one(
    proxy: Proxy, name: str
) -> None:
    create(proxy.address, name, 2)
    for partition in range(2):
        write(proxy.address, name, 10, partition)
    with (
        Member(proxy.address, name, group=None) as one,
        Member(proxy.address, name, group=None) as other,
        Member(proxy.address, name, group=name) as another,
    ):
        assert one.consumer.group_metadata().group_id == "ottla"
        wait_shared([one, other], *places(name, 2), each_has=1)
        wait_shared([another], *places(name, 2))
        eventually(lambda: len(another.records) == 20, "it reads everything by itself")
        eventually(lambda: len(set(one.seen) | set(other.seen)) == 20, "the two share everything")
    with ottla.Admin(proxy.address) as admin:
        assert {TopicPartition(name, number): 10 for number in range(2)} == {
            part: offset for part, offset in admin.group_offsets("ottla").items() if part.topic == name
        }


# --- D1 -------------------------------------------------------------------------------------------------------


def test_D1_pull_with_a_time_subscribe_assign_seek_pause_and_resume(proxy: Proxy, name: str) -> None:
    create(proxy.address, name, 2)
    create(proxy.address, f"{name}-more", 1)
    write(proxy.address, name, 5)
    with ottla.Consumer(proxy.address, group_id=name, enable_auto_commit=False, **QUICKLY) as consumer:
        consumer.subscribe([name])
        assert take(consumer, 5) == [0, 1, 2, 3, 4]
        assert {tuple(part) for part in consumer.assignment()} == set(places(name, 2))
        assert set(consumer.subscription()) == {name}
        with within(PATIENCE_S, at_least_s=0.29):
            assert consumer.poll(300) == {}
        first, second = (TopicPartition(name, number) for number in range(2))
        consumer.seek(first, 3)
        assert take(consumer, 2) == [3, 4] and consumer.position(first) == 5
        # What is paused is not handed out; the rest goes on.
        consumer.pause(first)
        assert list(consumer.paused()) == [first]
        write(proxy.address, name, 2, 0)
        write(proxy.address, name, 3, 1)
        assert take(consumer, 3) == [0, 1, 2] and consumer.position(second) == 3
        assert consumer.poll(200) == {}
        consumer.resume(first)
        assert take(consumer, 2) == [0, 1]
        consumer.unsubscribe()
        assert list(consumer.assignment()) == []
        consumer.subscribe(pattern=f"{name}-.*")
        write(proxy.address, f"{name}-more", 1)
        assert take(consumer, 1) == [0]
    with ottla.Consumer(proxy.address, **QUICKLY) as consumer:
        consumer.assign([second])
        consumer.seek(second, 1)
        assert take(consumer, 2) == [1, 2]


# --- D2 -------------------------------------------------------------------------------------------------------


class Recording:
    """An assignor that gives everything to the first, and writes down who has asked it."""

    name = "all-to-one"
    cooperative = False

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def assign(self, partitions: Mapping[str, int], members: Any) -> dict[str, list[TopicPartition]]:
        self.asked.append(sorted(members))
        first, *others = sorted(members)
        everything = [
            TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)
        ]
        return {first: everything, **{other: [] for other in others}}

    def user_data(self, owned: Any, generation: int) -> bytes:
        return b""


def test_D2_members_join_sync_heartbeat_and_leave_and_one_of_them_computes_the_assignment(
    proxy: Proxy, name: str
) -> None:
    create(proxy.address, name, 3)
    assignors = [Recording(), Recording()]
    members = [
        Member(proxy.address, name, group=name, partition_assignment_strategy=[assignor])
        for assignor in assignors
    ]
    with members[0], members[1]:
        eventually(
            lambda: any(len(asked) == 2 for each in assignors for asked in each.asked),
            "one of them has computed for both",
        )
        wait_shared(members, *places(name, 3))
        # The last to be asked for two: it alone was told who there is, and its word is what they have.
        last = [each.asked[-1] for each in assignors if each.asked and len(each.asked[-1]) == 2]
        assert len(last) == 1
        assert sorted(len(member.parts) for member in members) == [0, 3]
        beats = proxy.requests[HEARTBEAT]
        eventually(lambda: proxy.requests[HEARTBEAT] > beats + 5, "their hearts beat")
        assert proxy.requests[JOIN] >= 3 and proxy.requests[SYNC] >= 2 and not proxy.requests[LEAVE]
        members[0].close()
        assert proxy.requests[LEAVE] == 1
        wait_shared(members[1:], *places(name, 3))


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({"partition_assignment_strategy": ["range"]}, [2, 4]),
        ({"partition_assignment_strategy": ["roundrobin"]}, [3, 3]),
        ({"partition_assignment_strategy": ["sticky"]}, [3, 3]),
        ({"partition_assignment_strategy": ["cooperative-sticky"]}, [3, 3]),
        ({"group_protocol": "consumer", "group_remote_assignor": "range"}, [2, 4]),
        ({"group_protocol": "consumer", "group_remote_assignor": "uniform"}, [3, 3]),
    ],
    ids=lambda value: "-".join(str(each) for each in value.values()) if isinstance(value, dict) else "",
)
def test_D2_assignors_share_by_topic_or_by_partition(
    proxy: Proxy, name: str, settings: dict[str, Any], shares: list[int]
) -> None:
    """Two topics of three partitions: Range divides each topic, so one member has four; the others divide all six."""
    topics = [f"{name}-a", f"{name}-b"]
    for topic in topics:
        create(proxy.address, topic, 3)
    everything = [*places(topics[0], 3), *places(topics[1], 3)]
    with (
        Member(proxy.address, *topics, group=name, **settings) as one,
        Member(proxy.address, *topics, group=name, **settings) as other,
    ):
        wait_shared([one, other], *everything)
        eventually(
            lambda: sorted(len(each.parts) for each in (one, other)) == shares,
            f"{one.parts} and {other.parts}",
        )
        wait_shared([one, other], *everything)


def test_D2_sticky_members_keep_what_they_have_and_cooperative_ones_go_on_reading(
    proxy: Proxy, name: str
) -> None:
    create(proxy.address, name, 4)
    settings = {"partition_assignment_strategy": ["cooperative-sticky"]}
    with Member(proxy.address, name, group=name, **settings) as one:
        wait_shared([one], *places(name, 4))
        with Member(proxy.address, name, group=name, **settings) as other:
            wait_shared([one, other], *places(name, 4), each_has=2)
            # Only what moves was ever taken from it.
            assert [len(parts) for what, parts in one.told if what == "revoked" and parts] == [2]
        wait_shared([one], *places(name, 4))
        assert not [parts for what, parts in one.told if what == "lost"]


# --- D3 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_D3_partitions_are_shared_anew_when_members_topics_or_partitions_change(
    proxy: Proxy, name: str, protocol: str
) -> None:
    create(proxy.address, f"{name}-a", 2)
    settings = {"group": name, "pattern": f"{name}-.*", "group_protocol": protocol}
    with (
        contextlib.ExitStack() as stack,
        ottla.Admin(proxy.address) as admin,
    ):
        one = stack.enter_context(Member(proxy.address, **settings))
        wait_shared([one], *places(f"{name}-a", 2))
        other = stack.enter_context(Member(proxy.address, **settings))
        wait_shared([one, other], *places(f"{name}-a", 2), each_has=1)
        admin.create_partitions(f"{name}-a", 3)
        wait_shared([one, other], *places(f"{name}-a", 3))
        admin.create_topic(f"{name}-b", 2)
        wait_shared([one, other], *places(f"{name}-a", 3), *places(f"{name}-b", 2))
        admin.delete_topics([f"{name}-a"])
        wait_shared([one, other], *places(f"{name}-b", 2))
        other.close()
        wait_shared([one], *places(f"{name}-b", 2))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_D3_a_group_goes_on_when_its_coordinator_moves(
    cluster: RunningCluster, name: str, protocol: str
) -> None:
    topic = new_topic(cluster, (1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2))
    before = wait_for_coordinators(cluster, name)[name]
    settings = {"group": name, "group_protocol": protocol, "commits": True}
    with (
        Member(cluster.bootstrap, topic, **settings) as one,
        Member(cluster.bootstrap, topic, **settings) as other,
    ):
        wait_shared([one, other], *places(topic, 4), each_has=2)
        write(cluster.bootstrap, topic, 5)
        eventually(lambda: len(set(one.seen) | set(other.seen)) == 5, "they read")
        cluster.kill(before)
        eventually(
            lambda: wait_for_coordinators(cluster, name)[name] not in (before, -1), "another coordinates"
        )
        write(cluster.nodes[cluster.running()[0]].address, topic, 5, start=5)
        eventually(lambda: len(set(one.seen) | set(other.seen)) == 10, "they go on")
        other.close()
        wait_shared([one], *places(topic, 4))
    live = cluster.nodes[cluster.running()[0]].address
    with ottla.Admin(live) as admin:
        assert admin.group_offsets(name)[TopicPartition(topic, 0)] == 10


# --- D4 -------------------------------------------------------------------------------------------------------

#: Reads, says what it reads, and dies when it is told to.
READER = """
import json, sys, ottla
address, topic, commits, settings = sys.argv[1], sys.argv[2], sys.argv[3] == "True", json.loads(sys.argv[4])
consumer = ottla.Consumer(address, **settings)
consumer.subscribe([topic])
while True:
    for records in consumer.poll(1000, max_records=1).values():
        for record in records:
            if commits:
                consumer.commit()
            print(int(record.value), flush=True)
"""


def read_and_be_killed(
    address: str, topic: str, count: int, *, commits: bool = False, **settings: Any
) -> list[int]:
    """What a process reads until it has read so many; then it is killed. A static member: the next one comes in its place."""
    given = json.dumps({**QUICKLY, "group_id": topic, "group_instance_id": "reader", **settings})
    process = subprocess.Popen(
        [sys.executable, "-c", READER, address, topic, str(commits), given], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        return [int(process.stdout.readline()) for _ in range(count)]
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_D4_automatic_commits_go_on_where_a_consumer_stopped_and_read_again_after_a_crash(
    proxy: Proxy, name: str
) -> None:
    create(proxy.address, name)
    write(proxy.address, name, 20)
    settings: dict[str, Any] = {**QUICKLY, "group_id": name, "auto_commit_interval_ms": 600_000}
    with ottla.Consumer(proxy.address, **settings) as consumer:
        consumer.subscribe([name])
        assert take(consumer, 5) == [0, 1, 2, 3, 4]
    # It was closed in order: the next one goes on. That one is killed before it commits: what it has read is read again.
    for _ in range(2):
        read = read_and_be_killed(proxy.address, name, 7, auto_commit_interval_ms=600_000)
        assert read == list(range(5, 12))


def test_D4_automatic_commits_happen_as_time_passes(proxy: Proxy, name: str) -> None:
    create(proxy.address, name)
    write(proxy.address, name, 3)
    with (
        Member(proxy.address, name, group=name, auto_commit_interval_ms=50) as member,
        ottla.Admin(proxy.address) as admin,
    ):
        eventually(
            lambda: admin.group_offsets(name).get(TopicPartition(name, 0)) == 3, "committed while it reads"
        )
        assert member.values == [b"0", b"1", b"2"]


def test_D4_commits_by_hand_lose_and_repeat_nothing_that_was_committed(proxy: Proxy, name: str) -> None:
    create(proxy.address, name)
    write(proxy.address, name, 20)
    read = read_and_be_killed(proxy.address, name, 7, commits=True, enable_auto_commit=False)
    assert read == list(range(7))
    with ottla.Admin(proxy.address) as admin:
        place = admin.group_offsets(name)[TopicPartition(name, 0)]
    # It was killed after it had said so, so perhaps in the middle of the next.
    again = read_and_be_killed(proxy.address, name, 20 - place, commits=True, enable_auto_commit=False)
    assert place >= 7 and again == list(range(place, 20))


def test_D4_where_a_group_begins_that_has_committed_nothing(proxy: Proxy, name: str) -> None:
    create(proxy.address, name)
    write(proxy.address, name, 3)
    for reset, expected in (("earliest", [0, 1, 2, 3]), ("latest", [3])):
        settings: dict[str, Any] = {**QUICKLY, "group_id": f"{name}-{reset}", "auto_offset_reset": reset}
        with ottla.Consumer(proxy.address, **settings) as consumer:
            consumer.subscribe([name])
            eventually(lambda consumer=consumer: consumer.poll(50) or consumer.assignment(), "assigned")
            where = consumer.position(TopicPartition(name, 0))
            assert where >= (0 if reset == "earliest" else 3)
            consumer.seek(TopicPartition(name, 0), expected[0])
            if reset == "latest":
                write(proxy.address, name, 1, start=3)
                assert take(consumer, 1) == expected


#: Copies what it reads into a database, in which its offsets are too; not too fast, so that it can be killed meanwhile.
COPIER = """
import json, sys, time, ottla, ottla.stores
address, topic, path, settings = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
store = ottla.stores.SQLiteOffsets(path)
store.connection.execute("CREATE TABLE IF NOT EXISTS read (value INTEGER)")
consumer = ottla.Consumer(address, offset_store=store, enable_auto_commit=False, max_poll_records=5, **settings)
consumer.subscribe([topic])
while True:
    batch = consumer.poll(200)
    values = [int(record.value) for records in batch.values() for record in records]
    if not values:
        continue
    try:
        with store.transaction() as database:
            database.executemany("INSERT INTO read VALUES (?)", [(value,) for value in values])
            consumer.commit()
    except ottla.stores.OffsetsMoved:
        continue  # another one has these partitions now; what was inserted is rolled back
    time.sleep(0.02)
"""


def test_D4_an_own_store_has_everything_once_whoever_is_killed(
    proxy: Proxy, name: str, tmp_path: Path
) -> None:
    """Results and offsets in one SQLite transaction; the start position comes from there at start and after each rebalance."""
    create(proxy.address, name, 2)
    for partition in range(2):
        write(proxy.address, name, 200, partition, start=1_000 * partition)
    path = tmp_path / "read.db"
    given = json.dumps({**QUICKLY, "group_id": name, "session_timeout_ms": 1_000})
    command = [sys.executable, "-c", COPIER, proxy.address, name, str(path), given]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command)

    def done() -> int:
        with (
            contextlib.closing(sqlite3.connect(path, timeout=30)) as database,
            contextlib.suppress(sqlite3.OperationalError),
        ):
            return int(database.execute("SELECT count(*) FROM read").fetchone()[0])
        return 0  # it is made just now

    running = [start(), start()]
    try:
        for number in range(1, 4):
            eventually(lambda number=number: done() >= 50 * number, "they read")
            victim = running.pop(0)
            victim.kill()
            victim.wait(PATIENCE_S)
            running.append(start())
        eventually(lambda: done() >= 400, "all is read")
    finally:
        for process in running:
            process.kill()
            process.wait(PATIENCE_S)
    with contextlib.closing(sqlite3.connect(path)) as database:
        read = [value for (value,) in database.execute("SELECT value FROM read ORDER BY value")]
    assert read == [*range(200), *range(1_000, 1_200)]


# --- D5 -------------------------------------------------------------------------------------------------------


def test_D5_what_is_committed_is_in_fifty_compacted_partitions(proxy: Proxy, name: str) -> None:
    create(proxy.address, name)
    with (
        ottla.Consumer(proxy.address, group_id=name, **QUICKLY) as consumer,
        ottla.Admin(proxy.address) as admin,
    ):
        consumer.assign([(name, 0)])
        consumer.commit({TopicPartition(name, 0): 42})
        [committed] = consumer.committed([TopicPartition(name, 0)]).values()
        assert getattr(committed, "offset", committed) == 42
        topic = admin.list_topics(internal=True)[OFFSETS_TOPIC]
        assert len(topic.partitions) == 50 and {len(each.replicas) for each in topic.partitions.values()} == {
            1
        }


def test_D5_on_a_cluster_three_brokers_have_it_and_it_outlives_two(
    cluster: RunningCluster, name: str
) -> None:
    topic = new_topic(cluster, (1, 2, 3))
    part = TopicPartition(topic, 0)
    wait_for_coordinators(cluster, name)
    with ottla.Consumer(cluster.bootstrap, group_id=name, **QUICKLY) as consumer:
        consumer.assign([part])
        consumer.commit({part: 7})
        coordinator = wait_for_coordinators(cluster, name)[name]
        with ottla.Admin(cluster.bootstrap) as admin:
            described = admin.list_topics(internal=True)[OFFSETS_TOPIC]
        assert {len(each.replicas) for each in described.partitions.values()} == {3}
        cluster.kill(coordinator)
        [committed] = consumer.committed([part]).values()
        assert getattr(committed, "offset", committed) == 7


# --- D6 -------------------------------------------------------------------------------------------------------


def test_D6_isolation_decides_whether_open_and_aborted_transactions_are_seen(proxy: Proxy, name: str) -> None:
    create(proxy.address, name)

    def seen() -> tuple[list[bytes], list[bytes]]:
        return (
            values(proxy.address, name, isolation_level="read_committed"),
            values(proxy.address, name, isolation_level="read_uncommitted"),
        )

    with (
        ottla.Producer(proxy.address, transactional_id=name) as producer,
        ottla.Producer(proxy.address) as plain,
    ):
        producer.begin()
        producer.send(name, b"a", partition=0)
        producer.flush(PATIENCE_S)
        plain.send(name, b"plain", partition=0).result(PATIENCE_S)
        # Behind the last stable offset, even what belongs to no transaction waits.
        assert seen() == ([], [b"a", b"plain"])
        producer.commit()
        # The commit is decided; its marker is written a moment later.
        eventually(lambda: seen() == ([b"a", b"plain"], [b"a", b"plain"]), "the transaction is seen")
        with contextlib.suppress(ZeroDivisionError), producer.transaction():
            producer.send(name, b"b", partition=0).result(PATIENCE_S)
            raise ZeroDivisionError
        plain.send(name, b"c", partition=0).result(PATIENCE_S)
        eventually(
            lambda: seen() == ([b"a", b"plain", b"c"], [b"a", b"plain", b"b", b"c"]),
            "what was aborted is seen by who does not care",
        )
