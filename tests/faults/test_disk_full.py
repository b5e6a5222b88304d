"""R13: a full disk refuses what does not fit, keeps serving what is there, and takes more as soon as there is room."""

from pathlib import Path

import pytest

from ottla import Producer
from tests.crash.broker_process import CREATE_TOPICS, Wire, wait_until
from tests.crash.failing import WRITES
from tests.faults.broken import STORAGE_ERROR, BreakableBroker, Ledger, told

#: Logs are flushed in the background at the next check.
EAGER = {"log.flush.offset.checkpoint.interval.ms": "1"}


@pytest.mark.parametrize("policy", ["durable", "page-cache"])
def test_a_full_disk_refuses_appends_and_takes_them_again_when_there_is_room(
    policy: str, tmp_path: Path, free_port: int
) -> None:
    ledger = Ledger("orders")
    data_dir = tmp_path / "data"
    with BreakableBroker(data_dir, free_port, {"log.flush.policy": policy}) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"before", bytes(2000))
            broker.fail(WRITES, "ENOSPC", f"{data_dir}/*")
            assert ledger.try_to_produce(wire, b"refused") == STORAGE_ERROR
            assert ledger.try_to_produce(wire, b"refused too", acks=1) == STORAGE_ERROR
            said = told(broker, "is out of disk space")
            assert said.startswith(f"{data_dir} ") and "No space left on device" in said
            assert ledger.check(wire) == [b"before", bytes(2000)]
            broker.heal()
            ledger.produce(wire, b"after")
            assert ledger.check(wire) == [b"before", bytes(2000), b"after"]
            told(broker, "has disk space again")
        assert broker.said.count(said) == 1, "it says it once, not for every produce"
        assert broker.stop() == 0
        broker.start()
        with Wire(broker.address) as wire:
            assert ledger.check(wire) == [b"before", bytes(2000), b"after"]


def test_a_producer_waits_through_a_full_disk(tmp_path: Path, free_port: int) -> None:
    """The error is one that clients try again: their user notices a delay."""
    with BreakableBroker(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
        with Producer(broker.address) as producer:
            producer.send("orders", value=b"0").result(30)
            broker.fail(WRITES, "ENOSPC", f"{tmp_path}/data/*.log")
            waiting = producer.send("orders", value=b"1")
            told(broker, "is out of disk space")
            assert not waiting.done()
            broker.heal()
            assert waiting.result(30).offset == 1


def test_a_flush_that_finds_no_room_is_tried_again(tmp_path: Path, free_port: int) -> None:
    """Records fit, and what a background flush writes beside them does not: no reason to give the directory up."""
    ledger = Ledger("orders")
    data_dir = tmp_path / "data"
    with BreakableBroker(data_dir, free_port, EAGER) as broker, Wire(broker.address) as wire:
        wire.create("orders")
        broker.fail(WRITES, "ENOSPC", "*.snapshot*")
        ledger.produce(wire, b"before")
        assert ".snapshot" in told(broker, "is out of disk space")
        broker.heal().fail(WRITES, "ENOSPC", "*checkpoint*")
        ledger.produce(wire, b"after")
        wait_until(lambda: any(data_dir.glob("orders-0/*2.snapshot")), "the flush")
        broker.heal()
        checkpoint = data_dir / "recovery-point-offset-checkpoint"
        wait_until(
            lambda: checkpoint.exists() and "orders 0 2" in checkpoint.read_text(),
            "the checkpoint",
        )
        assert "offline" not in broker.words
        broker.kill()
        broker.start()
        with Wire(broker.address) as again:
            assert ledger.check(again) == [b"before", b"after"]


def test_no_room_for_a_new_segment(tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    with BreakableBroker(tmp_path / "data", free_port) as broker, Wire(broker.address) as wire:
        wire.create("orders", segment_bytes="10000")
        ledger.produce(wire, bytes(8000))
        # The new segment's files cannot be made; the old one would still take something small.
        broker.fail(("create",), "ENOSPC", "*/orders-0/00000000000000000001.*")
        assert ledger.try_to_produce(wire, bytes(9000)) == STORAGE_ERROR
        ledger.produce(wire, b"small")
        told(broker, "is out of disk space")
        broker.heal()
        ledger.produce(wire, bytes(7000))
        assert len(ledger.check(wire)) == 3
        broker.kill()
        broker.start()
        with Wire(broker.address) as again:
            assert len(ledger.check(again)) == 3


def test_no_room_for_metadata(tmp_path: Path, free_port: int) -> None:
    with BreakableBroker(tmp_path / "data", free_port) as broker, Wire(broker.address) as wire:
        broker.fail(WRITES, "ENOSPC", "*/metadata.journal")
        row = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
        [answer] = wire.ask(CREATE_TOPICS, 5, topics=[row], timeout=30_000).topics
        assert answer.error_code.value == STORAGE_ERROR
        assert "metadata.journal: No space left on device" in told(broker, "metadata cannot be changed")
        broker.heal()
        wire.create("orders")
        ledger = Ledger("orders")
        ledger.produce(wire, b"kept")
        broker.kill()
        broker.start()
        with Wire(broker.address) as again:
            assert ledger.check(again) == [b"kept"]


def test_no_room_at_the_end_is_said_and_loses_nothing(tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    data_dir = tmp_path / "data"
    with BreakableBroker(data_dir, free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"kept")
        broker.fail(WRITES, "ENOSPC", f"{data_dir}/*")
        assert broker.stop() == 1
        assert str(data_dir) in told(broker, "was not closed cleanly")
        assert "stopped cleanly" not in broker.words
        assert not (data_dir / ".kafka_cleanshutdown").exists()
        # As full as it was, it does not start, and says why.
        broker.spawn()
        assert broker.end() == 1
        assert "No space left on device" in broker.words and "Traceback" not in broker.words
        broker.heal().start()
        with Wire(broker.address) as wire:
            assert ledger.check(wire) == [b"kept"]
