"""Members of both protocols in one group, over the wire: each version of the classic requests, and records that are too large."""

from typing import Any

import pytest

from ottla.model import limits
from ottla.model.errors import ErrorCode
from ottla.records.consumer_protocol import read_assignment, write_assignment
from tests.broker.api.members import Member, find

HEARTBEAT, DESCRIBE, DESCRIBE_CLASSIC, LIST = 68, 69, 15, 16


def beat(client: Any, member_id: str = "new", epoch: int = 0, **fields: Any) -> Any:
    joining = {"rebalance_timeout": 10_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    request = {
        "group_id": "g", "member_id": member_id, "member_epoch": epoch, "instance_id": None, "rack_id": None,
        "rebalance_timeout": -1, "subscribed_topic_names": None, "subscribed_topic_regex": None, "server_assignor": None,
        "topic_partitions": None, **({} if epoch else joining), **fields,
    }  # fmt: skip
    return client.ask(HEARTBEAT, 1, **request)


def own(answer: Any) -> list[int]:
    return sorted(number for topic in answer.assignment.topic_partitions for number in topic.partitions)


@pytest.fixture
def client(driver: Any) -> Any:
    client = driver.connect()
    find(client)
    client.create("t", 4)
    return client


@pytest.mark.parametrize("version", range(10))
def test_each_version_of_join_and_sync_in_a_consumer_group(driver: Any, client: Any, version: int) -> None:
    assert own(beat(client)) == [0, 1, 2, 3]
    old = Member(driver, "g")
    old.begin_join(version=version)
    answer = old.joined()
    assert not answer.error_code and answer.generation_id == 2 and not answer.members
    assert answer.leader == "" and answer.protocol_name == "range"
    old.send_sync(version=min(version, 5))
    assert read_assignment(old.synced().assignment)[0] == set(), "all is held by the other"
    kept = beat(client, epoch=1, topic_partitions=[]).assignment
    rows = [{"topic_id": row.topic_id.bytes, "partitions": row.partitions} for row in kept.topic_partitions]
    beat(client, epoch=1, topic_partitions=rows)
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.send_join(version=version)
    assert not old.joined().error_code
    old.send_sync(version=min(version, 5))
    assert len(read_assignment(old.synced().assignment)[0]) == 2
    assert old.heartbeat() == 0 and set(old.commit({("t", 0): 3}, version=8).values()) == {0}
    old.generation += 1
    assert old.heartbeat() == ErrorCode.ILLEGAL_GENERATION
    assert set(old.commit({("t", 0): 3}, version=8).values()) == {ErrorCode.ILLEGAL_GENERATION}


def test_a_heartbeat_converts_a_group_and_its_end_converts_it_back(driver: Any, client: Any) -> None:
    old = Member(driver, "g")
    old.begin_join()
    driver.advance(3100)
    old.joined()
    old.send_sync(**{old.member_id: write_assignment(0, [("t", number) for number in range(4)])})
    old.synced()
    answer = beat(client)
    assert (answer.error_code, answer.member_epoch, own(answer)) == (0, old.generation + 1, [])
    described = client.ask(DESCRIBE, 1, group_ids=["g"], include_authorized_operations=False).groups[0]
    assert {row.member_id: row.member_type for row in described.members} == {old.member_id: 0, "new": 1}
    dead = client.ask(DESCRIBE_CLASSIC, 6, groups=["g"], include_authorized_operations=False).groups[0]
    assert (dead.group_state, dead.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert client.ask(LIST, 5, states_filter=[], types_filter=[]).groups[0].group_type == "consumer"
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    beat(client, epoch=-1)
    assert client.ask(LIST, 5, states_filter=[], types_filter=[]).groups[0].group_type == "classic"
    assert old.heartbeat() == ErrorCode.ILLEGAL_GENERATION, "the epoch had grown"
    old.send_join()
    assert not old.joined().error_code


def test_a_refusal_has_its_reason(driver: Any, client: Any) -> None:
    old = Member(driver, "g")
    old.begin_join()
    driver.advance(3100)
    old.joined()
    # Assignments that no consumer understands.
    old.send_sync()
    old.synced()
    answer = beat(client)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "Cannot upgrade classic group g to consumer group" in answer.error_message
    assert old.heartbeat() == 0


def test_an_assignment_too_large_to_be_written_is_refused_and_nothing_is_loaded_again(
    driver: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COORDINATOR_RECORD_BYTES", 0)
    client.create("wide", 200)
    replica = driver.replica("__consumer_offsets", 3)
    config, tenure = replica.config, driver.broker.groups.partitions[3]
    replica.configure(type(config).resolve({"max.message.bytes": "600"}, driver.broker.config))
    wide = {"subscribed_topic_names": ["wide"]}
    for _ in range(2):
        assert beat(client, **wide).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    described = client.ask(DESCRIBE, 1, group_ids=["g"], include_authorized_operations=False).groups[0]
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert beat(client, "small").error_code == 0, "others go on"
    assert driver.broker.groups.partitions[3] is tenure and tenure.is_loaded
    replica.configure(config)
    assert beat(client, **wide).error_code == 0
