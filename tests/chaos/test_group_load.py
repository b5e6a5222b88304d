"""A coordinator that has a million commits to read before it serves: how long that takes, and that nobody else waits for it."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.groups.formats import OFFSET_COMMIT, Committed, encode
from ottla.groups.formats import Record as GroupRecord
from ottla.records.record import Record, encode_batch
from tests.crash.broker_process import BrokerProcess, Wire, batch_of, wait_until

FIND_COORDINATOR, OFFSET_FETCH = 10, 9
COUNT = 1_000_000
GROUPS, PARTITIONS = 100, 100
LOADING = 14
#: Of CPU, in a process that also starts, recovers the log and serves others. Reading by the tables alone would take longer.
RECORDS_PER_CPU_S = 50_000
#: A slice of the log takes some milliseconds; a load in one piece would take seconds.
STALL_S_MAX = 1.0


def commits(per_batch: int) -> Iterator[bytes]:
    """The log of groups that commit over and over, oldest first, so many of them in a batch."""
    rows: list[Record] = []
    for number in range(COUNT):
        place = (f"group-{number % GROUPS}", "orders", number // GROUPS % PARTITIONS)
        key, value = encode(
            GroupRecord((OFFSET_COMMIT, *place), Committed(number, 0, "", 1_700_000_000_000 + number))
        )
        rows.append(Record(0, 1_700_000_000_000 + number, key, value))
        if len(rows) == per_batch:
            yield encode_batch(rows, base_offset=number + 1 - per_batch, partition_leader_epoch=0)
            rows = []


def cpu_s(process: BrokerProcess) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fetch_offsets(wire: Wire, group: str) -> Any:
    return wire.ask(OFFSET_FETCH, 7, group_id=group, topics=None, require_stable=False)


@pytest.mark.parametrize("per_batch", [1, 50])
def test_a_million_commits_are_loaded_in_slices(tmp_path: Path, free_port: int, per_batch: int) -> None:
    settings = {"offsets.topic.num.partitions": "1", "log.flush.policy": "page-cache"}
    with BrokerProcess(tmp_path / "data", free_port, settings) as broker:
        with Wire(broker.address) as wire:
            wire.create("others")
            wire.create("orders", PARTITIONS)
            wire.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["group-0"])
            wire.produce("others", batch_of(b"x"))
            wait_until(lambda: fetch_offsets(wire, "group-0").error_code.value == 0, "a coordinator")
        broker.kill()
        folder = tmp_path / "data" / "__consumer_offsets-0"
        for path in folder.glob("0*"):
            path.unlink()
        with (folder / f"{0:020}.log").open("wb") as file:
            for batch in commits(per_batch):
                file.write(batch)
            size = file.tell()
        broker.start()
        before_s, began_s = cpu_s(broker), time.monotonic()
        longest_s, is_loaded = 0.0, threading.Event()
        with Wire(broker.address) as group, Wire(broker.address) as other:

            def produce() -> None:
                nonlocal longest_s
                while not is_loaded.wait(0.005):
                    asked_s = time.monotonic()
                    other.produce("others", batch_of(b"x"))
                    longest_s = max(longest_s, time.monotonic() - asked_s)

            beside = threading.Thread(target=produce)
            beside.start()
            # At first it says that it loads.
            assert fetch_offsets(group, "group-0").error_code.value == LOADING
            wait_until(lambda: fetch_offsets(group, "group-0").error_code.value == 0, "it has loaded")
            loaded_s, used_s = time.monotonic() - began_s, cpu_s(broker) - before_s
            is_loaded.set()
            beside.join()
            for number in (0, GROUPS - 1):
                answer = fetch_offsets(group, f"group-{number}")
                [topic] = answer.topics
                found = {row.partition_index: row.committed_offset for row in topic.partitions}
                last = COUNT - GROUPS * PARTITIONS
                assert found == {at: last + at * GROUPS + number for at in range(PARTITIONS)}
        print(
            f"{COUNT:,} commits, {per_batch} a batch, {size / 1e6:.0f} MB: {loaded_s:.1f} s, {used_s:.1f} s of CPU, "
            f"{COUNT / used_s:,.0f} records a second of CPU; the longest produce beside it took {longest_s * 1000:.0f} ms"
        )
        assert COUNT / used_s > RECORDS_PER_CPU_S
        assert longest_s < STALL_S_MAX
