"""Files that were changed between two runs, by a bad disk or by somebody's hand.

The log is what counts: whatever stands beside it is made anew. What of the log itself is damaged is never served as if it
were whole.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest

from tests.crash.broker_process import BrokerProcess, Wire, batch_of
from tests.faults.broken import Ledger, told

#: Several segments, and an index entry for nearly every batch.
SMALL = {"segment_bytes": "20000", "index_interval_bytes": "1000"}
BATCHES = 30
VALUE_BYTES = 2000


def fill(broker: BrokerProcess, topic: str = "orders") -> Ledger:
    """Batches of two records, their timestamps their numbers."""
    ledger = Ledger(topic)
    with Wire(broker.address) as wire:
        wire.create(topic, **SMALL)
        for number in range(BATCHES):
            values = (b"%d" % number, os.urandom(VALUE_BYTES))
            offset = wire.produce(topic, batch_of(*values, timestamp_ms=1_000_000_000_000 + number * 10))
            ledger.kept.update({offset: values[0], offset + 1: values[1]})
    return ledger


def check_by_time(wire: Wire, topic: str = "orders") -> None:
    for number in (0, 1, BATCHES // 2, BATCHES - 1):
        assert wire.end_offset(topic, timestamp=1_000_000_000_000 + number * 10) == 2 * number


def logs(data_dir: Path, topic: str = "orders") -> list[Path]:
    return sorted(data_dir.glob(f"{topic}-0/*.log"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


# --- beside the log -----------------------------------------------------------------------------------------------


def remove(path: Path) -> None:
    path.unlink()


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3 - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def take_for_another(path: Path) -> None:
    """The index of another log, whole in itself."""
    path.write_bytes((path.parent.parent / "others-0" / path.name).read_bytes())


def lengthen(path: Path) -> None:
    """More entries, in order, that point behind the end of the log."""
    size = 8 if path.suffix == ".index" else 12
    data = path.read_bytes()
    key = int.from_bytes(data[-size:-4], "big")
    value = int.from_bytes(data[-4:], "big")
    more = b"".join(
        (key + step).to_bytes(size - 4, "big") + (value + 50_000 * step).to_bytes(4, "big")
        for step in range(1, 9)
    )
    path.write_bytes(data + more)


def fill_with_noise(path: Path) -> None:
    path.write_bytes(os.urandom(max(path.stat().st_size, 40)))


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_indexes_are_made_anew(clean: bool, tmp_path: Path, free_port: int) -> None:
    """Each segment's indexes are damaged in a way of their own, and one after the other is read by offset and by time."""
    data_dir = tmp_path / "data"
    damages: list[Callable[[Path], None]] = [
        remove, cut_short, empty, take_for_another, lengthen, fill_with_noise, zero,
    ]  # fmt: skip
    with BrokerProcess(data_dir, free_port) as broker:
        ledger = fill(broker)
        fill(broker, "others")
        for turn in range(2):
            assert broker.stop() == 0
            if not clean:
                (data_dir / ".kafka_cleanshutdown").unlink()
            segments = logs(data_dir)
            assert len(segments) >= 4
            for at, log in enumerate(segments):
                for suffix in (".index", ".timeindex"):
                    damage = damages[(2 * at + turn + (suffix == ".index")) % len(damages)]
                    if log.with_suffix(suffix).stat().st_size:
                        damage(log.with_suffix(suffix))
            broker.start()
            with Wire(broker.address) as wire:
                ledger.check(wire)
                check_by_time(wire)
            assert "DAMAGED" not in broker.words and "offline" not in broker.words


@pytest.mark.parametrize("damage", [remove, empty, cut_short, fill_with_noise, zero])
def test_what_stands_beside_the_log_is_made_anew(
    damage: Callable[[Path], None], tmp_path: Path, free_port: int
) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        ledger = fill(broker)
        assert broker.stop() == 0
        beside = [
            *data_dir.glob("orders-0/*.snapshot"),
            *data_dir.glob("orders-0/*checkpoint"),
            *data_dir.glob("*checkpoint"),
            data_dir / "orders-0" / "partition.metadata",
        ]
        assert len(beside) >= 5
        for path in beside:
            damage(path)
        (data_dir / "orders-0" / "00000000000000000000.txnindex").write_bytes(os.urandom(50))
        broker.start()
        with Wire(broker.address) as wire:
            ledger.check(wire)
            ledger.produce(wire, b"goes on")
            ledger.check(wire)
        if damage not in (remove, empty):
            assert "recovery-point-offset-checkpoint" in told(broker, "is damaged and ignored")
        broker.kill()
        broker.start()
        with Wire(broker.address) as wire:
            ledger.check(wire)


# --- the log itself -----------------------------------------------------------------------------------------------


def test_a_torn_tail_is_cut_off(tmp_path: Path, free_port: int) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        ledger = fill(broker)
        for torn in (batch_of(bytes(900))[:500], bytes(300), os.urandom(700), b"x"):
            broker.kill()
            with logs(data_dir)[-1].open("ab") as log:
                log.write(torn)
            broker.start()
            said = told(broker, "bytes of a torn tail were cut off")
            assert str(data_dir / "orders-0") in said and f" {len(torn)} bytes" in said
            told(broker, "recovered after an unclean shutdown")
            with Wire(broker.address) as wire:
                ledger.check(wire)
                ledger.produce(wire, b"goes on")


