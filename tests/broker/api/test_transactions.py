"""Transactions over the wire, on one broker: commit, abort, fencing, time-outs, what does not belong to one, offsets of groups."""

from typing import Any

import pytest

from ottla.wire.encode import request_encoder
from tests.broker.api.members import Member, find, settle
from tests.broker.api.members import committed as committed_offsets
from tests.broker.api.transactors import Transactor, committed

CONCURRENT, FENCED, BAD_EPOCH, BAD_MAPPING, BAD_STATE = 51, 90, 47, 49, 48
BOTH = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture
def driver(drive: Any) -> Any:
    return drive(transaction_state_log_num_partitions="2", offsets_topic_num_partitions="2")


@pytest.fixture
def transactor(driver: Any, client: Any, batch: Any) -> Any:
    client.create("t", 2)

    def begin(name: str = "tx", version: int = 1, **more: Any) -> Transactor:
        made = Transactor(driver, batch, name, version=version)
        assert made.init(**more) == 0
        return made

    return begin


@BOTH
def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    version: int, transactor: Any, client: Any
) -> None:
    tx = transactor(version=version)
    assert tx.send("t", b"one") == 0
    assert tx.send("t", b"two", number=1) == 0
    assert tx.produce("t", b"three") == 0
    assert committed(client, "t") == []
    assert tx.end(commit=True) == 0
    assert committed(client, "t") == [b"one", b"three"] and committed(client, "t", 1) == [b"two"]
    assert tx.send("t", b"dropped") == 0
    assert tx.end(commit=False) == 0
    assert tx.send("t", b"four") == 0
    assert committed(client, "t") == [b"one", b"three"]
    assert tx.end(commit=True) == 0
    assert committed(client, "t") == [b"one", b"three", b"four"]
    [row] = client.ask(65, 0, transactional_ids=["tx"]).transaction_states
    assert (row.error_code, row.transaction_state, row.topics) == (0, "CompleteCommit", ())


@BOTH
def test_a_second_producer_of_the_name_fences_the_first_and_aborts_its_transaction(
    version: int, transactor: Any, client: Any, driver: Any
) -> None:
    zombie = transactor(version=version)
    assert zombie.send("t", b"lost") == 0
    heir = Transactor(driver, zombie.batch, version=version)
    assert heir.init() == CONCURRENT
    driver.advance(100)
    assert heir.init() == 0
    assert heir.producer_id == zombie.producer_id and heir.epoch > zombie.epoch
    assert zombie.produce("t", b"zombie") == BAD_EPOCH
    assert zombie.end(commit=True) == FENCED
    assert heir.send("t", b"heir") == 0
    assert heir.end(commit=True) == 0
    assert committed(client, "t") == [b"heir"]


@BOTH
def test_a_transaction_that_takes_too_long_is_aborted(
    version: int, transactor: Any, client: Any, driver: Any
) -> None:
    tx = transactor(version=version, timeout_ms=5_000)
    assert tx.send("t", b"late") == 0
    driver.advance(16_000)
    [row] = client.ask(65, 0, transactional_ids=["tx"]).transaction_states
    assert row.transaction_state == "CompleteAbort"
    assert tx.produce("t", b"later") == BAD_EPOCH
    client.produce("t", tx.batch(b"plain"))
    assert committed(client, "t") == [b"plain"]


def test_a_partition_that_was_never_added_takes_no_batch(transactor: Any, client: Any) -> None:
    tx = transactor()
    assert tx.add(("t", 0)) == {("t", 0): 0}
    assert tx.produce("t", b"elsewhere", number=1) == BAD_STATE
    assert client.fetch("t", 0, 1).high_watermark == 0
    # What comes after the end does not begin another.
    assert tx.produce("t", b"one") == 0
    assert tx.end(commit=True) == 0
    assert tx.produce("t", b"late") == BAD_STATE
    assert committed(client, "t") == [b"one"]


