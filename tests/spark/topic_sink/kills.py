"""Drivers in separate processes, killed at a chosen request of their commit."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ottla
from tests.broker_proxy import Proxy
from tests.spark.topic_sink.committed_records import read_topic

PATIENCE_S = 120.0
PRODUCE, OFFSET_FETCH, INIT_PRODUCER_ID, END_TXN, TXN_OFFSET_COMMIT = 0, 9, 22, 26, 28


class Moment(NamedTuple):
    """A request of the commit, before the broker hears of it or when its answer is on its way."""

    api_key: int
    answered: bool


class Driver:
    """`driver.py` and everything that it starts: a Java, and Python workers."""

    def __init__(self, *arguments: str) -> None:
        # A file, as nobody reads a pipe while the driver is waited for.
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # it lives as long as this
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.topic_sink.driver", *arguments],
            start_new_session=True,
            stdout=self._said,
            stderr=self._said,
        )

    def signal(self, number: signal.Signals) -> None:
        """To all of them: Spark's workers are in groups of their own, and in the same session."""
        for each in Path("/proc").glob("[0-9]*"):
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid:
                try:
                    os.kill(int(each.name), number)
                except ProcessLookupError:
                    continue

    def kill(self) -> None:
        # Whoever is being forked while the first are killed is found by the second look.
        for _ in range(2):
            self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self._said.close()

    def said(self) -> str:
        self._said.seek(0)
        return self._said.read()

    def finish(self) -> None:
        try:
            assert self.process.wait(PATIENCE_S) == 0, self.said()
        finally:
            self.kill()


def wait_for(condition: Callable[[], bool], what: str, driver: Driver | None = None) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if driver is not None and driver.process.poll() is not None:
            raise AssertionError(f"the driver ended before {what}: {driver.said()}")
        assert time.monotonic() < deadline_s, f"no {what}"
        time.sleep(0.02)


def reach(proxy: Proxy, driver: Driver, moment: Moment) -> None:
    """Wait until the driver stands at that moment; it stays there."""
    counts = proxy.answers if moment.answered else proxy.requests
    wait_for(lambda: counts[moment.api_key] > 0, str(moment), driver)


def hold(proxy: Proxy, moment: Moment) -> None:
    proxy.heal()
    (proxy.hold_answers if moment.answered else proxy.hold)(moment.api_key)


def write_input(address: str, rows: int) -> list[str]:
    """Two topics, `in` with so many records and `out`; what is to be read in `out` at the end."""
    with ottla.Admin(address) as admin:
        admin.create_topic("in", 2)
        admin.create_topic("out", 2)
    values = [f"{number:06}" for number in range(rows)]
    with ottla.Producer(address) as producer:
        for value in values:
            producer.send("in", value.encode(), key=value.encode())
    return values


def output(address: str, *, settled: bool = True) -> list[str]:
    """What is committed in `out`."""
    return sorted((row.value or b"").decode() for row in read_topic(address, "out", settled=settled))
