from typing import Any

import pytest

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, INVALID_REQUEST = 3, 17, 42


def describe(client: Any, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    return client.ask(
        75, topics=[{"name": name} for name in names], response_partition_limit=limit,
        cursor=None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    )  # fmt: skip


def rows(answer: Any) -> list[tuple[str, int, list[int]]]:
    return [
        (topic.name, topic.error_code.value, [row.partition_index for row in topic.partitions])
        for topic in answer.topics
    ]


def next_of(answer: Any) -> tuple[str, int] | None:
    cursor = answer.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


@pytest.fixture(autouse=True)
def topics(client: Any) -> None:
    for name, partitions in (("c", 2), ("a", 3), ("b", 1)):
        client.create(name, partitions)


def test_topics_come_sorted_and_once(client: Any) -> None:
    every = [("a", 0, [0, 1, 2]), ("b", 0, [0]), ("c", 0, [0, 1])]
    assert rows(describe(client)) == every
    answer = describe(client, "c", "a", "c")
    assert rows(answer) == [every[0], every[2]]
    assert next_of(answer) is None


def test_a_partition_has_what_metadata_says(client: Any) -> None:
    [topic] = describe(client, "b").topics
    [row] = topic.partitions
    assert (row.leader_id, row.leader_epoch, row.replica_nodes, row.isr_nodes) == (1, 0, (1,), (1,))
    assert (row.eligible_leader_replicas, row.last_known_elr, row.offline_replicas) == ((), (), ())
    [known] = client.ask(3, topics=[{"name": "b"}]).topics
    assert (topic.topic_id, topic.is_internal) == (known.topic_id, False)
    assert topic.topic_authorized_operations > 0


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 100])
@pytest.mark.parametrize("names", [(), ("a", "b", "c", "nowhere")])
def test_pages_hold_at_most_the_limit_and_together_everything(
    client: Any, names: tuple[str, ...], limit: int
) -> None:
    seen: list[tuple[str, int]] = []
    cursor = None
    for _page in range(10):
        answer = describe(client, *names, limit=limit, cursor=cursor)
        page = [(name, number) for name, _code, numbers in rows(answer) for number in numbers]
        assert len(page) <= limit
        seen += page
        cursor = next_of(answer)
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1)]
    assert cursor is None


def test_the_cursor_points_behind_the_page(client: Any) -> None:
    assert next_of(describe(client, limit=2)) == ("a", 2)
    assert next_of(describe(client, limit=3)) == ("b", 0)
    answer = describe(client, limit=3, cursor=("a", 2))
    assert (rows(answer), next_of(answer)) == ([("a", 0, [2]), ("b", 0, [0]), ("c", 0, [0])], ("c", 1))
    for limit in (0, -5):
        assert rows(describe(client, limit=limit)) == [("a", 0, [0])]


def test_a_topic_that_went_between_two_pages(client: Any) -> None:
    client.ask(20, topics=[{"name": "b"}], timeout=1000)
    assert rows(describe(client, cursor=("b", 0))) == [("c", 0, [0, 1])]
    answer = describe(client, "b", "c", cursor=("b", 5))
    assert rows(answer) == [("b", UNKNOWN_TOPIC_OR_PARTITION, []), ("c", 0, [0, 1])]
    # Made anew with fewer partitions.
    assert rows(describe(client, "c", cursor=("c", 7))) == [("c", 0, [])]
    client.create("d", 5)
    assert rows(describe(client, "c", "d", cursor=("c", 7), limit=2)) == [("c", 0, []), ("d", 0, [0, 1])]


def test_never_more_than_2000_partitions_a_page(client: Any) -> None:
    client.create("aa", 2500)
    answer = describe(client, limit=1_000_000)
    assert sum(len(numbers) for _name, _code, numbers in rows(answer)) == 2000
    assert next_of(answer) == ("aa", 1997)


def test_topics_that_are_not_there(client: Any) -> None:
    answer = describe(client, "nowhere", "not a name")
    assert rows(answer) == [("not a name", INVALID_TOPIC, []), ("nowhere", UNKNOWN_TOPIC_OR_PARTITION, [])]


def test_a_cursor_that_cannot_be(client: Any) -> None:
    assert rows(describe(client, "a", "b", cursor=("c", 0))) == [
        ("a", INVALID_REQUEST, []),
        ("b", INVALID_REQUEST, []),
    ]
    assert rows(describe(client, cursor=("a", -1))) == [("a", INVALID_REQUEST, [])]
