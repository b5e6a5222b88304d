"""AlterPartitionReassignments (45) and ListPartitionReassignments (46)."""

from typing import Any

from tests.broker.api.clustered import T, join_cluster, part, partition

NOT_CONTROLLER, INVALID_REQUEST, UNKNOWN = 41, 42, 3
INVALID_FACTOR, INVALID_ASSIGNMENT, NONE_RUNS = 38, 39, 85


def move(client: Any, moves: list[tuple[int, list[int] | None]], version: int = 1, topic: str = "t", **more: Any) -> list[int]:  # fmt: skip
    rows = [{"partition_index": number, "replicas": replicas} for number, replicas in moves]
    answer = client.ask(45, version, topics=[{"name": topic, "partitions": rows}], **more)
    assert answer.error_code.value == 0
    return [row.error_code.value for each in answer.responses for row in each.partitions]


def listed(client: Any, topics: Any = None) -> dict[tuple[str, int], tuple[Any, Any, Any]]:
    answer = client.ask(46, topics=topics)
    assert answer.error_code.value == 0
    return {
        (topic.name, row.partition_index): (row.replicas, row.adding_replicas, row.removing_replicas)
        for topic in answer.topics
        for row in topic.partitions
    }


def test_a_move_from_its_beginning_to_its_end(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3), part(1, 2, 3))
    assert listed(client) == {}
    assert move(client, [(0, [2, 4])]) == [0]
    assert listed(client) == {("t", 0): ((2, 4, 3), (4,), (3,))}
    assert (
        listed(client, [{"name": "t", "partition_indexes": [1, 7]}, {"name": "x", "partition_indexes": [0]}])
        == {}
    )
    assert len(listed(client, [{"name": "t", "partition_indexes": [0]}])) == 1
    driver.connect(broker_id=2).ask(
        56, broker_id=2, broker_epoch=2,
        topics=[{
            "topic_id": T,
            "partitions": [{
                "partition_index": 0, "leader_epoch": 0, "partition_epoch": 1,
                "new_isr_with_epochs": [{"broker_id": node, "broker_epoch": node} for node in (2, 3, 4)],
            }],
        }],
    )  # fmt: skip
    assert listed(client) == {}
    assert (partition(driver).replicas, partition(driver).isr) == ((2, 4), (2, 4))


def test_a_move_is_taken_back(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3), part(1, 2, 3))
    move(client, [(0, [2, 4])])
    assert move(client, [(0, None), (1, None)]) == [0, NONE_RUNS]
    assert listed(client) == {} and partition(driver).replicas == (2, 3)


def test_what_is_refused_is_refused_by_itself(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3), part(1, 2, 3), part(2, 2, 3))
    assert move(client, [(0, [2, 9]), (1, [3, 4]), (5, [2]), (2, [])]) == [INVALID_ASSIGNMENT, 0, UNKNOWN, INVALID_ASSIGNMENT]  # fmt: skip
    assert list(listed(client)) == [("t", 1)]
    assert move(client, [(0, [2])], topic="absent") == [UNKNOWN]
    assert move(client, [(0, [2, 4]), (0, [3, 4])]) == [INVALID_REQUEST] * 2


def test_the_factor_may_be_kept(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3))
    assert move(client, [(0, [2, 3, 4])], allow_replication_factor_change=False) == [INVALID_FACTOR]
    assert move(client, [(0, [2, 3, 4])], version=0) == [0]


def test_where_it_is_already_nothing_happens(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3))
    before = driver.broker.image.end
    assert move(client, [(0, [2, 3])]) == [0]
    assert driver.broker.image.end == before


def test_not_while_the_store_is_away_and_not_if_it_cannot_be_written(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3))
    asked = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [2, 4]}]}]
    driver.are_proposals_held = True
    client.send(45, topics=asked)
    driver.commit("fenced")
    driver.turn()
    assert client.answers.pop().error_code.value == NOT_CONTROLLER
    driver.broker.lifecycle.suspended = True
    assert client.ask_in_vain(45, topics=asked, timeout=2_000).error_code.value == NOT_CONTROLLER
    assert partition(driver).adding == ()
