"""How long partitions remember producers, and coordinators transactional ids; and that nothing with a transaction is forgotten."""

from typing import Any

import pytest

from ottla.log.producers import Producers
from ottla.records.record import decode_batches
from tests.broker.api.transactors import Transactor, committed

TOPIC_OF_TRANSACTIONS = "__transaction_state"
EXPIRY_MS, CHECK_MS = 60_000, 7_000


@pytest.fixture
def driver(drive: Any) -> Any:
    return drive(
        transaction_state_log_num_partitions="1",
        producer_id_expiration_ms=str(EXPIRY_MS),
        producer_id_expiration_check_interval_ms=str(CHECK_MS),
        transactional_id_expiration_ms=str(EXPIRY_MS),
        transaction_remove_expired_transaction_cleanup_interval_ms=str(CHECK_MS),
    )


def known(driver: Any, topic: str = "t") -> set[int]:
    return set(driver.replica(topic).log.producers.by_id)


def snapshots(driver: Any) -> set[int]:
    """The producers in the newest snapshot of the log."""
    log = driver.replica("t").log
    parsed = Producers.parse(driver.disk.read_file(log.snapshot_path(log.recovery_point)))
    assert parsed is not None
    return set(parsed.by_id)


def test_a_silent_producer_is_forgotten_unless_its_transaction_is_open(
    driver: Any, client: Any, batch: Any
) -> None:
    client.create("t")
    tx = Transactor(driver, batch)
    assert tx.init(timeout_ms=900_000) == 0
    assert tx.send("t", b"open") == 0
    sent = {"producer_id": 7_000, "producer_epoch": 0}
    assert client.produce("t", batch(b"one", **sent, base_sequence=0)).error_code == 0
    driver.advance(EXPIRY_MS - CHECK_MS)
    # Whoever is heard of is remembered, even if it only repeats nothing new.
    assert (
        client.produce("t", batch(b"two", producer_id=8_000, producer_epoch=0, base_sequence=0)).error_code
        == 0
    )
    assert known(driver) == snapshots(driver) | {8_000} == {tx.producer_id, 7_000, 8_000}
    driver.advance(2 * CHECK_MS)
    assert known(driver) == {tx.producer_id, 8_000}
    # It is a stranger now, and may begin where it left off.
    assert client.produce("t", batch(b"three", **sent, base_sequence=1)).error_code == 0
    driver.advance(EXPIRY_MS + 2 * CHECK_MS)
    assert known(driver) == {tx.producer_id}
    client.produce("t", batch(b"plain"))
    driver.broker.log_maintenance.flush(driver.replica("t"))
    driver.turn()
    assert snapshots(driver) == {tx.producer_id}
    # The open one ends as if nothing had been; then it goes too.
    assert committed(client, "t") == []
    assert tx.end(commit=True) == 0
    assert committed(client, "t")[0] == b"open"
    driver.advance(EXPIRY_MS + 2 * CHECK_MS)
    assert known(driver) == set()


def test_the_time_can_be_changed_while_the_broker_runs(driver: Any, client: Any, batch: Any) -> None:
    client.create("t")
    client.produce("t", batch(b"one", producer_id=7_000, producer_epoch=0, base_sequence=0))
    configs = [{"name": "producer.id.expiration.ms", "config_operation": 0, "value": "1000"}]
    resources = [{"resource_type": 4, "resource_name": "", "configs": configs}]
    [row] = client.ask(44, resources=resources).responses
    assert row.error_code == 0, row.error_message
    driver.advance(2 * CHECK_MS)
    assert known(driver) == set()


def test_a_transactional_id_that_nobody_uses_is_forgotten_with_a_tombstone(
    driver: Any, client: Any, batch: Any
) -> None:
    client.create("t")
    idle, done, busy = (Transactor(driver, batch, name) for name in ("idle", "done", "busy"))
    for tx in (idle, done, busy):
        assert tx.init(timeout_ms=900_000) == 0
    assert done.send("t", b"one") == 0 and done.end(commit=True) == 0
    assert busy.send("t", b"two") == 0
    before = idle.producer_id
    driver.advance(EXPIRY_MS + 2 * CHECK_MS)
    states = client.ask(66, 0, state_filters=[], producer_id_filters=[]).transaction_states
    assert {row.transactional_id for row in states} == {"busy"}
    log = driver.replica(TOPIC_OF_TRANSACTIONS).log
    piece = log.slice(0, log.next_offset, 1 << 20, whole_first=True)
    records = decode_batches(driver.disk.read(piece.file, piece.position, piece.size))
    buried = {record.key[4:].decode() for record in records if record.value is None and record.key}
    assert buried == {"idle", "done"}
    # Of whoever comes back nothing is known: not even its producer id, which nobody else gets.
    assert client.ask(26, 3, **idle.who, committed=True).error_code == 49
    assert idle.init() == 0
    assert idle.producer_id not in (before, done.producer_id, busy.producer_id) and idle.epoch == 0
    assert busy.end(commit=True) == 0
