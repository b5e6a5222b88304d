"""The cluster store on virtual time: one ensemble of servers, and each broker's client of it (`ports/store.py`).

The ensemble is the truth: sessions, ephemerals, the controller and its epoch, the log. Each write checks and acts in one step.
`SimStore` is what `runtime/zookeeper_store.py` is to a real broker, and keeps the same promises by the same means: what
is asked goes there and back with delays; when the connection breaks nobody knows whether it arrived, so it is asked again with
the next one, and an append is recognised in the log by its tag. Each node hears of changes with a lag of its own, and of log,
brokers and controller in any order.

A session ends when its client was silent for the time-out: cut off, paused or dead. Its node knows no more than that
the connection is gone (suspended); it hears that the session is lost once it is back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ottla.controller import records as r
from ottla.controller.image import Image
from ottla.log.names import id_text
from ottla.ports.store import APPEND_BYTES_MAX, Done, EpochDone, Record, Registration, StoreEvents
from ottla.testing.sim.world import World

NOT_CONTROLLER: Final = "this broker is not the controller"
FENCED: Final = "another controller has taken over"
SESSION_LOST: Final = "the session with the store was lost"
CLOSED: Final = "the store is closed"

#: How long a client that lost its connection waits before it has another, at most.
_RECONNECT_MS: Final = 400


class Entry(NamedTuple):
    """One append: where it begins, and what tells its writer that it is the one."""

    first: int
    tag: str
    epoch: int
    records: list[Record]


class Session:
    """One client's time in the ensemble. `number` is its identity, as it owns ephemerals."""

    __slots__ = ("alive", "number", "silence")

    def __init__(self, number: int) -> None:
        self.number = number
        self.alive = True
        #: Counts the times at which the client was heard again: an expiry that was set before does not happen.
        self.silence = 0


