"""What must not hold up the loop: syncs in rounds, jobs, and the metadata journal. Each in its own thread or threads.

Syncs are a group commit: everything asked for while a round runs waits for the next one, and a round syncs each file once
however many appends it covers. A round is one hand-over to the thread and one back; files of a large round are shared
out to a small pool, because each sync waits for the device and not for us.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ottla.ports.disk import Disk, DiskError

#: From this many files on a round is shared out.
_SHARE_FROM = 4


class Syncer:
    """Rounds of syncs. `done(targets, failures)` is called on the loop after each.

    A failure is (path, why) of one file or directory: whatever else was in the round was synced nevertheless.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        threads: int,
        done: Callable[[list[Any], list[tuple[str, str]]], None],
    ) -> None:
        self._loop = loop
        self._disk = disk
        self._done = done
        self._files: dict[Any, Any] = {}
        self._directories: dict[str, None] = {}
        self._loose: list[Any] = []
        #: All that ever failed, for whoever stops the loop before it could be told.
        self.failures: list[tuple[str, str]] = []
        self._busy = False
        self._scheduled = False
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._rounds: queue.SimpleQueue[tuple[list[Any], list[str], list[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ottla-sync", daemon=True)
        self._thread.start()

    def ask(self, file: Any, directory: str | None, target: Any) -> None:
        if file is not None:
            # The last target of a file covers the ones before it.
            self._files[file] = target
        else:
            self._loose.append(target)
        if directory is not None:
            self._directories[directory] = None
        if not self._busy and not self._scheduled:
            # Not at once: what else this turn appends shall join the round.
            self._scheduled = True
            self._loop.call_soon(self._start)

    def stop(self) -> None:
        self._rounds.put(None)
        self._thread.join()
        if self._pool is not None:
            self._pool.shutdown()

    def _start(self) -> None:
        self._scheduled = False
        if self._busy or not (self._files or self._directories):
            return
        self._busy = True
        files, self._files = self._files, {}
        directories, self._directories = self._directories, {}
        loose, self._loose = self._loose, []
        self._rounds.put((list(files), list(directories), [*files.values(), *loose]))

    def _work(self) -> None:
        while (work := self._rounds.get()) is not None:
            files, directories, targets = work
            failures: list[tuple[str, str]] = []
            try:
                if len(files) < _SHARE_FROM:
                    failures += filter(None, map(self._sync, files))
                else:
                    if self._pool is None:
                        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="ottla-sync")
                    failures += filter(None, self._pool.map(self._sync, files))
            except Exception as failed:
                # No threads to be had, say. Those who wait must hear of it: nobody else makes their records durable.
                failures += [(file.path, repr(failed)) for file in files]
            failures += filter(None, map(self._sync_dir, directories))
            self.failures += failures
            try:
                self._loop.call_soon_threadsafe(self._finished, targets, failures)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

    def _sync(self, file: Any) -> tuple[str, str] | None:
        """What was wrong with it, and where."""
        return self._attempt(file.path, lambda: self._disk.sync(file))

    def _sync_dir(self, path: str) -> tuple[str, str] | None:
        return self._attempt(path, lambda: self._disk.sync_dir(path))

    def _attempt(self, path: str, action: Callable[[], None]) -> tuple[str, str] | None:
        try:
            action()
        except DiskError as failed:
            return path, str(failed)
        except Exception as failed:
            return path, repr(failed)
        return None

    def _finished(self, targets: list[Any], failures: list[tuple[str, str]]) -> None:
        self._busy = False
        if self._files or self._directories:
            self._start()
        self._done(targets, failures)


class Jobs:
    """Runs functions in a pool; `done(result, error)` on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int, name: str) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(self, job: Callable[[], Any], done: Callable[[Any, str | None], None]) -> None:
        def work() -> None:
            result, error = None, None
            try:
                result = job()
            except DiskError as failed:
                error = str(failed)
            except Exception as failed:
                error = repr(failed)
            try:
                self._loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

        self._pool.submit(work)

    def stop(self) -> None:
        self._pool.shutdown()
