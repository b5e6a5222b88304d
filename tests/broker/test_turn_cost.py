"""How long one call of the core takes at the limits of each request that changes something, with a large image.

A call of the core is what one client's request can make the others wait for. On a quiet machine 50 ms are the aim. The bound is CPU time,
twice as much: caches and clock rates of a loaded machine. Garbage collections run and are not counted: in this process they walk over
what all tests have made.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.broker.core import Broker
from ottla.metadata import records as r
from ottla.ports.effects import RUN
from testkit.cpu_time import thread_time_s
from tests.broker.conftest import Client, Driver

#: CPU time of one call.
CALL_MS = 100
#: Requests whose rows are handled in one call so far.
LONGER_MS = {
    "OffsetCommit": 300,
    "OffsetDelete": 200,
    "AddPartitionsToTxn, too many": 200,
    "ConsumerGroupHeartbeat": 250,
    # The controller's records of 10,000 partitions are applied to the image in one call.
    "CreateTopics, wide": 250,
    "DeleteTopics, wide": 250,
}
TOPICS, PARTITIONS = 10_000, 10
#: A topic with so many partitions as one request may make.
WIDE = "wide"
WIDE_PARTITIONS = 10_000
#: Rows of the largest requests, which are just below ROWS_PER_WRITE_MAX.
ROWS = 24_000
#: Partitions whose logs a request opens.
OPENED = 4_000
#: Topics of one subscription: all there are.
HEARTBEAT_TOPICS = 10_000
#: Topics that are created, widened and deleted, each of which has files.
NEW = 1_000
WIDENED = 500

(
    FETCH, METADATA, OFFSET_COMMIT, FIND_COORDINATOR, LIST_GROUPS, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS, TXN_OFFSET_COMMIT, CREATE_PARTITIONS, DELETE_GROUPS, ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS, ALTER_PARTITION_REASSIGNMENTS, OFFSET_DELETE, ALTER_PARTITION, CONSUMER_GROUP_HEARTBEAT,
) = (1, 3, 8, 10, 16, 19, 20, 22, 24, 27, 28, 37, 42, 43, 44, 45, 47, 56, 68)  # fmt: skip

_MEASURED = ("receive", "settle", "committed", "tick", "synced", "rejected")


class Stopwatch:
    """The longest call of the core since the last look, in milliseconds of CPU time."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self.where = ""

    def measured(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = thread_time_s()
            try:
                return call(*args, **options)
            finally:
                took = (thread_time_s() - began) * 1000
                if took > self.longest_ms:
                    self.longest_ms, self.where = took, name

        return timed


class MeasuredDriver(Driver):
    def __init__(self, directory: str) -> None:
        super().__init__(
            directory, {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
        )
        self.watch = Stopwatch()
        for name in _MEASURED:
            setattr(self.broker, name, self.watch.measured(name, getattr(self.broker, name)))

    def _perform(self, effect: Any) -> None:
        if effect[0] == RUN:
            # A job runs in another thread; what is told of it is a call of the core.
            self.watch.measured("done", effect[2])(effect[1](self.disk), None)
        else:
            super()._perform(effect)

    def commit(self, error: str | None = None) -> None:
        held, self.held_proposals = self.held_proposals, []
        for _kind, records, done in held:
            self.broker.committed(records, self.now_ms)
            self.watch.measured("done", done)(error)


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture(scope="module")
def large(tmp_path_factory: Any) -> Iterator[MeasuredDriver]:
    """A broker with 100,000 partitions, whose logs are created when needed."""
    driver = MeasuredDriver(str(tmp_path_factory.mktemp("large")))
    records: list[r.Record] = []
    for number in range(TOPICS):
        records.append(r.Topic(f"t{number}", topic_id(number + 1)))
        records.append(r.NewPartitions(topic_id(number + 1), 0, ((1,),) * PARTITIONS))
    Broker.committed(driver.broker, records, driver.now_ms)
    driver.broker.proposed = driver.broker.image
    driver.broker.partitions.to_create.clear()
    driver.turn()
    yield driver
    driver.close()


def by_topic(count: int) -> dict[str, list[int]]:
    """So many partitions of the image."""
    return {
        f"t{number}": list(range(min(PARTITIONS, count - number * PARTITIONS)))
        for number in range(-(-count // PARTITIONS))
    }


def topics_of(count: int, name: str, rows: str, make: Callable[[int], Any]) -> list[dict[str, Any]]:
    return [
        {name: topic, rows: [make(each) for each in numbers]} for topic, numbers in by_topic(count).items()
    ]


def asks(key: int, version: int | None = None, *, by_broker: bool = False, **fields: Any) -> Any:
    return key, version, by_broker, fields


def crowded() -> dict[str, Any]:
    return {
        "Fetch": asks(
            FETCH, 12, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=1 << 24, forgotten_topics_data=[],
            topics=topics_of(
                OPENED, "topic", "partitions",
                lambda each: {"partition": each, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1},
            ),
        ),
        "OffsetCommit": asks(
            OFFSET_COMMIT, 8, group_id="g", generation_id_or_member_epoch=-1, member_id="",
            topics=topics_of(
                ROWS - 2_400, "name", "partitions",
                lambda each: {"partition_index": each, "committed_offset": 1, "committed_metadata": "x"},
            ),
        ),
        "OffsetDelete": asks(
            OFFSET_DELETE, 0, group_id="g",
            topics=topics_of(ROWS - 2_400, "name", "partitions", lambda each: {"partition_index": each}),
        ),
        "FindCoordinator of long names": asks(
            FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[f"{number:04}" + "ä" * 8_000 for number in range(250)]
        ),
        "WriteTxnMarkers, one marker": asks(
            WRITE_TXN_MARKERS, 1, by_broker=True,
            markers=[
                {
                    "producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
                    "topics": topics_of(OPENED, "name", "partition_indexes", lambda each: each),
                }
            ],
        ),
        "WriteTxnMarkers, many markers": asks(
            WRITE_TXN_MARKERS, 1, by_broker=True,
            markers=[
                {
                    "producer_id": number + 2, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
                    "topics": [{"name": "t0", "partition_indexes": [number % PARTITIONS]}],
                }
                for number in range(8_000)
            ],
        ),
        "ElectLeaders of all": asks(ELECT_LEADERS, 2, election_type=0, topic_partitions=None, timeout=9_000),
        "ElectLeaders": asks(
            ELECT_LEADERS, 2, election_type=0, timeout=9_000,
            topic_partitions=topics_of(2 * ROWS - 4_800, "topic", "partitions", lambda each: each),
        ),
        "AlterPartitionReassignments": asks(
            ALTER_PARTITION_REASSIGNMENTS, 1, timeout=9_000, allow_replication_factor_change=True,
            topics=topics_of(47_000, "name", "partitions", lambda each: {"partition_index": each, "replicas": [1]}),
        ),
        "AlterPartition": asks(
            ALTER_PARTITION, 2, by_broker=True, broker_id=1, broker_epoch=-1,
            topics=[
                {
                    "topic_id": topic_id(number + 1),
                    "partitions": [
                        {"partition_index": each, "leader_epoch": 0, "new_isr": [1], "leader_recovery_state": 0, "partition_epoch": 0}
                        for each in range(PARTITIONS)
                    ],
                }
                for number in range(2_000)
            ],
        ),
        "ConsumerGroupHeartbeat": asks(
            CONSUMER_GROUP_HEARTBEAT, 1, group_id="c", member_id="m", member_epoch=0, rebalance_timeout=60_000,
            subscribed_topic_names=[f"t{number}" for number in range(HEARTBEAT_TOPICS)], topic_partitions=[],
        ),
        "IncrementalAlterConfigs": asks(
            INCREMENTAL_ALTER_CONFIGS, 1, validate_only=False,
            resources=[
                {
                    "resource_type": 2, "resource_name": f"t{number}",
                    "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1000000"}],
                }
                for number in range(TOPICS)
            ],
        ),
        "CreatePartitions": asks(
            CREATE_PARTITIONS, 3, timeout=9_000, validate_only=False,
            topics=[{"name": f"t{number}", "count": PARTITIONS + 1, "assignments": None} for number in range(WIDENED)],
        ),
        "CreateTopics": asks(
            CREATE_TOPICS, 7, timeout=9_000, validate_only=False,
            topics=[
                {"name": f"new.{number}", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
                for number in range(NEW)
            ],
        ),
        "CreateTopics, wide": asks(
            CREATE_TOPICS, 7, timeout=9_000, validate_only=False,
            topics=[
                {"name": WIDE, "num_partitions": WIDE_PARTITIONS, "replication_factor": 1, "assignments": [], "configs": []}
            ],
        ),
        "DeleteTopics, wide": asks(DELETE_TOPICS, 5, timeout=9_000, topic_names=[WIDE]),
        "DeleteTopics": asks(DELETE_TOPICS, 5, timeout=9_000, topic_names=[f"new.{number}" for number in range(NEW)]),
        "DeleteTopics without logs": asks(
            DELETE_TOPICS, 5, timeout=9_000, topic_names=[f"t{number}" for number in range(5_000, TOPICS)]
        ),
    }  # fmt: skip


@pytest.mark.timeout(400)
def test_no_request_holds_up_the_others(large: MeasuredDriver, capsys: Any) -> None:
    """In this order: the last ones delete what the first ones use."""
    client, broker = large.connect(), large.connect_broker()
    slow = {}
    broker.connection.broker_id = 1
    prepare(client)
    for what, (key, version, by_broker, fields) in (transactional(client) | crowded()).items():
        asker = broker if by_broker else client
        if key == FETCH:
            # As if they were new: the background has not come to them.
            for number in range(OPENED // PARTITIONS):
                large.broker.partitions.to_create.extend(
                    large.broker.partitions.by_name[f"t{number}"].replicas.values()
                )
        large.watch.longest_ms = 0
        asker.send(key, version, **fields)
        large.advance(0)
        measured = large.watch
        with capsys.disabled():
            print(f"\n  {what}: {measured.longest_ms:.0f} ms in {measured.where}", end="")
        assert asker.closed_because is None, f"{what}: {asker.closed_because}"
        assert len(asker.answers) == 1, what
        slow[what] = measured.longest_ms
        asker.answers.clear()
    assert {what: took for what, took in slow.items() if took > LONGER_MS.get(what, CALL_MS)} == {}


def prepare(client: Client) -> None:
    for key_type, name in enumerate("gx"):
        client.ask(FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=[name])


def transactional(client: Client) -> dict[str, Any]:
    """Requests within a transaction, which needs a producer first."""
    producer = client.ask(
        INIT_PRODUCER_ID,
        4,
        transactional_id="x",
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    old = {f"v3_and_below_{name}": value for name, value in ids.items()}
    return {
        "AddPartitionsToTxn": asks(
            ADD_PARTITIONS_TO_TXN, 3, v3_and_below_transactional_id="x", **old,
            v3_and_below_topics=topics_of(10_000, "name", "partitions", lambda each: each),
        ),
        "AddPartitionsToTxn, too many": asks(
            ADD_PARTITIONS_TO_TXN, 3, v3_and_below_transactional_id="x", **old,
            v3_and_below_topics=topics_of(ROWS - 2_400, "name", "partitions", lambda each: each),
        ),
        "TxnOffsetCommit": asks(
            TXN_OFFSET_COMMIT, 5, transactional_id="x", group_id="tg", **ids, generation_id=-1, member_id="", group_instance_id=None,
            topics=topics_of(
                8_000, "name", "partitions",
                lambda each: {"partition_index": each, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""},
            ),
        ),
    }  # fmt: skip