class Ensemble:
    """The servers. `on_append` and `on_image` are asked and told about each change of the log before others see it."""

    def __init__(self, world: World, *, session_timeout_ms: int) -> None:
        self.world = world
        self.session_timeout_ms = session_timeout_ms
        self.cluster_id = id_text(world.random.randbytes(16))
        #: The log: what it was begun with, if anything, and the entries after that.
        self.snapshot: tuple[int, list[Record]] | None = None
        self.entries: list[Entry] = []
        self.end = 0
        #: Moves with each change of the end and of the snapshot.
        self.version = 0
        self.image = Image()
        self.live: dict[int, Registration] = {}
        self._owners: dict[int, Session] = {}
        #: Who controls, -1 if nobody does, and the epoch of who did last.
        self.holder = -1
        self.controller_epoch = 0
        self._holder_session: Session | None = None
        self._changes = 0
        self._sessions = 0
        self.clients: list[SimStore] = []
        #: Added to what everything takes, while the store is slow.
        self.slow_ms = 0
        #: Whether nobody reaches it: sessions stand still meanwhile.
        self.is_down = False
        self.on_append: Callable[[Image, Image, list[Record]], None] = lambda _before, _after, _records: None

    # --- sessions ---------------------------------------------------------------------------------------------

    def open_session(self) -> Session:
        self._sessions += 1
        return Session(self._sessions)

    def silent(self, session: Session) -> None:
        """Nothing is heard of its client from now on: it ends, unless `heard` comes first."""
        session.silence += 1
        silence = session.silence
        timeout = self.session_timeout_ms
        # The last that was heard of it was up to a third of the time-out ago.
        wait_ms = timeout - self.world.below(timeout // 3)

        def expire() -> None:
            if session.silence != silence or not session.alive:
                return
            if self.is_down:
                self.silent(session)
                return
            self.end_session(session)

        self.world.later(wait_ms, expire)

    def heard(self, session: Session) -> None:
        session.silence += 1

    def end_session(self, session: Session) -> None:
        if not session.alive:
            return
        session.alive = False
        self.world.tell(f"store: session {session.number} ends")
        gone = [node_id for node_id, owner in self._owners.items() if owner is session]
        for node_id in gone:
            del self.live[node_id], self._owners[node_id]
        if gone:
            self._brokers_moved()
        if self._holder_session is session:
            self._holder_session = None
            self.holder = -1
            self._controller_moved()

    # --- writes: each checks and acts in one step -----------------------------------------------------------------

    def register(self, session: Session, registration: Registration) -> tuple[int, str | None]:
        node_id = registration.node_id
        present = self.live.get(node_id)
        if present is not None:
            ours = self._owners[node_id] is session
            if ours and present._replace(epoch=0) == registration._replace(epoch=0):
                return present.epoch, None
            if not ours and set(present.directories).isdisjoint(registration.directories):
                return 0, f"node id {node_id} is taken by the broker at {present.host}:{present.port}"
        self._changes += 1
        self.live[node_id] = registration._replace(epoch=self._changes)
        self._owners[node_id] = session
        self.world.tell(f"store: broker {node_id} registers with epoch {self._changes}")
        self._brokers_moved()
        return self._changes, None

    def claim(self, session: Session, node_id: int, rival: tuple[int, int] | None) -> tuple[int, str | None]:
        if self._holder_session is not None:
            if self._holder_session is session and self.holder == node_id:
                return self.controller_epoch, None
            if (self.holder, self.controller_epoch) != rival:
                return 0, f"held by {self.holder}"
        self._changes += 1
        self.controller_epoch += 1
        self.holder, self._holder_session = node_id, session
        self.world.tell(f"store: broker {node_id} is controller of epoch {self.controller_epoch}")
        self._controller_moved()
        return self.controller_epoch, None

    def append(self, epoch: int, tag: str, version: int, records: list[Record]) -> str:
        """ "ok", or what did not fit: "fenced", "moved"."""
        if not self.is_controller_epoch(epoch):
            return "fenced"
        if version != self.version:
            return "moved"
        self._changes += 1
        self.version += 1
        # As bytes would: what cannot be written and read again is found here.
        records = [r.decode(r.encode(record)) for record in records]
        entry = Entry(self.end, tag, epoch, records)
        self.entries.append(entry)
        self.end += len(records)
        before, self.image = self.image, self.image.apply(records)
        if self.world.traced:
            for record in records:
                self.world.tell(f"store: {self.end} {_told(record)}")
        self.on_append(before, self.image, records)
        self._log_moved()
        return "ok"

    def take_snapshot(self, epoch: int, offset: int, records: list[Record]) -> str | None:
        if not self.is_controller_epoch(epoch):
            return FENCED
        if self.snapshot is None or offset > self.snapshot[0]:
            self.world.tell(f"store: a snapshot of {len(records)} records replaces the log up to {offset}")
            self.version += 1
            self.snapshot = offset, [r.decode(r.encode(record)) for record in records]
            self.entries = [entry for entry in self.entries if entry.first >= offset]
        return None

    def is_controller_epoch(self, epoch: int) -> bool:
        """The fence of every write (R6)."""
        return epoch == self.controller_epoch

    # --- what clients watch ---------------------------------------------------------------------------------------

    def _log_moved(self) -> None:
        for client in self.clients:
            client.log_moved()

    def _brokers_moved(self) -> None:
        for client in self.clients:
            client.brokers_moved()

    def _controller_moved(self) -> None:
        for client in self.clients:
            client.controller_moved()


def _told(record: Record) -> str:
    if isinstance(record, r.Partition):
        more = "".join(
            f" {name} {value}"
            for name, value in (
                ("adding", record.adding),
                ("removing", record.removing),
                ("eligible", record.eligible),
            )
            if value
        )
        return (
            f"{record.topic_id.hex()[:4]}-{record.partition}: leader {record.leader} epoch {record.leader_epoch} "
            f"isr {record.isr} of {record.replicas} version {record.partition_epoch} last {record.last_leader}{more}"
        )
    return repr(record)


class Host(Protocol):
    """Where a client runs: its events do not happen while it is paused, and never once it is gone."""

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> None: ...


class _Operation:
    """Something on its way to the ensemble and back."""

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
    """A registration, claim or snapshot: begun anew with each connection until it is answered."""

    begin: Callable[[_Request], None]
    refuse: Callable[[str], None]


class SimStore:
    """One broker's client. Everything that it tells its node happens in events of that node."""

    def __init__(self, ensemble: Ensemble, host: Host, node_id: int, events: StoreEvents) -> None:
        self.ensemble = ensemble
        self.world = ensemble.world
        self.node_id = node_id
        self._host = host
        self._events = events
        #: How long this node takes to hear of a change, at most.
        self.lag_ms = 3
        self.session: Session | None = None
        #: Whether the connection is there (what the servers see), and whether everything of it is up to date here.
        self._connected = False
        self._ready = False
        self._closed = False
        self._cut = False
        #: Which connection this is: nothing of an earlier one arrives.
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
        """`opened()` once everything was read and told."""
        self._opened = opened
        self.ensemble.clients.append(self)
        self._reconnect_later()

    def close(self) -> None:
        """End the session: the registration, and control, are given up at once."""
        self._closed = True
        if self.session is not None and self._connected:
            self.ensemble.end_session(self.session)
        self.die()
        self._refuse_requests(CLOSED)
        self._refuse(CLOSED)

    def die(self) -> None:
        """The process is gone: the servers hear nothing any more."""
        self._closed = True
        if self in self.ensemble.clients:
            self.ensemble.clients.remove(self)
        self._lose_connection()

    def pause(self) -> None:
        """The process does not run: the servers hear nothing, and it does not know."""
        if self.session is not None and self._connected:
            self.ensemble.silent(self.session)

    def resume(self) -> None:
        """It runs again; what had arrived was read before this."""
        if self.session is None or not self._connected:
            return
        if self.session.alive:
            if not self._cut:
                self.ensemble.heard(self.session)
        else:
            self.drop()

    # --- the connection: what goes wrong ------------------------------------------------------------------------

    def cut(self) -> None:
        """Nothing arrives any more in either direction, and nobody is told. The client notices first."""
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
        """The servers give the session up."""
        if self.session is not None:
            self.ensemble.end_session(self.session)
            self.drop()

    @property
    def is_writing(self) -> bool:
        """Whether something is under way whose outcome would be unknown if the connection broke now."""
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
            # It was on its way: perhaps it arrives yet, and nobody is told.
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
            # What the dead session sent is not in the log, and cannot come any more.
            self._refuse(SESSION_LOST)
        self._ready = True
        left_over = list(self._requests)
        opened, self._opened = self._opened, None
        if opened is not None:
            opened()
        else:
            self._events.store_back(self.world.now_ms)
        # What changed since it was read.
        self.log_moved()
        self.brokers_moved()
        self.controller_moved()
        for request in left_over:
            request.begin(request)
        self._send()

    def _reaches(self) -> bool:
        """Whether something gets through now: the session may have ended without this client knowing."""
        return self._connected and not self._cut and self.session is not None and self.session.alive

    def _delay(self) -> int:
        return self.world.below(3 + self.ensemble.slow_ms)

    def _ask(self, act: Callable[[], Any], answered: Callable[[Any], None]) -> None:
        """There and back. Without a connection it is lost: whoever asks begins again with the next one."""
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
            # From the new epoch on nobody else can append: the end that is read now is final.
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
        size = sum(len(r.encode(record)) + 1 for record in records)
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
            batch = _Batch(list(self._queue), tag, self.position, self._version)
            self._queue.clear()
            self._unsettled = batch
        if not batch.records:
            self._landed(batch)
            self._send()
            return
        sent = batch
        self._sending = True
        self._ask(
            lambda: self.ensemble.append(control, sent.tag, sent.version, sent.records),
            lambda result: self._answered(sent, result),
        )

    def _answered(self, batch: _Batch, result: str) -> None:
        self._sending = False
        if self._unsettled is batch:
            if result == "ok":
                self._version = batch.version + 1
                self._landed(batch)
            else:
                self._not_written(batch, result)
        self._send()

    def _not_written(self, batch: _Batch, result: str) -> None:
        """Because an attempt before this one succeeded, which reading shows; or because of another controller."""
        self._catch_up()
        if self._unsettled is not batch:
            return
        if result == "fenced":
            self._control = None
            self._refuse(FENCED)
        else:
            # A snapshot of ours was published unseen: again, from the new end.
            self._unsettled = None
            self._queue.extendleft(reversed(batch.proposals))

    def _landed(self, batch: _Batch) -> None:
        assert self.position == batch.first, "the controller has read what it builds upon"
        self._unsettled = None
        records = batch.records
        self.position += len(records)
        if records:
            # As the log has them.
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
