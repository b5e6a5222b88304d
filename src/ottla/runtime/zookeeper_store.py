"""The metadata store on ZooKeeper (`ports/store.py`): connections, and the tasks of each connection.

On each connection `_resume` catches up. Then three tasks follow the end of the log, the live brokers and the
controller by their watches, and one task writes. When the connection breaks, all tasks are cancelled, and the
next connection starts with `_resume`. Unanswered requests survive the connection and are restarted; only the
end of the session ends them. The parts are `zookeeper_log.py` and `zookeeper_members.py`;
`zookeeper_layout.py` has the znodes.
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

#: Pause before a retry after an unexpected error.
_RETRY_S: Final = 1.0

SESSION_LOST: Final = "the ZooKeeper session has expired"
CLOSED: Final = "the store is closed"


class StoreUnavailable(Exception):
    """ZooKeeper is unreachable or denies access; the message says which, and what to do."""


class _Request(NamedTuple):
    """A registration, claim or snapshot in progress: restarted on each connection until it is answered."""

    work: Callable[[], Awaitable[Any]]
    answer: Callable[[Any], None]
    refuse: Callable[[str], None]


class ZookeeperStore:
    """Used only on the thread of a running event loop. Raises StoreUnavailable for invalid TLS files."""

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
            raise StoreUnavailable(
                f"cannot use the TLS files for ZooKeeper: {error}; check zookeeper.ssl.truststore.location "
                "and "
                "zookeeper.ssl.keystore.location"
            ) from error
        self._log = MetadataLog(self._link, node_id, events, now_ms)
        self._members = Members(self._link, events, now_ms)
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: list[_Request] = []
        self._opened: asyncio.Future[None] = self._loop.create_future()
        #: Whether `_resume` has caught up and the tasks run.
        self._ready = False
        self._closed = False

    # --- connect and close ----------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect and read all metadata; its events arrive before this returns. Raises StoreUnavailable."""
        self._link.start()
        timeout_s = self.settings.connection_timeout_ms / 1000
        done, _ = await asyncio.wait([self._opened], timeout=timeout_s)
        if not done:
            await self.close()
            why = f" ({self._link.trouble})" if self._link.trouble else ""
            raise StoreUnavailable(
                f"no ZooKeeper answers at {self.settings.connect} within {timeout_s:g} s{why}: "
                "start it, or set another address with --zookeeper HOST:PORT (zookeeper.connect)"
            )
        if error := self._opened.exception():
            await self.close()
            raise error

    async def close(self) -> None:
        """End the session, which gives up the registration and the controller role at once."""
        self._closed = True
        self._cancel_tasks()
        self._refuse_requests(CLOSED)
        self._log.refuse(CLOSED)
        await self._link.close()

    @property
    def end(self) -> int:
        """The number of log records that were delivered."""
        return max(self._log.position, 0)

    @property
    def records_in_log(self) -> int:
        """The records that a new broker reads after the snapshot; many of them make a new snapshot due."""
        return self._log.end.end - max(self._log.end.snapshot, 0)

    # --- requests -------------------------------------------------------------------------------------------

    async def cluster_id(self, candidate: str) -> str:
        """The id of the cluster; a new cluster gets the candidate. Raises StoreUnavailable."""
        return (await self._agreed(layout.CLUSTER_ID, candidate.encode())).decode()

    async def cluster_secret(self, candidate: ClusterSecret) -> ClusterSecret:
        """The secret of the cluster; a new cluster gets the candidate. Raises StoreUnavailable."""
        stored = await self._agreed(layout.CLUSTER_SECRET, candidate.stored())
        try:
            return ClusterSecret.from_stored(stored)
        except ValueError as error:
            raise StoreUnavailable(
                f"ZooKeeper at {self.settings.connect}: {layout.CLUSTER_SECRET} is no cluster secret: "
                f"{error}. "
                "Stop all brokers and delete that znode: the first broker that starts creates a new one"
            ) from None

    async def _agreed(self, path: str, candidate: bytes) -> bytes:
        """The data of a znode, which is created with the candidate if it is missing."""
        found: asyncio.Future[tuple[bytes, str | None]] = self._loop.create_future()

        def answer(data: bytes, error: str | None = None) -> None:
            # The caller may have been cancelled meanwhile.
            if not found.done():
                found.set_result((data, error))

        async def agree() -> bytes:
            # After a lost race or a lost connection, the existing data is read.
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
        # After the new epoch no other controller can append: the end that is read now is final.
        await self._log.catch_up()
        self._log.control = control
        return control.epoch, None

    def _ask(
        self, work: Callable[[], Awaitable[Any]], answer: Callable[[Any], None], refuse: Callable[[str], None]
    ) -> None:
        request = _Request(work, answer, refuse)
        self._requests.append(request)
        if self._ready:
            self._start_task(self._perform, request)

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

    # --- the connection -------------------------------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        if self._closed:
            return
        self._cancel_tasks()
        was_ready, self._ready = self._ready, False
        if state == KazooState.CONNECTED:
            self._start_task(self._resume)
        elif state == KazooState.SUSPENDED:
            if was_ready:
                self._events.store_suspended(self._now_ms())
        else:
            self._log.control = None
            if self._opened.done():
                self._events.store_lost(self._now_ms())
                self._refuse_requests(SESSION_LOST)

    async def _resume(self) -> None:
        """Catch up, then start the tasks of this connection."""
        log_moved, brokers_moved, controller_moved = asyncio.Event(), asyncio.Event(), asyncio.Event()
        if not self._opened.done():
            if await self._link.exists(layout.KAFKAS) is not None:
                raise StoreUnavailable(
                    "Apache Kafka keeps its metadata there: give ottla a separate path, "
                    f"such as zookeeper.connect={self.settings.hosts}{self.settings.chroot}/ottla"
                )
            await self._link.ensure(layout.first_znodes())
        # This server of the ensemble may lag behind the previous one, or behind our own unacknowledged write.
        await self._link.sync()
        await self._log.catch_up(log_moved)
        await self._members.read_brokers(brokers_moved)
        await self._members.read_controller(controller_moved)
        if self._log.control is None:
            # Unacknowledged appends of the expired session are not in the log, and cannot arrive any more.
            self._log.refuse(SESSION_LOST)
        self._ready = True
        # Only earlier requests: requests that the events below cause are started by `_ask`.
        left = list(self._requests)
        if self._opened.done():
            self._events.store_back(self._now_ms())
        else:
            self._opened.set_result(None)
        self._start_task(_follow, log_moved, self._log.catch_up)
        self._start_task(_follow, brokers_moved, self._members.read_brokers)
        self._start_task(_follow, controller_moved, self._members.read_controller)
        self._start_task(self._log.write)
        for request in left:
            self._start_task(self._perform, request)

    async def _resume_later(self) -> None:
        await asyncio.sleep(_RETRY_S)
        await self._resume()

    def _start_task(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        task = self._loop.create_task(self._guard(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel_tasks(self) -> None:
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _guard(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a task of one connection. Errors other than a broken connection are logged and retried."""
        try:
            await work(*arguments)
        except UNKNOWN_OUTCOME:
            pass
        except Exception as error:
            if not self._opened.done():
                text = f"ZooKeeper at {self.settings.connect}: {in_words(error)}"
                self._opened.set_exception(StoreUnavailable(text))
                return
            self._say(
                f"cannot use the metadata in ZooKeeper, retrying: {type(error).__name__}: {in_words(error)}"
            )
            self._cancel_tasks()
            if self._ready:
                self._ready = False
                self._events.store_suspended(self._now_ms())
            self._start_task(self._resume_later)


async def _follow(moved: asyncio.Event, read: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    while True:
        await moved.wait()
        moved.clear()
        await read(moved)
