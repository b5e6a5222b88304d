"""The claims of mission.md about consumers and their groups that a single node makes true: A6, A7, D1 to D5."""

# ruff: noqa: N802 (a test bears the id of its claim)

import contextlib
import itertools
import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.clients.subscribers import ConfluentFollower, ConfluentSubscriber, Subscriber, eventually, have_all
from tests.cluster.running_cluster import free_ports
from tests.crash.broker_process import PATIENCE_S, BrokerProcess, Wire
from tests.docs_examples import OFFSETS, programs
from tests.killed_consumers import PARTITIONS, Consumers, count_while_killed, produce_amounts

_NUMBERS = itertools.count()
OTTLA = str(Path(sys.executable).parent / "ottla")
FIND_COORDINATOR, JOIN, SYNC, DESCRIBE_CONFIGS = 10, 11, 14, 32
QUICK = {
    "group.initial.rebalance.delay.ms": "100", "group.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "200", "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000", "auto.create.topics.enable": "false",
}  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all: topics and groups are each test's own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", next(free_ports()), QUICK) as process:
        yield process


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return f"{request.node.name.partition('[')[0][:40]}-{next(_NUMBERS)}"


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 0})


def create(admin: AdminClient, topic: str, partitions: int) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)


def write(broker: BrokerProcess, topic: str, count: int, partition: int = 0, start_ms: int = 0) -> None:
    """Numbers from 0 on, a second apart if it matters when."""
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for number in range(count):
        producer.produce(
            topic, b"%d" % number, partition=partition, timestamp=start_ms and start_ms + number * 1000
        )
    assert producer.flush(PATIENCE_S) == 0


def places(topic: str, count: int) -> list[tuple[str, int]]:
    return [(topic, number) for number in range(count)]


def settings(broker: BrokerProcess, group: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0,
        **{name.replace("_", "."): value for name, value in more.items()},
    }  # fmt: skip


@contextlib.contextmanager
def consuming(broker: BrokerProcess, group: str, *topics: str, **more: Any) -> Iterator[Any]:
    consumer = Consumer(settings(broker, group, **more))
    if topics:
        consumer.subscribe(list(topics))
    try:
        yield consumer
    finally:
        consumer.close()


def values(consumer: Any, count: int) -> list[int]:
    messages = consumer.consume(count, timeout=PATIENCE_S)
    assert all(message.error() is None for message in messages)
    return [int(message.value()) for message in messages]


@contextlib.contextmanager
def members(*subscribers: Subscriber) -> Iterator[list[Subscriber]]:
    """Those that are still in the list at the end are closed."""
    listed = list(subscribers)
    try:
        yield listed
    finally:
        for member in listed:
            member.close()


# --- A6, A7 ---------------------------------------------------------------------------------------------------


