"""ElectLeaders (43)."""

from typing import Any

from tests.broker.api.clustered import join_cluster, part, partition

UNKNOWN, NOT_CONTROLLER, INVALID_REQUEST = 3, 41, 42
PREFERRED_NOT_AVAILABLE, ELIGIBLE_NOT_AVAILABLE, NOT_NEEDED = 80, 83, 84


def elect(client: Any, kind: int, *numbers: int, version: int = 2, topic: str = "t") -> dict[int, int]:
    asked = [{"topic": topic, "partitions": list(numbers)}] if numbers else None
    answer = client.ask(43, version, election_type=kind, topic_partitions=asked)
    assert version == 0 or answer.error_code.value == 0
    return {
        row.partition_id: row.error_code.value
        for result in answer.replica_election_results
        for row in result.partition_result
    }


def test_the_preferred_replica_leads_again(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, leader=3), part(1, 2, 3), part(2, 4, 3, isr=(3,), leader=3))
    assert elect(client, 0, 0, 1, 2, 9) == {0: 0, 1: NOT_NEEDED, 2: PREFERRED_NOT_AVAILABLE, 9: UNKNOWN}
    assert (partition(driver).leader, partition(driver).leader_epoch) == (2, 1)
    assert elect(client, 0, 0, topic="absent") == {0: UNKNOWN}


def test_all_of_them_without_those_that_need_none(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, leader=3), part(1, 2, 3), part(2, 3, 4, leader=4))
    assert elect(client, 0, version=0) == {0: 0, 2: 0}
    assert elect(client, 0) == {}


def test_anybody_leads_what_nobody_did_if_it_is_asked_for(driver: Any, client: Any) -> None:
    gone = {"isr": (), "leader": -1, "eligible": (3,), "last_leader": 3}
    join_cluster(driver, part(0, 3, 4, **gone), part(1, 2, 4), part(2, 3, **gone), fenced=(3,))
    assert elect(client, 1, 0, 1, 2) == {0: 0, 1: NOT_NEEDED, 2: ELIGIBLE_NOT_AVAILABLE}
    assert (partition(driver).leader, partition(driver).isr) == (4, (4,))


def test_another_kind_of_election_is_refused(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3))
    answer = client.ask(43, 2, election_type=5, topic_partitions=None)
    assert answer.error_code.value == INVALID_REQUEST


def test_not_by_others_and_not_if_it_cannot_be_written(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, leader=3))
    driver.are_proposals_held = True
    client.send(43, 0, topic_partitions=[{"topic": "t", "partitions": [0]}])
    driver.commit("fenced")
    driver.turn()
    [[row]] = [result.partition_result for result in client.answers.pop().replica_election_results]
    assert row.error_code.value == NOT_CONTROLLER
    driver.broker.lifecycle.suspended = True
    assert client.ask_in_vain(43, 2, topic_partitions=None, timeout=2_000).error_code.value == NOT_CONTROLLER
    assert partition(driver).leader == 3
