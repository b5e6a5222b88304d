"""What producers and others send about transactions that they should not: each hears the protocol's error, and nothing has changed.

Nothing: neither what coordinators and partitions know of producers, groups and offsets, nor a byte of any log.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from tests.broker.api.mischief import (
    ATTEMPTS,
    NOBODY,
    OFFSETS_TOPIC,
    PARTITIONS,
    PRODUCE,
    SETTINGS,
    STATE_TOPIC,
    Attempt,
    Scene,
    batch,
    codes_of,
)
from tests.broker.api.transactors import Transactor, committed
from tests.broker.conftest import Driver


class Here(Driver):
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        super().__init__(str(directory), SETTINGS)

    def wait(self) -> None:
        self.advance(20)

    def state(self) -> Any:
        """All that is known, and all that is written."""
        self.turn()
        transactions = [
            (shard.transactions.keys(), {name: each.entry for name, each in shard.transactions.items()})
            for shard in self.broker.transactions.shards
        ]
        groups = [
            (set(shard.groups), {group: dict(shard.offsets.of(group)) for group in shard.groups})
            for shard in self.broker.groups.shards
        ]
        producers = {
            f"{replica.topic}-{replica.number}": replica.log.producers.render()
            for replica in self.broker.partitions.replicas()
            if replica.opened
        }
        files = {path: path.read_bytes() for path in sorted(self.directory.rglob("*.log"))}
        return transactions, groups, producers, files


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One for all: nothing changes it."""
    driver = Here(tmp_path_factory.mktemp("scene") / "data")
    yield Scene(driver)
    driver.close()


@pytest.mark.parametrize("attempt", [row[1] for row in ATTEMPTS], ids=[row[0] for row in ATTEMPTS])
def test_what_is_wrong_is_refused_and_changes_nothing(scene: Scene, attempt: Attempt) -> None:
    here = scene.driver
    assert isinstance(here, Here)
    before = here.state()
    expected = attempt.code if isinstance(attempt.code, set) else {attempt.code}
    assert codes_of(attempt.make(scene)) == expected
    assert here.state() == before
    assert scene.describe("open1").transaction_state == "Ongoing"


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Scene]:
    driver = Here(tmp_path / "data")
    yield Scene(driver)
    driver.close()


def test_a_transaction_of_version_2_begins_at_sequence_0(fresh: Scene) -> None:
    """What is missing before it will not come in this order any more. Of older clients it may just have been forgotten."""
    assert codes_of(fresh.send(fresh.open2, 5, base_sequence=5)) == {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert fresh.told()[1][5] == 0
    assert codes_of(fresh.send(fresh.open2, 5)) == {ErrorCode.NONE}
    assert fresh.open1.add(("t", 4)) == {("t", 4): 0}
    assert codes_of(fresh.send(fresh.open1, 4, base_sequence=5)) == {ErrorCode.NONE}


def test_a_marker_by_hand_is_taken_as_on_kafka(fresh: Scene) -> None:
    """KIP-664: an administrator ends a hanging transaction, and one of a producer that has none harms nothing."""
    assert codes_of(fresh.mark(NOBODY, 0, ("t", 4), (OFFSETS_TOPIC, 0), (STATE_TOPIC, 0))) == {ErrorCode.NONE}
    assert fresh.told()[1][4] == 1
    # Again, and by a later coordinator.
    assert codes_of(fresh.mark(NOBODY, 0, ("t", 4), version=2, coordinator=7)) == {ErrorCode.NONE}
    assert codes_of(fresh.mark(NOBODY, 0, ("t", 4), coordinator=6)) == {
        ErrorCode.TRANSACTION_COORDINATOR_FENCED
    }
    assert codes_of(fresh.mark(fresh.open1.producer_id, fresh.open1.epoch, ("t", 0), commit=False)) == {
        ErrorCode.NONE
    }
    assert fresh.describe("open1").transaction_state == "Ongoing"
    assert fresh.open1.end(commit=True) == ErrorCode.NONE


def test_plain_and_transactional_batches_may_come_together(fresh: Scene) -> None:
    """In one request that names the transaction, and into different partitions: as on Kafka."""
    told = fresh.two(fresh.of(fresh.open2), batch(b"plain"), "open2")
    assert codes_of(told) == {ErrorCode.NONE}
    assert fresh.open2.end(commit=False) == ErrorCode.NONE
    assert committed(fresh.driver.connect(), "t", 4) == []
    assert committed(fresh.driver.connect(), "t", 5) == [b"plain"]


def test_everybody_goes_on_after_all_of_it(tmp_path: Path) -> None:
    driver = Here(tmp_path / "data")
    scene = Scene(driver)
    for _name, attempt in ATTEMPTS:
        attempt.make(scene)
    for tx, number in ((scene.open1, 0), (scene.open2, 1)):
        assert tx.produce("t", b"more", number=number) == ErrorCode.NONE
        assert tx.end(commit=True) == ErrorCode.NONE
    driver.close()


def test_a_produce_that_fails_after_its_connection_has_gone_closes_nothing(drive: Any) -> None:
    """Without acks a failure closes the connection; the coordinator may say only later that there is a transaction at all."""
    driver = drive(
        log_flush_policy="durable", **{name.replace(".", "_"): value for name, value in SETTINGS.items()}
    )
    tx = Transactor(driver, batch, version=2)
    driver.connect().create("t", PARTITIONS)
    assert tx.init() == 0
    fields = tx.fields("t", b"lost")
    damaged = bytearray(fields["topic_data"][0]["partition_data"][0]["records"])
    damaged[-1] ^= 1
    fields["topic_data"][0]["partition_data"][0]["records"] = bytes(damaged)
    driver.are_syncs_held = True
    gone = driver.connect()
    gone.send(PRODUCE, 12, is_answered=False, **fields | {"acks": 0})
    assert driver.broker.txn_verification.held_bytes > 0
    gone.disconnect()
    driver.are_syncs_held = False
    driver.sync()
    driver.turn()
    assert driver.broker.txn_verification.held_bytes == 0
    assert gone.closed_because is None
