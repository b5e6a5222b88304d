"""Run `ottla` and die by SIGKILL just before the Nth call that changes a file: python kill_at.py N PATHS-UNDER up …

The calls are counted before the package is imported, so every way it has to the file system is counted. Only what happens
under the given directory counts; Python's own caches do not.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_CHANGING = (
    "pwritev",
    "pwrite",
    "write",
    "ftruncate",
    "fdatasync",
    "fsync",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
    "open",
)


def install(countdown: int, directory: str) -> None:
    left = countdown

    def is_ours(target: Any) -> bool:
        if isinstance(target, int):
            try:
                target = os.readlink(f"/proc/self/fd/{target}")
            except OSError:
                return False
        return str(target).startswith(directory)

    def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            changes = name != "open" or (len(arguments) > 1 and arguments[1] & os.O_CREAT)
            if changes and (more.get("dir_fd") is not None or is_ours(arguments[0])):
                left -= 1
                if left <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        return call

    for name in _CHANGING:
        setattr(os, name, watch(name, getattr(os, name)))


if __name__ == "__main__":
    install(int(sys.argv[1]), sys.argv[2])
    from ottla.cli.main import main

    main(sys.argv[3:])
