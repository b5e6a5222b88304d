import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.cli import run_broker
from ottla.cli.main import build, run
from ottla.config.not_honoured import NOT_HONOURED
from tests.crash.broker_process import BrokerProcess


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The settings that would be served, instead of serving them."""
    found: list[dict[str, str]] = []
    monkeypatch.setattr(run_broker, "serve", found.append)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--listen", "0.0.0.0:1"],
        ["--listen=h:1", "--data-dir=d", "--no-console"],
        ["-l", "h:2", "-d", "x", "-s", "a=1", "--set", "b=2=3", "--set=c=4"],
    ],
)
def test_the_quick_way_and_the_full_one_read_up_alike(
    served: list[dict[str, str]], arguments: list[str]
) -> None:
    assert run_broker.quick_start(["up", *arguments])
    build("up")(args=["up", *arguments], standalone_mode=False)
    assert served[0] == served[1]


def test_the_quick_way_and_the_full_one_read_broker_alike(
    served: list[dict[str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=7\nlog.dirs=/data\n")
    arguments = ["broker", "-c", str(file), "--set", "node.id=8"]
    assert run_broker.quick_start(arguments)
    build("broker")(args=arguments, standalone_mode=False)
    assert served == [{"node.id": "8", "log.dirs": "/data"}] * 2


def test_a_toml_file_is_read_as_toml(served: list[dict[str, str]], tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[log]\ndirs = "/data"\n[log.retention]\nms = 5\n')
    run(["broker", "--config", str(file)])
    assert served == [{"log.dirs": "/data", "log.retention.ms": "5"}]


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        [],
        ["up", "--help"],
        ["up", "extra"],
        ["up", "--listen"],
        ["up", "--no-console=x"],
        ["broker"],
    ],
)
def test_unusual_arguments_are_left_to_the_full_command_line(
    served: list[dict[str, str]], arguments: list[str]
) -> None:
    assert not run_broker.quick_start(arguments)
    assert not served


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_prints_its_address_and_stops_cleanly(
    start_broker: Callable[..., Any], tmp_path: Path, number: signal.Signals
) -> None:
    broker = start_broker()
    broker.process.send_signal(number)
    assert broker.stop() == 0
    said = "".join(broker.said)
    assert f"listens on 127.0.0.1:{broker.port}" in said
    assert f"data in {tmp_path / 'data'}" in said
    assert "stop with Ctrl-C" in said
    assert "stopped cleanly" in said


def test_a_setting_without_effect_is_logged_once_with_its_reason(tmp_path: Path, free_port: int) -> None:
    with BrokerProcess(tmp_path, free_port, {"num.io.threads": "8"}) as broker:
        told = [line.strip() for line in broker.said if "num.io.threads" in line]
    assert told == [f"num.io.threads has no effect here: {NOT_HONOURED['num.io.threads']}"]


def test_topics_and_records_are_there_at_the_next_start(
    start_broker: Callable[..., Any], run_anywhere: Any
) -> None:
    broker = start_broker()
    env = {"OTTLA_BOOTSTRAP": broker.address}
    assert run_anywhere("produce", "t", "--value", "kept", env=env).code == 0
    broker.stop()
    broker = start_broker()
    ended = run_anywhere("consume", "t", "-B", "-e", env={"OTTLA_BOOTSTRAP": broker.address})
    assert ended.out == "kept\n"


def test_a_port_in_use_is_reported(
    start_broker: Callable[..., Any], run_anywhere: Any, tmp_path: Path
) -> None:
    broker = start_broker()
    ended = run_anywhere("up", "--listen", broker.address, "--data-dir", str(tmp_path / "other"))
    assert ended.code == 1
    assert broker.address in ended.err and "--listen" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["up", "--listen", "nowhere"], 2, "HOST:PORT"),
        (["up", "--set", "nonsense"], 2, "NAME=VALUE"),
        (["up", "--set", "no.such.config=1"], 2, "no.such.config"),
        (["up", "--set", "num.partitions=many"], 2, "num.partitions"),
        (["broker", "--config", "/no/such/file"], 4, "/no/such/file"),
    ],
)
def test_invalid_settings_are_reported(
    run_anywhere: Any, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    where = ["--data-dir", str(tmp_path)] if arguments[0] == "up" else []
    ended = run_anywhere(*arguments, *where)
    assert ended.code == code
    assert said in ended.err


def test_the_command_line_does_not_weigh_on_a_broker() -> None:
    """typer and its dependencies would double the start-up time and stay in memory."""
    code = (
        "import sys\n"
        "from ottla.cli import main, run_broker\n"
        "run_broker.serve = lambda properties: None\n"
        "main.main(['up', '--listen', '127.0.0.1:0', '--set', 'num.partitions=3'])\n"
        "heavy = [m for m in ('typer', 'rich', 'pydantic', 'ottla.client') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
