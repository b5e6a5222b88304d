"""Run `ottla` with operations on chosen files failing: python failing.py RULES up …

RULES is a file that a test writes and changes while the broker runs; it is looked at again before every operation, so a
fault begins and ends when the test says so. Each rule names operations, a path, and an errno:

    faults = Faults(tmp_path / "rules")
    with BrokerProcess(data_dir, port, faults=faults) as broker:
        faults.add(SYNCS, under=data_dir / "t-0", error="EIO")      # from now on
        …
        faults.clear()

An operation fails if it is on a file or directory at or beneath `under`, and its path ends with `suffix` and fits the pattern
`like`. It can also be made slow (`delay`), and the wall clock be set (`set_clock`), which the monotonic one does not feel. The
calls are wrapped before the package is imported, so every way it has to the file system goes through here; a file opened
before a rule came is covered too, by what its descriptor stands for.
"""

import builtins
import errno
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

WRITES = ("pwritev", "pwrite", "write")
SYNCS = ("fdatasync", "fsync")
READS = ("pread", "preadv", "sendfile", "read_file")
NAMES = ("replace", "unlink", "mkdir", "rmdir", "create", "listdir", "statvfs")
OPENS = ("open",)
EVERYTHING = (*WRITES, *SYNCS, *READS, *NAMES, *OPENS, "ftruncate")


class Faults:
    """The rules that a broker process follows, as its test sees them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rules: list[dict[str, Any]] = []
        self._clock_s = 0.0
        self._write()

    def add(
        self, operations: Sequence[str], *, under: Path, error: str, suffix: str = "", like: str = "*"
    ) -> None:
        """From now on these operations fail with this errno (its name), beneath a path."""
        assert hasattr(errno, error)
        self._add(operations, under=str(under), suffix=suffix, like=like, errno=error, seconds=0)

    def delay(self, operations: Sequence[str], seconds: float, *, under: Path, like: str = "*") -> None:
        """From now on these operations take so much longer."""
        self._add(operations, under=str(under), suffix="", like=like, errno=None, seconds=seconds)

    def set_clock(self, seconds: float) -> None:
        """From now on the wall clock is this far from the true one."""
        self._clock_s = seconds
        self._write()

    def clear(self) -> None:
        """From now on nothing fails any more, and the clock is right."""
        self._rules.clear()
        self.set_clock(0)

    def _add(self, operations: Sequence[str], **rule: Any) -> None:
        assert set(operations) <= set(EVERYTHING)
        self._rules.append({"operations": list(operations), **rule})
        self._write()

    def _write(self) -> None:
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps({"rules": self._rules, "clock_s": self._clock_s}))
        new.replace(self.path)


def _path_of(target: Any) -> str:
    if isinstance(target, int):
        try:
            return os.readlink(f"/proc/self/fd/{target}")
        except OSError:
            return ""
    return os.path.abspath(os.fsdecode(target))


def install(rules_path: str) -> None:
    real_stat, real_open, real_time = os.stat, builtins.open, time.time
    known: tuple[Any, dict[str, Any]] = (None, {})

    def control() -> dict[str, Any]:
        nonlocal known
        found = real_stat(rules_path)
        stamp = (found.st_ino, found.st_mtime_ns)
        if known[0] != stamp:
            with real_open(rules_path) as file:
                known = stamp, json.load(file)
        return known[1]

    def check(operation: str, target: Any) -> None:
        if not (current := control()["rules"]):
            return
        path = _path_of(target)
        for rule in current:
            is_beneath = path == rule["under"] or path.startswith(rule["under"] + "/")
            is_meant = path.endswith(rule["suffix"]) and fnmatchcase(path, rule["like"])
            if operation in rule["operations"] and is_beneath and is_meant:
                time.sleep(rule["seconds"])
                if rule["errno"] is not None:
                    number = getattr(errno, rule["errno"])
                    raise OSError(number, os.strerror(number), path)

    def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if name == "open":
                flags = arguments[1] if len(arguments) > 1 else more.get("flags", 0)
                check("create" if flags & os.O_CREAT else "open", arguments[0])
                if flags & os.O_CREAT:
                    check("open", arguments[0])
            else:
                # The file that is sent is the second of sendfile's two.
                check(name, arguments[1] if name == "sendfile" else arguments[0])
            return real(*arguments, **more)

        return call

    for name in (
        *WRITES,
        *SYNCS,
        "pread",
        "preadv",
        "sendfile",
        "replace",
        "unlink",
        "mkdir",
        "rmdir",
        "listdir",
        "statvfs",
        "ftruncate",
        "open",
    ):
        setattr(os, name, watch(name, getattr(os, name)))

    def open_file(file: Any, *arguments: Any, **more: Any) -> Any:
        if not isinstance(file, int):
            check("read_file", file)
        return real_open(file, *arguments, **more)

    builtins.open = open_file  # type: ignore[assignment]
    time.time = lambda: real_time() + control()["clock_s"]


if __name__ == "__main__":
    install(sys.argv[1])
    from ottla.cli.main import main

    main(sys.argv[2:])
