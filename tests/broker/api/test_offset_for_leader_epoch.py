from typing import Any

import pytest

from ottla.ports.disk import DiskError

UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 3, 56, 74, 75
UNKNOWN = (0, -1, -1)


def end_of(
    client: Any, epoch: int, *, current: int = -1, topic: str = "t", partition: int = 0
) -> tuple[int, int, int]:
    """(error, epoch, its end)"""
    rows = [{"partition": partition, "leader_epoch": epoch, "current_leader_epoch": current}]
    answers = set()
    for version in (2, 3, 4):
        answer = client.ask(23, version, replica_id=-1, topics=[{"topic": topic, "partitions": rows}])
        [[row]] = [each.partitions for each in answer.topics]
        assert row.partition == partition
        answers.add((row.error_code.value, row.leader_epoch, row.end_offset))
    [only] = answers
    return only


@pytest.fixture(autouse=True)
def history(client: Any, driver: Any, batch: Any) -> None:
    """Epoch 1 wrote offsets 0 and 1, epoch 3 wrote 2, epoch 6 wrote 3 to 5; partition 1 is empty."""
    client.create("t", 2)
    replica = driver.replica("t")
    for epoch, values in ((1, (b"a", b"b")), (3, (b"c",)), (6, (b"d", b"e", b"f"))):
        replica.leader_epoch = epoch
        client.produce("t", batch(*values))


def test_an_epoch_ends_where_the_next_begins(client: Any) -> None:
    assert end_of(client, 1) == (0, 1, 2)
    assert end_of(client, 3) == (0, 3, 3)


def test_the_last_epoch_ends_with_the_log(client: Any) -> None:
    assert end_of(client, 6) == (0, 6, 6)


def test_an_epoch_that_wrote_nothing_is_the_one_before_it(client: Any) -> None:
    assert end_of(client, 2) == (0, 1, 2)
    assert end_of(client, 4) == end_of(client, 5) == (0, 3, 3)


def test_an_epoch_before_all_that_is_known(client: Any) -> None:
    assert end_of(client, 0) == (0, 0, 0)


def test_an_epoch_that_only_a_newer_leader_can_know(client: Any) -> None:
    assert end_of(client, 7) == UNKNOWN
    assert end_of(client, -1) == UNKNOWN


def test_a_leader_that_has_written_nothing_yet(client: Any, driver: Any) -> None:
    driver.replica("t").leader_epoch = 9
    assert end_of(client, 9) == (0, 9, 6)
    assert end_of(client, 6) == (0, 6, 6)
    assert end_of(client, 8) == (0, 6, 6)
    assert end_of(client, 10) == UNKNOWN


def test_an_empty_partition(client: Any, driver: Any) -> None:
    assert end_of(client, 0, partition=1) == (0, 0, 0)
    assert end_of(client, 1, partition=1) == UNKNOWN
    driver.replica("t", 1).leader_epoch = 5
    assert end_of(client, 3, partition=1) == (0, 3, 0)


def test_a_caller_with_another_epoch_than_the_leaders(client: Any) -> None:
    assert end_of(client, 1, current=6) == (0, 1, 2)
    assert end_of(client, 1, current=5) == (FENCED_LEADER_EPOCH, -1, -1)
    assert end_of(client, 1, current=7) == (UNKNOWN_LEADER_EPOCH, -1, -1)


def test_what_is_not_there(client: Any) -> None:
    assert end_of(client, 0, partition=2) == (UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert end_of(client, 0, topic="u") == (UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


def test_a_log_that_cannot_be_opened(client: Any, driver: Any) -> None:
    def fail(_leader: Any) -> Any:
        raise DiskError("input/output error")

    replica = driver.replica("t", 1)
    replica._log, replica.opener = None, fail
    assert end_of(client, 0, partition=1) == (KAFKA_STORAGE_ERROR, -1, -1)
