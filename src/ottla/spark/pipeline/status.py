"""The state of a pipeline, read from outside: the runner's status file and Spark's checkpoints.

The status file is one JSON object, replaced at most once per second; it stays after the run. In a checkpoint,
Spark writes `offsets/N` before micro-batch N and `commits/N` after it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ottla.spark.pipeline.model import Plan
from ottla.spark.pipeline.progress import offsets

STARTING = "starting"
RUNNING = "running"


def write_status(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(path)


def this_run(plan: Plan) -> dict[str, Any]:
    """The runner's identity in the status file."""
    return {
        "pipeline": plan.name,
        "file": plan.file,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": now(),
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_status(plan: Plan) -> dict[str, Any] | None:
    """Read the status; None if it never ran.

    A killed runner cannot update the file, so its process is looked up.
    """
    said: dict[str, Any] = {}
    path = plan.status_path
    if path is not None and Path(path).is_file():
        said = json.loads(Path(path).read_text(encoding="utf-8"))
    queries: dict[str, Any] = dict(said.get("queries", {}))
    for name in plan.sinks:
        known = checkpoint(Path(plan.checkpoint_path.removeprefix("file:"), name))
        if known is not None:
            queries[name] = {**queries.get(name, {}), "checkpoint": known}
    if not said and not queries:
        return None
    state = said.get("state", "unknown")
    here = said.get("host") == socket.gethostname()
    if state in (STARTING, RUNNING) and here and not _lives(int(said.get("pid", 0))):
        state = "died"
    return {"pipeline": plan.name, **said, "state": state, "queries": queries}


def checkpoint(folder: Path) -> dict[str, Any] | None:
    """The last started and the last committed micro-batch, and the offsets of the latter."""
    begun, done = _last(folder / "offsets"), _last(folder / "commits")
    if begun is None:
        return None
    places: dict[str, int] = {}
    if done is not None:
        # A version line, a line about the micro-batch, then one line per source.
        for line in (folder / "offsets" / str(done)).read_text(encoding="utf-8").splitlines()[2:]:
            places |= offsets(_json(line))
    return {"begun": begun, "done": done, "offsets": places}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _last(folder: Path) -> int | None:
    numbers = (
        [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []
    )
    return max(numbers, default=None)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
