"""Queries whose driver is killed at each of four points of a commit, and that then finish."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import ottla
from tests.spark.table_sinks.killed_driver import ROWS_A_BATCH, start

#: Each driver ends a batch and is killed in the next; one that counted already is not met again. The last one is for a driver that lives.
BATCHES = 7
PATIENCE_S = 100
EXPECTED = list(range(BATCHES * ROWS_A_BATCH))


def write_source(address: str, topic: str) -> dict[str, str]:
    """A topic of rows, in one partition so that each batch has as many."""
    with ottla.Admin(address) as admin:
        admin.create_topic(topic, 1)
    with ottla.Producer(address) as producer:
        for row in EXPECTED:
            producer.send(topic, json.dumps({"id": row, "name": f"row {row}"}).encode())
    return {"brokers": address, "topic": topic}


class Driver:
    """A driver that starts its queries when it is told to, and is killed, with its JVM, when each is at its point."""

    def __init__(
        self, folder: Path, source: dict[str, str], sinks: dict[str, dict[str, str]], number: int
    ) -> None:
        self.go = folder / f"go-{number}"
        self.said = folder / f"said-{number}"
        told = {
            name: {**settings, "reached": str(folder / f"reached-{number}-{name}")}
            for name, settings in sinks.items()
        }
        self.reached = [Path(settings["reached"]) for settings in told.values()]
        with self.said.open("w") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.spark.table_sinks.killed_driver",
                    json.dumps({"source": source, "go": str(self.go), "sinks": told}),
                ],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def run(self) -> None:
        """Until all its queries are where they are to be killed."""
        self.go.touch()
        deadline = time.monotonic() + PATIENCE_S
        while not all(path.exists() for path in self.reached):
            assert self.process.poll() is None, f"the driver ended:\n{self.said.read_text()}"
            assert time.monotonic() < deadline, (
                f"a query does not come to its point:\n{self.said.read_text()}"
            )
            time.sleep(0.02)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def kill_at_each(folder: Path, source: dict[str, str], chain: list[dict[str, dict[str, str]]]) -> None:
    """One driver after another, each killed at its points. The next one makes its session meanwhile, which is most of its time."""
    drivers = [Driver(folder, source, chain[0], 0)]
    try:
        for number in range(len(chain)):
            if number + 1 < len(chain):
                drivers.append(Driver(folder, source, chain[number + 1], number + 1))
            drivers[number].run()
            drivers[number].kill()
    finally:
        for driver in drivers:
            driver.kill()


def end_in_peace(spark: SparkSession, source: dict[str, str], sinks: dict[str, dict[str, str]]) -> None:
    queries = [start(spark, source, name, settings) for name, settings in sinks.items()]
    for query in queries:
        assert query.awaitTermination(PATIENCE_S), query.lastProgress
