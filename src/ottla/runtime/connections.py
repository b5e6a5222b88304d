"""Connections of clients and other brokers: accepted from the listeners, limited, closed.

A connection is closed by the broker when

- it exceeds a connection limit (`admission.py`),
- it is idle for `connections.max.idle.ms`,
- its request arrives too slowly (`socket.request.timeout.ms`),
- memory for requests is used up (`memory_pool.py`), or
- its client does not read its responses while too many of them are held.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from ottla.ports.effects import CLOSE
from ottla.runtime.admission import Admission
from ottla.runtime.core import Session
from ottla.runtime.request_reader import RequestReader
from ottla.runtime.transport import ClosedSession, Transport

if TYPE_CHECKING:
    from ottla.runtime.effect_runner import EffectRunner

#: Connections that one listener accepts per turn.
_ACCEPT_MAX: Final = 64
#: Upper bound on the clients that are closed at once because they do not read.
_UNREAD_CLOSED_MAX: Final = 16


class Connections:
    def __init__(
        self,
        runner: EffectRunner,
        connections_max: int,
        broker_addresses: Callable[[], Collection[str]] | None,
    ) -> None:
        self._runner = runner
        self._broker = runner.broker
        self._clock = runner.clock
        self._loop = runner.loop
        self._log = runner.log
        self._isolation = runner.isolation
        self._admission = Admission(connections_max, broker_addresses)
        self.transports: dict[Transport, None] = {}
        #: The number of authenticated connections of other brokers.
        self.brokers = 0
        self.listeners: list[socket.socket] = []
        self._accepted_this_second = 0
        #: Whether accepting pauses until the next second.
        self.is_paused = False

    # --- opening --------------------------------------------------------------------------------------------

    def listen(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.listeners.append(sock)
        self._loop.add_reader(sock.fileno(), self.accept, sock)

    def accept(self, listener: socket.socket) -> None:
        config = self._broker.config
        for _ in range(_ACCEPT_MAX):
            if self._accepted_this_second >= config.max_connection_creation_rate:
                # Further connections wait in the backlog until the next second.
                self._pause(listener)
                return
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Most likely out of descriptors: waiting clients are accepted when others disconnect. The
                # listener stays readable, so without the pause the event loop would spin.
                self._log.log_once(
                    f"cannot accept a connection: {error.strerror}", "failures to accept a connection"
                )
                self._pause(listener)
                return
            host = address[0]
            refusal = self._admission.refusal(host, config, self.brokers)
            wait_ms = 0.0 if refusal else self._admission.wait_ms(host, config, self._clock.now_ms())
            if wait_ms is None:
                refusal = (
                    f"connection from {host} refused: it exceeds max.connection.creation.rate.per.ip"
                    f" ({config.max_connection_creation_rate_per_ip} per second)"
                )
            if refusal:
                self._log.log_once(refusal)
                sock.close()
                continue
            if not wait_ms:
                # A connection that waits for its own address does not use up the rate of others.
                self._accepted_this_second += 1
            try:
                self._open(sock, host, address[1], wait_ms or 0.0)
            except Exception as error:
                # Only this client fails: the connections behind it in the backlog are accepted.
                self._isolation.contain(f"a new connection from {host}", error)
                sock.close()

    def _pause(self, listener: socket.socket) -> None:
        self._loop.remove_reader(listener.fileno())
        self.is_paused = True

    def next_second(self) -> None:
        """A new second of the accept rate begins."""
        self._accepted_this_second = 0
        if self.is_paused:
            self.is_paused = False
            for listener in self.listeners:
                self._loop.add_reader(listener.fileno(), self.accept, listener)

    def _open(self, sock: socket.socket, host: str, port: int, wait_ms: float) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self._broker.connected(f"{host}:{port}")
        transport = Transport(self._runner, sock, connection, host, self._clock.now_ms())
        connection.transport = transport
        self.transports[transport] = None
        self._admission.opened(host)
        if wait_ms:
            self._loop.call_later(wait_ms / 1000, transport.resume)
        else:
            transport.resume()

    # --- authentication -------------------------------------------------------------------------------------

    def authenticated(self, connection: Session) -> None:
        """The peer has proven that it is a broker of this cluster: client limits do not apply to it."""
        transport = connection.transport
        if transport in self.transports and not transport.is_broker:
            transport.is_broker = True
            self.brokers += 1

    def authentication_failed(self, connection: Session) -> None:
        """Delay the next connections from this address. The caller closes this one."""
        self._admission.authentication_failed(connection.transport.host, self._clock.now_ms())

    # --- closing --------------------------------------------------------------------------------------------

    def closed(self, transport: Transport) -> None:
        """A transport is closed: the core forgets the connection."""
        if self.transports.pop(transport, self) is self:
            return
        self._admission.closed(transport.host)
        self.brokers -= transport.is_broker
        connection = transport.connection
        self._isolation.run("the end of a connection", self._broker.disconnected, connection)
        # Transport and connection refer to each other: without this only the garbage collector would free
        # them.
        transport.connection = ClosedSession(connection.peer)

    def refuse(self, transport: RequestReader, reason: str) -> None:
        # As an effect, so that the responses to earlier requests leave first.
        self._broker.outbox.append((CLOSE, transport.connection, reason))

    def drop(self, transport: RequestReader, reason: str) -> None:
        self._log.log_once(f"{transport.connection.peer} closed: {reason}")
        transport.close()

    def close_unread(self) -> None:
        """Too many responses wait for clients that do not read: close those that hold most for longest."""
        now_ms = self._clock.now_ms()
        memory_pool = self._runner.memory_pool
        for transport in nlargest(
            _UNREAD_CLOSED_MAX,
            # Other brokers fetch no more than their replicas need.
            (
                each
                for each in self.transports
                if (each.writing or each.connection.held_bytes) and not each.is_broker
            ),
            key=lambda each: (
                (each.queued_bytes + each.connection.held_bytes) * (1000 + now_ms - each.active_ms)
            ),
        ):
            if not memory_pool.is_too_much_unread:
                break
            size = transport.queued_bytes + transport.connection.held_bytes
            self.drop(transport, f"it does not read its responses, and {size} bytes of them were held")

    def close_most_pinning(self, but: Transport) -> bool:
        """No descriptor is left to send another file: close the client that keeps most files open.

        False if no other client keeps any.
        """
        others = [
            (each.slices, each.fd, each) for each in self.transports if each is not but and each.writing
        ]
        slices, _fd, transport = max(others, default=(0, 0, None))
        if transport is None or not slices:
            return False
        self.drop(transport, f"it does not read its responses, and {slices} files were held open for them")
        return True

    def close_idle(self, now_ms: int) -> None:
        before_ms = now_ms - self._broker.config.connections_max_idle_ms
        for transport in list(self.transports):
            # A connection with a waiting request is not idle; one that does not read its responses is.
            if transport.active_ms < before_ms and (transport.out or not transport.connection.waiting):
                self._isolation.run("closing an idle connection", transport.close)

    def close_stalled(self, now_ms: int, timeout_ms: int, *, large_only: bool = False) -> None:
        for transport in list(self.transports):
            if large_only and transport.is_broker:
                continue
            if transport.is_stalled(now_ms, timeout_ms, large_only=large_only):
                self.drop(transport, f"its request does not arrive: {transport.frame_state}")

    def stop(self) -> None:
        for listener in self.listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        for transport in list(self.transports):
            transport.close()
