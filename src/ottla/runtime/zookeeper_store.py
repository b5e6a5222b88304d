"""The cluster store on ZooKeeper (`ports/store.py`): one connection after another, and what runs on each.

With each connection `_resume` brings everything up to date; then three tasks follow the end of the log, the live brokers and
the controller by their watches, and one writes. When the connection breaks all of them are cancelled, so nothing of it
can act later, and the next connection begins with `_resume` again. What was asked and not yet answered outlives the
connection and is begun again; only the end of the session ends it. The parts are `zookeeper_log.py` and
`zookeeper_members.py`; `zookeeper_layout.py` draws the znodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState

from ottla.ports.store import Done, EpochDone, Record, Registration, StoreEvents
from ottla.runtime import zookeeper_layout as layout
from ottla.runtime.zookeeper_layout import Holder
from ottla.runtime.zookeeper_link import UNKNOWN_OUTCOME, Link, ZookeeperSettings, in_words
from ottla.runtime.zookeeper_log import MetadataLog
from ottla.runtime.zookeeper_members import Members, claim, register
from ottla.security.cluster_secret import ClusterSecret

#: How long to wait before another attempt when something unforeseen went wrong.
_RETRY_S: Final = 1.0

SESSION_LOST: Final = "the session with ZooKeeper was lost"
CLOSED: Final = "the store is closed"


class StoreUnavailable(Exception):
    """ZooKeeper cannot be reached or does not let us in; the message says which and what to do."""


class _Request(NamedTuple):
    """A registration, claim or snapshot under way: it is begun anew with each connection until it is answered."""

    work: Callable[[], Awaitable[Any]]
    answer: Callable[[Any], None]
    refuse: Callable[[str], None]


class ZookeeperStore:
    """Made and used on the thread of a running event loop. Raises StoreUnavailable if TLS files are not usable."""

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
        self._events = events
        self._now_ms = now_ms
        self._say = say
        self._loop = asyncio.get_running_loop()
        try:
            self._link = Link(settings, self._loop, self._state_changed)
        except OSError as error:
            raise StoreUnavailable(f"the TLS files for ZooKeeper cannot be used: {error}") from error
        self._log = MetadataLog(self._link, node_id, events, now_ms)
        self._members = Members(self._link, events, now_ms)
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: list[_Request] = []
        self._opened: asyncio.Future[None] = self._loop.create_future()
        #: Whether everything is up to date, and work goes on.
        self._ready = False
        self._closed = False

    # --- life -------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect and read everything; the events of it arrive before this returns. Raises StoreUnavailable."""
        self._link.start()
        timeout_s = self.settings.connection_timeout_ms / 1000
        done, _ = await asyncio.wait([self._opened], timeout=timeout_s)
        if not done:
            await self.close()
            why = f" ({self._link.trouble})" if self._link.trouble else ""
            raise StoreUnavailable(
                f"no ZooKeeper answers at {self.settings.connect} within {timeout_s:g} s{why}: "
                "start it, or name another with --zookeeper HOST:PORT"
            )
        if error := self._opened.exception():
            await self.close()
            raise error

    async def close(self) -> None:
        """End the session: the registration, and control, are given up at once."""
        self._closed = True
        self._cut()
        self._refuse_requests(CLOSED)
        self._log.refuse(CLOSED)
        await self._link.close()

    @property
    def end(self) -> int:
        """How many records of the log were committed here."""
        return max(self._log.position, 0)

    @property
    def records_in_log(self) -> int:
        """How many records a new broker reads beside the snapshot: when they are many, it is time for a new one."""
        return self._log.end.end - max(self._log.end.snapshot, 0)

    # --- what is asked ----------------------------------------------------------------------------------------

    async def cluster_id(self, candidate: str) -> str:
        """The id of the cluster; the candidate, if it has none yet. Raises StoreUnavailable."""
        return (await self._agreed(layout.CLUSTER_ID, candidate.encode())).decode()

    async def cluster_secret(self, candidate: ClusterSecret) -> ClusterSecret:
        """The secret of the cluster; the candidate, if it has none yet. Raises StoreUnavailable."""
        stored = await self._agreed(layout.CLUSTER_SECRET, candidate.stored())
        try:
            return ClusterSecret.from_stored(stored)
        except ValueError as error:
            raise StoreUnavailable(
                f"ZooKeeper at {self.settings.connect}: {layout.CLUSTER_SECRET} has no cluster secret: {error}. "
                "Stop all brokers and delete that znode: the first broker that starts makes a new one"
            ) from None

    async def _agreed(self, path: str, candidate: bytes) -> bytes:
        """What the znode has; the candidate, if there is no such znode yet."""
        found: asyncio.Future[tuple[bytes, str | None]] = self._loop.create_future()

        def answer(data: bytes, error: str | None = None) -> None:
            # Who asked may have been cancelled meanwhile.
            if not found.done():
                found.set_result((data, error))

        async def agree() -> bytes:
            # Whoever loses the race, or the connection in its midst, reads what is there in the end.
            await self._link.ensure([(path, candidate)])
            data: bytes = (await self._link.get(path))[0]
            return data

        self._ask(agree, answer, lambda error: answer(b"", error))
        data, error = await found
        if error is not None:
            raise StoreUnavailable(f"ZooKeeper at {self.settings.connect}: {error}")
        return data

    def register(self, registration: Registration, done: EpochDone) -> None:
        self._ask(
            lambda: register(self._link, registration),
            lambda result: done(*result),
            lambda error: done(0, error),
        )

    def claim(self, done: EpochDone) -> None:
        self._ask(lambda: self._claim(None), lambda result: done(*result), lambda error: done(0, error))

    def usurp(self, node_id: int, epoch: int, done: EpochDone) -> None:
        rival = Holder(node_id, epoch)
        self._ask(lambda: self._claim(rival), lambda result: done(*result), lambda error: done(0, error))

    def append(self, records: Sequence[Record], done: Done) -> None:
        self._log.propose(records, done)

    def snapshot(self, records: Sequence[Record], done: Done) -> None:
        offset = self.end
        records = list(records)
        self._ask(lambda: self._log.snapshot(records, offset), done, done)

    async def _claim(self, rival: Holder | None) -> tuple[int, str | None]:
        control, error = await claim(self._link, self.node_id, rival)
        if control is None:
            return 0, error
        # From the new epoch on nobody else can append: the end that is read now is final.
        await self._log.catch_up()
        self._log.control = control
        return control.epoch, None

    def _ask(
        self, work: Callable[[], Awaitable[Any]], answer: Callable[[Any], None], refuse: Callable[[str], None]
    ) -> None:
        request = _Request(work, answer, refuse)
        self._requests.append(request)
        if self._ready:
            self._begin(self._perform, request)

    async def _perform(self, request: _Request) -> None:
        try:
            result = await request.work()
        except UNKNOWN_OUTCOME:
            raise
        except KazooException as error:
            self._requests.remove(request)
            request.refuse(in_words(error))
        else:
            self._requests.remove(request)
            request.answer(result)

    def _refuse_requests(self, error: str) -> None:
        requests, self._requests = self._requests, []
        for request in requests:
            request.refuse(error)

    # --- the connection ---------------------------------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        if self._closed:
            return
        self._cut()
        was_ready, self._ready = self._ready, False
        if state == KazooState.CONNECTED:
            self._begin(self._resume)
        elif state == KazooState.SUSPENDED:
            if was_ready:
                self._events.store_suspended(self._now_ms())
        else:
            self._log.control = None
            if self._opened.done():
                self._events.store_lost(self._now_ms())
                self._refuse_requests(SESSION_LOST)

    async def _resume(self) -> None:
        """Everything that was missed, then back to work."""
        log_moved, brokers_moved, controller_moved = asyncio.Event(), asyncio.Event(), asyncio.Event()
        if not self._opened.done():
            if await self._link.exists(layout.KAFKAS) is not None:
                raise StoreUnavailable(
                    "Apache Kafka keeps its metadata there: give ottla a path of its own, "
                    f"such as {self.settings.hosts}{self.settings.chroot}/ottla"
                )
            await self._link.ensure(layout.first_znodes())
        # Another server of the ensemble may lag behind the one we were connected to, or behind our own lost write.
        await self._link.sync()
        await self._log.catch_up(log_moved)
        await self._members.read_brokers(brokers_moved)
        await self._members.read_controller(controller_moved)
        if self._log.control is None:
            # What the dead session sent is not in the log, and cannot come any more.
            self._log.refuse(SESSION_LOST)
        self._ready = True
        # Those from before: what the news below makes the core ask for is begun as it is asked.
        left = list(self._requests)
        if self._opened.done():
            self._events.store_back(self._now_ms())
        else:
            self._opened.set_result(None)
        self._begin(_follow, log_moved, self._log.catch_up)
        self._begin(_follow, brokers_moved, self._members.read_brokers)
        self._begin(_follow, controller_moved, self._members.read_controller)
        self._begin(self._log.write)
        for request in left:
            self._begin(self._perform, request)

    async def _resume_later(self) -> None:
        await asyncio.sleep(_RETRY_S)
        await self._resume()

    def _begin(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        task = self._loop.create_task(self._guard(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cut(self) -> None:
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _guard(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """A task of one connection. If that breaks, the news of it follows; anything else is told and tried anew."""
        try:
            await work(*arguments)
        except UNKNOWN_OUTCOME:
            pass
        except Exception as error:
            if not self._opened.done():
                text = f"ZooKeeper at {self.settings.connect}: {in_words(error)}"
                self._opened.set_exception(StoreUnavailable(text))
                return
            self._say(f"the metadata in ZooKeeper cannot be used: {type(error).__name__}: {in_words(error)}")
            self._cut()
            if self._ready:
                self._ready = False
                self._events.store_suspended(self._now_ms())
            self._begin(self._resume_later)


async def _follow(moved: asyncio.Event, read: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    while True:
        await moved.wait()
        moved.clear()
        await read(moved)
