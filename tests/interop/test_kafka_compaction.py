"""A partition that ottla compacted: Apache's DumpLogSegments reads it, and Kafka serves it and compacts it further."""

import re
from pathlib import Path

from bench.kafka import fetch
from bench.process import free_port as any_port
from tests.crash.broker_process import BrokerProcess, Wire
from tests.interop.programs import Java
from tests.interop.test_kafka_dump_log import BATCH, TROUBLE, check_sanity, files
from tests.interop.test_kafka_files import hand_over
from tests.seeds.test_compaction import produce, read, wait_cleaned

#: Kafka's least segment is 1 MiB.
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
KEYS = 300


def rows(count: int) -> list[tuple[str, str | None]]:
    made: list[tuple[str, str | None]] = []
    for at in range(count):
        # Every seventh key ends with a tombstone.
        key = f"key-{(at * 7) % KEYS}"
        made.append((key, None if at > count - KEYS and at % 7 == 0 else f"{at}." + "x" * 500))
    return made


def test_kafka_reads_and_opens_a_compacted_partition(java: Java, tmp_path: Path, free_port: int) -> None:
    written = rows(9_000)
    with BrokerProcess(tmp_path / "ours", free_port, {"log.cleaner.backoff.ms": "100"}) as ours:
        with Wire(ours.address) as wire:
            wire.create("shared", **{name.replace(".", "_"): value for name, value in CONFIGS.items()})
        produce(ours.address, "shared", written, "lz4")
        produce(ours.address, "shared", [(f"more-{at}", "y" * 900) for at in range(1500)])
        wait_cleaned(ours.data_dir, "shared")
        found = read(ours.address, "shared")
        assert ours.stop() == 0
    partition = tmp_path / "ours" / "shared-0"
    newest = {key: offset for offset, (key, _value) in enumerate(written)}
    assert {key: offset for offset, key, _value in found if key in newest} == newest

    logs = ",".join(map(str, files(partition, "log")))
    dumped = java.tool("DumpLogSegments", "--deep-iteration", "--files", logs)
    said = dumped.out
    assert [line for line in dumped.lines if TROUBLE.search(line) and not line.startswith("| ")] == []
    # Gaps are what compaction is about; there is nothing else that the tool does not like.
    assert re.sub(r"Non-consecutive offsets in .*\n(  -?\d+ is followed by \d+\n)+", "", dumped.errors) == ""
    assert "deleteHorizonMs" in said
    bases = [int(base) for base, *_ in BATCH.findall(said)]
    assert bases == sorted(bases)
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+)", said, re.MULTILINE)]
    assert offsets == [offset for offset, _key, _value in found]
    check_sanity(java, files(partition, "index"))
    check_sanity(java, files(partition, "timeindex"))

    home = tmp_path / "kafka"
    kafka = fetch()
    settings = {"log.cleaner.backoff.ms": "100"}
    theirs = kafka.start(home, port=any_port(), settings=settings)
    try:
        theirs.wait_ready()
        configs = [part for name, value in CONFIGS.items() for part in ("--config", f"{name}={value}")]
        java.tool(
            "TopicCommand", "--create", "--topic", "shared", *configs, "--bootstrap-server", theirs.address
        )
        theirs.stop()
        hand_over(partition, home / "data" / "shared-0")
        theirs = kafka.start(home, port=any_port(), settings=settings)
        theirs.wait_ready()
        assert read(theirs.address, "shared") == found
        # Kafka's own cleaner goes on with our files. Producer ids are the cluster's, so this one is not idempotent.
        more: list[tuple[str, str | None]] = [("key-1", f"again-{at}" + "z" * 900) for at in range(3000)]
        produce(theirs.address, "shared", more, idempotent=False)
        wait_cleaned(home / "data", "shared")
        again = read(theirs.address, "shared")
        newest_again = {key: (offset, value) for offset, key, value in again}
        assert newest_again["key-1"][1] == "again-2999" + "z" * 900
        assert {key for _offset, key, _value in found} <= newest_again.keys()
    finally:
        theirs.stop()
