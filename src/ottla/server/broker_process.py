"""A broker process of a local cluster: started by the supervisor, or restarted by hand.

The data directory shows whether a broker runs on it: its lock is held, and `ottla.pid` has the process id.
The check does not take the lock, because a broker that starts at that moment needs it.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from ottla.runtime.platform import is_locked
from ottla.server.directories import PID_FILE

#: Set in the environment of a broker that has to stop when its standard input closes.
STOP_WITH_STDIN: Final = "OTTLA_STOP_WITH_STDIN"
_POLL_S: Final = 0.05


class BrokerProcess:
    """One broker. Its log lines go into the queue `events` as (self, line), its end as (self, None)."""

    def __init__(self, number: int, config: Path, directory: Path, events: queue.SimpleQueue[Any]) -> None:
        self.number = number
        self.command = ["broker", "--config", str(config)]
        self.directory = directory
        self.address = ""
        self.end_logged = False
        environment = {**os.environ, STOP_WITH_STDIN: "1"}
        self._process = subprocess.Popen(  # noqa: S603  # this very program
            [sys.executable, "-m", "ottla.cli", *self.command],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, args=(events,), daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def _read(self, events: queue.SimpleQueue[Any]) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            events.put((self, line.rstrip("\n")))
        self._process.wait()
        events.put((self, None))

    def how_it_ended(self) -> str:
        status = self._process.wait()
        if status < 0:
            return f"was killed by signal {-status}"
        return "has stopped" if status == 0 else f"ended with status {status}"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def skip_controlled_shutdown(self) -> None:
        """Send a second signal, another one than SIGTERM, because two equal signals may arrive as one."""
        self._process.send_signal(signal.SIGINT)

    def end(self, timeout_s: float) -> bool:
        """Wait for its end; kill it after the timeout and return False."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        finally:
            self._reader.join(1.0)
        return True


class AdoptedBroker:
    """A broker that was restarted by hand: its log and exit status are not available here."""

    def __init__(self, earlier: BrokerProcess | AdoptedBroker, pid: int) -> None:
        self.number: int = earlier.number
        self.command: list[str] = earlier.command
        self.directory: Path = earlier.directory
        self.address: str = earlier.address
        self.end_logged = False
        self.pid = pid

    @property
    def is_running(self) -> bool:
        return runs_on(self.directory) and _is_alive(self.pid)

    def how_it_ended(self) -> str:
        return "has ended"

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def skip_controlled_shutdown(self) -> None:
        self._signal(signal.SIGINT)

    def _signal(self, number: signal.Signals) -> None:
        # The broker still holds the directory, so its process id cannot belong to another program.
        if self.is_running:
            os.kill(self.pid, number)

    def end(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
                return False
            time.sleep(_POLL_S)
        return True


def runs_on(directory: Path) -> bool:
    """Whether a broker holds the lock of this data directory; it may still be starting."""
    return is_locked(str(directory / ".lock"))


def running_pid(directory: Path) -> int | None:
    """The process id of the broker on this data directory, once it has written it."""
    if not runs_on(directory):
        return None
    try:
        pid = int((directory / PID_FILE).read_text())
    except (OSError, ValueError):
        return None
    return pid if _is_alive(pid) else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