def test_A6_groups_read_independently_and_a_partition_belongs_to_one_consumer_of_a_group(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    """Two groups read everything each; in a group of three, two have a partition each and one has none."""
    create(admin, topic, 2)
    write(broker, topic, 10, 0)
    write(broker, topic, 10, 1)
    with members(
        *(ConfluentSubscriber(broker.address, "one-group", topic) for _ in range(3)),
        ConfluentSubscriber(broker.address, "another", topic),
    ) as all_members:
        *one_group, another = all_members
        eventually(lambda: have_all([another], *places(topic, 2)) and len(another.seen) == 20, "alone")
        eventually(
            lambda: (
                have_all(one_group, *places(topic, 2))
                and sorted(len(each.parts) for each in one_group) == [0, 1, 1]
            ),
            "one consumer a partition, and nothing for the third",
        )
        eventually(lambda: len({each[1:3] for m in one_group for each in m.seen}) == 20, "all is read")


def test_A7_a_group_is_reset_to_a_number_the_ends_or_a_time_and_reads_again(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    """From outside, while no member is there; what it reads then is what it was set to."""
    create(admin, topic, 1)
    start_ms = time.time_ns() // 1_000_000 - 100_000
    write(broker, topic, 100, start_ms=start_ms)

    def reset(*way: str) -> None:
        command = [OTTLA, "group", "reset", topic, *way, "--bootstrap", broker.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr

    def next_value() -> int:
        with consuming(broker, topic, topic, enable_auto_commit=False) as consumer:
            [value] = values(consumer, 1)
            return value

    with consuming(broker, topic, topic) as consumer:
        assert values(consumer, 100) == list(range(100))
    for way, expected in (
        (["--to-offset", "42"], 42), (["--to-earliest"], 0), (["--to-time", str(start_ms + 66_500)], 67),
    ):  # fmt: skip
        reset(*way)
        assert next_value() == expected, way
    reset("--to-latest")
    with consuming(broker, topic, topic, enable_auto_commit=False) as consumer:
        assert consumer.poll(0.5) is None
        [place] = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)
        assert place.offset == 100


# --- D1 -------------------------------------------------------------------------------------------------------


def test_D1_a_consumer_pulls_subscribes_assigns_seeks_pauses_and_resumes(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    """Each pull carries a time-out and comes back with nothing when that is over."""
    create(admin, topic, 2)
    create(admin, f"{topic}-more", 1)
    with consuming(broker, topic, enable_auto_commit=False) as consumer:
        began = time.monotonic()
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
            assert time.monotonic() < began + PATIENCE_S
        assert {(each.topic, each.partition) for each in consumer.assignment()} == set(places(topic, 2))
        began = time.monotonic()
        assert consumer.poll(0.3) is None and time.monotonic() - began >= 0.29
        write(broker, topic, 5, 0)
        assert values(consumer, 5) == [0, 1, 2, 3, 4]
        consumer.seek(TopicPartition(topic, 0, 3))
        assert values(consumer, 2) == [3, 4]
        # What is paused is kept and not pulled; the rest goes on.
        consumer.pause([TopicPartition(topic, 0)])
        write(broker, topic, 2, 0)
        write(broker, topic, 3, 1)
        assert [m.partition() for m in consumer.consume(5, timeout=1)] == [1, 1, 1]
        consumer.resume([TopicPartition(topic, 0)])
        assert values(consumer, 2) == [0, 1]
        consumer.unsubscribe()
        consumer.subscribe([f"^{topic}-.*"])
        write(broker, f"{topic}-more", 1)
        assert values(consumer, 1) == [0]
    with consuming(broker, topic, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 1, 1)])
        assert values(consumer, 2) == [1, 2]


# --- D2 -------------------------------------------------------------------------------------------------------


def test_D2_members_join_and_sync_and_one_of_them_computes_the_assignment(
    broker: BrokerProcess, topic: str
) -> None:
    """By hand: the leader alone is told who there is; what it decides the broker hands on, whatever it is."""

    def join(wire: Wire, member_id: str) -> None:
        wire.send(
            JOIN, 9, group_id=topic, session_timeout=30_000, rebalance_timeout=30_000, member_id=member_id,
            group_instance_id=None, protocol_type="anything", protocols=[{"name": "mine", "metadata": b"about me"}],
            reason=None,
        )  # fmt: skip

    def sync(wire: Wire, joined: Any, **assignments: bytes) -> None:
        wire.send(
            SYNC, 5, group_id=topic, generation_id=joined.generation_id, member_id=joined.member_id,
            group_instance_id=None, protocol_type="anything", protocol_name="mine",
            assignments=[{"member_id": name, "assignment": part} for name, part in assignments.items()],
        )  # fmt: skip

    with Wire(broker.address) as one, Wire(broker.address) as two:
        [found] = one.ask(FIND_COORDINATOR, 4, coordinator_keys=[topic], key_type=0).coordinators
        assert found.error_code.value == 0
        ids = []
        for wire in (one, two):
            join(wire, "")
            ids.append(wire.receive().member_id)
        for wire, member_id in zip((one, two), ids, strict=True):
            join(wire, member_id)
        joined = [one.receive(), two.receive()]
        assert joined[0].leader == joined[1].leader and joined[0].leader in ids
        [leader] = [each for each in joined if each.member_id == each.leader]
        [follower] = [each for each in joined if each.member_id != each.leader]
        assert sorted(row.member_id for row in leader.members) == sorted(ids) and not follower.members
        assert {bytes(row.metadata) for row in leader.members} == {b"about me"}
        wires = dict(zip(ids, (one, two), strict=True))
        sync(wires[follower.member_id], follower)
        sync(
            wires[leader.member_id], leader,
            **{leader.member_id: b"a piece", follower.member_id: b"the other"},
        )  # fmt: skip
        assert wires[follower.member_id].receive().assignment == b"the other"
        assert wires[leader.member_id].receive().assignment == b"a piece"


@pytest.mark.parametrize(
    ("kind", "assignor", "shares"),
    [
        (ConfluentSubscriber, "range", [{0, 1}, {2}]), (ConfluentSubscriber, "roundrobin", None),
        (ConfluentSubscriber, "cooperative-sticky", None), (ConfluentFollower, "uniform", None),
        (ConfluentFollower, "range", [{0, 1}, {2}]),
    ],
)  # fmt: skip
def test_D2_assignors_share_by_topic_or_by_partition(
    broker: BrokerProcess, admin: AdminClient, topic: str, kind: Any, assignor: str, shares: Any
) -> None:
    """Two topics of three partitions, two members: Range divides each topic, so one member has four; the others divide all six."""
    create(admin, f"{topic}-a", 3)
    create(admin, f"{topic}-b", 3)
    everything = [*places(f"{topic}-a", 3), *places(f"{topic}-b", 3)]
    with members(
        *(
            kind(broker.address, topic, f"{topic}-a", f"{topic}-b", assignor=assignor, instance=name)
            for name in ("one", "two")
        )
    ) as both:

        def is_shared() -> bool:
            if not have_all(both, *everything):
                return False
            if shares is None:
                return all(len(each.parts) == 3 for each in both)
            had = [{number for name, number in each.parts if name == f"{topic}-a"} for each in both]
            return sorted(len(each.parts) for each in both) == [2, 4] and all(part in had for part in shares)

        eventually(is_shared, f"{[each.parts for each in both]}")


# --- D3 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ConfluentSubscriber, ConfluentFollower], ids=["classic", "consumer"])
def test_D3_partitions_are_shared_anew_when_members_topics_or_partitions_change(
    broker: BrokerProcess, admin: AdminClient, topic: str, kind: Any
) -> None:
    """A member comes; partitions are added; a topic appears that matches; one is deleted; a member leaves. The coordinator moves
    in `test_coordinators.py`."""
    create(admin, f"{topic}-a", 2)
    pattern = f"^{topic}-.*"
    with members(kind(broker.address, topic, pattern=pattern)) as group:
        everything = places(f"{topic}-a", 2)

        def settles(why: str) -> None:
            eventually(
                lambda: have_all(group, *everything) and all(each.parts for each in group),
                f"{why}: {[sorted(each.parts) for each in group]}",
            )

        settles("one member")
        group.append(kind(broker.address, topic, pattern=pattern))
        settles("a member came")
        admin.create_partitions([NewPartitions(f"{topic}-a", 3)])[f"{topic}-a"].result(PATIENCE_S)
        everything = places(f"{topic}-a", 3)
        settles("a partition was added")
        create(admin, f"{topic}-b", 2)
        everything += places(f"{topic}-b", 2)
        settles("a topic appeared")
        admin.delete_topics([f"{topic}-a"])[f"{topic}-a"].result(PATIENCE_S)
        everything = places(f"{topic}-b", 2)
        settles("a topic was deleted")
        group.pop().close()
        settles("a member left")


# --- D4 -------------------------------------------------------------------------------------------------------

#: Reads, says what it reads, and dies when it is told to; the settings come as they are.
READER = """
import json, sys
from confluent_kafka import Consumer
topic, settings, commits = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "True"
consumer = Consumer(settings)
consumer.subscribe([topic])
while True:
    message = consumer.poll(1)
    if message is not None and not message.error():
        if commits:
            consumer.commit(message, asynchronous=False)
        print(int(message.value()), flush=True)
"""


def read_and_be_killed(
    broker: BrokerProcess, topic: str, count: int, *, commits: bool = False, **more: Any
) -> list[int]:
    """What a process reads until it has read so many; then it is killed."""
    given = json.dumps(settings(broker, topic, group_instance_id="reader", **more))
    process = subprocess.Popen(
        [sys.executable, "-c", READER, topic, given, str(commits)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        return [int(process.stdout.readline()) for _ in range(count)]
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_D4_automatic_commits_go_on_where_a_consumer_stopped_and_read_again_after_a_crash(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, 1)
    write(broker, topic, 20)
    # Closed in order: the next one goes on.
    with consuming(broker, topic, topic) as consumer:
        assert values(consumer, 5) == [0, 1, 2, 3, 4]
    # Killed before the next automatic commit: whatever it has read the next one reads again.
    assert read_and_be_killed(broker, topic, 7, auto_commit_interval_ms=600_000) == list(range(5, 12))
    assert read_and_be_killed(broker, topic, 7, auto_commit_interval_ms=600_000) == list(range(5, 12))


def test_D4_commits_by_hand_lose_and_repeat_nothing_that_was_committed(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    """Half automatic: the program says when, the broker remembers."""
    create(admin, topic, 1)
    write(broker, topic, 20)
    read = read_and_be_killed(broker, topic, 7, commits=True, enable_auto_commit=False)
    assert read == list(range(7))
    with consuming(broker, topic, enable_auto_commit=False) as consumer:
        [place] = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)
    # It was killed after it had said so, so perhaps in the middle of the next.
    again = read_and_be_killed(broker, topic, 20 - place.offset, commits=True, enable_auto_commit=False)
    assert place.offset >= 7 and again == list(range(place.offset, 20))


def test_D4_an_own_store_counts_everything_once_whoever_is_killed(
    broker: BrokerProcess, admin: AdminClient, tmp_path: Path
) -> None:
    """Fully by hand: the program of docs/offsets.md keeps result and offset in one SQLite transaction, and goes to that offset
    whenever it is assigned a partition."""
    count, dice = 12_000, random.Random(random.randrange(1 << 32))
    create(admin, "amounts", PARTITIONS)
    [program] = [text for text in programs(OFFSETS) if "sqlite3" in text]
    script, database = tmp_path / "totals.py", tmp_path / "totals.db"
    script.write_text(program)
    expected = produce_amounts(broker.address, "amounts", count, dice.randrange(1 << 32))

    def progress() -> int:
        try:
            with contextlib.closing(sqlite3.connect(database)) as store:
                return int(store.execute("SELECT coalesce(sum(next), 0) FROM places").fetchone()[0])
        except sqlite3.OperationalError:
            # It is made just now, or written to.
            return 0

    def is_free() -> bool:
        with contextlib.closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as store:
            try:
                # Whoever only reads holds up those who commit, too.
                store.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                return False
            store.execute("ROLLBACK")
            return True

    command = [str(script), broker.address, "amounts", str(database)]
    with Consumers(command, progress, dice, is_free) as consumers:
        count_while_killed(consumers, count, dice, kills=4)
        with contextlib.closing(sqlite3.connect(database)) as store:
            assert dict(store.execute("SELECT name, total FROM totals")) == expected


# --- D5 -------------------------------------------------------------------------------------------------------


def test_D5_on_a_single_node_the_offsets_topic_has_fifty_compacted_partitions_and_one_replica(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    """It is made by the first group. The cluster's half is in `test_coordinators.py`."""
    create(admin, topic, 1)
    write(broker, topic, 1)
    with consuming(broker, topic, topic) as consumer:
        assert values(consumer, 1) == [0]
    offsets = admin.list_topics("__consumer_offsets", timeout=PATIENCE_S).topics["__consumer_offsets"]
    assert len(offsets.partitions) == 50
    assert all(len(each.replicas) == 1 for each in offsets.partitions.values())
    with Wire(broker.address) as wire:
        resource = {
            "resource_type": 2, "resource_name": "__consumer_offsets", "configuration_keys": ["cleanup.policy"],
        }  # fmt: skip
        [row] = wire.ask(DESCRIBE_CONFIGS, 1, resources=[resource], include_synonyms=False).results
        assert row.configs[0].value == "compact"
    # Written as any record is: what was committed is in the partition's log.
    logs = [path.read_bytes() for path in broker.data_dir.glob("__consumer_offsets-*/*.log")]
    assert sum(topic.encode() in log for log in logs) == 1
