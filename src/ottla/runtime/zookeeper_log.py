"""The metadata log in ZooKeeper: read by all brokers, written by the controller, trimmed by snapshots.

An append is one multi: check the version of /controller_epoch, set /metadata/end by version, create the
entry. If the connection breaks, the log is read and the same multi is sent again. The version of
/metadata/end and the name of the entry let at most one of the two multis succeed. If the first one did, its
entry was read and recognized by its tag. So each proposal is in the log once, or it is known not to be (R6).
Appends go one at a time; proposals meanwhile share the next one.

Every coroutine here belongs to one connection and may be cancelled at any `await` when the connection breaks.
State that outlives the connection is in the fields, and each coroutine can be restarted. `zookeeper_store.py`
runs them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kazoo.exceptions import BadVersionError, NoNodeError

from ottla.ports.store import APPEND_BYTES_MAX, SUPERSEDED, Done, Record, StoreEvents
from ottla.runtime import zookeeper_layout as layout
from ottla.runtime.zookeeper_layout import Control, End
from ottla.runtime.zookeeper_link import Link, cause, in_words, succeeded
from ottla.runtime.zookeeper_snapshot import read_snapshot, trim, write_snapshot

#: Entries that are requested at once while catching up.
_READ_AHEAD: Final = 16

NOT_CONTROLLER: Final = "this broker is not the controller"
FENCED: Final = "another controller has taken over"


class GapInLog(Exception):
    """An entry is missing and no snapshot replaces it: it was deleted from outside."""


class _Proposal(NamedTuple):
    records: list[Record]
    body: bytes
    done: Done


class _Batch(NamedTuple):
    """An append in progress, kept so that it can be sent again."""

    proposals: list[_Proposal]
    tag: str
    end: End
    size: int

    @property
    def body(self) -> bytes:
        return b"\n".join(proposal.body for proposal in self.proposals if proposal.body)


class MetadataLog:
    def __init__(self, link: Link, node_id: int, events: StoreEvents, now_ms: Callable[[], int]) -> None:
        self._link = link
        self._node_id = node_id
        self._events = events
        self._now_ms = now_ms
        #: The number of delivered records; -1 before the first connection.
        self.position = -1
        #: The end as last read or written.
        self.end = End(0, -1, -1)
        #: Set by a claim; None after another controller took over or the session ended.
        self.control: Control | None = None
        self._queue: deque[_Proposal] = deque()
        self._unsettled: _Batch | None = None
        self._attempts = 0
        self._asked = asyncio.Event()
        #: Held while the log is read, so that each entry is requested once.
        self._reading = asyncio.Lock()
        #: Held by writers of /metadata/end: appends, and the publication of a snapshot.
        self._writing = asyncio.Lock()
        #: One snapshot at a time: each deletes all others.
        self._snapshotting = asyncio.Lock()

    # --- reading --------------------------------------------------------------------------------------------

    async def catch_up(self, moved: asyncio.Event | None = None) -> None:
        """Read up to the end. With `moved`, watch for the next change."""
        async with self._reading:
            position = self.position
            # Requested together with the end: most often there is exactly one new entry.
            next_entry = self._link.get(layout.entry(position)) if position >= 0 else None
            data, stat = await self._link.get(layout.END, watch=moved.set if moved else None)
            end = layout.decode_end(data, stat.version)
            if end.version > self.end.version:
                self.end = end
            if next_entry is not None:
                try:
                    data, _ = await next_entry
                    self._deliver(position, data)
                except NoNodeError:
                    pass
            elif end.snapshot < 0:
                self.position = 0
                self._events.restored([], self._now_ms())
            while self.position < end.end:
                await self._read_entries(end)

    async def _read_entries(self, end: End) -> None:
        """Read the existing entries up to the end; the snapshot, if the next entry is missing."""
        names = await self._link.children(layout.LOG) if self.position >= 0 else []
        firsts = sorted(first for first in map(int, names) if self.position <= first < end.end)
        if not firsts or firsts[0] != self.position:
            # Unless it was delivered meanwhile as our own append.
            if self.position < end.end:
                await self._restore()
            return
        for start in range(0, len(firsts), _READ_AHEAD):
            asked = [
                (first, self._link.get(layout.entry(first))) for first in firsts[start : start + _READ_AHEAD]
            ]
            for first, answer in asked:
                try:
                    data, _ = await answer
                except NoNodeError:
                    return  # trimmed meanwhile: a snapshot replaces it
                self._deliver(first, data)

    async def _restore(self) -> None:
        """Restart from the published snapshot, which is ahead of our position."""
        data, stat = await self._link.get(layout.END)
        end = layout.decode_end(data, stat.version)
        if end.snapshot <= self.position < end.end:
            raise GapInLog(f"the metadata log has no entry {self.position}, though it ends at {end.end}")
        records = await read_snapshot(self._link, end.snapshot)
        if records is not None and end.snapshot > self.position:
            self.position = end.snapshot
            self._events.restored(records, self._now_ms())

    def _deliver(self, first: int, data: bytes) -> None:
        """Deliver an entry. Our own entries were delivered when their append succeeded."""
        if first != self.position:
            return
        entry = layout.decode_entry(data)
        batch = self._unsettled
        if batch is not None and batch.tag == entry.tag:
            self._landed(batch)
            return
        self.position = first + entry.size
        self._events.committed(entry.records(), self._now_ms())

    # --- writing --------------------------------------------------------------------------------------------

    def propose(self, records: Sequence[Record], done: Done) -> None:
        self._queue.append(_Proposal(list(records), layout.encode_records(records), done))
        self._asked.set()

    async def write(self) -> None:
        """Append proposals as long as the connection lasts."""
        # Proposals may be left from the last connection.
        self._asked.set()
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._unsettled is not None or self._queue:
                if self.control is None:
                    self.refuse(NOT_CONTROLLER)
                    break
                async with self._writing:
                    await self._append(self.control)

    async def _append(self, control: Control) -> None:
        batch = self._unsettled or self._gather()
        if batch is None:
            self._refuse_oversized()
            return
        if not batch.size:
            self._landed(batch)
            return
        self._unsettled = batch
        end, new_end = batch.end, batch.end.end + batch.size
        entry = layout.encode_entry(
            by=self._node_id, epoch=control.epoch, tag=batch.tag, size=batch.size, body=batch.body
        )
        results = await self._link.multi(
            [
                ("check", layout.CONTROLLER_EPOCH, control.version),
                ("set", layout.END, layout.encode_end(new_end, end.snapshot), end.version),
                ("create", layout.entry(end.end), entry),
            ]
        )
        if succeeded(results):
            self.end = End(new_end, end.snapshot, results[1].version)
            self._landed(batch)
            return
        # Either an earlier attempt succeeded, which reading shows, or there is another controller.
        await self.catch_up()
        if self._unsettled is not batch:
            return
        if isinstance(results[0], BadVersionError):
            if self.control is control:
                # Unless control was claimed again while the log was read.
                self.control = None
            self.refuse(FENCED)
        elif self.end.version != end.version:
            # The end moved but not the epoch: our snapshot was published unnoticed. Retry from the new end.
            self._unsettled = None
            self._queue.extendleft(reversed(batch.proposals))
        else:
            self.refuse(in_words(cause(results)))

    def _gather(self) -> _Batch | None:
        """As many proposals as fit into one append; None if the first one is too large."""
        taken: list[_Proposal] = []
        bytes_left = APPEND_BYTES_MAX
        while self._queue and len(self._queue[0].body) <= bytes_left:
            taken.append(self._queue.popleft())
            bytes_left -= len(taken[-1].body) + 1
        if not taken:
            return None
        self._attempts += 1
        tag = f"{self._link.session:x}-{self._attempts}"
        return _Batch(taken, tag, self.end, sum(len(proposal.records) for proposal in taken))

    def _landed(self, batch: _Batch) -> None:
        """Our entry is in the log."""
        assert self.position == batch.end.end, "the controller has read all earlier entries"
        self._unsettled = None
        self.position += batch.size
        # Apply all records before the first callback: until then the state matches no position of the log.
        records = [record for proposal in batch.proposals for record in proposal.records]
        if records:
            self._events.committed(records, self._now_ms())
        for proposal in batch.proposals:
            proposal.done(None)

    def _refuse_oversized(self) -> None:
        """Reject an oversized proposal. The core should not make any; only this proposal gets this error."""
        oversized, *behind = self._queue
        self._queue.clear()
        self._events.rejected(self._now_ms())
        oversized.done(
            f"a metadata change of {len(oversized.body)} bytes exceeds the limit of {APPEND_BYTES_MAX} "
            "bytes per append"
        )
        for proposal in behind:
            proposal.done(SUPERSEDED)

    def refuse(self, error: str) -> None:
        """Reject all waiting proposals, and the current batch, which is known not to be in the log."""
        refused = [*(self._unsettled.proposals if self._unsettled else ()), *self._queue]
        self._unsettled = None
        self._queue.clear()
        if refused:
            self._events.rejected(self._now_ms())
            for proposal in refused:
                proposal.done(error)

    # --- snapshots ------------------------------------------------------------------------------------------

    async def snapshot(self, records: Sequence[Record], offset: int) -> str | None:
        """Write and publish a snapshot, delete the entries that it replaces. Returns an error, or None."""
        if self.control is None:
            return NOT_CONTROLLER
        fence = ("check", layout.CONTROLLER_EPOCH, self.control.version)
        try:
            async with self._snapshotting:
                # Unless an earlier connection published it unnoticed, or a newer one exists.
                if offset > self.end.snapshot:
                    chunks = await write_snapshot(self._link, fence, records, offset)
                    await self._publish(fence, offset, chunks)
                await trim(self._link, fence, self.end.snapshot)
        except BadVersionError:
            return FENCED
        return None

    async def _publish(self, fence: tuple[str, str, int], offset: int, chunks: int) -> None:
        async with self._writing:
            # An append with an unknown outcome may have moved the end.
            await self.catch_up()
            results = await self._link.commit(
                [
                    fence,
                    ("set", layout.snapshot(offset), layout.encode_snapshot(chunks), -1),
                    ("set", layout.END, layout.encode_end(self.end.end, offset), self.end.version),
                ]
            )
            self.end = End(self.end.end, offset, results[2].version)
