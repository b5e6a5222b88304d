"""A broker as a process of its own, `ottla up`, and the clients that talk to it.

The process says on which port it listens, so nothing waits or guesses. One broker serves all tests that do not stop it;
each test has topics of its own.
"""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import turns
from tests.clients.adapters import CLIENTS

STOP_S = 30


class BrokerProcess:
    """May be stopped, killed and started again, on the same port and directory."""

    def __init__(self, data_dir: Path, *, environment: dict[str, str] | None = None, **settings: str) -> None:
        self.data_dir = data_dir
        self.address = "127.0.0.1:0"
        self._settings = settings
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        script = Path(sys.executable).parent / "ottla"
        command = [str(script)] if script.exists() else [sys.executable, "-m", "ottla.cli"]
        command += ["up", "--listen", self.address, "--data-dir", str(self.data_dir), "--no-console"]
        for name, value in self._settings.items():
            command += ["--set", f"{name.replace('_', '.')}={value}"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self._environment
        )
        self._said: list[str] = []
        ready = threading.Event()
        # Read all the time: a process whose words nobody takes would stop in the middle of one.
        self._listener = threading.Thread(
            target=self._listen, args=(self._process.stderr, ready), daemon=True
        )
        self._listener.start()
        ready.wait()
        if self.address.endswith(":0"):
            self.kill()
            pytest.fail(f"the broker did not start:\n{''.join(self._said)}")

    def _listen(self, words: Any, ready: threading.Event) -> None:
        for line in words:
            self._said.append(line)
            if found := re.search(r"listens on (\S+:\d+)", line):
                self.address = found[1]
                ready.set()
        words.close()
        ready.set()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> str:
        """Stop it cleanly; what it said."""
        return self._end(signal.SIGTERM, 0)

    def kill(self) -> None:
        self._end(signal.SIGKILL, -signal.SIGKILL)

    def _end(self, number: int, code: int) -> str:
        process = self._process
        assert process is not None
        process.send_signal(number)
        returned = process.wait(STOP_S)
        self._listener.join(STOP_S)
        self._process = None
        turns.look_at(self._said)
        said = "".join(self._said)
        assert "Traceback" not in said, said
        assert returned == code, said
        return said

    def close(self) -> None:
        if self._process is not None:
            self.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker under the default, durable policy, for all tests that leave it running."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data")
    yield process
    process.close()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Brokers of a test's own, with settings (underscores for dots)."""
    started: list[BrokerProcess] = []

    def start(**settings: Any) -> BrokerProcess:
        started.append(BrokerProcess(tmp_path / f"data-{len(started)}", **settings))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture(params=CLIENTS, ids=lambda each: each.name)
def make_client(request: pytest.FixtureRequest) -> Any:
    """Each of the clients in turn, as a class to be made with an address."""
    return request.param


@pytest.fixture
def client(make_client: Any, broker: BrokerProcess) -> Any:
    return make_client(broker.address)


_NUMBERS = itertools.count()


@pytest.fixture
def topic() -> str:
    """The name of a topic that no other test uses."""
    return f"topic-{next(_NUMBERS)}"


@pytest.fixture
def group() -> str:
    """The name of a group that no other test uses."""
    return f"group-{next(_NUMBERS)}"
