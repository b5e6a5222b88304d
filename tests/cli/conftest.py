"""A real broker for the tests of the command line, and functions that run commands."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.cli.main import main
from tests.cli.command_server import CommandServer
from tests.running_broker import ottla_address, start_broker, topic_name

__all__ = ["ottla_address", "start_broker", "topic_name"]


@dataclass(frozen=True)
class Ended:
    """The output and exit code of a command."""

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
def command_server() -> Iterator[CommandServer]:
    server = CommandServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def run_anywhere(command_server: CommandServer) -> Run:
    """Run `ottla` with these arguments in a separate process."""

    def run(*arguments: str, stdin: str | bytes = b"", env: dict[str, str] | None = None) -> Ended:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        code, out, err = command_server.run(list(arguments), given, {**os.environ, **(env or {})}, 60)
        assert b"Traceback" not in err, err.decode()
        return Ended(code, out.decode(), err.decode())

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


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Run]:
    """Run `ottla` in this process, against the test's own broker: faster for many commands."""

    def against(address: str) -> Run:
        monkeypatch.setenv("OTTLA_BOOTSTRAP", address)

        def call(*arguments: str) -> Ended:
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main(list(arguments))
            said = capsys.readouterr()
            return Ended(int(ended.value.code or 0), said.out, said.err)

        return call

    return against
