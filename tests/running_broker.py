"""A real broker for tests of the client and of the command line: `ottla up` in a process of its own, ended by its pid."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import turns

STOP_TIMEOUT_S = 20


class RunningBroker:
    """`ottla up` on a data directory. It says its address when it listens."""

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        *settings: str,
        host: str = "127.0.0.1",
        descriptors: int | None = None,
    ) -> None:
        """`descriptors`: how many it may have, as after `ulimit -n`."""
        arguments = ["up", "--listen", f"{host}:{port}", "--data-dir", str(data_dir), "--no-console"]
        for setting in settings:
            arguments += ["--set", setting]
        limited = [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"]
        self.process = subprocess.Popen(
            [*limited, sys.executable, "-m", "ottla.cli", *arguments], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.said: list[str] = []
        # After an unclean stop it tells of its recovery before.
        for line in self.process.stderr:
            self.said.append(line)
            if " listens on " in line:
                break
        else:
            self.process.wait(STOP_TIMEOUT_S)
            raise AssertionError(f"the broker did not start:\n{''.join(self.said)}")
        self.address = line.split()[-1]
        self.port = int(self.address.rpartition(":")[2])
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
        turns.look_at(self.said)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture(scope="session")
def ottla_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that all tests share; each uses topics of its own."""
    # Records may bear timestamps of years ago, which retention would remove.
    broker = RunningBroker(tmp_path_factory.mktemp("ottla"), 0, "log.retention.check.interval.ms=3600000")
    yield broker.address
    assert broker.stop() == 0


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., RunningBroker]]:
    """Start brokers on this test's data directory; whatever still runs at the end is stopped."""
    started: list[RunningBroker] = []

    def start(port: int = 0, *settings: str, **more: Any) -> RunningBroker:
        broker = RunningBroker(tmp_path / "data", port, *settings, **more)
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.stop()


_numbers = itertools.count()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    return f"t{next(_numbers)}-{request.node.name.partition('[')[0]}"[:200]
