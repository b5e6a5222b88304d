"""Starts ottla for measurements, as its users start it."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.process import BrokerFailed, Process


def command(checkout: Path | None = None) -> tuple[list[str], dict[str, str]]:
    """The command and environment: `ottla` of this environment, or the code of another checkout in it."""
    if checkout is not None:
        # The same string hashes in all processes.
        environment = {"PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0"}
        return [sys.executable, "-m", "ottla.cli"], environment
    program = shutil.which("ottla", path=str(Path(sys.executable).parent))
    if program is None:
        raise BrokerFailed(f"no `ottla` beside {sys.executable}: run `make setup`, or use --only kafka")
    return [program], {}


def start(
    directory: Path,
    *,
    port: int,
    settings: Mapping[str, str],
    checkout: Path | None = None,
    under: Sequence[str] = (),
) -> Process:
    """`ottla up` with its data in `directory`; `under` is a command that runs it, such as valgrind."""
    program, environment = command(checkout)
    directory.mkdir(parents=True, exist_ok=True)
    data_dir = directory / "data"
    arguments = ["up", "--listen", f"127.0.0.1:{port}", "--data-dir", str(data_dir), "--no-console"]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    return Process(
        "ottla",
        [*under, *program, *arguments],
        port=port,
        log=directory / "ottla.log",
        environment=environment,
    )
