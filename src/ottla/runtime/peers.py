"""Requests to other brokers (ASK): one connection a peer and lane, requests out in order, answers in.

A connection begins with the handshake between brokers (`security/broker_handshake.py`): requests leave once both ends have proven
themselves. If the other end fails to, the connection ends, and the reason is logged once.

Replication's fetches go through here, so a request is a tuple in a line and an answer a call: no task, no future. What is
asked in one turn leaves in one send a connection (`flush`), what comes in one read is answered before one turn.

An answer is read-only memory that is valid during its `done` only. `done` is called exactly once, never within `ask`: with
REFUSED if nobody listens there, with other words if the connection ended or the oldest answer of its line takes longer
than replica.socket.timeout.ms. All that waits on a connection falls with it, since answers come in order; the next request
makes a new one. So does a request to another address of the same broker.
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
from ottla.security.broker_handshake import Dialing, NotProven, Request
from ottla.wire.frames import RESPONSE_BYTES_MAX, after_tags
from ottla.wire.guard import MalformedMessage
from ottla.wire.schema import request_header_is_flexible, response_header_is_flexible

_length: Final = struct.Struct(">i").unpack_from
_request_head: Final = struct.Struct(">ihhi").pack
#: What a request's head has behind its size.
_HEAD_BYTES: Final = 8
_IDS: Final = 0x7FFFFFFF
_RECEIVE_BYTES: Final = 256 * 1024
#: An answer in pieces gets this much memory at once, and more as its bytes come; up to the second it is kept for the next.
_FIRST_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 4 << 20
_SWEEP_S: Final = 1.0
#: Addresses of brokers that are remembered: more than a cluster has.
_ADDRESSES_MAX: Final = 10_000
#: Failed handshakes that are remembered, so that each is logged once.
_LOGGED_MAX: Final = 100

#: (node id, host, port)
Peer: TypeAlias = tuple[int, str, int]
#: `done(answer, error)`
Done: TypeAlias = Callable[[memoryview | None, str | None], None]


class Settings(Protocol):
    """Where the settings in force are found: they may change while the broker runs."""

    config: BrokerConfig


class Peers:
    """`turn` is called after each batch of answers."""

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
        prove_to: Callable[[int], Dialing | None],
    ) -> None:
        """`failed(what, error)` is called with what a `done` raised. `prove_to` makes the handshake for a new connection to a
        broker; without one, requests leave at once."""
        self.loop = loop
        self.clock = clock
        self.turn = turn
        self._failed = failed
        self._say = say
        self.prove_to = prove_to
        #: Handshakes that failed and were logged.
        self._logged: set[str] = set()
        self._settings = settings
        name = client_id.encode()
        self.client_id = len(name).to_bytes(2, "big") + name
        #: What a request of an API and version has between its correlation id and its body, and of the answer the same.
        self._forms: dict[int, tuple[bytes, bool]] = {}
        self.buffer = bytearray(_RECEIVE_BYTES)
        self.view = memoryview(self.buffer).toreadonly()
        self._lines: dict[tuple[int, Any], Line] = {}
        self._asked: dict[Line, None] = {}
        #: Where other brokers were reached: their connections to us come from there.
        self.addresses: set[str] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._stopped = False

    def ask(self, peer: Peer, lane: Any, key: int, version: int, body: bytes, done: Done) -> None:
        """One request, which leaves with the next `flush`."""
        place = peer[0], lane
        line = self._lines.get(place)
        if line is None or line.peer != peer:
            if line is not None:
                line.end(f"broker {peer[0]} has moved to {peer[1]}:{peer[2]}")
            line = self._lines[place] = Line(self, peer, place)
            if self._sweeper is None:
                self._sweep_later()
        form = self._forms.get(key << 16 | version)
        if form is None:
            form = self.form(key, version)
        line.add(key, version, form, body, done)
        self._asked[line] = None

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
        """Send what was asked for since the last time."""
        asked, self._asked = self._asked, {}
        for line in asked:
            try:
                line.flush()
            except Exception as error:
                self._failed("requests to another broker", error)
                line.interrupted(error)

    def tell(self, done: Done, answer: memoryview | None, error: str | None) -> None:
        try:
            done(answer, error)
        except Exception as failed:
            # The core's own mistake with one answer: the others must have theirs.
            self._failed("the answer of another broker", failed)

    def tell_all(self, waiting: Iterable[tuple[int, bool, Done, int]], error: str) -> None:
        if self._stopped:
            return
        for _number, _tagged, done, _asked_ms in waiting:
            self.tell(done, None, error)
        self.turn(self.clock.now_ms())

    def log_failed_proof(self, text: str) -> None:
        if text not in self._logged:
            if len(self._logged) >= _LOGGED_MAX:
                self._logged.clear()
            self._logged.add(text)
            self._say(text)

    def ended(self, line: Line) -> None:
        if self._lines.get(line.place) is line:
            del self._lines[line.place]

    def stop(self) -> None:
        """Close all. Nobody is told: the core is about to be closed too."""
        self._stopped = True
        self._stop_sweeping()
        for line in list(self._lines.values()):
            line.close()
        self._lines.clear()

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
        """End lines whose oldest answer is overdue, or that nobody has used for long."""
        self._sweeper = None
        self._sweep_later()
        config = self._settings.config
        now_ms = self.clock.now_ms()
        for line in list(self._lines.values()):
            if line.waiting:
                if now_ms - line.waiting[0][3] > config.replica_socket_timeout_ms:
                    line.end(f"no answer within {config.replica_socket_timeout_ms} ms")
            elif 0 <= config.connections_max_idle_ms < now_ms - line.active_ms:
                line.close()
        if not self._lines:
            self._stop_sweeping()


class Line:
    """One connection: requests that are not sent yet, and those that wait for their answers."""

    __slots__ = (
        "_added", "_closed", "_dial", "_fd", "_handshake", "_have", "_next_id", "_out", "_peers", "_prefix", "_room", "_size",
        "_sock", "_spare", "_writing", "active_ms", "peer", "place", "waiting",
    )  # fmt: skip

    def __init__(self, peers: Peers, peer: Peer, place: tuple[int, Any]) -> None:
        self._peers = peers
        self.peer = peer
        self.place = place
        #: (correlation id, whether its answer's header has tags, done, when it was asked), oldest first.
        self.waiting: deque[tuple[int, bool, Done, int]] = deque()
        self.active_ms = peers.clock.now_ms()
        self._next_id = 0
        self._out: list[Any] = []
        self._handshake = peers.prove_to(peer[0])
        #: Where new requests are added: to what leaves next, or behind the handshake.
        self._added: list[Any] = self._out if self._handshake is None else []
        self._writing = False
        self._closed = False
        # An answer that comes in pieces: its size, what we have of it, and where. A piece of its size field alone.
        self._size = 0
        self._have = 0
        self._room: bytearray | None = None
        self._spare: bytearray | None = None
        self._prefix = b""
        self._sock: socket.socket | None = None
        self._fd = -1
        self._dial: ConnectAttempt | None = ConnectAttempt(peers.loop, peer[1], peer[2], self._dialed)

    # --- out --------------------------------------------------------------------------------------------------

    def add(self, key: int, version: int, form: tuple[bytes, bool], body: bytes, done: Done) -> None:
        head, tagged = form
        number = self._next_id
        self._next_id = (number + 1) & _IDS
        added = self._added
        added.append(_request_head(_HEAD_BYTES + len(head) + len(body), key, version, number) + head)
        added.append(body)
        self.active_ms = now_ms = self._peers.clock.now_ms()
        self.waiting.append((number, tagged, done, now_ms))

    def _dialed(self, sock: socket.socket | None, error: str | None) -> None:
        self._dial = None
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
        """Send the next request of the handshake: its answer is the next one to come."""
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
            text = f"{self._name} has not proven that it is that broker of this cluster: {error}"
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
            # The line ends with the next turn of the loop: who asks is in the midst of its effects.
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

    # --- in ---------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        peers, sock, room = self._peers, self._sock, self._room
        assert sock is not None
        try:
            if room is None:
                size = sock.recv_into(peers.buffer)
            else:
                end = min(self._size, len(room))
                with memoryview(room) as view, view[self._have : end] as rest:
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
            if room is None:
                answered = self._take(peers.view[:size], size)
            else:
                answered = self._gather(room, size)
        except (MalformedMessage, struct.error, IndexError) as error:
            self.end(f"{self._name} answered what cannot be read: {error}")
            answered = True  # perhaps, before it
        if answered:
            peers.turn(now_ms)

    def _take(self, view: memoryview, size: int) -> bool:
        """Hand over the whole answers in what was received; keep the rest. True if there was any."""
        if self._prefix:
            joined = self._prefix + bytes(view)
            view, size, self._prefix = memoryview(joined), len(joined), b""
        at = 0
        while size - at >= 4:
            length = _length(view, at)[0]
            if not 4 <= length <= RESPONSE_BYTES_MAX:
                raise MalformedMessage(f"an answer of {length} bytes")
            start = at + 4
            if start + length > size:
                self._begin(view[start:size], length)
                return at > 0
            at = start + length
            self._answer(view[start:at])
            if self._closed:
                return True
        self._prefix = bytes(view[at:size])
        return at > 0

    def _begin(self, first: memoryview, length: int) -> None:
        wanted = min(length, _FIRST_BYTES)
        room, self._spare = self._spare, None
        if room is None or len(room) < wanted:
            room = bytearray(wanted)
        self._room, self._size, self._have = room, length, len(first)
        room[: len(first)] = first

    def _gather(self, room: bytearray, size: int) -> bool:
        self._have += size
        if self._have < self._size:
            if self._have == len(room):
                # Memory follows the bytes that really came.
                self._room = bytearray(min(self._size, 2 * len(room)))
                self._room[: self._have] = room
            return False
        self._room = None
        self._answer(memoryview(room).toreadonly()[: self._size])
        if len(room) <= _KEPT_BYTES:
            self._spare = room
        return True

    def _answer(self, frame: memoryview) -> None:
        if not self.waiting:
            raise MalformedMessage("an answer that nobody waits for")
        number, tagged, done, _asked_ms = self.waiting[0]
        if _length(frame)[0] != number:
            raise MalformedMessage(f"an answer to request {_length(frame)[0]}, but {number} is next")
        start = 4
        if tagged:
            start = 5 if frame[4] == 0 else after_tags(frame, 4)
            if start > len(frame):
                raise MalformedMessage("a header that does not end")
        self.waiting.popleft()
        self._peers.tell(done, frame[start:], None)

    # --- the end ----------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"broker {self.peer[0]} at {self.peer[1]}:{self.peer[2]}"

    def interrupted(self, error: Exception) -> None:
        """A callback raised: what was received is not to be trusted any more."""
        self.end(f"internal error: {error!r}")

    def end(self, error: str) -> None:
        """Close it, and tell all that wait, not within this call."""
        waiting, self.waiting = self.waiting, deque()
        self.close()
        if waiting:
            self._peers.loop.call_soon(self._peers.tell_all, waiting, error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.waiting.clear()
        self._out.clear()
        self._added.clear()
        if self._dial is not None:
            self._dial.cancel()
        if self._sock is not None:
            loop = self._peers.loop
            loop.remove_reader(self._fd)
            if self._writing:
                loop.remove_writer(self._fd)
            self._sock.close()
            self._sock = None
        self._peers.ended(self)
