"""New partitions are taken on together, however many there are."""

from typing import Any

import pytest

CREATE_PARTITIONS = 37


@pytest.fixture
def taken_on(driver: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions each step of the broker took on."""
    found: list[int] = []
    host = driver.broker.hosting._host

    def counted(name: str, topic_id: bytes, partitions: Any) -> Any:
        found.append(len(partitions))
        return host(name, topic_id, partitions)

    monkeypatch.setattr(driver.broker.hosting, "_host", counted)
    return found


def test_the_partitions_of_a_new_topic(driver: Any, client: Any, taken_on: list[int]) -> None:
    client.create("t", 50)
    assert taken_on == [50]
    assert len(driver.broker.hosting.by_name["t"].replicas) == 50


def test_partitions_that_are_added(driver: Any, client: Any, batch: Any, taken_on: list[int]) -> None:
    client.create("t", 2)
    client.ask(
        CREATE_PARTITIONS, 3, timeout=9_000, validate_only=False,
        topics=[{"name": "t", "count": 30, "assignments": None}],
    )  # fmt: skip
    assert taken_on == [2, 28]
    row = client.produce("t", batch(b"x"), partition=29)
    assert row.error_code == 0
