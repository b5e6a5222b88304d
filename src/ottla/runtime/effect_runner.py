"""Performs the core's effects on sockets, files and threads, one turn of the event loop at a time.

A turn has three steps:

1. Requests of one socket, a finished sync or a timer go into the core.
2. `settle` wakes waiting requests.
3. Every effect in the outbox is performed, and each connection is flushed once.

There is no task, future or lock per request. `connections.py` opens and closes connections, `memory_pool.py`
accounts for the memory of requests and responses, `journal_writer.py` writes the metadata of a broker without
a cluster.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final

from ottla.log.compaction import Task
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
from ottla.runtime.background import Jobs, Syncer
from ottla.runtime.clock import Clock
from ottla.runtime.cluster_link import ClusterLink
from ottla.runtime.connections import Connections
from ottla.runtime.core import Core, Interruptible, Session
from ottla.runtime.disk import SystemDisk
from ottla.runtime.embedded_store import EmbeddedStore
from ottla.runtime.journal_writer import JournalWriter
from ottla.runtime.log_filter import LogFilter
from ottla.runtime.memory_pool import MemoryPool
from ottla.runtime.memory_trim import MemoryTrim
from ottla.runtime.transport import Transport
from ottla.runtime.turns import LongestTurn, Turns, request_in
from ottla.runtime.worker import Worker

_RECEIVE_BYTES: Final = 256 * 1024
_SWEEP_SECONDS: Final = 5.0
#: While others wait for memory, a large request that has stopped arriving is closed after this long.
_STALLED_MS: Final = 3000
#: Effects on a connection.
_OF_CONNECTIONS: Final = frozenset((SEND, CLOSE, PAUSE, RESUME, AUTHENTICATED))


class EffectRunner:
    def __init__(
        self,
        broker: Core,
        disk: SystemDisk,
        clock: Clock,
        store: EmbeddedStore | ClusterLink,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], None],
        *,
        connections_max: int = 1 << 31,
    ) -> None:
        """`connections_max` is the number of connections that the descriptors allow (`descriptors.py`)."""
        self.broker = broker
        self.disk = disk
        self.clock = clock
        self.loop = loop
        self.log = LogFilter(say)
        self.isolation = broker.isolation
        #: A broker has either a metadata journal or a cluster.
        self._cluster = store if isinstance(store, ClusterLink) else None
        self._journal = (
            JournalWriter(broker, store, clock, loop, self.log, self.turn)
            if isinstance(store, EmbeddedStore)
            else None
        )
        self.request_bytes_max = broker.config.socket_request_max_bytes
        #: Up to this size a read can be one whole request with its length prefix.
        self.one_frame_max = min(_RECEIVE_BYTES, self.request_bytes_max + 4)
        self.buffer = bytearray(_RECEIVE_BYTES)
        #: kio reads only read-only memory.
        self.view = memoryview(self.buffer).toreadonly()
        self.connections = Connections(
            self, connections_max, None if self._cluster is None else self._cluster.broker_addresses
        )
        self.memory_pool = MemoryPool(
            loop,
            limit=broker.config.queued_max_request_bytes,
            request_bytes_max=self.request_bytes_max,
            held=lambda: broker.held_bytes,
            held_answers=lambda: broker.held_answer_bytes,
            drop=self.connections.drop,
        )
        self._syncer = Syncer(loop, disk, broker.config.num_sync_threads, self._synced)
        self.jobs = Jobs(loop, broker.config.num_sync_threads, "ottla-job", self.isolation.contain)
        self._memory_trim = MemoryTrim(self.jobs)
        self._worker = Worker(loop)
        #: Whether a proposal of this turn could not be handed to the store.
        self._is_withdrawn = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._settling = False
        self._stopping = False
        self.turns = Turns(clock.now_ms, self._turn_ended)
        # For exceptions that nothing catches: asyncio drops the callback and goes on, and the error is logged
        # here.
        loop.set_exception_handler(self._callback_failed)

    def _callback_failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Exception):
            self.log.say(f"event loop: {context.get('message')}: {error!r}")
            return
        self.isolation.contain(f"the event loop ({context.get('message')})", error)
        for owner in interrupted_objects(error):
            # A connection, a connect attempt, the worker: it ends and notifies its waiting callers.
            if isinstance(owner, Interruptible):
                self.isolation.run("an interrupted connection", owner.interrupted, error)
        # The exception came before the end of its turn.
        self.loop.call_soon(self._settle_more)

    def listen(self, sock: socket.socket) -> None:
        self.connections.listen(sock)
        if len(self.connections.listeners) == 1:
            self._sweep_later()
            self.loop.call_later(1.0, self._next_second)
        self.turn(self.clock.now_ms(), what="the start")

    def request_failed(self, connection: Session, error: Exception) -> None:
        """A request raised outside of its handler (the core contains what handlers raise): close the
        connection.
        """
        self.isolation.contain(f"a request from {connection.peer}", error)
        if not connection.closed:
            connection.closed = True
            self.broker.outbox.append((CLOSE, connection, f"internal error: {error!r}"))

    # --- turns ----------------------------------------------------------------------------------------------

    def turn(self, now_ms: int, is_last: bool = False, what: Any = "changes in the cluster") -> None:
        """End a turn that began at `now_ms`: wake waiting requests, then perform every effect.

        `is_last`: the last turn of those that were ready when the loop polled. `what` the turn was about: a
        text, a transport whose requests are in the shared buffer, or the bytes of a request.
        """
        broker = self.broker
        try:
            if broker.settle(now_ms, is_last=is_last) and not self._settling:
                self._settling = True
                self.loop.call_soon(self._settle_more)
        except Exception as error:
            # The effects that the turn has asked for so far are performed nevertheless.
            self.isolation.contain("the end of a turn", error)
        outbox = broker.outbox
        if len(outbox) == 1 and outbox[0][0] == SEND:
            # One response to one request: the most frequent turn.
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
        """What a turn was about, for the log."""
        if isinstance(what, str):
            return what
        if isinstance(what, Transport):
            # Behind its length prefix. The first, if one read brought several.
            return f"{request_in(self.view, 4)} from {what.connection.peer}"
        return request_in(what, 0)

    def _turn_ended(self, turn: LongestTurn) -> None:
        limit_ms = self.broker.config.slow_turn_log_ms
        if 0 <= limit_ms <= turn.wall_ms:
            self.log.log_once(
                f"a slow turn of the event loop, other requests waited: {turn}",
                "slow turns of the event loop",
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
        #: Responses by connection, sent together.
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
        """Perform an effect that is rare in a turn."""
        if kind == RUN:
            self._run(effect[1], effect[2])
        elif kind == WORK:
            self._work(effect[1], effect[2])
        elif kind == ASK:
            assert self._cluster is not None, "a broker without a cluster has no peers"
            self._cluster.ask(*effect[1:])
        elif kind == PROPOSE and self._journal is not None:
            self._journal.propose(effect[1], effect[2])
        elif kind == PAUSE:
            effect[1].transport.paused = True
            effect[1].transport.stop_reading()
        elif kind == RESUME:
            effect[1].transport.paused = False
            if not effect[1].transport.out:
                effect[1].transport.resume()
        elif kind == AUTHENTICATED:
            if effect[2]:
                self.connections.authenticated(effect[1])
            else:
                self.connections.authentication_failed(effect[1])
        elif kind == CLOSE:
            transport = effect[1].transport
            self.log.log_once(f"{effect[1].peer} closed: {effect[2]}")
            if transport in answers:
                transport.send_now(answers.pop(transport))
            transport.finish()
        else:
            assert self._cluster is not None, "only a broker in a cluster asks for this"
            assert kind != PROPOSE or not self._is_withdrawn, "a change before this one was not written"
            self._cluster.perform(effect)

    def _unperformed(self, effect: Effect, error: Exception) -> None:
        """An effect raised: notify its waiting caller. The other effects of the turn are performed."""
        if effect[0] in _OF_CONNECTIONS:
            self.connection_failed(effect[1].transport, error)
            return
        self.isolation.contain(f"effect {effect[0]}", error)
        if effect[0] in RETRIED:
            if not self._stopping:
                self.loop.call_later(RETRY_MS / 1000, self._perform, [effect])
            return
        if effect[0] == PROPOSE:
            # Later proposals were decided on top of it.
            self._is_withdrawn = True
            self.isolation.run("withdrawn metadata", self.broker.withdrawn)
        notify = refusal(effect, f"internal error: {error!r}")
        if notify is not None:
            self.loop.call_soon(self._finished, notify)

    def connection_failed(self, transport: Transport, error: Exception) -> None:
        """Work for one connection raised: close the connection."""
        self.isolation.contain(f"the connection from {transport.connection.peer}", error)
        self.isolation.run("closing a connection", transport.close)

    def _finished(self, done: Callable[..., None], *arguments: Any) -> None:
        """Work that the core asked for is done: call back, then end the turn even if the callback raises."""
        now_ms = self.broker.now_ms = self.clock.now_ms()
        self.isolation.run("a finished job", done, *arguments)
        self.turn(now_ms, what="a finished job")

    def _settle_more(self) -> None:
        self._settling = False
        self.turn(self.clock.now_ms(), is_last=True, what="waiting fetches and records")

    def _tick(self) -> None:
        self._timer = None
        now_ms = self.clock.now_ms()
        try:
            self.broker.tick(now_ms)
            self.turn(now_ms, what="timers")
        finally:
            # In any case: without an alarm, waiting requests would hang.
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
        """A file could not be read while it was sent. The connection closes; the core decides the rest."""
        self.isolation.run("a failed read", self.broker.disk_failed, error.path, error)
        self.loop.call_soon(self._settle_more)

    def _run(self, job: Callable[[Any], Any], done: Callable[[Any, str | None], None]) -> None:
        self.jobs.run(lambda: job(self.disk), partial(self._finished, done))

    def _work(self, task: Task, done: Callable[[Any, str | None], None]) -> None:
        self._worker.run(task, partial(self._finished, done))

    # --- periodic work and stop -----------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Close idle and stalled connections; free memory."""
        if self._stopping:
            return
        self._sweep_later()
        now_ms = self.clock.now_ms()
        self.connections.close_stalled(now_ms, self.broker.config.socket_request_timeout_ms)
        self.broker.timers.sweep()
        self._memory_trim.trim_if_grown(now_ms)
        self.connections.close_idle(now_ms)
        self.log.report_suppressed()

    def _sweep_later(self) -> None:
        config = self.broker.config
        shortest_ms = min(config.connections_max_idle_ms, config.socket_request_timeout_ms)
        self.loop.call_later(min(_SWEEP_SECONDS, max(0.05, shortest_ms / 4000)), self._sweep)

    def _next_second(self) -> None:
        if self._stopping:
            return
        self.loop.call_later(1.0, self._next_second)
        self.connections.next_second()
        if self.memory_pool.is_too_much_unread:
            self.connections.close_unread()
        if self.memory_pool.waiting:
            self.connections.close_stalled(self.clock.now_ms(), _STALLED_MS, large_only=True)
        if self.clock.read_wall_clock():
            self.broker.wall_clock_set(self.clock.wall_ahead_ms, self.clock.now_ms())

    def stop(self) -> None:
        """Stop serving and let background work end. The caller then closes the core."""
        self._stopping = True
        if self._cluster is not None:
            self._cluster.stop()
        self._worker.stop()
        self.connections.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._syncer.stop()
        for path, error in self._syncer.failures:
            # The loop may not have reported a late failure: no clean-shutdown mark may be written over lost
            # data.
            self.isolation.run("a failed sync", self.broker.sync_failed, path, error)
        self.jobs.stop()
        if self._journal is not None:
            self._journal.stop()
