"""Runs commands of `ottla pipeline` in the test process."""

import logging
import signal
from collections.abc import Callable

import pytest

from ottla.cli.main import main

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process: it needs no Spark, or is given the tests' own."""
    # As a command does that starts Spark. PySpark's words would go to the standard error of the test that first heard them, which is closed by now.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        # `run` takes them for itself, and ends with its process otherwise.
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        with pytest.raises(SystemExit) as ended:
            main(["pipeline", *map(str, arguments)])
        for number, handler in handlers.items():
            signal.signal(number, handler)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run
