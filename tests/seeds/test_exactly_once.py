"""Exactly once, claim by claim (C5, D6, E11's other half, F1, F2): idempotence, isolation, the three guarantees, transactions."""

# ruff: noqa: N802 (a test bears the id of its claim)

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.ports.coordination import partition_of
from tests.clients.transactors import ConfluentTransactor
from tests.cluster.running_cluster import RunningCluster, free_ports
from tests.cluster.topics import lead_by_preference
from tests.crash.broker_process import PATIENCE_S, PRODUCE, BrokerProcess, Wire, batch_of, producing

TRANSACTIONS_TOPIC = "__transaction_state"
FIND_COORDINATOR, INIT_PRODUCER_ID, DESCRIBE_TRANSACTIONS = 10, 22, 65
OUT_OF_ORDER, NOT_COORDINATOR = 45, 16
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all: topics, groups and transactional ids are each test's own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", next(free_ports())) as process:
        yield process


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_NUMBERS)}"


@pytest.fixture
def name(topic: str) -> str:
    """A transactional id."""
    return f"tx-{topic}"


def create(address: str, topic: str, partitions: int = 1, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(PATIENCE_S)


def consumer(address: str, group: str, isolation: str = COMMITTED) -> Any:
    return Consumer(
        {
            "bootstrap.servers": address, "group.id": group, "isolation.level": isolation, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "enable.partition.eof": True, "log_level": 0,
        }
    )  # fmt: skip


def read(
    address: str, topic: str, isolation: str = COMMITTED, partitions: int = 1, start: int = 0
) -> list[bytes]:
    """From an offset of each partition to the end that such a consumer sees."""
    reader = consumer(address, "reader", isolation)
    reader.assign([TopicPartition(topic, number, start) for number in range(partitions)])
    values: list[bytes] = []
    left = partitions
    while left:
        message = reader.poll(PATIENCE_S)
        assert message is not None, "no end in sight"
        if message.error() is None:
            values.append(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left -= 1
    reader.close()
    return values


def write(address: str, topic: str, *values: bytes, partition: int = 0, **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 0, **settings})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


# --- C5 -------------------------------------------------------------------------------------------------------


def test_C5_a_repeated_batch_is_kept_once_and_nothing_overtakes(broker: BrokerProcess, topic: str) -> None:
    """By producer id and sequence number: a repetition answers what the first did, a gap is refused."""
    create(broker.address, topic)
    with Wire(broker.address) as wire:
        answer = wire.ask(
            INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )  # fmt: skip
        who = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}

        def send(sequence: int, *values: bytes) -> tuple[int, int]:
            batch = batch_of(*values, base_sequence=sequence, **who)
            row = wire.ask(PRODUCE, 9, **producing(topic, batch)).responses[0].partition_responses[0]
            return row.error_code.value, row.base_offset

        assert send(0, b"0", b"1") == (0, 0)
        assert send(2, b"2") == (0, 2)
        assert send(0, b"0", b"1") == (0, 0)
        assert send(4, b"4")[0] == OUT_OF_ORDER
        assert send(3, b"3") == (0, 3)
        assert send(4, b"4") == (0, 4)
    assert read(broker.address, topic) == [b"0", b"1", b"2", b"3", b"4"]


def test_C5_a_client_retries_and_each_message_is_there_once_in_order(
    broker: BrokerProcess, topic: str
) -> None:
    """Its broker is killed in between; nobody can know which batches had been written and not acknowledged."""
    create(broker.address, topic)
    acknowledged = 0

    def delivered(error: Any, _message: Any) -> None:
        nonlocal acknowledged
        assert error is None
        acknowledged += 1

    producer = Producer(
        {
            "bootstrap.servers": broker.address, "enable.idempotence": True, "batch.num.messages": 10, "log_level": 0,
            "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 10,
        }
    )  # fmt: skip
    for number in range(2000):
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=delivered)
    while acknowledged < 100:
        producer.poll(0.01)
    broker.kill()
    broker.start()
    assert producer.flush(PATIENCE_S) == 0
    assert read(broker.address, topic) == [b"%d" % number for number in range(2000)]


def test_C5_alone_it_does_not_hold_across_sessions_and_partitions(broker: BrokerProcess, topic: str) -> None:
    """The next session has another producer id, so that what it repeats is new; and nothing ties two partitions together."""
    create(broker.address, topic, 2)
    write(broker.address, topic, b"order", **{"enable.idempotence": True})
    # It dies here: it does not know whether its message was written, and has not come to its other partition.
    assert read(broker.address, topic, partitions=2) == [b"order"]
    write(broker.address, topic, b"order", **{"enable.idempotence": True})
    write(broker.address, topic, b"invoice", partition=1, **{"enable.idempotence": True})
    assert sorted(read(broker.address, topic, partitions=2)) == [b"invoice", b"order", b"order"]


# --- D6 -------------------------------------------------------------------------------------------------------


