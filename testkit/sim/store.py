"""The cluster store in virtual time: each broker's client (`ports/store.py`) of the one ensemble
(`ensemble.py`).

`SimStore` corresponds to `runtime/zookeeper_store.py`, and keeps the same guarantees by the same means.
Requests have delays. When the connection breaks it is unknown whether a request arrived, so it is repeated on
the next connection, and an append is recognised in the log by its tag. Each node is notified of changes with
its own lag, and of log, brokers and controller in any order.

A session expires when its client was silent for the timeout: cut off, paused or dead. Its node only knows
that the connection is gone (suspended), and learns that the session is lost when it reconnects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ottla.metadata import records as r
from ottla.metadata.appends import encoded_bytes
from ottla.ports.store import APPEND_BYTES_MAX, Done, EpochDone, Record, Registration, StoreEvents
from testkit.sim.ensemble import FENCED, Ensemble, Session

NOT_CONTROLLER: Final = "this broker is not the controller"
SESSION_LOST: Final = "the session with the store was lost"
CLOSED: Final = "the store is closed"

#: Maximum time until a client without a connection has a new one.
_RECONNECT_MS: Final = 400


class StoreHost(Protocol):
    """The process of a client: its events wait while it is paused, and are dropped once it is gone."""

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> None: ...


class _Operation:
    """A request on its way to the ensemble and back."""

    __slots__ = ("act", "answered", "done", "result", "session")

    def __init__(
        self, session: Session, act: Callable[[], Any], answered: Callable[[Any], None] | None
    ) -> None:
        self.session = session
        self.act = act
        self.answered = answered
        self.done = False
        self.result: Any = None

    def perform(self) -> None:
        if not self.done:
            self.done = True
            if self.session.alive:
                self.result = self.act()
            else:
                self.answered = None


class _Proposal(NamedTuple):
    records: list[Record]
    done: Done


class _Batch(NamedTuple):
    proposals: list[_Proposal]
    tag: str
    first: int
    version: int

    @property
    def records(self) -> list[Record]:
        return [record for proposal in self.proposals for record in proposal.records]


class _Request(NamedTuple):
    """A registration, claim or snapshot: repeated on each connection until it is answered."""

    begin: Callable[[_Request], None]
    refuse: Callable[[str], None]


class SimStore:
    """One broker's client. Its calls to the node are events of that node."""

    def __init__(self, ensemble: Ensemble, host: StoreHost, node_id: int, events: StoreEvents) -> None:
        self.ensemble = ensemble
        self.world = ensemble.world
        self.node_id = node_id
        self._host = host
        self._events = events
        #: Maximum lag of notifications on this node.
        self.lag_ms = 3
        self.session: Session | None = None
        #: Whether there is a connection (as the servers see it), and whether everything was read since.
        self._connected = False
        self._ready = False
        self._closed = False
        self._cut = False
        #: The number of the connection: nothing of an earlier one arrives.
        self._connection = 0
        self._opened: Callable[[], None] | None = None
        self.position = -1
        self._version = 0
        self._control: int | None = None
        self._live: dict[int, Registration] | None = None
        self._holder: tuple[int, int] | None = None
        self._watching = [False, False, False]
        self._in_flight: list[_Operation] = []
        self._requests: list[_Request] = []
        self._queue: deque[_Proposal] = deque()
        self._unsettled: _Batch | None = None
        self._sending = False
        self._attempts = 0

    # --- life -------------------------------------------------------------------------------------------------

    def connect(self, opened: Callable[[], None]) -> None:
        """`opened()` once everything was read and reported."""
        self._opened = opened
        self.ensemble.clients.append(self)
        self._reconnect_later()

    def close(self) -> None:
        """End the session: the registration and controllership end at once."""
        self._closed = True
        if self.session is not None and self._connected:
            self.ensemble.end_session(self.session)
        self.die()
        self._refuse_requests(CLOSED)
        self._refuse(CLOSED)

    def die(self) -> None:
        """The process is gone: it is silent."""
        self._closed = True
        if self in self.ensemble.clients:
            self.ensemble.clients.remove(self)
        self._lose_connection()

    def pause(self) -> None:
        """The process is paused: it is silent, and does not know."""
        if self.session is not None and self._connected:
            self.ensemble.silent(self.session)

    def resume(self) -> None:
        """It resumes; what had arrived was read before this."""
        if self.session is None or not self._connected:
            return
        if self.session.alive:
            if not self._cut:
                self.ensemble.heard(self.session)
        else:
            self.drop()

    # --- the connection: what goes wrong ------------------------------------------------------------------------

    def cut(self) -> None:
        """Nothing arrives in either direction, and nobody is notified. The client notices first."""
        if self._cut or self._closed:
            return
        self._cut = True
        connection, timeout = self._connection, self.ensemble.session_timeout_ms
        if self.session is not None and self._connected:
            self.ensemble.silent(self.session)
        notice_ms = timeout // 3 + self.world.below(timeout // 3)
        self._host.schedule(notice_ms, lambda: self.drop() if connection == self._connection else None)

    def heal(self) -> None:
        if self._cut and not self._closed:
            self._cut = False
            if self._connected:
                self.drop()
            else:
                self._reconnect_later()

    def drop(self) -> None:
        """The connection breaks, and the client knows."""
        if self._closed or not self._connected:
            return
        was_ready = self._ready
        self._lose_connection()
        if was_ready:
            self._host.schedule(0, self._suspended)
        self._reconnect_later()

    def expire(self) -> None:
        """The servers expire the session."""
        if self.session is not None:
            self.ensemble.end_session(self.session)
            self.drop()

    @property
    def is_writing(self) -> bool:
        """Whether a request is in flight whose outcome would be unknown if the connection broke now."""
        return self._sending or bool(self._requests)

    def _suspended(self) -> None:
        self._events.store_suspended(self.world.now_ms)

    def _lose_connection(self) -> None:
        if self.session is not None and self._connected and self.session.alive and not self._cut:
            self.ensemble.silent(self.session)
        self._connected = self._ready = self._sending = False
        self._connection += 1
        self._watching = [False, False, False]
        in_flight, self._in_flight = self._in_flight, []
        for operation in in_flight:
            # It was in flight: it may still arrive, and nobody is notified.
            if not operation.done and not self._cut and self.world.chance(0.5):
                operation.perform()
            operation.done = True
            operation.answered = None

    def _reconnect_later(self) -> None:
        connection = self._connection

        def reconnect() -> None:
            if connection != self._connection or self._connected or self._closed or self._cut:
                return
            if self.ensemble.is_down:
                self._reconnect_later()
                return
            self._connect()

        self._host.schedule(1 + self.world.below(_RECONNECT_MS), reconnect)

    def _connect(self) -> None:
        if self.session is None:
            self.session = self.ensemble.open_session()
        elif not self.session.alive:
            self._control = None
            self.session = self.ensemble.open_session()
            if self._opened is None:
                self._events.store_lost(self.world.now_ms)
                self._refuse_requests(SESSION_LOST)
        self.ensemble.heard(self.session)
        self._connected = True
        self._connection += 1
        self._steps([self._catch_up, self._read_brokers, self._read_controller, self._resumed])

    def _steps(self, steps: list[Callable[[], None]]) -> None:
        """One after the other, with other events in between."""
        connection = self._connection

        def step() -> None:
            if connection == self._connection and self._reaches():
                steps.pop(0)()
                if steps:
                    self._host.schedule(self._delay(), step)

        self._host.schedule(self._delay(), step)

    def _resumed(self) -> None:
        if self._control is None:
            # Requests of the dead session are not in the log, and cannot arrive any more.
            self._refuse(SESSION_LOST)
        self._ready = True
        left_over = list(self._requests)
        opened, self._opened = self._opened, None
        if opened is not None:
            opened()
        else:
            self._events.store_back(self.world.now_ms)
        # What changed since the last read.
        self.log_moved()
        self.brokers_moved()
        self.controller_moved()
        for request in left_over:
            request.begin(request)
        self._send()

    def _reaches(self) -> bool:
        """Whether requests get through: the session may have expired without the client knowing."""
        return self._connected and not self._cut and self.session is not None and self.session.alive

    def _delay(self) -> int:
        return self.world.below(3 + self.ensemble.slow_ms)

    def _ask(self, act: Callable[[], Any], answered: Callable[[Any], None]) -> None:
        """There and back. Without a connection the request is lost: the caller repeats it on the next one."""
        if not self._connected:
            return
        assert self.session is not None
        operation = _Operation(self.session, act, answered)
        self._in_flight.append(operation)

        def arrive() -> None:
            if self._cut or operation.done:
                return
            operation.perform()
            self._host.schedule(self._delay(), answer)

        def answer() -> None:
            if operation.answered is not None and not self._cut:
                self._in_flight.remove(operation)
                operation.answered(operation.result)

        self.world.later(self._delay(), arrive)

    # --- watches ------------------------------------------------------------------------------------------------

    def log_moved(self) -> None:
        self._follow(0, self._catch_up)

    def brokers_moved(self) -> None:
        self._follow(1, self._read_brokers)

    def controller_moved(self) -> None:
        self._follow(2, self._read_controller)

    def _follow(self, which: int, read: Callable[[], None]) -> None:
        """Something changed: read it, a little later."""
        if not self._ready or self._watching[which]:
            return
        self._watching[which] = True
        connection = self._connection

        def fired() -> None:
            if connection == self._connection:
                self._watching[which] = False
                if self._reaches():
                    read()

        self._host.schedule(self.world.below(self.lag_ms + 1) + self._delay(), fired)

    def _catch_up(self) -> None:
        ensemble = self.ensemble
        self._version = ensemble.version
        if self.position < 0 and ensemble.snapshot is None:
            self.position = 0
            self._events.restored([], self.world.now_ms)
        if ensemble.snapshot is not None and ensemble.snapshot[0] > self.position:
            self.position = ensemble.snapshot[0]
            self._events.restored(list(ensemble.snapshot[1]), self.world.now_ms)
        for entry in list(ensemble.entries):
            if entry.first < self.position:
                continue
            batch = self._unsettled
            if batch is not None and batch.tag == entry.tag:
                self._landed(batch)
            else:
                self.position = entry.first + len(entry.records)
                self._events.committed(list(entry.records), self.world.now_ms)

    def _read_brokers(self) -> None:
        live = dict(sorted(self.ensemble.live.items()))
        if live != self._live:
            self._live = live
            self._events.live_brokers(live, self.world.now_ms)

    def _read_controller(self) -> None:
        holder = (self.ensemble.holder, self.ensemble.controller_epoch)
        if holder != self._holder:
            self._holder = holder
            self._events.controller_is(*holder, self.world.now_ms)

    # --- what is asked ------------------------------------------------------------------------------------------

    def register(self, registration: Registration, done: EpochDone) -> None:
        def begin(request: _Request) -> None:
            session = self.session
            assert session is not None
            self._ask(lambda: self.ensemble.register(session, registration), lambda got: answer(request, got))

        def answer(request: _Request, got: tuple[int, str | None]) -> None:
            self._requests.remove(request)
            done(*got)

        self._begin(_Request(begin, lambda error: done(0, error)))

    def claim(self, done: EpochDone) -> None:
        self._claim(None, done)

    def usurp(self, node_id: int, epoch: int, done: EpochDone) -> None:
        self._claim((node_id, epoch), done)

    def _claim(self, rival: tuple[int, int] | None, done: EpochDone) -> None:
        def begin(request: _Request) -> None:
            session = self.session
            assert session is not None
            self._ask(
                lambda: self.ensemble.claim(session, self.node_id, rival), lambda got: claimed(request, got)
            )

        def claimed(request: _Request, got: tuple[int, str | None]) -> None:
            epoch, error = got
            if error is not None:
                self._requests.remove(request)
                done(0, error)
                return
            # With the new epoch nobody else can append: the end that is read now is final.
            self._ask(lambda: None, lambda _: read(request, epoch))

        def read(request: _Request, epoch: int) -> None:
            self._catch_up()
            self._control = epoch
            self._requests.remove(request)
            done(epoch, None)

        self._begin(_Request(begin, lambda error: done(0, error)))

    def snapshot(self, records: Sequence[Record], done: Done) -> None:
        offset, records = max(self.position, 0), list(records)

        def begin(request: _Request) -> None:
            control = self._control
            if control is None:
                self._ask(lambda: NOT_CONTROLLER, lambda got: answer(request, got))
            else:
                self._ask(
                    lambda: self.ensemble.take_snapshot(control, offset, records),
                    lambda got: answer(request, got),
                )

        def answer(request: _Request, got: str | None) -> None:
            self._requests.remove(request)
            done(got)

        self._begin(_Request(begin, done))

    def _begin(self, request: _Request) -> None:
        self._requests.append(request)
        if self._ready:
            request.begin(request)

    def _refuse_requests(self, error: str) -> None:
        requests, self._requests = self._requests, []
        for request in requests:
            request.refuse(error)

    # --- appends --------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record], done: Done) -> None:
        # The core checks this before it proposes; ZooKeeper would close the connection.
        size = encoded_bytes(records)
        assert size <= APPEND_BYTES_MAX, f"an append of {size} bytes"
        self._queue.append(_Proposal(list(records), done))
        if self._ready:
            self._host.schedule(0, self._send)

    def _send(self) -> None:
        if self._sending or not self._ready or not (self._unsettled is not None or self._queue):
            return
        control = self._control
        if control is None:
            self._refuse(NOT_CONTROLLER)
            return
        batch = self._unsettled
        if batch is None:
            self._attempts += 1
            assert self.session is not None
            tag = f"{self.session.number}-{self._attempts}"
            batch = _Batch(self._gather(), tag, self.position, self._version)
            self._unsettled = batch
        if not batch.records:
            self._landed(batch)
            self._send()
            return
        sent = batch
        self._sending = True
        self._ask(
            lambda: self.ensemble.append(control, sent.tag, sent.version, sent.records),
            lambda result: self._answered(sent, result, control),
        )

    def _gather(self) -> list[_Proposal]:
        """As many proposals as fit into one append."""
        taken: list[_Proposal] = []
        bytes_left = APPEND_BYTES_MAX
        while self._queue and (size := encoded_bytes(self._queue[0].records)) <= bytes_left:
            taken.append(self._queue.popleft())
            bytes_left -= size
        return taken

    def _answered(self, batch: _Batch, result: str, control: int) -> None:
        self._sending = False
        if self._unsettled is batch:
            if result == "ok":
                self._version = batch.version + 1
                self._landed(batch)
            else:
                self._not_written(batch, result, control)
        self._send()

    def _not_written(self, batch: _Batch, result: str, control: int) -> None:
        """Because an earlier attempt succeeded, which a read shows; or because of another controller."""
        self._catch_up()
        if self._unsettled is not batch:
            return
        if result == "fenced":
            if self._control == control:
                self._control = None
            self._refuse(FENCED)
        else:
            # Our own snapshot was published unnoticed: repeat, from the new end.
            self._unsettled = None
            self._queue.extendleft(reversed(batch.proposals))

    def _landed(self, batch: _Batch) -> None:
        assert self.position == batch.first, "the controller has read what it builds upon"
        self._unsettled = None
        records = batch.records
        self.position += len(records)
        if records:
            # As in the log.
            self._events.committed([r.decode(r.encode(record)) for record in records], self.world.now_ms)
        for proposal in batch.proposals:
            proposal.done(None)

    def _refuse(self, error: str) -> None:
        refused = [*(self._unsettled.proposals if self._unsettled else ()), *self._queue]
        self._unsettled = None
        self._queue.clear()
        if refused:
            self._events.rejected(self.world.now_ms)
            for proposal in refused:
                proposal.done(error)
