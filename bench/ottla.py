"""ottla as the one being measured: started as its users start it."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.process import BrokerFailed, Process


def start(directory: Path, *, port: int, settings: Mapping[str, str]) -> Process:
    """`ottla up` of the environment that runs the benchmark, with its data in `directory`."""
    command = shutil.which("ottla", path=str(Path(sys.executable).parent))
    if command is None:
        raise BrokerFailed(f"no `ottla` beside {sys.executable}: run `make setup`, or use --only kafka")
    directory.mkdir(parents=True, exist_ok=True)
    data_dir = directory / "data"
    arguments = ["up", "--listen", f"127.0.0.1:{port}", "--data-dir", str(data_dir), "--no-console"]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    return Process("ottla", [command, *arguments], port=port, log=directory / "ottla.log")
