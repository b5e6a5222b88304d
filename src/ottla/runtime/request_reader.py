"""The receiving half of a connection: requests from the socket to the core, without waiting.

One buffer, shared by all connections, receives the bytes. Whole requests in it go straight to the core. Only
a request that arrives in pieces gets its own memory. That memory grows with the bytes that arrive, not
with the length prefix, within the pool that all connections share (`memory_pool.py`). A request that arrives
too slowly ends its connection (`is_stalled`).
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ottla.model.limits import REQUEST_BYTES_PER_SECOND_MIN
from ottla.runtime.core import Session

if TYPE_CHECKING:
    from ottla.runtime.effect_runner import EffectRunner

_length: Final = struct.Struct(">i").unpack_from
#: A request in pieces gets at most this much memory before its bytes arrive, or this many times what has
#: arrived.
_FIRST_BYTES: Final = 16 * 1024
_FIRST_TIMES: Final = 4
#: Its memory doubles, but grows by at most this much at once: the growth is zeros in memory for a moment.
_GROWTH_BYTES_MAX: Final = 8 << 20
#: From this size on, a request that has stopped arriving is closed early if others wait for memory.
_LARGE_FRAME_BYTES: Final = 1 << 20

#: Requests of one read that are handled before other connections get their turn. It bounds the responses that
#: one read can cause before the client has read any of them.
_FRAMES_MAX: Final = 64
#: After this long the remaining requests of a read wait until other connections had their turn.
_TURN_MS: Final = 10
#: The clock is read at every eighth request.
_CLOCK_MASK: Final = 7
_NOTHING: Final = memoryview(b"")


class RequestReader:
    """The reading half of `Transport`, which is the only class derived from it."""

    __slots__ = (
        "_broken", "_frame", "_frame_size", "_have", "_marked_have", "_marked_ms", "_prefix", "_rest", "_sock",
        "active_ms", "closing", "connection", "fd", "host", "is_broker", "out", "paused", "reading", "runner", "starved",
    )  # fmt: skip

    def __init__(
        self, runner: EffectRunner, sock: socket.socket, connection: Session, host: str, now_ms: int
    ) -> None:
        self.runner = runner
        self._sock = sock
        self.fd = sock.fileno()
        self.connection: Session = connection
        self.host = host
        self.active_ms = now_ms
        #: To be sent: bytes, memoryviews, or slices (file, position, size) whose files are pinned.
        self.out: deque[Any] = deque()
        self.reading = False
        #: The core asked to stop reading.
        self.paused = False
        #: Close once everything is sent.
        self.closing = False
        self._broken = False
        # A request that arrives in pieces: its size (-1: the length prefix is not complete) and the bytes
        # received.
        self._frame_size = -1
        self._frame: bytearray | None = None
        self._have = 0
        self._prefix = b""
        # Whole requests that were received but not handled yet.
        self._rest = _NOTHING
        #: The request waits for memory.
        self.starved = False
        # When progress of the request was last checked, and how much of it had arrived then.
        self._marked_ms = 0
        self._marked_have = 0
        #: The peer has proven that it is another broker of the cluster.
        self.is_broker = False

    def close(self) -> None:
        raise NotImplementedError

    def readable(self) -> None:
        runner = self.runner
        frame = self._frame
        try:
            if frame is None:
                size = self._sock.recv_into(runner.buffer)
            else:
                with memoryview(frame) as view, view[self._have :] as free:
                    size = self._sock.recv_into(free)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if size == 0:
            self.close()
            return
        now_ms = runner.clock.now_ms()
        self.active_ms = now_ms
        if frame is None:
            if (
                4 < size <= runner.one_frame_max
                and _length(runner.buffer)[0] == size - 4
                and not self._prefix
            ):
                # One whole request: the most frequent read.
                try:
                    runner.broker.receive(self.connection, runner.view[4:size], now_ms)
                except Exception as error:
                    runner.request_failed(self.connection, error)
            else:
                self._handle_requests(runner.view[:size], size, now_ms)
        else:
            self._have += size
            if self._have == self._frame_size:
                self._frame = None
                self._frame_size = -1
                with memoryview(frame).toreadonly() as whole:
                    try:
                        runner.broker.receive(self.connection, whole, now_ms)
                    except Exception as error:
                        runner.request_failed(self.connection, error)
                memory_pool = runner.memory_pool
                memory_pool.release(self)
                memory_pool.recycle(frame)
            elif self._have == len(frame):
                # Memory follows the bytes that arrived.
                growth = min(len(frame), self._frame_size - len(frame), _GROWTH_BYTES_MAX)
                if runner.memory_pool.may_grow(self, growth):
                    frame.extend(bytes(growth))
                else:
                    self.starved = True
                    self.stop_reading()
        runner.turn(now_ms, False, frame or self)

    def _handle_requests(self, view: memoryview, size: int, now_ms: int) -> None:
        """Hand whole requests to the core; keep the rest."""
        if self._prefix:
            # The length prefix itself is split: rare enough to copy.
            joined = self._prefix + bytes(view)
            view, size, self._prefix = memoryview(joined), len(joined), b""
        runner, connection = self.runner, self.connection
        broker, limit = runner.broker, runner.request_bytes_max
        at = frames = 0
        while size - at >= 4:
            if frames and (
                connection.paused
                # A large response must leave, or be known not to be read, before the next one.
                or connection.has_large_answer
                or frames == _FRAMES_MAX
                or (not frames & _CLOCK_MASK and runner.clock.now_ms() - now_ms > _TURN_MS)
            ):
                connection.has_large_answer = False
                self._rest = memoryview(bytes(view[at:size]))
                runner.memory_pool.charge(self, size - at)
                self._handle_rest_later()
                return
            frames += 1
            length = _length(view, at)[0]
            if not 0 < length <= limit:
                runner.connections.refuse(
                    self, f"a request of {length} bytes, allowed are 1 to {limit} (socket.request.max.bytes)"
                )
                return
            start = at + 4
            at = start + length
            if at > size:
                self._start_partial(view[start:size], length)
                return
            try:
                broker.receive(connection, view[start:at], now_ms)
            except Exception as error:
                runner.request_failed(connection, error)
            if connection.closed:
                return
        if at < size:
            self._prefix = bytes(view[at:size])

    def _handle_rest_later(self) -> None:
        """Handle the received requests after other connections had their turn and our responses have left."""
        self.runner.loop.remove_reader(self.fd)
        self.runner.loop.call_soon(self._handle_rest)

    def _handle_rest(self) -> None:
        # While reading is stopped the requests stay; `resume` calls this again.
        if self.reading and not self._broken:
            rest, self._rest = self._rest, _NOTHING
            self.runner.memory_pool.release(self)
            now_ms = self.runner.clock.now_ms()
            self._handle_requests(rest, len(rest), now_ms)
            self.runner.turn(now_ms, what="many requests of one client")
            self._resume_reader()

    def _resume_reader(self) -> None:
        if self.reading and not self._rest and not self._broken:
            self.runner.loop.add_reader(self.fd, self.readable)

    def _start_partial(self, first: memoryview, length: int) -> None:
        memory_pool = self.runner.memory_pool
        frame = memory_pool.buffer(length, min(length, max(_FIRST_BYTES, _FIRST_TIMES * len(first))))
        frame[: len(first)] = first
        self._frame, self._frame_size, self._have = frame, length, len(first)
        self._marked_ms, self._marked_have = self.active_ms, 0
        memory_pool.charge(self, len(frame))

    def memory_granted(self, size: int) -> None:
        """The pool has memory for the request again."""
        if self._frame is not None and not self._broken:
            self._frame.extend(bytes(size))
            self.starved = False
            self._marked_ms, self._marked_have = self.runner.clock.now_ms(), self._have
            if not self.paused and not self.out:
                self.resume()

    def is_stalled(self, now_ms: int, timeout_ms: int, *, large_only: bool = False) -> bool:
        """Whether too little of an unfinished request has arrived in `timeout_ms` while it was read."""
        frame = self._frame
        if frame is None or (large_only and len(frame) < _LARGE_FRAME_BYTES):
            return False
        if self.starved or self.paused:
            self._marked_ms, self._marked_have = now_ms, self._have
            return False
        if now_ms - self._marked_ms < timeout_ms:
            return False
        arrived = self._have - self._marked_have
        if arrived * 1000 < REQUEST_BYTES_PER_SECOND_MIN * timeout_ms and not self._has_more():
            return True
        self._marked_ms, self._marked_have = now_ms, self._have
        return False

    def _has_more(self) -> bool:
        """Whether unread bytes have arrived: then the broker is slow, not the client."""
        try:
            return self.reading and bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    @property
    def frame_state(self) -> str:
        return f"{self._have} of {self._frame_size} bytes of a request have arrived"

    def resume(self) -> None:
        if not self.reading and not self.closing and not self._broken and not self.starved:
            self.reading = True
            if self._rest:
                self.runner.loop.call_soon(self._handle_rest)
            else:
                self.runner.loop.add_reader(self.fd, self.readable)

    def stop_reading(self) -> None:
        if self.reading:
            self.reading = False
            self.runner.loop.remove_reader(self.fd)