def test_batches_that_name_no_transaction_or_a_strangers_are_refused(transactor: Any, client: Any) -> None:
    tx = transactor(version=2)
    fields = tx.fields("t", b"one")
    answer = client.ask(0, 12, **fields | {"transactional_id": None})
    not_authorized = 53
    assert answer.responses[0].partition_responses[0].error_code == not_authorized
    answer = client.ask(0, 12, **fields | {"transactional_id": "another"})
    assert answer.responses[0].partition_responses[0].error_code == BAD_MAPPING
    tx.sequences.clear()
    mixed = tx.fields("t", b"one")
    tx.producer_id += 1
    mixed["topic_data"] += tx.fields("t", b"two", number=1)["topic_data"]
    answer = client.ask(0, 12, **mixed)
    codes = {row.error_code for topic in answer.responses for row in topic.partition_responses}
    assert codes == {BAD_MAPPING}
    assert client.fetch("t", 0).high_watermark == client.fetch("t", 0, 1).high_watermark == 0


@BOTH
def test_ending_twice_and_foreign_epochs(version: int, transactor: Any, driver: Any) -> None:
    tx = transactor(version=version)
    assert tx.end(commit=True) == BAD_STATE
    assert tx.send("t", b"one") == 0
    before = dict(tx.who)
    assert tx.end(commit=True) == 0
    again = tx.client.ask(26, tx.versions[26], **before, committed=True)
    assert again.error_code == 0
    assert tx.client.ask(26, tx.versions[26], **before, committed=False).error_code == BAD_STATE
    assert (
        tx.client.ask(26, tx.versions[26], **before | {"producer_epoch": 77}, committed=True).error_code
        == FENCED
    )
    assert tx.client.ask(26, 1, **before | {"producer_epoch": 77}, committed=True).error_code == BAD_EPOCH
    assert (
        tx.client.ask(26, tx.versions[26], **before | {"producer_id": 12345}, committed=True).error_code
        == BAD_MAPPING
    )


@BOTH
def test_offsets_count_when_their_transaction_is_committed(
    version: int, transactor: Any, client: Any, driver: Any
) -> None:
    client.ask(10, 4, key_type=0, coordinator_keys=["g"])
    tx = transactor(version=version)

    def fetched(require_stable: bool) -> tuple[int, int]:
        asked = {
            "group_id": "g",
            "member_id": None,
            "member_epoch": -1,
            "topics": [{"name": "t", "partition_indexes": [0]}],
        }
        answer = client.ask(9, 9, groups=[asked], require_stable=require_stable)
        [row] = answer.groups[0].topics[0].partitions
        return int(row.error_code), int(row.committed_offset)

    def commit(offset: int) -> int:
        if version == 1:
            assert tx.add_offsets("g") == 0
        return tx.commit_offsets("g", {("t", 0): offset})

    unstable = 88
    assert commit(5) == 0
    assert fetched(False) == (0, -1) and fetched(True) == (unstable, -1)
    assert tx.end(commit=True) == 0
    assert fetched(True) == (0, 5)
    assert commit(9) == 0
    assert tx.end(commit=False) == 0
    assert fetched(True) == (0, 5)
    # Who commits later counts, whenever the transaction ends.
    assert commit(11) == 0
    assert set(Member(driver, "g").commit({("t", 0): 7}).values()) == {0}
    assert tx.end(commit=True) == 0
    assert fetched(True) == (0, 7)


def test_the_first_offsets_of_all_are_those_of_a_transaction(transactor: Any, driver: Any) -> None:
    """Nobody has asked for a group's coordinator yet, and this client does so only when the group is part of the transaction."""
    tx = transactor()
    assert tx.add_offsets("g") == 0
    tx.client.ask(10, 4, key_type=0, coordinator_keys=["g"])
    assert tx.commit_offsets("g", {("t", 0): 5}) == 0
    assert tx.end(commit=True) == 0
    assert committed_offsets(tx.client, "g") == {("t", 0): 5}


def test_transactional_ids_stay_where_they_are(transactor: Any, client: Any) -> None:
    transactor()
    topics = [{"name": "__transaction_state", "count": 9, "assignments": None}]
    [row] = client.ask(37, 3, topics=topics, timeout=1000, validate_only=False).results
    invalid_partitions = 37
    assert row.error_code == invalid_partitions


