"""The demo's pipeline: `ottla pipeline run` in its own process copies the demo's topic exactly once.

The examples run in the same Spark. The demo does not wait for it: it joins when Spark is up. Progress is read
from its status file. The demo's consumer checks the target topic for exactly-once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

TOPIC = "demo"
COPY = "demo-copy"
FILE = """\
# The pipeline of `ottla demo`.
name: demo
brokers: {brokers}
checkpoint: ./checkpoint
trigger: {trigger}
sources:
  demo: {{topic: {topic}, group: demo-pipeline}}
steps:
  copied: SELECT key, value, partition FROM demo
sinks:
  copy: {{from: copied, topic: {copy}}}
"""
TRIGGER = "500 ms"
#: With other pipelines: fewer batches, because the cost of a batch hardly depends on its size.
TRIGGER_BESIDE_OTHERS = "2 seconds"
#: For the fastest start of Java: the optimizing compiler would run while everything starts.
JAVA = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
STOP_S_MAX = 40.0


def missing() -> str | None:
    """The missing dependency of pipelines, and how to install it; None if nothing is missing."""
    for module in ("pyspark", "pyarrow", "pandas", "yaml", "numpy"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install 'ottla[spark]' (includes Java)"
    from ottla.spark.java import NoJava, find_java

    try:
        find_java()
    except NoJava as error:
        return str(error)
    return None


class DemoPipeline:
    """Starts when constructed; call `look` a few times per second. `others` are further pipeline files."""

    def __init__(
        self, brokers: str, folder: Path, others: Sequence[Path] = (), arguments: Sequence[str] = ()
    ) -> None:
        self.file = folder / "demo.yaml"
        trigger = TRIGGER_BESIDE_OTHERS if others else TRIGGER
        self.file.write_text(FILE.format(brokers=brokers, topic=TOPIC, copy=COPY, trigger=trigger))
        self._others = bool(others)
        self._arguments = [str(self.file), *map(str, others), *arguments]
        self._status = folder / "checkpoint" / "status.json"
        self._said = folder / "pipeline.log"
        self._ended: int | None = None
        self.rows_per_s = 0.0
        self.lag = 0
        self.batch = -1
        with self._said.open("wb") as said:
            self._process = self._start(said)

    def _start(self, said: IO[bytes]) -> subprocess.Popen[bytes]:
        # In its own session: Ctrl-C on the terminal reaches only the demo, which lets the pipeline finish
        # first.
        command = [sys.executable, "-m", "ottla.cli", "pipeline", "run", *self._arguments]
        return subprocess.Popen(  # noqa: S603  # our own interpreter and package
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            env={**JAVA, **os.environ} if self._others else None,
        )

    @property
    def runs(self) -> bool:
        """Whether it has finished a batch and still runs."""
        return self._ended is None and self.batch >= 0

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def look(self) -> bool:
        """Read its status; True if it has just started to run, or just ended."""
        before = self.runs, self.ended
        self._ended = self._process.poll()
        try:
            known = json.loads(self._status.read_text(encoding="utf-8"))
            last: Mapping[str, Any] = known["queries"]["copy"].get("last", {})
        except (OSError, ValueError, KeyError):
            last = {}
        if last:
            self.batch = int(last["batch"])
            self.rows_per_s = float(last["rows_per_s_in"])
            self.lag = int(last["lag_total"])
        return (self.runs, self.ended) != before

    def why(self) -> str:
        """Its last log lines: the reason of its end."""
        said = self._said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "\n".join(said[-6:]) or f"it ended with exit code {self._ended}"

    def words(self) -> str:
        """Its part of the progress line."""
        if self.ended:
            return "pipeline: failed"
        if not self.runs:
            return "pipeline: Spark is starting"
        return f"pipeline {self.rows_per_s:,.0f} rows/s  lag {self.lag:,}"

    def stop(self) -> int | None:
        """Stop it; None if it had to be killed."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_S_MAX if self.runs else 0.5)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        """Kill it with its Java; the workers end after Java."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
