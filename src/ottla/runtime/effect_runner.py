"""The shell: performs the core's effects on sockets, files and threads, one turn of the event loop at a time.

A turn is: frames of one socket (or a finished sync, or a timer) go into the core; `settle` wakes who waited; then everything
in the outbox is performed, each connection flushed once. No task, future or lock a request.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import nlargest
from time import monotonic
from typing import Any, Final

from ottla.log.compaction import Task
from ottla.metadata.records import Record
from ottla.model.interrupted import interrupted_objects
from ottla.ports.disk import DiskError
from ottla.ports.effects import (
    ASK,
    AUTHENTICATED,
    CLOSE,
    PAUSE,
    PROPOSE,
    RESUME,
    RETRIED,
    RETRY_MS,
    RUN,
    SEND,
    SYNC,
    WORK,
    Effect,
    refusal,
)
from ottla.ports.store import SUPERSEDED
from ottla.runtime.admission import Admission
from ottla.runtime.background import Jobs, Syncer
from ottla.runtime.clock import Clock
from ottla.runtime.cluster_link import Clustering
from ottla.runtime.core import Core, Interruptible, Session
from ottla.runtime.disk import SystemDisk
from ottla.runtime.embedded_store import EmbeddedStore
from ottla.runtime.garbage import no_collections
from ottla.runtime.memory import Budget
from ottla.runtime.platform import resident_bytes, trim_memory
from ottla.runtime.transport import ClosedSession, Transport
from ottla.runtime.turns import LongestTurn, Turns, request_in
from ottla.runtime.worker import Worker

_RECEIVE_BYTES: Final = 256 * 1024
#: Buffers of frames that came in pieces, kept for the next ones.
_SPARE_BUFFERS: Final = 8
_SPARE_BYTES_MAX: Final = 2 << 20
_ACCEPT_MAX: Final = 64
_SWEEP_SECONDS: Final = 5.0
#: While others wait for memory, a large request that has stopped arriving is closed after this long.
_STALLED_MS: Final = 3000
#: How many clients that do not read are closed at once.
_UNREAD_CLOSED_MAX: Final = 16
#: If the process has grown by this much since its start, freed memory is given back to the system, this often.
_TRIM_BYTES: Final = 16 << 20
_TRIM_MS: Final = 15_000
#: Kinds of refusals that are told between two sweeps, and what is left out of one to know its kind.
_KINDS_TOLD_MAX: Final = 20
_PARTICULARS: Final = re.compile(r"0x[0-9a-f]+|-?[0-9]+")
#: Effects on a connection.
_OF_CONNECTIONS: Final = frozenset((SEND, CLOSE, PAUSE, RESUME, AUTHENTICATED))


class Shell:
    def __init__(
        self,
        broker: Core,
        disk: SystemDisk,
        clock: Clock,
        store: EmbeddedStore | Clustering,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], None],
        *,
        connections_max: int = 1 << 31,
    ) -> None:
        """`connections_max` is what the descriptors allow (`descriptors.py`), whatever max.connections says."""
        self.broker = broker
        self.disk = disk
        self.clock = clock
        self.loop = loop
        #: One of the two: a journal of its own, or a cluster.
        self._store = store if isinstance(store, EmbeddedStore) else None
        self._cluster = store if isinstance(store, Clustering) else None
        self._say = say
        self.request_bytes_max = broker.config.socket_request_max_bytes
        #: Up to this size a read may be one whole request with its length.
        self.one_frame_max = min(_RECEIVE_BYTES, self.request_bytes_max + 4)
        self.buffer = bytearray(_RECEIVE_BYTES)
        #: kio reads read-only memory alone.
        self.view = memoryview(self.buffer).toreadonly()
        self._spare: list[bytearray] = []
        self._transports: dict[Transport, None] = {}
        self._admission = Admission(
            connections_max, None if self._cluster is None else self._cluster.broker_addresses
        )
        #: Connections that have proven to be other brokers'.
        self._brokers = 0
        self.budget = Budget(
            loop,
            limit=broker.config.queued_max_request_bytes,
            request_bytes_max=self.request_bytes_max,
            held=lambda: broker.held_bytes,
            held_answers=lambda: broker.held_answer_bytes,
            drop=self._drop,
        )
        self._listeners: list[socket.socket] = []
        self._accepted_this_second = 0
        #: Whether a listener is not looked at until the next second.
        self._resting = False
        self._syncer = Syncer(loop, disk, broker.config.num_sync_threads, self._synced)
        self.isolation = broker.isolation
        self.jobs = Jobs(loop, broker.config.num_sync_threads, "ottla-job", self.isolation.contain)
        self._journal = Jobs(loop, 1, "ottla-journal", self.isolation.contain)
        self._worker = Worker(loop)
        self._proposals: list[tuple[list[Record], Callable[[str | None], None]]] = []
        self._proposing = False
        #: Whether one of the proposals of this turn could not be handed on.
        self._is_withdrawn = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._settling = False
        #: The memory of the process when it was new, and when freed memory may be given back next.
        self._first_bytes = resident_bytes()
        self._trim_at_ms = 0
        self._refusals_told: set[str] = set()
        #: How many more of each kind there were.
        self._refusals_untold: Counter[str] = Counter()
        self._stopping = False
        self.turns = Turns(clock.now_ms, self._turn_ended)
        # For what raises where nothing catches it: asyncio drops the callback and goes on, and we log it like any other.
        loop.set_exception_handler(self._callback_failed)

    def _callback_failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Exception):
            self._say(f"the event loop: {context.get('message')}: {error!r}")
            return
        self.isolation.contain(f"the event loop ({context.get('message')})", error)
        for owner in interrupted_objects(error):
            # A connection, a dial, the worker: it ends, and whoever waits for it is told.
            if isinstance(owner, Interruptible):
                self.isolation.run("an interrupted connection", owner.interrupted, error)
        # It came before the end of its turn.
        self.loop.call_soon(self._settle_more)

    # --- connections ------------------------------------------------------------------------------------------

    def listen(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._listeners.append(sock)
        self.loop.add_reader(sock.fileno(), self._accept, sock)
        if len(self._listeners) == 1:
            self._sweep_later()
            self.loop.call_later(1.0, self._next_second)
        self.turn(self.clock.now_ms(), what="the start")

    def _accept(self, listener: socket.socket) -> None:
        config = self.broker.config
        for _ in range(_ACCEPT_MAX):
            if self._accepted_this_second >= config.max_connection_creation_rate:
                # Further ones wait in the backlog until the next second.
                self._rest(listener)
                return
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors, most likely: those who wait are served when others leave. Until then the listener
                # stays readable, so looking away for a second is what keeps the loop from spinning.
                self._tell_once(
                    f"a connection could not be accepted: {error.strerror}", "failures to accept a connection"
                )
                self._rest(listener)
                return
            host = address[0]
            refusal = self._admission.refusal(host, config, self._brokers)
            wait_ms = 0.0 if refusal else self._admission.wait_ms(host, config, self.clock.now_ms())
            if wait_ms is None:
                refusal = f"connections from {host} come too fast: see max.connection.creation.rate.per.ip"
            if refusal:
                self._tell_once(refusal)
                sock.close()
                continue
            if not wait_ms:
                # One that has to wait is not at others' expense.
                self._accepted_this_second += 1
            try:
                self._open(sock, host, address[1], wait_ms or 0.0)
            except Exception as error:
                # One client's: those behind it in the backlog are accepted.
                self.isolation.contain(f"a new connection from {host}", error)
                sock.close()

    def _rest(self, listener: socket.socket) -> None:
        self.loop.remove_reader(listener.fileno())
        self._resting = True

    def _open(self, sock: socket.socket, host: str, port: int, wait_ms: float) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self.broker.connected(f"{host}:{port}")
        transport = Transport(self, sock, connection, host, self.clock.now_ms())
        connection.transport = transport
        self._transports[transport] = None
        self._admission.opened(host)
        if wait_ms:
            self.loop.call_later(wait_ms / 1000, transport.resume)
        else:
            transport.resume()

    def _is_broker(self, connection: Session) -> None:
        """A connection has proven to be another broker's: it does not count as a client's."""
        transport = connection.transport
        if transport in self._transports and not transport.is_broker:
            transport.is_broker = True
            self._brokers += 1

    def _authentication_failed(self, connection: Session) -> None:
        """Whoever is at its address has to wait before it can try again. The connection is closed by the caller."""
        self._admission.authentication_failed(connection.transport.host, self.clock.now_ms())

    def closed(self, transport: Transport) -> None:
        """A transport is gone: the core forgets the connection."""
        if self._transports.pop(transport, self) is self:
            return
        self._admission.closed(transport.host)
        self._brokers -= transport.is_broker
        connection = transport.connection
        self.isolation.run("the end of a connection", self.broker.disconnected, connection)
        # They refer to each other, which only the garbage collector would find out.
        transport.connection = ClosedSession(connection.peer)

    def refuse(self, transport: Transport, reason: str) -> None:
        # As an effect, so that the answers to the requests before it leave first.
        self.broker.outbox.append((CLOSE, transport.connection, reason))

    def _drop(self, transport: Transport, reason: str) -> None:
        self._tell_once(f"{transport.connection.peer} closed: {reason}")
        transport.close()

    def close_unread(self) -> None:
        """Too many answers wait for clients that do not read: those that hold most for longest go."""
        now_ms = self.clock.now_ms()
        for transport in nlargest(
            _UNREAD_CLOSED_MAX,
            # Other brokers ask for no more than their replicas need.
            (
                each
                for each in self._transports
                if (each.writing or each.connection.held_bytes) and not each.is_broker
            ),
            key=lambda each: (
                (each.queued_bytes + each.connection.held_bytes) * (1000 + now_ms - each.active_ms)
            ),
        ):
            if not self.budget.is_too_much_unread:
                break
            size = transport.queued_bytes + transport.connection.held_bytes
            self._drop(transport, f"it does not read its answers, and {size} bytes of them were held")

    def close_most_pinning(self, but: Transport) -> bool:
        """No descriptor is left for another file that is to be sent: the client goes for which most files are held."""
        others = [
            (each.slices, each.fd, each) for each in self._transports if each is not but and each.writing
        ]
        slices, _fd, transport = max(others, default=(0, 0, None))
        if transport is None or not slices:
            return False
        self._drop(transport, f"it does not read its answers, and {slices} files were held open for them")
        return True

    def request_failed(self, connection: Session, error: Exception) -> None:
        """The core contains what its handlers raise; this was raised before it knew whose request it is."""
        self.isolation.contain(f"a request from {connection.peer}", error)
        if not connection.closed:
            connection.closed = True
            self.broker.outbox.append((CLOSE, connection, f"internal error: {error!r}"))

    def memory(self, length: int, first: int) -> bytearray:
        """Memory for a frame of that length which comes in pieces: for all of it if a spare buffer fits, else for the first bytes."""
        spare = self._spare
        for at, buffer in enumerate(spare):
            if len(buffer) == length:
                return spare.pop(at)
        return bytearray(first)

    def recycle(self, buffer: bytearray) -> None:
        if len(buffer) <= _SPARE_BYTES_MAX:
            if len(self._spare) >= _SPARE_BUFFERS:
                del self._spare[0]
            self._spare.append(buffer)

    # --- turns ------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int, is_last: bool = False, what: Any = "the cluster's news") -> None:
        """The end of a turn that began at `now_ms`: wake who waited, then do everything that was asked for.

        `is_last`: of those that were ready when the loop looked. `what` it was about: words; a transport, whose requests are in the
        shared buffer; or such a request itself.
        """
        broker = self.broker
        try:
            if broker.settle(now_ms, is_last=is_last) and not self._settling:
                self._settling = True
                self.loop.call_soon(self._settle_more)
        except Exception as error:
            # What the turn has asked for so far is done nevertheless.
            self.isolation.contain("the end of a turn", error)
        outbox = broker.outbox
        if len(outbox) == 1 and outbox[0][0] == SEND:
            # One answer to one request: what most turns come to.
            effect = outbox.pop()
            try:
                effect[1].transport.send_now((effect[2],))
            except Exception as error:
                self._unperformed(effect, error)
        while outbox:
            broker.outbox = []
            self._perform(outbox)
            outbox = broker.outbox
        if broker.timers.sooner:
            self._set_alarm(now_ms)
        if monotonic() > (turns := self.turns).look_at_s:
            turns.look(now_ms, partial(self._describe, what))

    def _describe(self, what: Any) -> str:
        """What a turn was about, for people."""
        if isinstance(what, str):
            return what
        if isinstance(what, Transport):
            # Behind its length. If several came in one read, the first.
            return f"{request_in(self.view, 4)} from {what.connection.peer}"
        return request_in(what, 0)

    def _turn_ended(self, turn: LongestTurn) -> None:
        limit_ms = self.broker.config.slow_turn_log_ms
        if 0 <= limit_ms <= turn.wall_ms:
            self._tell_once(
                f"a slow turn of the event loop, others waited ({turn})", "slow turns of the event loop"
            )

    def _set_alarm(self, now_ms: int) -> None:
        self.broker.timers.sooner = False
        deadline = self.broker.next_deadline_ms
        if deadline is not None and (self._timer is None or deadline < self._timer_ms):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = deadline
            self._timer = self.loop.call_later(max(0, deadline - now_ms) / 1000, self._tick)

    def _perform(self, outbox: list[Any]) -> None:
        #: Answers by connection, which leave together.
        answers: dict[Transport, list[list[Any]]] = {}
        self._is_withdrawn = False
        for effect in outbox:
            try:
                kind = effect[0]
                if kind == SEND:
                    transport = effect[1].transport
                    before = answers.get(transport)
                    if before is None:
                        answers[transport] = [effect[2]]
                    else:
                        before.append(effect[2])
                elif kind == SYNC:
                    self._syncer.ask(effect[1], effect[2], effect[3], effect[4])
                else:
                    self._perform_other(kind, effect, answers)
            except Exception as error:
                self._unperformed(effect, error)
        for transport, to_send in answers.items():
            try:
                transport.send_now(to_send)
            except Exception as error:
                self.connection_failed(transport, error)
        if self._cluster is not None:
            self._cluster.flush()

    def _perform_other(self, kind: int, effect: Effect, answers: dict[Transport, list[list[Any]]]) -> None:
        """Effects that a turn seldom has."""
        if kind == RUN:
            self._run(effect[1], effect[2])
        elif kind == WORK:
            self._work(effect[1], effect[2])
        elif kind == ASK:
            assert self._cluster is not None, "a broker of its own has no peers"
            self._cluster.ask(*effect[1:])
        elif kind == PROPOSE and self._cluster is None:
            self._proposals.append((effect[1], effect[2]))
            if not self._proposing:
                self._proposing = True
                # Proposals of one turn share an entry of the journal.
                self.loop.call_soon(self._propose)
        elif kind == PAUSE:
            effect[1].transport.paused = True
            effect[1].transport.stop_reading()
        elif kind == RESUME:
            effect[1].transport.paused = False
            if not effect[1].transport.out:
                effect[1].transport.resume()
        elif kind == AUTHENTICATED:
            if effect[2]:
                self._is_broker(effect[1])
            else:
                self._authentication_failed(effect[1])
        elif kind == CLOSE:
            transport = effect[1].transport
            self._tell_once(f"{effect[1].peer} closed: {effect[2]}")
            if transport in answers:
                transport.send_now(answers.pop(transport))
            transport.finish()
        else:
            assert self._cluster is not None, "only a cluster's broker asks for this"
            assert kind != PROPOSE or not self._is_withdrawn, "a change before this one was not written"
            self._cluster.perform(effect)

    def _unperformed(self, effect: Effect, error: Exception) -> None:
        """An effect raised: whoever waits for it is told, and the others of its turn are performed."""
        if effect[0] in _OF_CONNECTIONS:
            self.connection_failed(effect[1].transport, error)
            return
        self.isolation.contain(f"effect {effect[0]}", error)
        if effect[0] in RETRIED:
            if not self._stopping:
                self.loop.call_later(RETRY_MS / 1000, self._perform, [effect])
            return
        if effect[0] == PROPOSE:
            # Those behind it were decided on top of it.
            self._is_withdrawn = True
            self.isolation.run("withdrawn metadata", self.broker.withdrawn)
        tell = refusal(effect, f"internal error: {error!r}")
        if tell is not None:
            self.loop.call_soon(self._finished, tell)

    def connection_failed(self, transport: Transport, error: Exception) -> None:
        """Something raised while it worked for one connection, which is closed."""
        self.isolation.contain(f"the connection from {transport.connection.peer}", error)
        self.isolation.run("closing a connection", transport.close)

    def _finished(self, done: Callable[..., None], *arguments: Any) -> None:
        """Something that the core asked for is done: it is told, and has its turn whatever it makes of that."""
        now_ms = self.broker.now_ms = self.clock.now_ms()
        self.isolation.run("a finished job", done, *arguments)
        self.turn(now_ms, what="a finished job")

    def _settle_more(self) -> None:
        self._settling = False
        self.turn(self.clock.now_ms(), is_last=True, what="fetches and records that were left over")

    def _tick(self) -> None:
        self._timer = None
        now_ms = self.clock.now_ms()
        try:
            self.broker.tick(now_ms)
            self.turn(now_ms, what="timers")
        finally:
            # Whatever happened: without an alarm nothing that waits would ever be answered.
            self._set_alarm(now_ms)

    def _synced(
        self, targets: list[Any], failures: list[tuple[str, str]], refused: list[tuple[Any, str]]
    ) -> None:
        now_ms = self.broker.now_ms = self.clock.now_ms()
        for path, reason in failures:
            self.isolation.run("a failed sync", self.broker.sync_failed, path, reason)
        for target, reason in refused:
            self.isolation.run("a refused sync", self.broker.sync_refused, target, reason)
        try:
            self.broker.synced(targets, now_ms)
        except Exception as error:
            self.isolation.contain("a sync", error)
        self.turn(now_ms, False, "a finished sync")

    def read_failed(self, error: DiskError) -> None:
        """A file that was being sent could not be read; its client is told by the closing, the core decides the rest."""
        self.isolation.run("a failed read", self.broker.disk_failed, error.path, error)
        self.loop.call_soon(self._settle_more)

    def _run(self, job: Callable[[Any], Any], done: Callable[[Any, str | None], None]) -> None:
        self.jobs.run(lambda: job(self.disk), partial(self._finished, done))

    def _work(self, task: Task, done: Callable[[Any, str | None], None]) -> None:
        self._worker.run(task, partial(self._finished, done))

    def _propose(self) -> None:
        """Write all waiting proposals as one journal entry, off the loop."""
        proposals, self._proposals = self._proposals, []
        records = [record for each, _done in proposals for record in each]

        def finished(_result: Any, error: str | None) -> None:
            run = self.isolation.run
            now_ms = self.broker.now_ms = self.clock.now_ms()
            dropped: list[tuple[list[Record], Callable[[str | None], None]]] = []
            if error is None:
                with no_collections():
                    run("new metadata", self.broker.committed, records, now_ms)
            else:
                self._tell_once(f"metadata cannot be changed: {error}", "failed changes of metadata")
                run("rejected metadata", self.broker.rejected)
                # What was decided on top of it cannot be written either.
                dropped, self._proposals = self._proposals, []
            for _records, done in proposals:
                run("the answer to a change of metadata", done, error)
            for _records, done in dropped:
                run("the answer to a change of metadata", done, SUPERSEDED)
            if self._proposals:
                self._propose()
            else:
                self._proposing = False
            self.turn(now_ms, what="new metadata")

        store = self._store
        assert store is not None
        try:
            self._journal.run((lambda: store.append(records)) if records else (lambda: None), finished)
        except Exception as error:
            # No thread to be had, say. Nothing was written; the next change is tried again.
            self.isolation.contain("the metadata journal", error)
            self.loop.call_soon(finished, None, f"internal error: {error!r}")

    # --- time and end -----------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Close connections that have been idle for too long."""
        if self._stopping:
            return
        self._sweep_later()
        now_ms = self.clock.now_ms()
        before_ms = now_ms - self.broker.config.connections_max_idle_ms
        self._close_stalled(now_ms, self.broker.config.socket_request_timeout_ms)
        self.broker.timers.sweep()
        self._give_memory_back(now_ms)
        for transport in list(self._transports):
            # One whose request waits is not idle; one that does not read its answers is.
            if transport.active_ms < before_ms and (transport.out or not transport.connection.waiting):
                self.isolation.run("closing an idle connection", transport.close)
        self._refusals_told.clear()
        for what, count in self._refusals_untold.items():
            self._say(f"{count} more {what}, for reasons like those above")
        self._refusals_untold.clear()

    def _close_stalled(self, now_ms: int, timeout_ms: int, *, large_only: bool = False) -> None:
        for transport in list(self._transports):
            if large_only and transport.is_broker:
                continue
            if transport.is_stalled(now_ms, timeout_ms, large_only=large_only):
                self._drop(transport, f"no more of it comes: {transport.frame_state}")

    def _give_memory_back(self, now_ms: int) -> None:
        """The C library keeps what is freed between blocks that are in use, such as after many large requests."""
        if now_ms >= self._trim_at_ms and resident_bytes() > self._first_bytes + _TRIM_BYTES:
            self._trim_at_ms = now_ms + _TRIM_MS
            # Some milliseconds; more if there are many gaps.
            self.jobs.run(trim_memory, lambda _result, _error: None)

    def _sweep_later(self) -> None:
        config = self.broker.config
        shortest_ms = min(config.connections_max_idle_ms, config.socket_request_timeout_ms)
        self.loop.call_later(min(_SWEEP_SECONDS, max(0.05, shortest_ms / 4000)), self._sweep)

    def _next_second(self) -> None:
        if self._stopping:
            return
        self.loop.call_later(1.0, self._next_second)
        self._accepted_this_second = 0
        if self._resting:
            self._resting = False
            for listener in self._listeners:
                self.loop.add_reader(listener.fileno(), self._accept, listener)
        if self.budget.is_too_much_unread:
            self.close_unread()
        if self.budget.waiting:
            self._close_stalled(self.clock.now_ms(), _STALLED_MS, large_only=True)
        if self.clock.look_at_the_wall():
            self.broker.wall_clock_set(self.clock.wall_ahead_ms, self.clock.now_ms())

    def _tell_once(self, text: str, what: str = "connections were closed") -> None:
        """Log it, but not again for every such connection: a flood of bad requests must not become a flood of words. The others are
        counted as `what`.
        """
        kind = _PARTICULARS.sub("#", text.partition(" closed: ")[2] or text)
        if kind not in self._refusals_told and len(self._refusals_told) < _KINDS_TOLD_MAX:
            self._refusals_told.add(kind)
            self._say(text)
        else:
            self._refusals_untold[what] += 1

    def stop(self) -> None:
        """Stop serving and let background work end. The core is then closed by whoever made it."""
        self._stopping = True
        if self._cluster is not None:
            self._cluster.stop()
        self._worker.stop()
        for listener in self._listeners:
            self.loop.remove_reader(listener.fileno())
            listener.close()
        for transport in list(self._transports):
            transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._syncer.stop()
        for path, error in self._syncer.failures:
            # It may have failed too late for the loop to tell: what follows must not write a clean mark over lost data.
            self.isolation.run("a failed sync", self.broker.sync_failed, path, error)
        self.jobs.stop()
        self._journal.stop()