@BOTH
def test_a_group_that_is_deleted_does_not_come_back_with_a_transaction(
    version: int, transactor: Any, client: Any
) -> None:
    client.ask(10, 4, key_type=0, coordinator_keys=["g"])
    tx = transactor(version=version)
    if version == 1:
        assert tx.add_offsets("g") == 0
    assert tx.commit_offsets("g", {("t", 0): 5}) == 0
    [row] = client.ask(42, 2, groups_names=["g"]).results
    assert row.error_code == 0
    assert tx.end(commit=True) == 0
    assert client.ask(16, 4, states_filter=[]).groups == ()


def test_offsets_of_a_group_that_was_not_added_are_refused(transactor: Any, client: Any) -> None:
    client.ask(10, 4, key_type=0, coordinator_keys=["g"])
    tx = transactor()
    assert tx.commit_offsets("g", {("t", 0): 5}) == BAD_STATE
    tx.epoch += 1
    assert tx.commit_offsets("g", {("t", 0): 5}) == BAD_EPOCH
    illegal_generation, unknown_member = 22, 25
    tx.epoch -= 1
    assert tx.add_offsets("g") == 0
    assert tx.commit_offsets("g", {("t", 0): 5}, generation_id=3) == illegal_generation
    assert tx.commit_offsets("g", {("t", 0): 5}) == 0
    # Nobody has joined, and it does not claim to.
    assert tx.commit_offsets("g", {("t", 0): 5}, member_id="nobody") == 0
    assert tx.commit_offsets("g", {("t", 0): 5}, generation_id=3, member_id="nobody") == unknown_member


def test_transactions_are_listed_by_what_is_asked_for(transactor: Any, client: Any, driver: Any) -> None:
    one, _two = transactor("one"), transactor("two")
    assert one.send("t", b"x") == 0
    driver.advance(1_000)

    def listed(**filters: Any) -> list[str]:
        answer = client.ask(66, 2, **filters)
        assert answer.error_code == 0
        return sorted(row.transactional_id for row in answer.transaction_states)

    assert listed() == ["one", "two"]
    assert listed(state_filters=["Ongoing"]) == ["one"]
    assert listed(producer_id_filters=[one.producer_id]) == ["one"]
    assert listed(duration_filter=500) == ["one"] and listed(duration_filter=5_000) == []
    assert listed(transactional_id_pattern="t.*") == ["two"]
    assert client.ask(66, 2, state_filters=["Nonsense"]).unknown_state_filters == ("Nonsense",)
    bad_pattern = 128
    assert client.ask(66, 2, transactional_id_pattern="(").error_code == bad_pattern


def test_markers_of_old_coordinators_are_refused(transactor: Any, client: Any) -> None:
    tx = transactor()
    coordinator = client.driver.connect(broker_id=2)
    assert tx.send("t", b"one") == 0

    def mark(epoch: int, coordinator_epoch: int, version: int = 0, number: int = 0) -> int:
        topics = [{"name": "t", "partition_indexes": [number]}]
        marker = {
            "producer_id": tx.producer_id, "producer_epoch": epoch, "transaction_result": False, "topics": topics,
            "coordinator_epoch": coordinator_epoch, "transaction_version": version,
        }  # fmt: skip
        [row] = coordinator.ask(27, 2, markers=[marker]).markers[0].topics[0].partitions
        return int(row.error_code)

    unknown_partition, fenced_coordinator = 3, 52
    assert mark(0, 5, number=7) == unknown_partition
    assert mark(0, 5, version=2) == BAD_EPOCH
    assert mark(0, 5) == 0
    assert mark(0, 5, version=2) == 0
    assert mark(0, 4) == fenced_coordinator
    assert mark(-1, 5) == BAD_EPOCH
    assert committed(client, "t") == []
    client.produce("t", tx.batch(b"plain"))
    assert committed(client, "t") == [b"plain"]


@BOTH
def test_what_has_ended_is_forgotten_though_nobody_reads(version: int, transactor: Any, driver: Any) -> None:
    tx = transactor(version=version)
    for _ in range(20):
        assert tx.send("t", b"x") == 0
        assert tx.end(commit=True) == 0
    transactions = driver.replica("t").log.producers.transactions
    assert len(transactions._ended) <= 1


