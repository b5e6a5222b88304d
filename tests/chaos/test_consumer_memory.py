"""A consumer reads millions of records, as records and as columns, by either decoder, in the same memory."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

import ottla
from tests.running_broker import RunningBroker

RECORDS = 200_000
ROUNDS = 6
GROWTH_BYTES_MAX = 12 << 20

#: Reads everything again and again; says how much memory it holds after each round.
READER = """
import sys, ottla
address, records, rounds, decoder, form = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
with ottla.Consumer(address, auto_offset_reset="earliest", record_decoder=decoder) as consumer:
    consumer.assign(consumer.partitions_for("t"))
    poll = consumer.poll if form == "records" else consumer.poll_columns
    for _ in range(rounds):
        seen = 0
        while seen < records:
            for taken in poll(30_000).values():
                seen += len(taken)
        consumer.seek_to_beginning()
        pages = int(open("/proc/self/statm").read().split()[1])
        print(pages * 4096, flush=True)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = RunningBroker(tmp_path_factory.mktemp("memory"))
    with ottla.Admin(broker.address) as admin:
        admin.create_topic("t", 4)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "linger.ms": 20, "queue.buffering.max.messages": RECORDS}
    )
    for number in range(RECORDS):
        producer.produce("t", b"x" * 200, b"%d" % number, number % 4)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    yield broker.address
    assert broker.stop() == 0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("form", ["records", "columns"])
@pytest.mark.parametrize("decoder", ["pure", "compiled"])
def test_a_million_records_leave_nothing_behind(address: str, decoder: str, form: str) -> None:
    if decoder == "compiled":
        pytest.importorskip("numba")
    arguments = [address, str(RECORDS), str(ROUNDS), decoder, form]
    done = subprocess.run(
        [sys.executable, "-c", READER, *arguments], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    held = [int(line) for line in done.stdout.split()]
    # The first round fills pools and buffers.
    assert max(held[1:]) - held[1] < GROWTH_BYTES_MAX, held
