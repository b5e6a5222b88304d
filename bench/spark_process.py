"""A Spark driver in a separate process, controlled line by line.

Results are JSON. Its log is kept for errors.
"""

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

#: Longer than any successful action.
PATIENCE_S = 240


class SparkFailed(RuntimeError):
    """The requested action raised an error in the driver process."""


class SparkProcess:
    """One driver. It ends with the block, by its pid."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self.version = ""
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=dict(environment),
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        self.wait_ready()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # At the end of its input it stops its JVM itself.
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def wait_ready(self) -> None:
        """Wait for the session. Several drivers may be started at once and awaited in turn."""
        self.version = self.version or self._listen()

    def ask(self, do: str, **arguments: Any) -> Any:
        """Run an action and return its result. Raises `SparkFailed` with the error text."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._listen()

    def _listen(self) -> Any:
        assert self._process.stdout is not None
        # A hanging driver is killed, which ends its output.
        watch = threading.Timer(PATIENCE_S, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise SparkFailed(f"the driver ended with {self._process.wait()}:\n{self.log[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise SparkFailed(f"{answer['error']}\n{answer['trace']}")
        return answer["seen"]

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")
