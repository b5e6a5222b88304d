"""Requests to other brokers (ASK): one connection per peer and lane, requests and responses in order.

A connection starts with the handshake between brokers (`security/broker_handshake.py`): requests leave once
both ends are authenticated. If the other end fails, the connection ends, and the reason is logged once.

Replica fetches go through here, so a request is a tuple in a queue and a response is a call: no task, no
future. The requests of one turn leave in one send per connection (`flush`). The responses of one read are
handled before one turn.

A response is read-only memory that is valid only during its `done`. `done` is called exactly once, never
within `ask`. Its error is REFUSED if the port refused the connection, another text if the connection ended or
the oldest response took longer than replica.socket.timeout.ms. All requests of a connection fail with it,
because responses come in order; the next request opens a new connection. So does a request to another address
of the same broker.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias

from ottla.config.broker import BrokerConfig
from ottla.runtime.clock import Clock
from ottla.runtime.connect_attempt import ConnectAttempt
from ottla.security.broker_handshake import HandshakeInitiator, NotProven, Request
from ottla.wire.frames import RESPONSE_BYTES_MAX, after_tags
from ottla.wire.guard import MalformedMessage
from ottla.wire.schema import request_header_is_flexible, response_header_is_flexible

_length: Final = struct.Struct(">i").unpack_from
_request_head: Final = struct.Struct(">ihhi").pack
#: Bytes of a request's head after its size.
_HEAD_BYTES: Final = 8
_IDS: Final = 0x7FFFFFFF
_RECEIVE_BYTES: Final = 256 * 1024
#: The first memory of a response in pieces; it grows as bytes arrive. Up to `_KEPT_BYTES` it is kept for the
#: next one.
_FIRST_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 4 << 20
_SWEEP_S: Final = 1.0
#: Upper bound on remembered broker addresses: more than a cluster has.
_ADDRESSES_MAX: Final = 10_000
#: Upper bound on the set of failed handshakes already logged once.
_LOGGED_MAX: Final = 100

#: (node id, host, port)
Peer: TypeAlias = tuple[int, str, int]
#: `done(answer, error)`
Done: TypeAlias = Callable[[memoryview | None, str | None], None]


class Settings(Protocol):
    """The holder of the current settings, which may change while the broker runs."""

    config: BrokerConfig


class Peers:
    """`turn` is called after each batch of responses."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        settings: Settings,
        turn: Callable[[int], None],
        failed: Callable[[str, Exception], None],
        say: Callable[[str], None],
        *,
        client_id: str,
        prove_to: Callable[[int], HandshakeInitiator | None],
    ) -> None:
        """`failed(what, error)` is called with exceptions of `done`.

        `prove_to` creates the handshake of a new connection to a broker; without one, requests leave at once.
        """
        self.loop = loop
        self.clock = clock
        self.turn = turn
        self._failed = failed
        self._say = say
        self.prove_to = prove_to
        #: Failed handshakes that were logged.
        self._logged: set[str] = set()
        self._settings = settings
        name = client_id.encode()
        self.client_id = len(name).to_bytes(2, "big") + name
        #: By API and version: request bytes between correlation id and body, and whether the response header
        #: has tags.
        self._forms: dict[int, tuple[bytes, bool]] = {}
        self.buffer = bytearray(_RECEIVE_BYTES)
        self.view = memoryview(self.buffer).toreadonly()
        self._connections: dict[tuple[int, Any], PeerConnection] = {}
        self._unflushed: dict[PeerConnection, None] = {}
        #: Addresses of other brokers that were reached: their connections to this broker come from there.
        self.addresses: set[str] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._stopped = False

    def ask(self, peer: Peer, lane: Any, key: int, version: int, body: bytes, done: Done) -> None:
        """Queue one request; it leaves with the next `flush`."""
        place = peer[0], lane
        connection = self._connections.get(place)
        if connection is None or connection.peer != peer:
            if connection is not None:
                connection.end(f"broker {peer[0]} has moved to {peer[1]}:{peer[2]}")
            connection = self._connections[place] = PeerConnection(self, peer, place)
            if self._sweeper is None:
                self._sweep_later()
        form = self._forms.get(key << 16 | version)
        if form is None:
            form = self.form(key, version)
        connection.add(key, version, form, body, done)
        self._unflushed[connection] = None

    def form(self, key: int, version: int) -> tuple[bytes, bool]:
        head = self.client_id + b"\0" if request_header_is_flexible(key, version) else self.client_id
        form = self._forms[key << 16 | version] = head, response_header_is_flexible(key, version)
        return form

    def reached(self, sock: socket.socket) -> None:
        if len(self.addresses) >= _ADDRESSES_MAX:
            self.addresses.clear()
        with suppress(OSError):
            self.addresses.add(sock.getpeername()[0])

    def flush(self) -> None:
        """Send the requests since the last flush."""
        unflushed, self._unflushed = self._unflushed, {}
        for connection in unflushed:
            try:
                connection.flush()
            except Exception as error:
                self._failed("requests to another broker", error)
                connection.interrupted(error)

    def notify(self, done: Done, answer: memoryview | None, error: str | None) -> None:
        try:
            done(answer, error)
        except Exception as failed:
            # An internal error with one response: the other responses must be delivered.
            self._failed("the answer of another broker", failed)

    def notify_all(self, waiting: Iterable[tuple[int, bool, Done, int]], error: str) -> None:
        if self._stopped:
            return
        for _number, _tagged, done, _asked_ms in waiting:
            self.notify(done, None, error)
        self.turn(self.clock.now_ms())

    def log_failed_proof(self, text: str) -> None:
        if text not in self._logged:
            if len(self._logged) >= _LOGGED_MAX:
                self._logged.clear()
            self._logged.add(text)
            self._say(text)

    def ended(self, connection: PeerConnection) -> None:
        if self._connections.get(connection.place) is connection:
            del self._connections[connection.place]

    def stop(self) -> None:
        """Close all connections. `done` is not called: the core is about to be closed too."""
        self._stopped = True
        self._stop_sweeping()
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()

    def _sweep_later(self) -> None:
        config = self._settings.config
        shortest_ms = min(
            ms for ms in (config.replica_socket_timeout_ms, config.connections_max_idle_ms) if ms >= 0
        )
        self._sweeper = self.loop.call_later(min(_SWEEP_S, max(0.02, shortest_ms / 4000)), self._sweep)

    def _stop_sweeping(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def _sweep(self) -> None:
        """End connections whose oldest response is overdue, and idle ones."""
        self._sweeper = None
        self._sweep_later()
        config = self._settings.config
        now_ms = self.clock.now_ms()
        for connection in list(self._connections.values()):
            if connection.waiting:
                if now_ms - connection.waiting[0][3] > config.replica_socket_timeout_ms:
                    connection.end(
                        f"no response within {config.replica_socket_timeout_ms} ms "
                        "(replica.socket.timeout.ms)"
                    )
            elif 0 <= config.connections_max_idle_ms < now_ms - connection.active_ms:
                connection.close()
        if not self._connections:
            self._stop_sweeping()


class PeerConnection:
    """One connection: unsent requests, and requests that wait for their responses."""

    __slots__ = (
        "_added", "_attempt", "_closed", "_fd", "_frame", "_handshake", "_have", "_next_id", "_out", "_peers", "_prefix",
        "_size", "_sock", "_spare", "_writing", "active_ms", "peer", "place", "waiting",
    )  # fmt: skip

    def __init__(self, peers: Peers, peer: Peer, place: tuple[int, Any]) -> None:
        self._peers = peers
        self.peer = peer
        self.place = place
        #: (correlation id, whether the response header has tags, done, time of the request), oldest first.
        self.waiting: deque[tuple[int, bool, Done, int]] = deque()
        self.active_ms = peers.clock.now_ms()
        self._next_id = 0
        self._out: list[Any] = []
        self._handshake = peers.prove_to(peer[0])
        #: New requests are added here: to the next send, or to the queue behind the handshake.
        self._added: list[Any] = self._out if self._handshake is None else []
        self._writing = False
        self._closed = False
        # A response in pieces: its size, the received bytes, and their buffer. `_prefix` is a part of the
        # size field.
        self._size = 0
        self._have = 0
        self._frame: bytearray | None = None
        self._spare: bytearray | None = None
        self._prefix = b""
        self._sock: socket.socket | None = None
        self._fd = -1
        self._attempt: ConnectAttempt | None = ConnectAttempt(
            peers.loop, peer[1], peer[2], self._connect_ended
        )

    # --- out ------------------------------------------------------------------------------------------------

    def add(self, key: int, version: int, form: tuple[bytes, bool], body: bytes, done: Done) -> None:
        head, tagged = form
        number = self._next_id
        self._next_id = (number + 1) & _IDS
        added = self._added
        added.append(_request_head(_HEAD_BYTES + len(head) + len(body), key, version, number) + head)
        added.append(body)
        self.active_ms = now_ms = self._peers.clock.now_ms()
        self.waiting.append((number, tagged, done, now_ms))

    def _connect_ended(self, sock: socket.socket | None, error: str | None) -> None:
        self._attempt = None
        if sock is None:
            self.end(error or "")
            return
        self._sock = sock
        self._fd = sock.fileno()
        self._peers.reached(sock)
        self._peers.loop.add_reader(self._fd, self._readable)
        if self._handshake is not None:
            self._prove(self._handshake.first())
        self.flush()

    def _prove(self, request: Request) -> None:
        """Queue the next request of the handshake: its response is the next one to arrive."""
        key, version, body = request
        head, tagged = self._peers.form(key, version)
        number = self._next_id
        self._next_id = (number + 1) & _IDS
        self._out += (_request_head(_HEAD_BYTES + len(head) + len(body), key, version, number) + head, body)
        self.waiting.appendleft((number, tagged, self._proof_answered, self._peers.clock.now_ms()))

    def _proof_answered(self, answer: memoryview | None, _error: str | None) -> None:
        handshake = self._handshake
        if answer is None or handshake is None:
            return
        try:
            request = handshake.answered(answer)
        except NotProven as error:
            text = f"{self._name} failed to authenticate as this broker of the cluster: {error}"
            self._peers.log_failed_proof(text)
            self.end(text)
            return
        if request is not None:
            self._prove(request)
        else:
            self._handshake = None
            self._out += self._added
            self._added = self._out
        self.flush()

    def flush(self) -> None:
        out, sock = self._out, self._sock
        if sock is None or not out:
            return
        data = b"".join(out)
        out.clear()
        try:
            sent = sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            # The connection ends in the next turn of the loop, because the caller is performing effects.
            self._peers.loop.call_soon(self._broken, error)
            return
        if sent < len(data):
            out.append(memoryview(data)[sent:])
            if not self._writing:
                self._writing = True
                self._peers.loop.add_writer(self._fd, self.flush)
        elif self._writing:
            self._writing = False
            self._peers.loop.remove_writer(self._fd)

    def _broken(self, error: OSError) -> None:
        if not self._closed:
            self.end(f"the connection to {self._name} broke: {error.strerror}")

    # --- in -------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        peers, sock, frame = self._peers, self._sock, self._frame
        assert sock is not None
        try:
            if frame is None:
                size = sock.recv_into(peers.buffer)
            else:
                end = min(self._size, len(frame))
                with memoryview(frame) as view, view[self._have : end] as rest:
                    size = sock.recv_into(rest)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(error)
            return
        if size == 0:
            self.end(f"the connection to {self._name} was closed")
            return
        self.active_ms = now_ms = peers.clock.now_ms()
        try:
            if frame is None:
                answered = self._handle_responses(peers.view[:size], size)
            else:
                answered = self._extend_partial(frame, size)
        except (MalformedMessage, struct.error, IndexError) as error:
            self.end(f"{self._name} sent an invalid response: {error}")
            answered = True  # perhaps an earlier response of the same read
        if answered:
            peers.turn(now_ms)

    def _handle_responses(self, view: memoryview, size: int) -> bool:
        """Hand over whole responses and keep the rest. True if there was a whole one."""
        if self._prefix:
            joined = self._prefix + bytes(view)
            view, size, self._prefix = memoryview(joined), len(joined), b""
        at = 0
        while size - at >= 4:
            length = _length(view, at)[0]
            if not 4 <= length <= RESPONSE_BYTES_MAX:
                raise MalformedMessage(f"a response of {length} bytes")
            start = at + 4
            if start + length > size:
                self._start_partial(view[start:size], length)
                return at > 0
            at = start + length
            self._answer(view[start:at])
            if self._closed:
                return True
        self._prefix = bytes(view[at:size])
        return at > 0

    def _start_partial(self, first: memoryview, length: int) -> None:
        wanted = min(length, _FIRST_BYTES)
        frame, self._spare = self._spare, None
        if frame is None or len(frame) < wanted:
            frame = bytearray(wanted)
        self._frame, self._size, self._have = frame, length, len(first)
        frame[: len(first)] = first

    def _extend_partial(self, frame: bytearray, size: int) -> bool:
        self._have += size
        if self._have < self._size:
            if self._have == len(frame):
                # Memory follows the bytes that arrived.
                self._frame = bytearray(min(self._size, 2 * len(frame)))
                self._frame[: self._have] = frame
            return False
        self._frame = None
        self._answer(memoryview(frame).toreadonly()[: self._size])
        if len(frame) <= _KEPT_BYTES:
            self._spare = frame
        return True

    def _answer(self, frame: memoryview) -> None:
        if not self.waiting:
            raise MalformedMessage("a response without a request")
        number, tagged, done, _asked_ms = self.waiting[0]
        if _length(frame)[0] != number:
            raise MalformedMessage(
                f"a response with correlation id {_length(frame)[0]}, but {number} is next"
            )
        start = 4
        if tagged:
            start = 5 if frame[4] == 0 else after_tags(frame, 4)
            if start > len(frame):
                raise MalformedMessage("an incomplete header")
        self.waiting.popleft()
        self._peers.notify(done, frame[start:], None)

    # --- end ------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"broker {self.peer[0]} at {self.peer[1]}:{self.peer[2]}"

    def interrupted(self, error: Exception) -> None:
        """A callback raised: the state of the connection is unknown, so it ends."""
        self.end(f"internal error: {error!r}")

    def end(self, error: str) -> None:
        """Close it and notify all waiting callers, in a later turn of the loop."""
        waiting, self.waiting = self.waiting, deque()
        self.close()
        if waiting:
            self._peers.loop.call_soon(self._peers.notify_all, waiting, error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.waiting.clear()
        self._out.clear()
        self._added.clear()
        if self._attempt is not None:
            self._attempt.cancel()
        if self._sock is not None:
            loop = self._peers.loop
            loop.remove_reader(self._fd)
            if self._writing:
                loop.remove_writer(self._fd)
            self._sock.close()
            self._sock = None
        self._peers.ended(self)
