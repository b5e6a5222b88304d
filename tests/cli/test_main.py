import subprocess
import sys
from typing import Any

import pytest

import ottla
from ottla.cli.main import COMMANDS, build

PATHS = [
    ("up",),
    ("broker",),
    ("topic",),
    *(("topic", name) for name in ("create", "list", "describe", "alter", "delete")),
    ("partition",),
    *(("partition", name) for name in ("list", "reassign", "elect", "drain")),
    ("group",),
    *(("group", name) for name in ("list", "describe", "reset", "delete")),
    ("txn",),
    *(("txn", name) for name in ("list", "describe", "abort")),
    ("produce",),
    ("consume",),
    ("config",),
    *(("config", name) for name in ("describe", "set", "unset")),
    ("log",),
    ("log", "dump"),
    ("log", "verify"),
    ("pipeline",),
    *(("pipeline", name) for name in ("run", "validate", "explain", "status")),
    ("bench",),
    *(("bench", name) for name in ("produce", "consume", "latency")),
    ("demo",),
]


def test_the_list_above_is_complete() -> None:
    import typer.main

    def walk(command: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        found = [path] if path else []
        for name, child in getattr(command, "commands", {}).items():
            found += walk(child, (*path, name))
        return found

    assert sorted(walk(typer.main.get_command(build(None)), ())) == sorted(PATHS)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_has_help_with_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        build(path[0])(args=[*path, "--help"], prog_name="ottla")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "Example:" in text
    assert f"ottla {' '.join(path)}" in text.partition("Example:")[2]


def test_help_lists_every_command_and_the_exit_codes(run_anywhere: Any) -> None:
    ended = run_anywhere("--help")
    assert ended.code == 0
    for word in (*COMMANDS, "Exit codes", "Example"):
        assert word in ended.out


def test_version(run_anywhere: Any) -> None:
    assert run_anywhere("--version").out == f"ottla {ottla.__version__}\n"


def test_wrong_usage_is_2_and_points_to_help(run_anywhere: Any) -> None:
    for arguments in (["wat"], ["consume"], ["topic", "create"], ["topic", "list", "--what"], ["broker"]):
        ended = run_anywhere(*arguments)
        assert ended.code == 2, arguments
        assert "--help" in ended.err


def test_an_unreachable_broker_is_3_and_says_what_to_do(run_anywhere: Any, free_port: int) -> None:
    for arguments in (
        ["topic", "list"],
        ["produce", "t", "--value", "x"],
        ["consume", "t"],
        ["config", "describe", "topic", "t"],
        ["bench", "latency"],
    ):
        ended = run_anywhere(*arguments, "--bootstrap", f"127.0.0.1:{free_port}")
        assert ended.code == 3, ended
        assert f"127.0.0.1:{free_port}: connection refused" in ended.err
        assert "ottla up" in ended.err


def test_a_bootstrap_that_is_no_address_is_2(run_anywhere: Any) -> None:
    ended = run_anywhere("topic", "list", "--bootstrap", "nonsense")
    assert ended.code == 2
    assert "HOST:PORT" in ended.err


def test_a_closed_pipe_ends_the_command_quietly(run: Any, ottla_address: str, made: str) -> None:
    assert run("produce", made, stdin="line\n" * 20_000).code == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli", "consume", made, "-B", "-e", "--bootstrap", ottla_address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(30) == 0
    assert "Traceback" not in errors and "BrokenPipe" not in errors


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, ottla\n"
        "heavy = [m for m in ('asyncio', 'typer', 'rich', 'kio', 'ottla.client') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
        "assert ottla.Producer.__name__ == 'Producer' and 'ottla.client.producer.sync' in sys.modules\n"
        "try: ottla.Nothing\n"
        "except AttributeError: pass\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
