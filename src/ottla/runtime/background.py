"""Blocking work in threads: syncs (`Syncer`) and jobs (`Jobs`).

Syncs are a group commit. Requests during a round wait for the next round, and a round syncs each file once
however many appends it covers. A request for thousands of files (bulk) is spread over many rounds, a few
files each, so that other requests do not wait for all of them. A round is one hand-over to the sync thread
and one back. The files of a large round are synced by a small thread pool, because a sync waits for the
device and not for the CPU.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from ottla.ports.disk import Disk, DiskError

#: From this many files on, a round uses the thread pool.
_SHARE_FROM = 4
#: Bulk files per round: some tens of milliseconds, even for new files.
_BULK_MAX = 16
#: A sync whose file could not be opened is retried after this long.
_AGAIN_S = 0.2


class _Outcome(NamedTuple):
    """The result of one round of syncs."""

    #: Synced targets.
    targets: list[Any]
    #: (path, reason) of failed syncs, which are final. Their targets are among `targets`.
    failures: list[tuple[str, str]]
    #: (target, reason) of files that could not be opened because of their path.
    refused: list[tuple[Any, str]]
    #: Files and directories that could not be opened for lack of descriptors or memory: retried after a
    #: pause.
    again: list[tuple[Any, str | None, Any]]


class Syncer:
    """Rounds of syncs. `done(targets, failures, refused)` is called on the loop after each round.

    A failure is (path, reason) of one file or directory; the other files of the round are synced
    nevertheless. A file that could not be opened for lack of descriptors or memory is retried after a pause;
    until then its target is not done.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        threads: int,
        done: Callable[[list[Any], list[tuple[str, str]], list[tuple[Any, str]]], None],
    ) -> None:
        self._loop = loop
        self._disk = disk
        self._done = done
        #: (target, directory to sync with it) by file; and the same for directories without a file.
        self._files: dict[Any, tuple[Any, str | None]] = {}
        self._loose: list[tuple[Any, str | None]] = []
        #: Like `_files`, for bulk requests.
        self._bulk: OrderedDict[Any, tuple[Any, str | None]] = OrderedDict()
        #: All failures so far, for a stop before the loop could report them.
        self.failures: list[tuple[str, str]] = []
        self._busy = False
        self._scheduled = False
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._rounds: queue.SimpleQueue[tuple[dict[Any, Any], list[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ottla-sync", daemon=True)
        self._thread.start()

    def ask(self, file: Any, directory: str | None, target: Any, is_bulk: bool = False) -> None:
        if file is not None:
            files = self._files
            before = files.get(file)
            if self._bulk or is_bulk:
                if before is None:
                    before = self._bulk.get(file)
                    if is_bulk:
                        files = self._bulk
                if files is not self._bulk:
                    # It is no longer only a bulk file.
                    self._bulk.pop(file, None)
            # The last target of a file covers the ones before it, but not their directory.
            if before is not None and directory is None:
                directory = before[1]
            files[file] = target, directory
        else:
            self._loose.append((target, directory))
        if not self._busy and not self._scheduled:
            # Deferred, so that other appends of this turn join the round.
            self._scheduled = True
            self._loop.call_soon(self._start)

    def _again(self, asked: list[tuple[Any, str | None, Any]]) -> None:
        for file, directory, target in asked:
            newer = self._files.get(file) if file is not None else None
            self.ask(file, directory, target if newer is None else newer[0])

    def stop(self) -> None:
        self._rounds.put(None)
        self._thread.join()
        if self._pool is not None:
            self._pool.shutdown()

    def _start(self) -> None:
        self._scheduled = False
        if self._busy or not (self._files or self._loose or self._bulk):
            return
        self._busy = True
        files, self._files = self._files, {}
        for _ in range(min(_BULK_MAX, len(self._bulk))):
            file, asked = self._bulk.popitem(last=False)
            files[file] = asked
        loose, self._loose = self._loose, []
        self._rounds.put((files, loose))

    def _work(self) -> None:
        while (work := self._rounds.get()) is not None:
            outcome = self._round(*work)
            self.failures += outcome.failures
            try:
                self._loop.call_soon_threadsafe(self._finished, outcome)
            except RuntimeError:
                return  # the loop is closed

    def _round(
        self, files: dict[Any, tuple[Any, str | None]], loose: list[tuple[Any, str | None]]
    ) -> _Outcome:
        targets = [*files.values(), *loose]
        directories = {directory for _target, directory in targets if directory is not None}
        errors = self._sync_all(list(files), self._sync) | self._sync_all(list(directories), self._sync_dir)
        outcome = _Outcome([], [], [], [])
        if not errors:
            outcome.targets.extend(target for target, _directory in targets)
            return outcome
        asked = [(file, directory, target) for file, (target, directory) in files.items()]
        asked += ((None, directory, target) for target, directory in loose)
        for what, error in errors.items():
            if error.broken:
                outcome.failures.append((what if isinstance(what, str) else what.path, str(error)))
        for each in asked:
            file, directory, target = each
            met = [error for error in (errors.get(file), errors.get(directory)) if error is not None]
            if any(error.broken for error in met) or not met:
                outcome.targets.append(target)
            elif any(not error.passing for error in met):
                outcome.refused.append((target, str(met[0])))
            else:
                outcome.again.append(each)
        return outcome

    def _sync_all(self, items: list[Any], sync: Callable[[Any], DiskError | None]) -> dict[Any, DiskError]:
        """The errors by failed item."""
        results: Iterable[DiskError | None] | None = None
        if len(items) >= _SHARE_FROM:
            with suppress(RuntimeError):
                # RuntimeError: no thread can be started. Then this thread syncs all items.
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="ottla-sync")
                results = self._pool.map(sync, items)
        if results is None:
            results = map(sync, items)
        return {item: error for item, error in zip(items, results, strict=True) if error is not None}

    def _sync(self, file: Any) -> DiskError | None:
        return _attempt(file.path, self._disk.sync, file)

    def _sync_dir(self, directory: str) -> DiskError | None:
        return _attempt(directory, self._disk.sync_dir, directory)

    def _finished(self, outcome: _Outcome) -> None:
        self._busy = False
        if self._files or self._loose or self._bulk:
            self._start()
        if outcome.again:
            self._loop.call_later(_AGAIN_S, self._again, outcome.again)
        self._done(outcome.targets, outcome.failures, outcome.refused)


def _attempt(path: str, sync: Callable[[Any], None], what: Any) -> DiskError | None:
    """Sync; returns the error, if any."""
    try:
        sync(what)
    except DiskError as error:
        return error
    except MemoryError as error:
        return DiskError(f"{path}: {error!r}", short=True, path=path)
    except Exception as error:
        # The file may not be durable.
        return DiskError(f"{path}: {error!r}", broken=True, path=path)
    return None


class Jobs:
    """Run functions in a thread pool, and `done(result, error)` on the loop.

    Any exception but DiskError is an internal error: `contain(what, error)` is called on the loop, before
    `done`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: int,
        name: str,
        contain: Callable[[str, Exception], None],
    ) -> None:
        self._loop = loop
        self._contain = contain
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        # Start at least one thread now.
        self._pool.submit(int)

    def run(self, job: Callable[[], Any], done: Callable[[Any, str | None], None]) -> None:
        def work() -> None:
            result, error = None, None
            try:
                result = job()
            except DiskError as failed:
                error = str(failed)
            except Exception as failed:
                error = f"internal error: {failed!r}"
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._contain, "a job", failed)
            try:
                self._loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:
                return  # the loop is closed

        # RuntimeError: no further thread can be started. The job is queued for the first thread nevertheless.
        with suppress(RuntimeError):
            self._pool.submit(work)

    def stop(self) -> None:
        self._pool.shutdown()
