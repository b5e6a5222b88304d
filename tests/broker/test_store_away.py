"""Changes of metadata while the metadata log cannot be written: every request is answered within its time-out.

A core whose proposals are held is what a broker is while ZooKeeper does not answer, or while the disk of a journal hangs.
"""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.api.shared.api_table import APIS
from ottla.model.errors import ErrorCode
from ottla.model.limits import COMMIT_WAIT_MS
from tests.broker.api.clustered import join_cluster, part
from tests.broker.conftest import Client, Driver
from tests.mutations import BY_CONTROLLER, TIMEOUT_MS, changes_nothing, error_codes

METADATA, CREATE_TOPICS, INIT_PRODUCER_ID, ALTER_CONFIGS = 3, 19, 22, 33
ALTER_PARTITION, BROKER_HEARTBEAT, ALLOCATE_PRODUCER_IDS = 56, 63, 67

#: Those of brokers to the controller, and those that cause a change by themselves; with how long they may take.
OTHERS: dict[int, tuple[dict[str, Any], int]] = {
    METADATA: ({"topics": [{"name": "auto"}], "allow_auto_topic_creation": True}, 5_000),
    INIT_PRODUCER_ID: ({"transactional_id": None, "transaction_timeout": 60_000}, COMMIT_WAIT_MS),
    ALTER_PARTITION: (
        {
            "broker_id": 2, "broker_epoch": 2,
            "topics": [
                {
                    "topic_id": b"t" * 16,
                    "partitions": [
                        {
                            "partition_index": 0, "leader_epoch": 0, "partition_epoch": 0,
                            "new_isr_with_epochs": [{"broker_id": 2, "broker_epoch": 2}],
                            "leader_recovery_state": 0,
                        }
                    ],
                }
            ],
        },
        COMMIT_WAIT_MS,
    ),
    BROKER_HEARTBEAT: ({"broker_id": 2, "broker_epoch": 2, "want_shut_down": True}, COMMIT_WAIT_MS),
    ALLOCATE_PRODUCER_IDS: ({"broker_id": 2, "broker_epoch": 2}, COMMIT_WAIT_MS),
}  # fmt: skip

