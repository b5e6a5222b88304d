"""Requests about very large groups, and what is done about very many groups at once, are spread over many turns.

The bound is a share: how much of the CPU time of all turns the longest one took. So it does not depend on the machine or its load. Before
these were done in slices the longest turn had nearly all of it.
"""

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.broker.core import Broker
from ottla.groups.formats import OFFSET_COMMIT, Committed, Record
from ottla.groups.shard import Shard
from ottla.metadata import records as r
from ottla.ports.coordination import Decision
from tests.broker.conftest import Client, Driver

TOPICS, PARTITIONS = 2_000, 10
ROWS = 10_000
GROUPS = 10_000
#: The longest turn's share of the time.
SHARE = 0.5

OFFSET_COMMIT_KEY, FIND_COORDINATOR, LIST_GROUPS, DELETE_TOPICS, INIT_PRODUCER_ID, TXN_OFFSET_COMMIT = (
    8,
    10,
    16,
    20,
    22,
    28,
)
DELETE_GROUPS, OFFSET_DELETE, CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 42, 47, 68, 69
EXPIRY_MS = 610_000


class SlicedDriver(Driver):
    """A turn is what the core is called with, and the `settle` that ends it."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            directory, {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
        )
        self._turn_s = 0.0
        self.turns_s: list[float] = []
        for name in ("receive", "settle", "committed", "tick", "synced"):
            setattr(self.broker, name, self._timed(name, getattr(self.broker, name)))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                self._turn_s += time.thread_time() - began
                if name == "settle":
                    self.turns_s.append(self._turn_s)
                    self._turn_s = 0.0

        return timed

    def share(self, act: Callable[[], Any]) -> float:
        """How much of the time of what is done the longest turn took."""
        self.turns_s.clear()
        act()
        self.advance(0)
        return max(self.turns_s) / sum(self.turns_s)

    @property
    def shard(self) -> Shard:
        [shard] = self.broker.groups.shards
        return shard


def topic_id(number: int) -> bytes:
    return (number + 1).to_bytes(16, "big")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: Any) -> Iterator[SlicedDriver]:
    driver = SlicedDriver(str(tmp_path_factory.mktemp("groups")))
    records: list[r.Record] = []
    # The last one is deleted by a test.
    for number in range(TOPICS + 1):
        records.append(r.Topic(f"t{number}", topic_id(number)))
        records.append(r.NewPartitions(topic_id(number), 0, ((1,),) * PARTITIONS))
    Broker.committed(driver.broker, records, driver.now_ms)
    driver.broker.proposed = driver.broker.image
    driver.broker.partitions.to_create.clear()
    client = driver.connect()
    for key_type, name in enumerate("gx"):
        client.ask(FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=[name])
    commit(client, "g", 1)
    gc.collect()
    gc.disable()
    yield driver
    gc.enable()
    driver.close()


@pytest.fixture
def client(driver: SlicedDriver) -> Client:
    return driver.connect()


def rows(count: int, make: Callable[[int], Any], name: str = "name") -> list[dict[str, Any]]:
    return [
        {name: f"t{number}", "partitions": [make(each) for each in range(PARTITIONS)]}
        for number in range(count // PARTITIONS)
    ] or [{name: "t0", "partitions": [make(0)]}]


def commit(client: Client, group_id: str, count: int) -> Any:
    def row(number: int) -> dict[str, Any]:
        return {
            "partition_index": number,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }

    return client.ask(
        OFFSET_COMMIT_KEY, 8, group_id=group_id, generation_id_or_member_epoch=-1, member_id="", topics=rows(count, row)
    )  # fmt: skip


def add_groups(driver: SlicedDriver, count: int) -> None:
    """Groups that somebody commits for by hand, without the requests, in the topic that will be deleted."""
    shard = driver.shard
    committed = Committed(1, -1, "", driver.broker.wall_ms, -1, topic_id(TOPICS))
    for group in range(count):
        shard.host.schedule(Decision([Record((OFFSET_COMMIT, f"many-{group}", f"t{TOPICS}", 0), committed)]))
        if group % 1000 == 0:
            driver.turn()
    driver.turn()
    # As after a load: groups for the offsets.
    shard.on_loaded(driver.now_ms)


def beat(client: Client, member_id: str, epoch: int = 0, **fields: Any) -> Any:
    if not epoch:
        fields |= {"rebalance_timeout": 60_000, "topic_partitions": []}
    return client.ask(
        CONSUMER_GROUP_HEARTBEAT, 1, group_id="c", member_id=member_id, member_epoch=epoch, **fields
    )


def test_members_with_very_many_topics(driver: SlicedDriver, client: Client) -> None:
    names = [f"t{number}" for number in range(TOPICS)]
    answers: list[Any] = []

    def join(member_id: str, topics: list[str]) -> None:
        answers.append(beat(client, member_id, subscribed_topic_names=topics))

    assert driver.share(lambda: join("m1", names)) < SHARE
    assert sum(len(each.partitions) for each in answers[0].assignment.topic_partitions) == TOPICS * PARTITIONS
    assert driver.share(lambda: join("m2", names[::2])) < SHARE, "a subscription that differs"
    # The first one gives up a half of what it has.
    assert driver.share(lambda: beat(client, "m1", 1)) < SHARE
    group = driver.shard.consumer_group("c")
    assert group is not None and sorted(map(len, group.targets.values())) == [TOPICS * PARTITIONS // 2] * 2
    assert driver.share(lambda: client.ask(CONSUMER_GROUP_DESCRIBE, 1, group_ids=["c"])) < SHARE


def test_very_many_offsets_of_a_group(driver: SlicedDriver, client: Client) -> None:
    assert driver.share(lambda: commit(client, "g", ROWS)) < SHARE
    assert len(driver.shard.offsets.of("g")) == ROWS
    topics = rows(ROWS - PARTITIONS, lambda number: {"partition_index": number})
    assert driver.share(lambda: client.ask(OFFSET_DELETE, 0, group_id="g", topics=topics)) < SHARE
    assert len(driver.shard.offsets.of("g")) == PARTITIONS
    commit(client, "g", ROWS)
    assert driver.share(lambda: client.ask(DELETE_GROUPS, 2, groups_names=["g"])) < SHARE
    assert "g" not in driver.shard.groups and not driver.shard.offsets.of("g")


def test_very_many_offsets_in_a_transaction(driver: SlicedDriver, client: Client) -> None:
    producer = client.ask(
        INIT_PRODUCER_ID, 4, transactional_id="x", transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
    )  # fmt: skip
    count = 6_000
    topics = rows(
        count,
        lambda number: {
            "partition_index": number, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "",
        },
    )  # fmt: skip
    fields = {
        "transactional_id": "x", "group_id": "tg", "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch, "generation_id": -1, "member_id": "", "group_instance_id": None,
    }  # fmt: skip
    assert driver.share(lambda: client.ask(TXN_OFFSET_COMMIT, 5, **fields, topics=topics)) < 0.6
    assert len(driver.shard.offsets.pending["tg"]) == count


def test_very_many_groups(driver: SlicedDriver, client: Client) -> None:
    add_groups(driver, GROUPS)
    listed: list[Any] = []

    def list_groups(*states: str) -> None:
        listed.append(client.ask(LIST_GROUPS, 5, states_filter=list(states), types_filter=[]).groups)

    assert driver.share(lambda: list_groups("Stable")) < SHARE
    list_groups()
    assert len(listed[1]) >= GROUPS
    assert driver.share(lambda: reload(driver)) < SHARE
    assert len(driver.shard.groups) >= GROUPS
    deletion = {"timeout": 9_000, "topic_names": [f"t{TOPICS}"]}
    assert driver.share(lambda: client.ask(DELETE_TOPICS, 5, **deletion)) < SHARE
    assert not any(group_id.startswith("many") for group_id in driver.shard.offsets.by_group)
    assert driver.share(lambda: driver.advance(EXPIRY_MS)) < SHARE
    assert not any(group_id.startswith("many") for group_id in driver.shard.groups)


def reload(driver: SlicedDriver) -> None:
    """The partition is led elsewhere, and then here again."""
    groups = driver.broker.groups
    [partition] = groups.partitions.values()
    groups.on_resignation(partition.replica, driver.now_ms)
    groups.on_election(partition.replica, driver.now_ms)
    driver.turn()
    driver.advance(1000)