@BOTH
def test_who_commits_offsets_must_be_the_member_that_it_says(
    version: int, transactor: Any, client: Any, driver: Any
) -> None:
    """KIP-447: a member that is out of its group cannot commit, whatever its producer may do."""
    find(client)
    member = Member(driver, "g", instance="static")
    settle(member)
    tx = transactor(version=version)
    if version == 1:
        assert tx.add_offsets("g") == 0

    def commit(**who: Any) -> int:
        said = {"generation_id": member.generation, "member_id": member.member_id, "group_instance_id": None}
        return int(tx.commit_offsets("g", {("t", 0): 5}, **said | who))

    illegal_generation, unknown_member, fenced_instance = 22, 25, 82
    assert commit(generation_id=member.generation + 1) == illegal_generation
    assert commit(member_id="another") == unknown_member
    assert commit(member_id="another", group_instance_id="static") == fenced_instance
    assert commit(group_instance_id="static") == 0
    assert commit() == 0
    # Clients before version 3 say nothing of themselves.
    assert commit(generation_id=-1, member_id="") == 0
    assert tx.end(commit=True) == 0
    assert committed_offsets(client, "g") == {("t", 0): 5}


@BOTH
def test_the_same_of_a_consumer_group(version: int, transactor: Any, client: Any) -> None:
    find(client)
    joined = client.ask(
        68, 1, group_id="g", member_id="one", member_epoch=0, rebalance_timeout=1000, subscribed_topic_names=["t"],
        topic_partitions=[],
    )  # fmt: skip
    assert joined.error_code == 0
    tx = transactor(version=version)
    if version == 1:
        assert tx.add_offsets("g") == 0
    illegal_generation, unknown_member = 22, 25
    who = {"member_id": "one", "generation_id": joined.member_epoch}
    assert tx.commit_offsets("g", {("t", 0): 5}, **who | {"generation_id": 7}) == illegal_generation
    assert tx.commit_offsets("g", {("t", 0): 5}, **who | {"member_id": "two"}) == unknown_member
    assert tx.commit_offsets("g", {("t", 0): 5}, **who) == 0
    assert tx.end(commit=True) == 0
    assert committed_offsets(client, "g") == {("t", 0): 5}


@BOTH
def test_what_was_open_is_open_after_a_restart(
    version: int, transactor: Any, client: Any, driver: Any, batch: Any
) -> None:
    """The coordinator, the partitions and the group's offsets are read from their logs."""
    find(client)
    tx = transactor(version=version)
    assert tx.send("t", b"one") == 0
    if version == 1:
        assert tx.add_offsets("g") == 0
    assert tx.commit_offsets("g", {("t", 0): 5}) == 0
    broker = driver.broker
    for coordinating in (broker.transactions, broker.groups):
        for tenure in list(coordinating.partitions.values()):
            coordinating.reload(tenure, "the test wants it")
    driver.advance(1_100)
    assert committed(client, "t") == []
    assert tx.produce("t", b"two") == 0
    assert tx.end(commit=True) == 0
    assert committed(client, "t") == [b"one", b"two"]
    assert committed_offsets(client, "g") == {("t", 0): 5}
    for tenure in list(broker.groups.partitions.values()):
        broker.groups.reload(tenure, "the test wants it")
    driver.advance(1_100)
    assert committed_offsets(client, "g") == {("t", 0): 5}


def test_the_markers_of_a_transaction_with_many_partitions_are_written_in_several_turns(
    driver: Any, batch: Any
) -> None:
    transactor = Transactor(driver, batch)
    transactor.client.create("wide", 300)
    assert transactor.init() == 0
    assert set(transactor.add(*[("wide", number) for number in range(300)]).values()) == {0}
    ends = [driver.replica("wide", number) for number in range(300)]
    client, broker = transactor.client, driver.broker
    frame = client._wire.request(26, 3, request_encoder(26, 3)({**transactor.who, "committed": True}))[1]
    client._asked.append((26, 3))
    broker.receive(client.connection, memoryview(frame[4:]), driver.now_ms)
    most, written = 0, 0
    for _ in range(1000):
        broker.settle(driver.now_ms)
        outbox, broker.outbox = broker.outbox, []
        for effect in outbox:
            driver._perform(effect)
        before, written = written, sum(replica.log.next_offset for replica in ends)
        most = max(most, written - before)
        if written == 300:
            break
    assert written == 300
    assert most <= 60, "too many in one turn"
    driver.turn()
    assert int(client.answers[-1].error_code) == 0
