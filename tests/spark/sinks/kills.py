"""Queries whose driver is killed at each of four points of a commit, one driver after another, and that then end in peace."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.sinks.killed_driver import start

ROWS_A_FILE = 10
#: Each driver ends a batch and is killed in the next; one that counted already is not met again. The last one is for a driver that lives.
FILES = 7
PATIENCE_S = 100
EXPECTED = list(range(FILES * ROWS_A_FILE))


def write_source(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        path = folder / f"{number:03}.json"
        rows = range(number * ROWS_A_FILE, (number + 1) * ROWS_A_FILE)
        path.write_text("".join(f'{{"id": {row}, "name": "row {row}"}}\n' for row in rows))
        # Spark takes files in the order of their age.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


class Driver:
    """A driver that starts its queries when it is told to, and is killed, with its JVM, when each is at its point."""

    def __init__(self, source: Path, sinks: dict[str, dict[str, str]], number: int) -> None:
        self.go = source.with_name(f"go-{number}")
        self.said = source.with_name(f"said-{number}")
        told = {
            name: {**settings, "reached": str(source.with_name(f"reached-{number}-{name}"))}
            for name, settings in sinks.items()
        }
        self.reached = [Path(settings["reached"]) for settings in told.values()]
        with self.said.open("w") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.spark.sinks.killed_driver",
                    json.dumps({"source": str(source), "go": str(self.go), "sinks": told}),
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


def kill_at_each(source: Path, chain: list[dict[str, dict[str, str]]]) -> None:
    """One driver after another, each killed at its points. The next one makes its session meanwhile, which is most of its time."""
    drivers = [Driver(source, chain[0], 0)]
    try:
        for number in range(len(chain)):
            if number + 1 < len(chain):
                drivers.append(Driver(source, chain[number + 1], number + 1))
            drivers[number].run()
            drivers[number].kill()
    finally:
        for driver in drivers:
            driver.kill()


def end_in_peace(spark: SparkSession, source: Path, sinks: dict[str, dict[str, str]]) -> None:
    queries = [start(spark, str(source), name, settings) for name, settings in sinks.items()]
    for query in queries:
        assert query.awaitTermination(PATIENCE_S), query.lastProgress
