"""The cluster store on ZooKeeper: registration, control, and the metadata log (`ports/store.py`, R6).

One connection at a time, with its tasks: `_resume` brings everything up to date, then three tasks follow the end of the
log, the live brokers and the controller by their watches, and one writes. When the connection breaks all of them are
cancelled, so nothing of it can act later; the next connection begins with `_resume` again. What was asked and not yet
answered (registrations, claims, snapshots, appends) outlives the connection and is tried again. It is lost with the session
only, and each of them can be tried again: a registration or a claim recognises itself by the session that owns its
znode, an append by the tag of its entry.

An append is one multi: check the version of /controller_epoch, set /metadata/end by version, create the entry. If the
connection breaks, the same multi is sent again after the log was read: the version of /metadata/end lets at most one of
the two through, and if the first one did, its entry was read and recognised. So each proposal is in the log once, or it
is known not to be. Appends go one at a time; what is proposed meanwhile gathers and shares the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import KazooState

from ottla.ports.store import APPEND_BYTES_MAX, Done, EpochDone, Record, Registration, StoreEvents
from ottla.runtime import zookeeper_layout as layout
from ottla.runtime.zookeeper_layout import End, Entry, Holder
from ottla.runtime.zookeeper_link import UNKNOWN_OUTCOME, Link, ZookeeperSettings
from ottla.runtime.zookeeper_snapshot import read_snapshot, trim, write_snapshot

#: Entries that are asked for at once while catching up.
_READ_AHEAD: Final = 16
#: How long to wait before another attempt when something unforeseen went wrong.
_RETRY_S: Final = 1.0

#: What a multi fails with when somebody else was quicker.
_RACES: Final = (BadVersionError, NodeExistsError, NoNodeError)

NOT_CONTROLLER: Final = "this broker is not the controller"
FENCED: Final = "another controller has taken over"
SESSION_LOST: Final = "the session with ZooKeeper was lost"
CLOSED: Final = "the store is closed"


class StoreUnavailable(Exception):
    """ZooKeeper cannot be reached or does not let us in; the message says which and what to do."""


class _Proposal(NamedTuple):
    records: list[Record]
    body: bytes
    done: Done


class _Batch(NamedTuple):
    """An append on its way: what it was told to be, so that it can be told again."""

    proposals: list[_Proposal]
    tag: str
    end: End
    size: int


class _Control(NamedTuple):
    """Our hold on the cluster: the epoch, and the version of /controller_epoch that every write checks."""

    epoch: int
    version: int


class _Request(NamedTuple):
    """A registration, claim or snapshot under way: it is begun anew with each connection until it is answered."""

    work: Callable[[], Awaitable[Any]]
    answer: Callable[[Any], None]
    refuse: Callable[[str], None]


class ZookeeperStore:
    def __init__(
        self,
        settings: ZookeeperSettings,
        node_id: int,
        events: StoreEvents,
        *,
        now_ms: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.node_id = node_id
        self.events = events
        self._now_ms = now_ms
        self._say = say
        self._link: Link
        self._tasks: set[asyncio.Task[None]] = set()
        self._session = 0
        self._opened: asyncio.Future[None] | None = None
        self._ready = False
        self._closed = False

        self._position = -1
        self._end = End(0, -1, -1)
        self._live: dict[int, Registration] | None = None
        self._holder: tuple[int, int] | None = None

        self._control: _Control | None = None
        self._requests: list[_Request] = []
        self._queue: deque[_Proposal] = deque()
        self._unsettled: _Batch | None = None
        self._attempts = 0
        self._asked = asyncio.Event()
        #: Held by whoever reads the log, so that each entry is asked for once.
        self._reading = asyncio.Lock()
        #: Held by whoever writes /metadata/end: appends, and the publication of a snapshot.
        self._writing = asyncio.Lock()

    # --- life -------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect and read everything; the events of it arrive before this returns. Raises StoreUnavailable."""
        loop = asyncio.get_running_loop()
        self._opened = loop.create_future()
        self._link = Link(self.settings, loop, self._state_changed)
        self._link.start()
        try:
            await asyncio.wait_for(asyncio.shield(self._opened), self.settings.connection_timeout_ms / 1000)
        except TimeoutError:
            await self.close()
            raise StoreUnavailable(
                f"no ZooKeeper answers at {self.settings.connect} within "
                f"{self.settings.connection_timeout_ms / 1000:g} s: start it, or name another with --zookeeper HOST:PORT"
            ) from None
        except StoreUnavailable:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session: the registration, and control, are given up at once."""
        self._closed = True
        self._cut()
        self._refuse_requests(CLOSED)
        self._refuse_proposals(CLOSED)
        # It waits for kazoo's thread.
        await asyncio.to_thread(self._link.close)

    @property
    def end(self) -> int:
        """How many records of the log were committed here."""
        return max(self._position, 0)

    @property
    def records_in_log(self) -> int:
        """How many records a new broker reads beside the snapshot: when they are many, it is time for a new one."""
        return self._end.end - max(self._end.snapshot, 0)

    # --- what is asked ----------------------------------------------------------------------------------------

    def register(self, registration: Registration, done: EpochDone) -> None:
        self._ask_for_epoch(lambda: self._register(registration), done)

    def claim(self, done: EpochDone) -> None:
        self._ask_for_epoch(lambda: self._claim(None), done)

    def usurp(self, node_id: int, epoch: int, done: EpochDone) -> None:
        self._ask_for_epoch(lambda: self._claim(Holder(node_id, epoch)), done)

    def append(self, records: Sequence[Record], done: Done) -> None:
        self._queue.append(_Proposal(list(records), layout.encode_records(records), done))
        self._asked.set()

    def snapshot(self, records: Sequence[Record], done: Done) -> None:
        offset = self.end
        self._ask(lambda: self._snapshot(list(records), offset), done, done)

    def _ask_for_epoch(self, work: Callable[[], Awaitable[tuple[int, str | None]]], done: EpochDone) -> None:
        self._ask(work, lambda result: done(*result), lambda error: done(0, error))

    def _ask(
        self, work: Callable[[], Awaitable[Any]], answer: Callable[[Any], None], refuse: Callable[[str], None]
    ) -> None:
        request = _Request(work, answer, refuse)
        self._requests.append(request)
        if self._ready:
            self._begin(self._perform(request))

    async def _perform(self, request: _Request) -> None:
        try:
            result = await request.work()
        except UNKNOWN_OUTCOME:
            raise
        except KazooException as error:
            self._requests.remove(request)
            request.refuse(_in_words(error))
        else:
            self._requests.remove(request)
            request.answer(result)

    def _refuse_requests(self, error: str) -> None:
        requests, self._requests = self._requests, []
        for request in requests:
            request.refuse(error)

    # --- the connection ---------------------------------------------------------------------------------------

    def _state_changed(self, state: str, session: int) -> None:
        if self._closed:
            return
        self._cut()
        was_ready, self._ready = self._ready, False
        if state == KazooState.CONNECTED:
            self._session = session
            self._begin(self._resume())
        elif state == KazooState.SUSPENDED:
            if was_ready:
                self.events.store_suspended(self._now_ms())
        else:
            self._session = 0
            self._control = None
            if self._position >= 0:
                self.events.store_lost(self._now_ms())
                self._refuse_requests(SESSION_LOST)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = set()

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """A task of one connection. If that breaks, the news of it follows; anything else is told and tried anew."""
        try:
            await work
        except UNKNOWN_OUTCOME:
            pass
        except Exception as error:
            text = _in_words(error)
            if self._opened is not None and not self._opened.done():
                self._opened.set_exception(StoreUnavailable(f"ZooKeeper at {self.settings.connect}: {text}"))
                return
            self._say(f"the metadata in ZooKeeper cannot be used: {text}")
            if self._ready:
                self._ready = False
                self.events.store_suspended(self._now_ms())
            me = asyncio.current_task()
            self._tasks.discard(me)  # type: ignore[arg-type]  # a coroutine runs in a task
            self._cut()
            self._begin(self._resume_later())

    async def _resume_later(self) -> None:
        await asyncio.sleep(_RETRY_S)
        await self._resume()

    async def _resume(self) -> None:
        """Everything that was missed, then back to work."""
        log_moved, brokers_moved, controller_moved = asyncio.Event(), asyncio.Event(), asyncio.Event()
        if self._position < 0:
            await self._link.ensure(layout.first_znodes())
        # Another server of the ensemble may lag behind the one we were connected to, or behind our own lost write.
        await self._link.sync()
        await self._catch_up(log_moved)
        await self._read_brokers(brokers_moved)
        await self._read_controller(controller_moved)
        if self._control is None:
            # The session that sent it is dead and the log was read: it is not there and cannot come.
            self._refuse_proposals(SESSION_LOST)
        self._ready = True
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        else:
            self.events.store_back(self._now_ms())
        self._begin(_follow(log_moved, self._catch_up))
        self._begin(_follow(brokers_moved, self._read_brokers))
        self._begin(_follow(controller_moved, self._read_controller))
        self._asked.set()
        self._begin(self._write())
        for request in list(self._requests):
            self._begin(self._perform(request))

    # --- the log, read ----------------------------------------------------------------------------------------

    async def _catch_up(self, moved: asyncio.Event | None = None) -> None:
        """Read the log up to its end. With `moved`, watch for the next change."""
        async with self._reading:
            await self._read_log(moved)

    async def _read_log(self, moved: asyncio.Event | None) -> None:
        position = self._position
        # Asked for together with the end: most often it is the one entry that is new.
        next_entry = self._link.get(layout.entry(position)) if position >= 0 else None
        data, stat = await self._link.get(layout.END, watch=moved.set if moved else None)
        end = layout.decode_end(data, stat.version)
        if end.version > self._end.version:
            self._end = end
        if next_entry is not None:
            try:
                data, _ = await next_entry
                self._deliver(position, data)
            except NoNodeError:
                pass
        elif end.snapshot < 0:
            self._position = 0
            self.events.restored([], self._now_ms())
        while self._position < end.end:
            await self._read_entries(end)

    async def _read_entries(self, end: End) -> None:
        """As many of the entries up to the end as are there; the snapshot, if the next one is not."""
        names = await self._link.children(layout.LOG) if self._position >= 0 else []
        firsts = sorted(first for first in map(int, names) if self._position <= first < end.end)
        if not firsts or firsts[0] != self._position:
            # Unless it was delivered meanwhile, by an append of our own.
            if self._position < end.end:
                await self._restore()
            return
        for start in range(0, len(firsts), _READ_AHEAD):
            asked = [(first, self._link.get(layout.entry(first))) for first in firsts[start : start + _READ_AHEAD]]
            for first, answer in asked:
                try:
                    data, _ = await answer
                except NoNodeError:
                    return  # trimmed meanwhile: there is a snapshot now
                self._deliver(first, data)

    async def _restore(self) -> None:
        """Begin anew from the published snapshot, which holds more than what we have read."""
        data, stat = await self._link.get(layout.END)
        end = layout.decode_end(data, stat.version)
        if end.snapshot <= self._position < end.end:
            raise StoreUnavailable(f"the metadata log has no entry {self._position}, though it ends at {end.end}")
        records = await read_snapshot(self._link, end.snapshot)
        if records is not None and end.snapshot > self._position:
            self._position = end.snapshot
            self.events.restored(records, self._now_ms())

    def _deliver(self, first: int, data: bytes) -> None:
        """An entry of the log, unless it was delivered: our own are when they succeed."""
        if first != self._position:
            return
        entry: Entry = layout.decode_entry(data)
        batch = self._unsettled
        if batch is not None and batch.tag == entry.tag:
            self._landed(batch)
            return
        self._position = first + entry.size
        self.events.committed(entry.records(), self._now_ms())

    # --- the log, written -------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._unsettled is not None or self._queue:
                if self._control is None:
                    self._refuse_proposals(NOT_CONTROLLER)
                    break
                async with self._writing:
                    await self._append(self._control)

    async def _append(self, control: _Control) -> None:
        batch = self._unsettled
        if batch is None:
            batch = self._gather()
            if batch is None:
                self._refuse_proposals(
                    f"a change of {len(self._queue[0].body)} bytes is larger than the {APPEND_BYTES_MAX} of one append"
                )
                return
            self._unsettled = batch
        end = batch.end
        entry = layout.encode_entry(
            by=self.node_id,
            epoch=control.epoch,
            tag=batch.tag,
            size=batch.size,
            body=b"\n".join(proposal.body for proposal in batch.proposals if proposal.body),
        )
        results = await self._link.multi(
            [
                ("check", layout.CONTROLLER_EPOCH, control.version),
                ("set", layout.END, layout.encode_end(end.end + batch.size, end.snapshot), end.version),
                ("create", layout.entry(end.end), entry),
            ]
        )
        if _succeeded(results):
            self._end = End(end.end + batch.size, end.snapshot, results[1].version)
            if self._unsettled is batch:
                self._landed(batch)
            return
        # Refused: because an attempt before this one succeeded, which reading will show, or because of another controller.
        await self._catch_up()
        if self._unsettled is not batch:
            return
        if isinstance(results[0], BadVersionError):
            self._control = None
            self._refuse_proposals(FENCED)
        elif self._end.version != end.version:
            # /metadata/end moved under us without another controller: tried again from where it is now.
            self._unsettled = None
            self._queue.extendleft(reversed(batch.proposals))
        else:
            self._refuse_proposals(_in_words(_cause(results)))

    def _gather(self) -> _Batch | None:
        """As many proposals as one append holds; none if the first is too large for any."""
        taken: list[_Proposal] = []
        bytes_left = APPEND_BYTES_MAX
        while self._queue and len(self._queue[0].body) < bytes_left:
            taken.append(self._queue.popleft())
            bytes_left -= len(taken[-1].body) + 1
        if not taken:
            return None
        self._attempts += 1
        tag = f"{self._session:x}-{self._attempts}"
        return _Batch(taken, tag, self._end, sum(len(proposal.records) for proposal in taken))

    def _landed(self, batch: _Batch) -> None:
        """Our entry is in the log."""
        assert self._position == batch.end.end, "the controller has read what it builds upon"
        self._unsettled = None
        self._position = batch.end.end + batch.size
        # All of them before the first answer: until then, the state is not that of any place in the log.
        records = [record for proposal in batch.proposals for record in proposal.records]
        self.events.committed(records, self._now_ms())
        for proposal in batch.proposals:
            proposal.done(None)

    def _refuse_proposals(self, error: str) -> None:
        """What waits, and what is under way if the log was read since: later ones were decided on top of earlier ones."""
        refused = [*(self._unsettled.proposals if self._unsettled else ()), *self._queue]
        self._unsettled = None
        self._queue.clear()
        if refused:
            self.events.rejected(self._now_ms())
            for proposal in refused:
                proposal.done(error)

    # --- who is there, and who controls -----------------------------------------------------------------------

    async def _read_brokers(self, moved: asyncio.Event) -> None:
        names = await self._link.children(layout.IDS, watch=moved.set)
        asked = [(int(name), self._link.get(layout.broker(int(name)))) for name in sorted(names, key=int)]
        live: dict[int, Registration] = {}
        for node_id, answer in asked:
            try:
                data, stat = await answer
            except NoNodeError:
                continue  # gone meanwhile: the watch has fired
            live[node_id] = layout.decode_registration(node_id, data, stat.czxid)
        if live != self._live:
            self._live = live
            self.events.live_brokers(live, self._now_ms())

    async def _read_controller(self, moved: asyncio.Event) -> None:
        found = None
        try:
            found, _ = await self._link.get(layout.CONTROLLER, watch=moved.set)
        except NoNodeError:
            if await self._link.exists(layout.CONTROLLER, watch=moved.set) is not None:
                moved.set()
                return
        if found is not None:
            holder = tuple(layout.decode_holder(found))
        else:
            epoch, _ = await self._link.get(layout.CONTROLLER_EPOCH)
            holder = (-1, int(epoch))
        if holder != self._holder:
            self._holder = holder
            self.events.controller_is(*holder, self._now_ms())

    async def _register(self, registration: Registration) -> tuple[int, str | None]:
        path = layout.broker(registration.node_id)
        data = layout.encode_registration(registration)
        while True:
            parent = self._link.get(layout.IDS)
            present = self._link.get(path)
            # Every registration moves this version: what we see now is what our multi meets, or it fails.
            _, parent_stat = await parent
            operations: list[tuple[Any, ...]] = [("set", layout.IDS, b"", parent_stat.version)]
            try:
                found, stat = await present
            except NoNodeError:
                pass
            else:
                if stat.ephemeralOwner == self._session and found == data:
                    return stat.czxid, None
                other = layout.decode_registration(registration.node_id, found, stat.czxid)
                if stat.ephemeralOwner != self._session and not set(other.directories) & set(registration.directories):
                    return 0, (
                        f"node id {registration.node_id} is taken by the broker at {other.host}:{other.port}, "
                        "which has another data directory: give this one another node.id"
                    )
                operations.append(("delete", path))
            results = await self._link.multi([*operations, ("ephemeral", path, data)])
            _raise_unless_race(results)

    async def _claim(self, rival: Holder | None) -> tuple[int, str | None]:
        while True:
            present, asked = self._link.get(layout.CONTROLLER), self._link.get(layout.CONTROLLER_EPOCH)
            operations: list[tuple[Any, ...]] = []
            try:
                found, stat = await present
            except NoNodeError:
                found, stat = None, None
            text, epoch_stat = await asked
            epoch = int(text)
            if found is not None:
                holder = layout.decode_holder(found)
                if stat.ephemeralOwner == self._session and holder == (self.node_id, epoch):
                    self._control = _Control(epoch, epoch_stat.version)
                    break
                if holder != rival:
                    return 0, f"held by {holder.node_id}"
                # Whoever follows the rival moves the epoch that is checked below: this deletes no other's znode.
                operations.append(("delete", layout.CONTROLLER))
            mine = layout.encode_holder(Holder(self.node_id, epoch + 1))
            operations += [
                ("ephemeral", layout.CONTROLLER, mine),
                ("set", layout.CONTROLLER_EPOCH, str(epoch + 1).encode(), epoch_stat.version),
            ]
            # Whether it succeeds or not, the next turn sees who has it.
            _raise_unless_race(await self._link.multi(operations))
        # From the new epoch on nobody else can append: the end that is read now is final.
        await self._catch_up()
        return self._control.epoch, None

    # --- snapshots --------------------------------------------------------------------------------------------

    async def _snapshot(self, records: list[Record], offset: int) -> str | None:
        control = self._control
        if control is None:
            return NOT_CONTROLLER
        fence = ("check", layout.CONTROLLER_EPOCH, control.version)
        if offset > self._end.snapshot:
            chunks = await write_snapshot(self._link, fence, records, offset)
            if chunks is None:
                return FENCED
            async with self._writing:
                await self._catch_up()
                results = await self._link.multi(
                    [
                        fence,
                        ("set", layout.snapshot(offset), layout.encode_snapshot(chunks), -1),
                        ("set", layout.END, layout.encode_end(self._end.end, offset), self._end.version),
                    ]
                )
                if not _succeeded(results):
                    return FENCED if isinstance(results[0], BadVersionError) else _in_words(_cause(results))
                self._end = End(self._end.end, offset, results[2].version)
        await trim(self._link, fence, offset)
        return None


async def _follow(moved: asyncio.Event, read: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    while True:
        await moved.wait()
        moved.clear()
        await read(moved)


def _succeeded(results: Sequence[Any]) -> bool:
    return not any(isinstance(result, Exception) for result in results)


def _cause(results: Sequence[Any]) -> Exception:
    """Which of the results of a failed multi says why: the others say that they were taken back."""
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            return result
    raise AssertionError("a multi failed without a cause")


def _raise_unless_race(results: Sequence[Any]) -> None:
    """That somebody was quicker is seen by the next attempt; any other failure would come again and again."""
    if not _succeeded(results) and not isinstance(cause := _cause(results), _RACES):
        raise cause


def _in_words(error: Exception) -> str:
    if isinstance(error, NoAuthError):
        return "not allowed: the znodes belong to another user (see zookeeper.digest.user and zookeeper.set.acl)"
    return str(error) or type(error).__name__
