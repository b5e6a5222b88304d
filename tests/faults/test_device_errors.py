"""EIO from each kind of call: clients get the protocol's own error or a closed connection, and never a changed or half record.

What was acknowledged is there after the restart that follows, whatever failed before it.
"""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.broker_process import CREATE_TOPICS, DELETE_TOPICS, FETCH, Wire, fetching
from tests.crash.failing import READS, SYNCS, WRITES
from tests.faults.broken import (
    STORAGE_ERROR,
    BreakableBroker,
    Ledger,
    fetch_row,
    told,
    values_of,
)

EIO = "Input/output error"


def restarted_and_checked(broker: BreakableBroker, *ledgers: Ledger) -> None:
    """A directory that is offline is not closed cleanly; the disk is mended, and everything is there again."""
    assert broker.stop() == 1
    told(broker, "was not closed cleanly")
    broker.heal().start()
    with Wire(broker.address) as wire:
        for ledger in ledgers:
            ledger.check(wire)
            ledger.produce(wire, b"goes on")
            ledger.check(wire)


@pytest.mark.parametrize(
    ("calls", "pattern", "what"),
    [
        (WRITES, "*/orders-0/*.log", "00000000000000000000.log"),
        ((*WRITES, "ftruncate"), "*/orders-0/*.log", "truncating it failed"),
        (SYNCS, "*/orders-0/*.log", "a sync failed"),
        (SYNCS, "*/orders-0", "a sync failed"),
    ],
    ids=["write", "write-and-truncate", "sync", "sync-of-names"],
)
def test_an_append_that_the_device_refuses_is_not_acknowledged(
    calls: tuple[str, ...], pattern: str, what: str, tmp_path: Path, free_port: int
) -> None:
    ledger, other = Ledger("orders"), Ledger("others")
    with BreakableBroker(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire, Wire(broker.address) as waiting:
            wire.create("others")
            other.produce(wire, b"0")
            wire.create("orders", segment_bytes="10000")
            if what != "a sync failed":
                ledger.produce(wire, bytes(8000))
            waiting.send(FETCH, 11, **fetching("others", 1, max_wait_ms=300_000))
            broker.fail(calls, "EIO", pattern)
            assert ledger.try_to_produce(wire, b"refused") == STORAGE_ERROR
            said = told(broker, "is offline")
            assert str(tmp_path / "data") in said and EIO in said and what in said
            # With one directory everything is offline, and who waits hears of it at once.
            assert waiting.receive().responses[0].partitions[0].error_code.value == STORAGE_ERROR
            assert other.try_to_produce(wire, b"refused") == STORAGE_ERROR
            assert fetch_row(wire, "orders", 0) == (STORAGE_ERROR, b"")
        restarted_and_checked(broker, ledger, other)


def test_what_waits_for_a_sync_that_fails_is_refused(tmp_path: Path, free_port: int) -> None:
    """The sync takes its time, so that a produce waits for it; consumers must not have seen its record."""
    ledger = Ledger("orders")
    with BreakableBroker(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire, Wire(broker.address) as reader:
            wire.create("orders")
            ledger.produce(wire, b"kept")
            broker.delay(SYNCS, 0.3, "*/orders-0/*.log").fail(SYNCS, "EIO", "*/orders-0/*.log")
            reader.send(FETCH, 11, **fetching("orders", 1, max_wait_ms=300_000))
            assert ledger.try_to_produce(wire, b"refused") == STORAGE_ERROR
            row = reader.receive().responses[0].partitions[0]
            assert (row.error_code.value, row.records or b"") == (STORAGE_ERROR, b"")
        restarted_and_checked(broker, ledger)


@pytest.mark.parametrize("size", [1000, 300_000], ids=["read", "sendfile"])
def test_an_error_in_the_middle_of_a_fetch(size: int, tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    with BreakableBroker(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            for number in range(3):
                ledger.produce(wire, b"%d" % number, bytes(size))
            broker.fail(READS, "EIO", "*/orders-0/*.log")
            got = b""
            with suppress(ConnectionError):
                _code, got = fetch_row(wire, "orders", 0)
            assert values_of(got) == []
            said = told(broker, "is offline")
            assert "orders-0/00000000000000000000.log" in said and EIO in said
        with Wire(broker.address) as wire:
            assert fetch_row(wire, "orders", 0) == (STORAGE_ERROR, b"")
        restarted_and_checked(broker, ledger)


def test_an_error_in_recovery_stops_the_start(tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    with BreakableBroker(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"kept")
        broker.kill()
        for calls, pattern in (
            (("pread",), "*/orders-0/*.log"),
            (("listdir",), "*/orders-0"),
            (("read_file",), "*/leader-epoch-checkpoint"),
            (("read_file",), "*/recovery-point-offset-checkpoint"),
        ):
            broker.heal().fail(calls, "EIO", pattern).spawn()
            assert broker.end() == 1
            said = told(broker, "no log directory can be used")
            assert EIO in said and pattern.split("*")[1] in said
        for name in ("metadata.journal", "meta.properties"):
            broker.heal().fail(("read_file", "pread"), "EIO", f"*/{name}").spawn()
            assert broker.end() == 1
            assert f"{name}: {EIO}" in broker.words and "Traceback" not in broker.words
        broker.heal().start()
        with Wire(broker.address) as wire:
            assert ledger.check(wire) == [b"kept"]


@pytest.mark.parametrize("calls", [WRITES, SYNCS])
def test_an_error_on_the_metadata_journal(calls: tuple[str, ...], tmp_path: Path, free_port: int) -> None:
    """Topics cannot be changed; those that are there go on."""
    ledger = Ledger("orders")
    with BreakableBroker(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"0")
            broker.fail(calls, "EIO", "*/metadata.journal")
            row = {"name": "new", "num_partitions": 1, "replication_factor": 1}
            [answer] = wire.ask(CREATE_TOPICS, 5, topics=[row], timeout=30_000).topics
            assert answer.error_code.value == STORAGE_ERROR
            assert f"metadata.journal: {EIO}" in told(broker, "metadata cannot be changed")
            ledger.produce(wire, b"1")
            broker.heal()
            [answer] = wire.ask(CREATE_TOPICS, 5, topics=[row], timeout=30_000).topics
            # R11: after a sync that failed, a journal that would be written again could not be believed.
            assert answer.error_code.value == (STORAGE_ERROR if calls == SYNCS else 0)
        broker.stop()
        broker.start()
        with Wire(broker.address) as wire:
            assert ledger.check(wire) == [b"0", b"1"]
            wire.create("newer")


def test_an_error_in_a_checkpoint_loses_nothing(tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    settings = {"log.flush.offset.checkpoint.interval.ms": "1"}
    with BreakableBroker(tmp_path / "data", free_port, settings) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            broker.fail((*WRITES, "replace"), "EIO", "*checkpoint*")
            # Leader epochs are among them: whatever comes first.
            ledger.try_to_produce(wire, b"perhaps")
            assert EIO in told(broker, "is offline")
        restarted_and_checked(broker, ledger)


def test_a_deleted_topic_whose_directory_cannot_be_renamed(tmp_path: Path, free_port: int) -> None:
    """It must not come back as the next topic of that name."""
    ledger = Ledger("others")
    with BreakableBroker(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("others")
            ledger.produce(wire, b"kept")
            wire.create("orders")
            Ledger("orders").produce(wire, b"deleted")
            broker.fail(("replace",), "EIO", "*/orders-0")
            [row] = wire.ask(DELETE_TOPICS, 4, topic_names=["orders"], timeout=30_000).responses
            assert row.error_code.value == 0
            assert "orders-0" in told(broker, "is offline")
        restarted_and_checked(broker, ledger)
        with Wire(broker.address) as wire:
            wire.create("orders")
            assert wire.end_offset("orders") == 0
            assert "-stray" not in " ".join(path.name for path in (tmp_path / "data").iterdir())


def test_a_file_system_that_turns_read_only(tmp_path: Path, free_port: int) -> None:
    """What Linux makes of many file systems after an error. Each call that would change something is refused."""
    ledger = Ledger("orders")
    changing = (*WRITES, *SYNCS, "ftruncate", "replace", "unlink", "mkdir")
    with BreakableBroker(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"kept")
            broker.fail(changing, "EROFS", f"{tmp_path}/data*")
            assert ledger.try_to_produce(wire, b"refused") == STORAGE_ERROR
            assert "Read-only file system" in told(broker, "is offline")
        assert broker.stop() == 1
        broker.fail(("create",), "EROFS", f"{tmp_path}/data/.lock").spawn()
        assert broker.end() == 1
        said = told(broker, "cannot use the metadata directory")
        assert f"{tmp_path}/data: Read-only file system" in said
        broker.heal().start()
        with Wire(broker.address) as wire:
            assert ledger.check(wire)[0] == b"kept"