def test_D6_isolation_decides_whether_open_and_aborted_transactions_are_seen(
    broker: BrokerProcess, topic: str, name: str
) -> None:
    create(broker.address, topic)
    producer = ConfluentTransactor(broker.address, name)

    def seen() -> tuple[list[bytes], list[bytes]]:
        return read(broker.address, topic, COMMITTED), read(broker.address, topic, UNCOMMITTED)

    producer.begin()
    producer.send(topic, b"a")
    producer.flush()
    write(broker.address, topic, b"plain")
    # Behind the last stable offset, even what belongs to no transaction waits.
    assert seen() == ([], [b"a", b"plain"])
    producer.commit()
    assert seen() == ([b"a", b"plain"], [b"a", b"plain"])
    producer.begin()
    producer.send(topic, b"b")
    producer.flush()
    producer.abort()
    write(broker.address, topic, b"c")
    assert seen() == ([b"a", b"plain", b"c"], [b"a", b"plain", b"b", b"c"])


# --- F1 -------------------------------------------------------------------------------------------------------


class Crash(Exception):
    """The program is gone; it cannot tidy up."""


def at_most_once(program: Any, value: bytes, crash: bool) -> None:
    program.source.commit(asynchronous=False)
    if crash:
        raise Crash
    write(program.address, program.target, value)


def at_least_once(program: Any, value: bytes, crash: bool) -> None:
    write(program.address, program.target, value)
    if crash:
        raise Crash
    program.source.commit(asynchronous=False)


def exactly_once(program: Any, value: bytes, crash: bool) -> None:
    program.producer.begin()
    program.producer.send(program.target, value)
    program.producer.flush()
    program.producer.send_offsets(program.source, {(program.source.topic, 0): int(value) + 1})
    if crash:
        raise Crash
    program.producer.commit()


class Program:
    """One run of it: it goes on where the last one had committed."""

    def __init__(self, address: str, topic: str, target: str, copy: Callable[..., None]) -> None:
        self.address, self.target, self._copy = address, target, copy
        # First of all: that ends what the last run left open, and only then is it known what was committed.
        self.producer = ConfluentTransactor(address, f"copy-{target}") if copy is exactly_once else None
        self.source = Source(address, topic)

    def run(self, until: bytes, crash_at: bytes) -> None:
        value = b""
        while value != until:
            message = self.source.poll(PATIENCE_S)
            assert message is not None and message.error() is None
            value = message.value()
            self._copy(self, value, value == crash_at)


class Source(Consumer):  # type: ignore[misc]
    """What one run of the program reads with: from the committed offset on."""

    def __init__(self, address: str, topic: str) -> None:
        self.group_id, self.topic = f"copy-{topic}", topic
        super().__init__(
            {
                "bootstrap.servers": address, "group.id": self.group_id, "isolation.level": COMMITTED,
                "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0,
            }
        )  # fmt: skip
        [known] = self.committed([TopicPartition(topic, 0)], PATIENCE_S)
        self.assign([TopicPartition(topic, 0, max(0, known.offset))])


@pytest.mark.parametrize(
    ("copy", "expected"),
    [
        (at_most_once, [b"0", b"1", b"3", b"4"]),
        (at_least_once, [b"0", b"1", b"2", b"2", b"3", b"4"]),
        (exactly_once, [b"0", b"1", b"2", b"3", b"4"]),
    ],
    ids=["at_most_once", "at_least_once", "exactly_once"],
)
def test_F1_a_program_that_crashes_at_its_third_message(
    broker: BrokerProcess, topic: str, copy: Callable[..., None], expected: list[bytes]
) -> None:
    """Offset first and the message may be lost; message first and it may be there twice; both in one transaction: once."""
    target = f"{topic}-copy"
    create(broker.address, topic)
    create(broker.address, target)
    write(broker.address, topic, *(b"%d" % number for number in range(5)))
    for crash_at in (b"2", b"never"):
        program = Program(broker.address, topic, target, copy)
        with contextlib.suppress(Crash):
            program.run(b"4", crash_at)
        program.source.close()
    assert read(broker.address, target) == expected


# --- F2 -------------------------------------------------------------------------------------------------------


def described(address: str, name: str) -> Any:
    with Wire(address) as wire:
        [row] = wire.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=[name]).transaction_states
    return row


def test_F2_a_transactional_id_keeps_its_producer_id_and_old_producers_are_fenced(
    broker: BrokerProcess, topic: str, name: str
) -> None:
    """The producer restarts, and the broker too; whoever had the name before can neither write nor commit."""
    create(broker.address, topic)
    zombie = ConfluentTransactor(broker.address, name)
    before = described(broker.address, name)
    zombie.begin()
    zombie.send(topic, b"of the zombie")
    zombie.flush()
    broker.kill()
    broker.start()
    heir = ConfluentTransactor(broker.address, name)
    after = described(broker.address, name)
    assert after.producer_id == before.producer_id
    assert after.producer_epoch > before.producer_epoch
    heir.begin()
    heir.send(topic, b"of the heir")
    heir.commit()
    with pytest.raises(KafkaException) as raised:
        zombie.commit()
    assert zombie.is_fencing(raised.value)
    assert read(broker.address, topic) == [b"of the heir"]


