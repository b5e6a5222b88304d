"""AlterPartition (56) as leaders ask it of the controller. The rules themselves are in tests/controller/test_isr.py."""

from typing import Any

import pytest

from tests.broker.api.clustered import T, join_cluster, part, partition

FENCED_LEADER_EPOCH, STALE_BROKER_EPOCH, INVALID_UPDATE_VERSION, NOT_CONTROLLER = 74, 77, 95, 41
UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST = 100, 3, 42
INELIGIBLE_REPLICA, NEW_LEADER_ELECTED, CLUSTER_AUTHORIZATION_FAILED = 107, 108, 31


@pytest.fixture
def client(driver: Any) -> Any:
    """Broker 2."""
    return driver.connect(broker_id=2)


def fields(
    isr: Any, *, leader: int = 2, epoch: int | None = None, topic_id: bytes = T, **more: Any
) -> dict[str, Any]:
    row = {
        "partition_index": 0, "leader_epoch": 0, "partition_epoch": 0, "new_isr": list(isr),
        "new_isr_with_epochs": [{"broker_id": node, "broker_epoch": node} for node in isr], **more,
    }  # fmt: skip
    return {
        "broker_id": leader,
        "broker_epoch": leader if epoch is None else epoch,
        "topics": [{"topic_id": topic_id, "partitions": [row]}],
    }


def alter(client: Any, *args: Any, version: int = 3, **more: Any) -> Any:
    answer = client.ask(56, version, **fields(*args, **more))
    assert answer.error_code.value == 0
    [[row]] = [topic.partitions for topic in answer.topics]
    return row


@pytest.mark.parametrize("version", [2, 3])
def test_the_answer_is_the_partition_as_committed(driver: Any, client: Any, version: int) -> None:
    join_cluster(driver, part(0, 2, 3, 4))
    row = alter(client, (2, 4), version=version)
    assert (row.error_code.value, row.leader_id, row.leader_epoch, row.isr, row.partition_epoch) == (
        0,
        2,
        0,
        (2, 4),
        1,
    )
    assert partition(driver).isr == (2, 4)


def test_it_leaves_after_the_commit_and_not_if_that_fails(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, 4))
    driver.are_proposals_held = True
    client.send(56, 3, **fields((2, 3)))
    assert client.answers == []
    driver.commit("fenced")
    driver.turn()
    assert client.answers.pop().error_code.value == NOT_CONTROLLER
    client.send(56, 3, **fields((2, 3)))
    driver.commit()
    driver.turn()
    assert client.answers.pop().topics[0].partitions[0].isr == (2, 3)


def test_what_is_asked_for_already_waits_for_those_before(driver: Any, client: Any) -> None:
    """The answer says what is committed, not what is proposed."""
    join_cluster(driver, part(0, 2, 3, 4))
    driver.are_proposals_held = True
    client.send(56, 3, **fields((2, 3)))
    other = driver.connect(broker_id=2)
    other.send(56, 3, **fields((2, 3), partition_epoch=1))
    assert other.answers == []
    driver.commit()
    driver.turn()
    assert other.answers.pop().topics[0].partitions[0].partition_epoch == 1


@pytest.mark.parametrize(
    ("asked", "more", "code"),
    [
        ((2,), {"leader_epoch": -1}, FENCED_LEADER_EPOCH),
        ((2,), {"partition_epoch": -1}, INVALID_UPDATE_VERSION),
        ((2,), {"leader_recovery_state": 1}, INVALID_REQUEST),
        ((2, 2), {}, INVALID_REQUEST),
        ((2, 1), {}, INVALID_REQUEST),
        ((2, 4), {"new_isr_with_epochs": [{"broker_id": 2}, {"broker_id": 4, "broker_epoch": 99}]}, INELIGIBLE_REPLICA),
        ((2,), {"topic_id": b"?" * 16}, UNKNOWN_TOPIC_ID),
        ((2,), {"topic_id": None}, UNKNOWN_TOPIC_ID),
        ((2,), {"partition_index": 9}, UNKNOWN_TOPIC_OR_PARTITION),
    ],
)  # fmt: skip
def test_a_partition_is_refused_by_itself(driver: Any, client: Any, asked: Any, more: Any, code: int) -> None:
    join_cluster(driver, part(0, 2, 3, 4))
    before = driver.broker.image.end
    assert alter(client, asked, **more).error_code.value == code
    assert driver.broker.image.end == before


def test_r5_another_life_of_the_leader_is_not_heard(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, 4))
    for leader, epoch in ((2, 1), (2, 3), (9, 9), (2, -1)):
        client.connection.broker_id = leader
        answer = client.ask(56, 3, **fields((2,), leader=leader, epoch=epoch))
        assert (answer.error_code.value, answer.topics) == (STALE_BROKER_EPOCH, ())


def test_only_the_controller_answers_and_only_while_the_store_is_there(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, 4))
    driver.broker.lifecycle.suspended = True
    assert client.ask(56, 3, **fields((2,))).error_code.value == NOT_CONTROLLER
    driver.broker.lifecycle.suspended = False
    driver.broker.controller_driver.resign()
    assert client.ask(56, 3, **fields((2,))).error_code.value == NOT_CONTROLLER


def test_a_partition_that_is_named_twice_changes_once(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, 4))
    asked = fields((2, 3))
    asked["topics"] *= 2
    answer = client.ask(56, 3, **asked)
    codes = [row.error_code.value for topic in answer.topics for row in topic.partitions]
    assert codes == [0, INVALID_UPDATE_VERSION]
    assert partition(driver).partition_epoch == 1


def test_a_leader_hears_that_it_leads_no_more(driver: Any, client: Any) -> None:
    """The last replica that was added is in sync: the reassignment is done, and with it the old leader."""
    join_cluster(driver, part(0, 3, 4, 2, isr=(2, 3), leader=2, adding=(4,), removing=(2,)))
    row = alter(client, (2, 3, 4))
    assert (row.error_code.value, row.leader_id, row.leader_epoch) == (NEW_LEADER_ELECTED, 3, 1)
    assert partition(driver).replicas == (3, 4)


def test_a_leader_without_its_directory_gives_up(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, 4))
    row = alter(client, (3, 4))
    assert (row.error_code.value, row.leader_id, row.isr) == (NEW_LEADER_ELECTED, 3, (3, 4))


def test_only_the_broker_itself_asks_for_it(driver: Any) -> None:
    """Whatever epoch a client knows: an ISR that it may choose loses acknowledged records."""
    join_cluster(driver, part(0, 2, 3, 4))
    before = driver.broker.image.end
    for sender in (driver.connect(), driver.connect(broker_id=3)):
        answer = sender.ask(56, 3, **fields((2,)))
        assert (answer.error_code.value, answer.topics) == (CLUSTER_AUTHORIZATION_FAILED, ())
    assert driver.broker.image.end == before


@pytest.mark.parametrize("version", [2, 3])
def test_a_new_member_of_the_isr_is_named_with_its_epoch(driver: Any, client: Any, version: int) -> None:
    """ANY_EPOCH is enough for those that are in it."""
    join_cluster(driver, part(0, 2, 3, 4, isr=(2, 3)))
    members = [{"broker_id": node, "broker_epoch": -1} for node in (2, 3, 4)]
    row = alter(client, (2, 3, 4), version=version, new_isr_with_epochs=members)
    assert row.error_code.value == INELIGIBLE_REPLICA
    assert alter(client, (2,), version=version, new_isr_with_epochs=members[:1]).isr == (2,)