def test_damage_past_the_recovery_point_ends_the_log_there(tmp_path: Path, free_port: int) -> None:
    """What stands before it is served; neither the damaged batch nor what comes after a lost one."""
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        ledger = fill(broker)
        broker.kill()
        (data_dir / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
        second = logs(data_dir)[1]
        flip(second, second.stat().st_size // 2)
        broker.start()
        told(broker, "bytes of a torn tail were cut off")
        with Wire(broker.address) as wire:
            end = wire.end_offset("orders")
            assert int(second.stem) < end < 2 * BATCHES
            ledger.kept = {offset: value for offset, value in ledger.kept.items() if offset < end}
            ledger.check(wire)
            ledger.produce(wire, b"goes on")
            ledger.check(wire)


@pytest.mark.parametrize("where", ["data", "header"])
def test_damage_before_the_recovery_point_is_not_served_as_whole(
    where: str, tmp_path: Path, free_port: int
) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        ledger = fill(broker)
        assert broker.stop() == 0
        second = logs(data_dir)[1]
        base = int(second.stem)
        length = int.from_bytes(second.read_bytes()[8:12], "big") + 12
        # In the middle of the second batch, or the length in its header.
        flip(second, length + (100 if where == "data" else 9))
        broker.start()
        good = {offset: value for offset, value in ledger.kept.items() if not base + 2 <= offset < base + 4}
        with Wire(broker.address) as wire:
            # What stands before it comes as ever, and so does what stands in other segments.
            for offset in (0, base):
                assert wire.fetch("orders", offset, bytes_max=100)[0].value == ledger.kept[offset]
            last = int(logs(data_dir)[-1].stem)
            assert wire.fetch("orders", last)[0].value == ledger.kept[last]
        seen: dict[int, bytes] = {}
        errors: list[str] = []
        settings = {
            "bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False,
            "check.crcs": True, "log_level": 0,
        }  # fmt: skip
        consumer = confluent_kafka.Consumer(settings)
        try:
            consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
            while not errors and len(seen) < len(good):
                message = consumer.poll(10)
                assert message is not None, "neither records nor an error"
                if message.error():
                    errors.append(str(message.error()))
                else:
                    seen[message.offset()] = message.value()
        finally:
            consumer.close()
        assert errors, "the gap is not passed over in silence"
        if where == "header":
            assert f"{second} is damaged after offset {base + 1}" in told(
                broker, "fetches from there are refused"
            )
        assert seen.items() <= good.items(), "nothing altered"


def test_a_log_that_lost_its_end_is_said_to_be_damaged(tmp_path: Path, free_port: int) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        ledger = fill(broker)
        assert broker.stop() == 0
        newest = logs(data_dir)[-1]
        os.truncate(newest, newest.stat().st_size - 100)
        broker.start()
        said = told(broker, "DAMAGED")
        assert str(data_dir / "orders-0") in said
        with Wire(broker.address) as wire:
            end = wire.end_offset("orders")
            assert end == 2 * BATCHES - 2 and f"offset {end}" in said
            ledger.kept = {offset: value for offset, value in ledger.kept.items() if offset < end}
            ledger.check(wire)
            ledger.produce(wire, b"goes on")
        assert broker.stop() == 0
        broker.start()
        assert "DAMAGED" not in broker.words
        with Wire(broker.address) as wire:
            ledger.check(wire)


def test_a_log_without_its_first_or_a_middle_segment(tmp_path: Path, free_port: int) -> None:
    """What is left is served from where it begins; where a middle is missing, a fetch there does not hang or lie."""
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        ledger = fill(broker)
        assert broker.stop() == 0
        segments = logs(data_dir)
        segments[0].unlink()
        broker.start()
        with Wire(broker.address) as wire:
            start = int(segments[1].stem)
            assert wire.end_offset("orders", timestamp=-2) == start
            assert wire.fetch("orders", start)[0].value == ledger.kept[start]
            assert wire.end_offset("orders") == 2 * BATCHES


def test_a_log_that_is_gone_is_missed(tmp_path: Path, free_port: int) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        ledger = fill(broker)
        assert broker.stop() == 0
        (data_dir / "orders-0").rename(tmp_path / "orders-0")
        broker.start()
        assert f"at least offset {2 * BATCHES}" in told(broker, "is gone: it reached")
        with Wire(broker.address) as wire:
            assert wire.end_offset("orders") == 0
        # Stopped at once and restored, nothing is missing.
        broker.kill()
        shutil.rmtree(data_dir / "orders-0")
        (tmp_path / "orders-0").rename(data_dir / "orders-0")
        broker.start()
        with Wire(broker.address) as wire:
            ledger.check(wire)


def test_a_damaged_journal_stops_the_start(tmp_path: Path, free_port: int) -> None:
    data_dir = tmp_path / "data"
    journal = data_dir / "metadata.journal"
    with BrokerProcess(data_dir, free_port) as broker:
        ledger = fill(broker)
        fill(broker, "others")
        assert broker.stop() == 0
        whole = journal.read_bytes()
        flip(journal, len(whole) // 3)
        broker.spawn()
        assert broker.end() == 1
        assert str(journal) in told(broker, "is damaged at byte")
        # A torn last entry is another matter: it was never answered.
        journal.write_bytes(whole + whole[:50])
        broker.start()
        with Wire(broker.address) as wire:
            ledger.check(wire)
        assert broker.stop() == 0
        journal.unlink()
        broker.spawn()
        assert broker.end() == 1
        assert str(data_dir) in told(broker, "but no metadata.journal that knows them")
        journal.write_bytes(whole)
        broker.start()
        with Wire(broker.address) as wire:
            ledger.check(wire)
