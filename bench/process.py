"""A broker as a process: started, awaited, stopped by its id.

Both brokers are instances of `Process`; `bench.kafka` and `bench.ottla` only build command lines. A process
gets its own session, so that Ctrl-C in the terminal reaches only the benchmark, which then stops its brokers.
"""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

API_VERSIONS_V0 = struct.pack(
    ">ihhih", 10, 18, 0, 1, -1
)  # size, key, version, correlation id, null client id
STOP_S_MAX = 30.0


class BrokerFailed(RuntimeError):
    """A broker did not start, or died. The message contains the end of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether a broker on this port answers an ApiVersions request."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(API_VERSIONS_V0)
            return len(connection.recv(8, socket.MSG_WAITALL)) == 8
    except OSError:
        return False


class Brokers(Protocol):
    """The target of a workload: one broker, or a cluster."""

    name: str
    #: The replication factor of its topics.
    replicas: int

    @property
    def address(self) -> str: ...
    @property
    def pids(self) -> tuple[int, ...]: ...
    def leader_port(self, topic: str) -> int: ...
    def wait_ready(self) -> float: ...
    def alive(self) -> bool: ...
    def log_tail(self) -> str: ...
    def stop(self) -> None: ...


class Process:
    """One broker. `pid` is valid from construction to `stop`."""

    replicas = 1

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        port: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._log = log
        self._started_ns = time.perf_counter_ns()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid,)

    def leader_port(self, topic: str) -> int:
        return self.port

    def wait_ready(self, timeout_s: float = 60.0) -> float:
        """Seconds from the start of the process to its first ApiVersions response."""
        deadline_ns = self._started_ns + int(timeout_s * 1e9)
        while not answers(self.port):
            if self._process.poll() is not None:
                raise BrokerFailed(
                    f"{self.name} ended with exit code {self._process.returncode}.\n{self.log_tail()}"
                )
            if time.perf_counter_ns() > deadline_ns:
                raise BrokerFailed(f"{self.name} did not answer within {timeout_s:.0f} s.\n{self.log_tail()}")
            time.sleep(0.002)
        return (time.perf_counter_ns() - self._started_ns) / 1e9

    def wait(self) -> int:
        return self._process.wait()

    def alive(self) -> bool:
        return self._process.poll() is None

    def log_tail(self, lines: int = 15) -> str:
        with contextlib.suppress(OSError):
            text = self._log.read_text(errors="replace").splitlines()
            return f"The end of its log ({self._log}):\n" + "\n".join("  " + line for line in text[-lines:])
        return f"Its log {self._log} cannot be read."

    def stop(self) -> None:
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
