"""Log maintenance of many partitions: in slices, all of them, with checkpoints that keep unchanged lines."""

from typing import Any

from ottla.broker.storage.log_directory import LogDirectory
from ottla.log import checkpoints

FLUSH_MS = 5000


def points(driver: Any) -> dict[tuple[str, int], int]:
    path = driver.broker.directories.all[0].path
    found = checkpoints.parse_offsets(driver.disk.read_file(f"{path}/recovery-point-offset-checkpoint"))
    return found or {}


def test_retention_goes_over_many_partitions_in_slices(driver: Any, client: Any, batch: Any) -> None:
    client.create("t", 100, retention_ms="1000")
    for partition in range(100):
        client.produce("t", batch(b"v", timestamp_ms=driver.now_ms), partition)
    logs = [driver.replica("t", number).log for number in range(100)]

    def left() -> int:
        return sum(log.log_start_offset == 0 for log in logs)

    driver.now_ms += 10_000
    driver.broker.log_maintenance.retain(driver.now_ms)
    driver.turn()
    assert 0 < left() < 100
    # A second round does not begin before the first is over, and a deleted topic does not delay it.
    driver.broker.log_maintenance.retain(driver.now_ms)
    client.ask(20, 5, topic_names=["t"], timeout=1000)
    gone = left()
    driver.advance(1000)
    assert left() == gone
    assert client.create("u")


def test_retention_reaches_all_partitions_in_later_slices(driver: Any, client: Any, batch: Any) -> None:
    client.create("t", 100, retention_ms="1000")
    for partition in range(100):
        client.produce("t", batch(b"v", timestamp_ms=driver.now_ms), partition)
    driver.now_ms += 10_000
    driver.broker.log_maintenance.retain(driver.now_ms)
    driver.advance(1000)
    assert all(driver.replica("t", number).log.log_start_offset == 1 for number in range(100))


def recovery_points(driver: Any, topic: str, partitions: int) -> int:
    """How many of the logs of one record each were flushed."""
    return sum(driver.replica(topic, number).log.recovery_point for number in range(partitions))


def test_many_logs_with_few_records_are_flushed_a_few_per_second(
    driver: Any, client: Any, batch: Any
) -> None:
    """The oldest first. Flushing more would cost more than reading them again after a crash."""
    client.create("t", 50)
    for partition in range(50):
        client.produce("t", batch(b"v"), partition)
    driver.advance(FLUSH_MS - 16)
    assert recovery_points(driver, "t", 50) == 0
    driver.advance(1016)
    assert recovery_points(driver, "t", 32) == 32 == recovery_points(driver, "t", 50)
    driver.advance(1016)
    assert recovery_points(driver, "t", 50) == 50
    assert points(driver) == {("t", number): 1 for number in range(50)}


def test_logs_with_many_bytes_or_flush_ms_are_flushed_at_once(driver: Any, client: Any, batch: Any) -> None:
    client.create("t", 50, flush_ms="2000")
    client.create("large", 6)
    for partition in range(50):
        client.produce("t", batch(b"v"), partition)
    for partition in range(6):
        for _ in range(2):
            client.produce("large", batch(bytes(600_000)), partition)
    driver.advance(1016)
    assert recovery_points(driver, "large", 6) == 12
    driver.advance(2000)
    assert recovery_points(driver, "t", 50) == 50


def test_a_checkpoint_keeps_lines_that_have_not_changed_since_the_start(
    driver: Any, client: Any, batch: Any
) -> None:
    client.create("t", 2)
    client.create("gone")
    for topic, partition in (("t", 0), ("t", 1), ("gone", 0)):
        client.produce(topic, batch(b"v"), partition)
    driver.advance(FLUSH_MS + 1016)
    assert points(driver) == {("t", 0): 1, ("t", 1): 1, ("gone", 0): 1}

    old = driver.broker.directories.all[0]
    again = LogDirectory(driver.disk, old.path, driver.said.append)
    image = driver.broker.image
    again.open(cluster_id=image.cluster_id, node_id=1, new_id=bytes)
    config = driver.replica("t").config
    for number in (0, 1):
        assert again.load("t", number, config, driver.now_ms) is not None
    files = again.checkpoint_files([])
    [of_points] = [data for path, data in files.items() if path.endswith("recovery-point-offset-checkpoint")]
    assert checkpoints.parse_offsets(of_points) == {("t", 0): 1, ("t", 1): 1}

    client.ask(20, 5, topic_names=["gone"], timeout=1000)
    driver.advance(1000)
    assert points(driver) == {("t", 0): 1, ("t", 1): 1}


def test_a_pause_follows_a_checkpoint_of_many_partitions(driver: Any, client: Any, batch: Any) -> None:
    client.create("t", 200)
    broker = driver.broker
    [directory] = broker.directories.all
    path = directory.path
    directory.checkpoint_files(
        (replica.topic, replica.number, replica.log, 0) for replica in broker.partitions.replicas()
    )
    written: list[int] = []
    replace = driver.disk.replace_file

    def counted(name: str, data: bytes) -> None:
        if name == f"{path}/recovery-point-offset-checkpoint":
            written.append(driver.now_ms)
        replace(name, data)

    driver.disk.replace_file = counted
    for partition in range(20):
        client.produce("t", batch(b"v"), partition)
        broker.log_maintenance.flush(driver.replica("t", partition))
        driver.turn()
    assert len(written) == 1
    driver.advance(100)
    assert len(written) == 2 and written[1] - written[0] >= 2
    assert sum(points(driver).values()) == 20