REQUESTS = {
    **{key: (body, body.get("timeout", COMMIT_WAIT_MS)) for key, body in BY_CONTROLLER.items()},
    **OTHERS,
}
EXPECTED = {
    ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER, ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip


def test_every_api_of_the_controller_is_in_the_table() -> None:
    assert set(BY_CONTROLLER) == {key for key, api in APIS.items() if api.by_controller}


@pytest.fixture
def cluster(drive: Callable[..., Driver]) -> Driver:
    """The controller of a cluster; broker 3 leads where broker 2 is preferred, and broker 4 is gone."""
    driver = drive()
    join_cluster(driver, part(0, 2, 3, leader=3), fenced=(4,))
    return driver


def leading(driver: Driver, key: int) -> None:
    """AlterPartition is the leader's: then broker 2 leads."""
    if key == ALTER_PARTITION:
        broker = driver.broker
        broker.committed([part(0, 2, 3)], driver.now_ms)
        broker.proposed = broker.image


@pytest.mark.parametrize("is_noticed", [False, True], ids=["not yet noticed", "suspended"])
@pytest.mark.parametrize("key", sorted(REQUESTS))
def test_it_is_answered_within_its_time_out_and_so_is_what_is_behind_it(
    cluster: Driver, key: int, is_noticed: bool
) -> None:
    leading(cluster, key)
    between_brokers = key in (ALTER_PARTITION, BROKER_HEARTBEAT, ALLOCATE_PRODUCER_IDS)
    client = cluster.connect(broker_id=2 if between_brokers else None)
    cluster.are_proposals_held = True
    cluster.broker.lifecycle.suspended = is_noticed
    fields, limit_ms = REQUESTS[key]
    client.send(key, **fields)
    client.send(METADATA, topics=None, allow_auto_topic_creation=False)
    if key in BY_CONTROLLER and changes_nothing(key):
        assert len(client.answers) == 2
        return
    if not is_noticed:
        assert client.answers == [], "the change waits for its commit"
        cluster.advance(limit_ms - 200)
        assert client.answers == [], "it waits as long as it may"
    cluster.advance(limit_ms + 100)
    assert len(client.answers) == 2, "an answer is missing"
    assert client.closed_because is None
    assert EXPECTED.intersection(error_codes(client.answers[0]))
    if is_noticed:
        assert not cluster.held_proposals, "nothing is decided while the store is away"
    # The change may be committed after its answer.
    cluster.are_proposals_held = False
    cluster.broker.lifecycle.suspended = False
    cluster.commit()
    cluster.turn()
    cluster.advance(COMMIT_WAIT_MS)
    assert len(client.answers) == 2
    client.ask(METADATA, topics=None, allow_auto_topic_creation=False)


@pytest.mark.parametrize("key", [key for key in sorted(BY_CONTROLLER) if key in (19, 20, 33, 37, 44)])
def test_a_broker_on_its_own_whose_journal_hangs(drive: Callable[..., Driver], key: int) -> None:
    driver = drive()
    client = driver.connect()
    client.create("t")
    driver.are_proposals_held = True
    fields, limit_ms = REQUESTS[key]
    client.send(key, **fields)
    client.send(METADATA, topics=None, allow_auto_topic_creation=False)
    assert client.answers == []
    driver.advance(limit_ms + 100)
    changed, _metadata = client.answers
    assert ErrorCode.REQUEST_TIMED_OUT in error_codes(changed)
    driver.commit()
    driver.turn()
    assert len(client.answers) == 2


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_time_out_of_nothing_still_gets_the_outcome_of_a_healthy_store(
    cluster: Driver, timeout: int
) -> None:
    """librdkafka sends such a one for "do not wait"."""
    client = cluster.connect()
    cluster.are_proposals_held = True
    fields = {**BY_CONTROLLER[CREATE_TOPICS], "timeout": timeout}
    client.send(CREATE_TOPICS, **fields)
    cluster.advance(100)
    assert client.answers == []
    cluster.commit()
    cluster.turn()
    [answer] = client.answers
    assert set(error_codes(answer)) == {0}


def test_a_held_change_is_made_when_the_store_is_back(cluster: Driver) -> None:
    client = cluster.connect()
    cluster.broker.store_suspended(cluster.now_ms)
    client.send(CREATE_TOPICS, **BY_CONTROLLER[CREATE_TOPICS])
    cluster.advance(1_000)
    assert client.answers == [] and not cluster.held_proposals
    cluster.broker.store_back(cluster.now_ms)
    cluster.turn()
    [answer] = client.answers
    assert set(error_codes(answer)) == {0}
    assert "new" in cluster.broker.image.topics


def test_a_client_that_leaves_is_forgotten(cluster: Driver) -> None:
    client: Client = cluster.connect()
    cluster.are_proposals_held = True
    client.send(CREATE_TOPICS, **BY_CONTROLLER[CREATE_TOPICS])
    client.disconnect()
    cluster.advance(TIMEOUT_MS * 2)
    cluster.commit()
    cluster.turn()
    assert "new" in cluster.broker.image.topics


@pytest.mark.parametrize("error", [None, "the store is gone"])
def test_a_change_that_another_request_has_proposed_is_answered_when_that_is_committed(
    driver: Driver, error: str | None
) -> None:
    """Bug: the second request found nothing left to write, and was told of success before anything was written."""
    first, second = driver.connect(), driver.connect()
    first.create("t")
    driver.are_proposals_held = True
    for client in (first, second):
        client.send(ALTER_CONFIGS, **BY_CONTROLLER[ALTER_CONFIGS])
        assert client.answers == []
    driver.commit(error)
    driver.turn()
    for client in (first, second):
        [answer] = client.answers
        assert (set(error_codes(answer)) == {0}) == (error is None)
    driver.are_proposals_held = False
    # With nothing under way it is answered at once.
    if error is None:
        assert set(error_codes(first.ask(ALTER_CONFIGS, **BY_CONTROLLER[ALTER_CONFIGS]))) == {0}
