"""A real broker for the tests of the command line, and a way to run commands as a shell does."""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

STOP_TIMEOUT_S = 20


class RunningBroker:
    """`ottla up` on a data directory. The first line it says tells its address."""

    def __init__(self, data_dir: Path, port: int = 0, *settings: str) -> None:
        arguments = ["up", "--listen", f"127.0.0.1:{port}", "--data-dir", str(data_dir), "--no-console"]
        for setting in settings:
            arguments += ["--set", setting]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ottla.cli", *arguments], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        if " listens on " not in line:
            self.process.terminate()
            rest = self.process.communicate(timeout=STOP_TIMEOUT_S)[1]
            raise AssertionError(f"the broker did not start:\n{line}{rest}")
        self.address = line.split()[-1]
        self.port = int(self.address.rpartition(":")[2])
        self.said: list[str] = [line]
        # Read on, or a broker with much to say would stop at a full pipe.
        self._reader = threading.Thread(target=self.said.extend, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self._ended()

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        code = self.process.wait(STOP_TIMEOUT_S)
        self._reader.join(STOP_TIMEOUT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture(scope="session")
def ottla_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that all tests share; each uses topics of its own."""
    broker = RunningBroker(tmp_path_factory.mktemp("ottla"))
    yield broker.address
    assert broker.stop() == 0


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., RunningBroker]]:
    """Start brokers on this test's data directory; whatever still runs at the end is stopped."""
    started: list[RunningBroker] = []

    def start(port: int = 0, *settings: str) -> RunningBroker:
        broker = RunningBroker(tmp_path / "data", port, *settings)
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.stop()


@dataclass(frozen=True)
class Ended:
    """A command that ended: what it printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ended]


@pytest.fixture(scope="session")
def run_anywhere() -> Run:
    """Run `ottla` with these arguments in a process of its own."""

    def run(*arguments: str, stdin: str | bytes = b"", env: dict[str, str] | None = None) -> Ended:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "ottla.cli", *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=60,
            env={**os.environ, **(env or {})},
            check=False,
        )
        err = done.stderr.decode()
        assert "Traceback" not in err, err
        return Ended(done.returncode, done.stdout.decode(), err)

    return run


@pytest.fixture
def run(run_anywhere: Run, ottla_address: str) -> Run:
    """Run `ottla` against the shared broker."""

    def against(*arguments: str, stdin: str | bytes = b"") -> Ended:
        return run_anywhere(*arguments, stdin=stdin, env={"OTTLA_BOOTSTRAP": ottla_address})

    return against


@pytest.fixture
def made(run: Run, topic_name: str) -> str:
    """A topic with two partitions."""
    ended = run("topic", "create", topic_name, "--partitions", "2")
    assert ended.code == 0, ended.err
    return topic_name


_numbers = itertools.count()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    return f"t{next(_numbers)}-{request.node.name.partition('[')[0]}"[:200]
