"""Log files go both ways: Apache Kafka serves a partition that ottla wrote, ottla one that Kafka wrote.

The topic exists on both sides; with both brokers stopped the files of the one's partition replace those of the other's.
`ottla log dump` reads Kafka's files before. Producer ids are given out by the cluster, not by the files, so who produces
to files of another cluster is not idempotent here.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from bench.kafka import fetch
from bench.process import free_port
from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import Java, Program, run
from tests.interop.test_java_client import TIME, create, expected

COUNT = 9_000
LOG_FILES = ("*.log", "*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint")
# Kafka's least segment is 1 MiB.
CONFIGS = {"segment_bytes": "1048576", "index_interval_bytes": "4096"}


def hand_over(source: Path, target: Path) -> None:
    for pattern in LOG_FILES:
        for old in target.glob(pattern):
            old.unlink()
        for file in source.glob(pattern):
            shutil.copy(file, target)


def check(client: Program, address: str, count: int) -> None:
    """All records, from the files that were handed over and those after them, by offset and by time."""
    seen = client.see(address, "read", "shared", str(TIME + COUNT // 2))
    assert seen["end"] == {"0": count}
    assert seen["at"] == {"0": [COUNT // 2, TIME + COUNT // 2]}
    keys = [record["key"] for record in seen["records"]]
    numbers = [*range(COUNT), *range(100), *range(100)][:count]
    assert keys == [expected(number, 1)["key"] for number in numbers]
    assert [record["offset"] for record in seen["records"]] == list(range(count))


def test_log_files_go_both_ways(
    java: Java, java_client: Program, start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    ours = start_broker()
    create(ours, "shared", **CONFIGS)
    assert java_client.see(ours.address, "produce", "shared", "none", str(COUNT))["failed"] == []
    assert ours.stop() == 0
    our_files = ours.data_dir / "shared-0"

    kafka = fetch()
    home = tmp_path / "kafka"
    theirs = kafka.start(home, port=free_port())
    try:
        theirs.wait_ready()
        create_there(java, theirs.address)
        theirs.stop()
        their_files = home / "data" / "shared-0"
        hand_over(our_files, their_files)

        theirs = kafka.start(home, port=free_port())
        theirs.wait_ready()
        check(java_client, theirs.address, COUNT)
        assert java_client.see(theirs.address, "produce", "shared", "zstd", "100", "plain")["failed"] == []
        check(java_client, theirs.address, COUNT + 100)
    finally:
        theirs.stop()

    dumped = run([str(Path(sys.executable).parent / "ottla"), "log", "dump", "--json", str(their_files)])
    records = [record for row in map(json.loads, dumped.lines) for record in row.get("records", ())]
    assert [record["offset"] for record in records] == list(range(COUNT + 100))
    assert [record["value"] for record in records[-100:]] == [
        expected(number, 1)["value"] for number in range(100)
    ]
    hand_over(their_files, our_files)
    ours.start()
    check(java_client, ours.address, COUNT + 100)
    assert java_client.see(ours.address, "produce", "shared", "lz4", "100", "plain")["failed"] == []
    check(java_client, ours.address, COUNT + 200)


def create_there(java: Java, address: str) -> None:
    configs = [
        part for name, value in CONFIGS.items() for part in ("--config", f"{name.replace('_', '.')}={value}")
    ]
    java.tool("TopicCommand", "--create", "--topic", "shared", *configs, "--bootstrap-server", address)