def test_F2_partitions_and_consumed_offsets_commit_or_abort_together(
    broker: BrokerProcess, topic: str, name: str
) -> None:
    create(broker.address, topic, 3)
    create(broker.address, f"{topic}-in")
    write(broker.address, f"{topic}-in", b"one", b"two")
    source = Source(broker.address, f"{topic}-in")
    producer = ConfluentTransactor(broker.address, name)

    def copy(value: bytes) -> None:
        producer.begin()
        for number in range(3):
            producer.send(topic, value, partition=number)
        producer.flush()
        producer.send_offsets(source, {(f"{topic}-in", 0): 1})

    def committed() -> int:
        return int(source.committed([TopicPartition(f"{topic}-in", 0)], PATIENCE_S)[0].offset)

    copy(b"aborted")
    producer.abort()
    assert read(broker.address, topic, partitions=3) == []
    assert committed() < 0
    copy(b"kept")
    producer.commit()
    assert committed() == 1
    assert read(broker.address, topic, partitions=3) == [b"kept"] * 3
    source.close()


def test_F2_a_consumer_may_miss_what_retention_has_deleted_or_it_seeks_past(
    broker: BrokerProcess, topic: str, name: str
) -> None:
    """A transaction is whole where it is written; a consumer that does not read all of it does not see all of it."""
    create(broker.address, topic, 2)
    producer = ConfluentTransactor(broker.address, name)
    producer.begin()
    for number in range(2):
        producer.send(topic, b"first %d" % number, b"second %d" % number, partition=number)
    producer.commit()
    everything = [b"first 0", b"first 1", b"second 0", b"second 1"]
    assert sorted(read(broker.address, topic, partitions=2)) == everything
    assert sorted(read(broker.address, topic, partitions=2, start=1)) == [b"second 0", b"second 1"]
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    for done in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        done.result(PATIENCE_S)
    assert sorted(read(broker.address, topic, partitions=2)) == [b"first 1", b"second 0", b"second 1"]


# --- E11, F2 on a cluster -------------------------------------------------------------------------------------


def coordinators(cluster: RunningCluster, via: int, names: list[str]) -> dict[str, int]:
    """Once every partition of the topic is led."""
    found: dict[str, int] = {}

    def are_there() -> bool:
        with Wire(cluster.nodes[via].address) as wire:
            answer = wire.ask(FIND_COORDINATOR, 4, key_type=1, coordinator_keys=names)
        found.update({row.key: row.node_id for row in answer.coordinators if not row.error_code.value})
        return len(found) == len(names)

    cluster.wait_until(are_there, "every transactional id has a coordinator")
    return found


def test_E11_every_broker_coordinates_the_transactions_of_the_partitions_it_leads(
    cluster: RunningCluster,
) -> None:
    """Any broker tells who; that one serves the id, the others send its producers away."""
    names = [f"e11-{number}" for number in range(60)]
    coordinators(cluster, 1, names)
    lead_by_preference(cluster, TRANSACTIONS_TOPIC, 50)
    known = coordinators(cluster, 1, names)
    assert set(known.values()) == {1, 2, 3}
    assert coordinators(cluster, 2, names) == known == coordinators(cluster, 3, names)
    state = cluster.partitions(TRANSACTIONS_TOPIC, 1)
    assert len(state) == 50 and all(len(each.replicas) == 3 for each in state.values())
    assert all(state[partition_of(name, 50)].leader == node for name, node in known.items())

    def code(node: int, name: str) -> int:
        with Wire(cluster.nodes[node].address) as wire:
            answer = wire.ask(
                INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout=60_000, producer_id=-1,
                producer_epoch=-1,
            )  # fmt: skip
        return int(answer.error_code.value)

    for name, node in list(known.items())[:10]:
        # It may still be reading what is there.
        cluster.wait_until(lambda node=node, name=name: code(node, name) == 0, name)
        assert {code(other, name) for other in {1, 2, 3} - {node}} == {NOT_COORDINATOR}


def test_F2_transactions_survive_the_loss_of_their_coordinator(
    cluster: RunningCluster, topic: str, name: str
) -> None:
    """It is killed in the middle of one: the next has its state from `__transaction_state`, and the producer commits."""
    create(cluster.bootstrap, topic, 3, 3)
    before = coordinators(cluster, 1, [name])[name]
    producer = ConfluentTransactor(cluster.bootstrap, name)
    row = described(cluster.nodes[before].address, name)
    producer.begin()
    for number in range(3):
        producer.send(topic, b"before", partition=number)
    producer.flush()
    cluster.kill(before)
    for number in range(3):
        producer.send(topic, b"after", partition=number)
    producer.commit()
    via = cluster.running()[0]
    after = coordinators(cluster, via, [name])[name]
    assert after != before
    assert described(cluster.nodes[after].address, name).producer_id == row.producer_id
    values = read(cluster.bootstrap, topic, partitions=3)
    assert sorted(values) == [b"after"] * 3 + [b"before"] * 3
