"""The worker process: work that would hold the interpreter lock for long. It runs log compaction.

`Worker` is the broker's side. It starts the process with the first task, sends one task at a time, and ends
the process after some idle time to free its memory. `main` is the process: a JSON line in is a task, a JSON
line out is its outcome.

The process ends with its broker: one of its threads reads the pipe and ends the process when the pipe closes,
also after a kill of the broker. Files that it has written have temporary names and take effect only when the
broker renames them (`log/swap.py`). So they cannot disturb the next start of the broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ottla.log.compaction import Outcome, Task, clean
from ottla.ports.disk import Buffer, DiskError, File
from ottla.records.errors import CorruptRecords
from ottla.runtime.disk import SystemDisk

_IDLE_SECONDS: Final = 10.0
#: Lower priority than everything that clients wait for.
_NICENESS: Final = 10
#: Sync after this many written bytes. One sync of a gigabyte at the end would delay the syncs of the broker.
_UNSYNCED_BYTES_MAX: Final = 8 << 20
_READ_BYTES: Final = 1 << 16

Done = Callable[[Outcome | None, str | None], None]


class Worker:
    """At most one process and one task. Called only on the thread of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, command: tuple[str, ...] | None = None) -> None:
        self._loop = loop
        self._command = command or (sys.executable, "-m", "ottla.runtime.worker")
        self._process: subprocess.Popen[bytes] | None = None
        self._done: Done | None = None
        self._unsent = bytearray()
        self._answer = bytearray()
        self._idle: asyncio.TimerHandle | None = None

    def run(self, task: Task, done: Done) -> None:
        assert self._done is None, "one task at a time"
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._done = done
        try:
            process = self._process or self._start()
        except OSError as error:
            # Deferred, because the core is still performing its effects.
            self._loop.call_soon(self._finish, None, f"the worker process could not be started: {error}")
            return
        assert process.stdin is not None
        try:
            self._unsent += json.dumps(task._asdict()).encode() + b"\n"
            # A task of many segments exceeds the pipe's buffer, and the process needs time to start.
            self._loop.add_writer(process.stdin.fileno(), self._writable)
        except Exception:
            # The exception notifies the caller, so `done` is not called.
            self._done = None
            raise

    def stop(self) -> None:
        """Kill the process; `done` is not called."""
        self._done = None
        if self._idle is not None:
            self._idle.cancel()
        self._end()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def _start(self) -> subprocess.Popen[bytes]:
        self._answer.clear()
        self._unsent.clear()
        process = self._process = subprocess.Popen(  # noqa: S603  (our own program)
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self._loop.add_reader(process.stdout.fileno(), self._readable)
        return process

    def _writable(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        try:
            del self._unsent[: os.write(process.stdin.fileno(), self._unsent)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            # `_readable` notices that the process has ended.
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(process.stdin.fileno())

    def _readable(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        try:
            data = os.read(process.stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            code = self._end()
            self._finish(None, f"the worker process ended with {code}")
            return
        self._answer += data
        if self._answer.endswith(b"\n"):
            answer = json.loads(self._answer)
            self._answer.clear()
            self._idle = self._loop.call_later(_IDLE_SECONDS, self._end)
            error = answer.pop("error", None)
            self._finish(None if error is not None else Outcome.parse(answer), error)

    def interrupted(self, error: Exception) -> None:
        """A callback raised, or the answer of the process was invalid."""
        self._answer.clear()
        self._end()
        self._finish(None, f"the worker process: internal error: {error!r}")

    def _finish(self, outcome: Outcome | None, error: str | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome, error)

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        self._loop.remove_writer(process.stdin.fileno())
        self._loop.remove_reader(process.stdout.fileno())
        process.kill()
        code = process.wait()
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        return code


# --- the process --------------------------------------------------------------------------------------------


class _WorkerDisk(SystemDisk):
    """Syncs its writes in small portions."""

    def __init__(self) -> None:
        super().__init__()
        self._unsynced = 0

    def write(self, file: File, position: int, parts: Any) -> int:
        end = super().write(file, position, parts)
        self._unsynced += sum(map(_length, parts))
        if self._unsynced >= _UNSYNCED_BYTES_MAX:
            self._unsynced = 0
            self.sync(file)
        return end


def _length(part: Buffer) -> int:
    return len(part)


class _Pace:
    """Limits the sum of reads and writes to a number of bytes per second."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._due = time.monotonic()

    def __call__(self, byte_count: int) -> None:
        now = time.monotonic()
        self._due = max(self._due, now) + byte_count / self._bytes_per_second
        if self._due > now + 0.01:
            time.sleep(self._due - now)


def _perform(line: bytes) -> dict[str, Any]:
    task = Task.parse(json.loads(line))
    disk = _WorkerDisk()
    try:
        return clean(disk, task, _Pace(task.bytes_per_second))._asdict()
    except (DiskError, CorruptRecords) as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": repr(error)}
    finally:
        disk.release()


def main() -> int:
    # Ctrl-C in a terminal reaches the broker too, and the broker ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            tasks.put(line)
        # The broker has ended, so the current task is useless.
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        answer = json.dumps(_perform(tasks.get())).encode() + b"\n"
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    raise SystemExit(main())
