"""Metadata changes of a broker without a cluster: a thread writes proposals to the metadata journal.

Proposals of one turn share an entry. While an entry is written, further proposals wait and share the next
one. If an entry cannot be written, the proposals behind it fail as well: they were decided on top of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ottla.metadata.records import Record
from ottla.ports.store import SUPERSEDED
from ottla.runtime.background import Jobs
from ottla.runtime.clock import Clock
from ottla.runtime.core import Core
from ottla.runtime.embedded_store import EmbeddedStore
from ottla.runtime.garbage import no_collections
from ottla.runtime.log_filter import LogFilter


class JournalWriter:
    def __init__(
        self,
        broker: Core,
        store: EmbeddedStore,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        log: LogFilter,
        turn: Callable[..., None],
    ) -> None:
        self._broker = broker
        self._store = store
        self._clock = clock
        self._loop = loop
        self._log = log
        self._turn = turn
        self._isolation = broker.isolation
        self._jobs = Jobs(loop, 1, "ottla-journal", self._isolation.contain)
        self._proposals: list[tuple[list[Record], Callable[[str | None], None]]] = []
        self._is_scheduled = False

    def propose(self, records: list[Record], done: Callable[[str | None], None]) -> None:
        self._proposals.append((records, done))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._write)

    def stop(self) -> None:
        self._jobs.stop()

    def _write(self) -> None:
        """Write all waiting proposals as one entry."""
        proposals, self._proposals = self._proposals, []
        records = [record for each, _done in proposals for record in each]

        def finished(_result: Any, error: str | None) -> None:
            run = self._isolation.run
            now_ms = self._broker.now_ms = self._clock.now_ms()
            dropped: list[tuple[list[Record], Callable[[str | None], None]]] = []
            if error is None:
                with no_collections():
                    run("new metadata", self._broker.committed, records, now_ms)
            else:
                self._log.log_once(f"metadata cannot be changed: {error}", "failed metadata changes")
                run("rejected metadata", self._broker.rejected)
                dropped, self._proposals = self._proposals, []
            for _records, done in proposals:
                run("the answer to a metadata change", done, error)
            for _records, done in dropped:
                run("the answer to a metadata change", done, SUPERSEDED)
            if self._proposals:
                self._write()
            else:
                self._is_scheduled = False
            self._turn(now_ms, what="new metadata")

        store = self._store
        try:
            self._jobs.run((lambda: store.append(records)) if records else (lambda: None), finished)
        except Exception as error:
            # For example no thread can be started. Nothing was written; the next change is tried again.
            self._isolation.contain("the metadata journal", error)
            self._loop.call_soon(finished, None, f"internal error: {error!r}")
