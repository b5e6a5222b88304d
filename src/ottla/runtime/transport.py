"""One client's socket: frames in, parts out, in order, without waiting.

In: a shared buffer receives what is there; whole frames in it go straight to the core. Only a frame that comes in pieces
gets memory of its own, which grows as the bytes come and not as the length prefix promises, within the budget that all
connections share (`memory.py`). A frame that comes too slowly ends its connection (`is_stalled`).

Out: one line of bytes and file slices. Small slices are read and joined with their neighbours into one send; large ones go
by sendfile, with the bytes before them sent under MSG_MORE. While the line is blocked nothing more is read from this
client: a slow reader slows down itself alone.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.model.limits import REQUEST_BYTES_PER_SECOND_MIN
from ottla.ports.disk import DiskError
from ottla.runtime.core import Session
from ottla.runtime.disk_errors import DEVICE_ERRNOS, disk_error
from ottla.runtime.platform import HAS_SENDFILE, MSG_MORE, in_memory, load

if TYPE_CHECKING:
    from ottla.runtime.effect_runner import Shell

_length: Final = struct.Struct(">i").unpack_from
#: Up to this size a slice is read and joined; above, sendfile is cheaper.
_READ_BYTES_MAX: Final = 64 * 1024
#: How much is joined for one send.
_SEND_BYTES: Final = 512 * 1024
#: An answer that has no descriptors for its files is copied up to this size rather than that another client is closed.
_COPIED_BYTES: Final = 4 << 20
#: How much of a file one sendfile is asked for.
_PIECE_BYTES: Final = 1 << 20
#: A frame in pieces gets at most this much memory before its bytes arrive, or so many times what has arrived.
_FIRST_BYTES: Final = 16 * 1024
_FIRST_TIMES: Final = 4
#: It grows by as much as it has, but not by more than this: what it grows by is zeros in memory for a moment.
_GROWTH_BYTES_MAX: Final = 8 << 20
#: From this size on a request that has stopped arriving is closed early if others wait for memory.
_LARGE_FRAME_BYTES: Final = 1 << 20

#: Frames of one read that are answered before others have their turn: what a client may have answered to it in one go
#: without having read any of it.
_FRAMES_MAX: Final = 64
#: After this long the other requests that came with it wait until other clients had their turn.
_TURN_MS: Final = 10
#: Every eighth request it is looked at the clock.
_LOOK_MASK: Final = 7
_NOTHING: Final = memoryview(b"")


def _in_memory(parts: Iterable[Any]) -> int:
    """What these parts of answers hold: bytes, and all of what the rest of a send is a part of. Slices of files hold none."""
    size = 0
    for part in parts:
        if not isinstance(part, tuple):
            base: Any = part.obj if part.__class__ is memoryview else part
            size += len(base)
    return size


class ClosedSession:
    """What a closed transport has in place of its connection, so that the two do not refer to each other."""

    __slots__ = ("closed", "has_large_answer", "held_bytes", "paused", "peer", "transport", "waiting")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.closed = True
        self.paused = self.has_large_answer = False
        self.held_bytes = 0
        self.transport: Any = None
        self.waiting: tuple[()] = ()


class Transport:
    __slots__ = (
        "_broken", "_file", "_frame", "_frame_size", "_have", "_is_counted", "_marked_have", "_marked_ms", "_prefix", "_rest", "_sock",
        "active_ms", "closing", "connection", "fd", "host", "is_broker", "loading", "out", "paused", "queued_bytes", "reading",
        "shell", "starved", "writing",
    )  # fmt: skip

    def __init__(
        self, shell: Shell, sock: socket.socket, connection: Session, host: str, now_ms: int
    ) -> None:
        self.shell = shell
        self._sock = sock
        self.fd = sock.fileno()
        self.connection: Session = connection
        self.host = host
        self.active_ms = now_ms
        #: What is to be sent: bytes, memoryviews, or slices (file, position, size) whose files are pinned.
        self.out: deque[Any] = deque()
        self.reading = False
        self.writing = False
        #: The core asked not to read on.
        self.paused = False
        #: A piece of a file is being read in a thread.
        self.loading = False
        #: Close once everything is sent.
        self.closing = False
        self._broken = False
        # A frame that comes in pieces: its size (-1: not even that is whole), the bytes we have of it.
        self._frame_size = -1
        self._frame: bytearray | None = None
        self._have = 0
        self._prefix = b""
        # Whole frames that were received but not looked at yet.
        self._rest = _NOTHING
        #: Its frame has to wait for memory.
        self.starved = False
        # When it was last looked whether the frame arrives, and how much of it was here then.
        self._marked_ms = 0
        self._marked_have = 0
        #: Bytes of answers in `out` that the client does not read at once; and whether they are counted.
        self.queued_bytes = 0
        self._is_counted = False
        #: It has proven to be another broker of the cluster.
        self.is_broker = False

    # --- in -----------------------------------------------------------------------------------------------------

    def readable(self) -> None:
        shell = self.shell
        frame = self._frame
        try:
            if frame is None:
                size = self._sock.recv_into(shell.buffer)
            else:
                with memoryview(frame) as view, view[self._have :] as room:
                    size = self._sock.recv_into(room)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if size == 0:
            self.close()
            return
        now_ms = shell.clock.now_ms()
        self.active_ms = now_ms
        if frame is None:
            if 4 < size <= shell.one_frame_max and _length(shell.buffer)[0] == size - 4 and not self._prefix:
                # One whole request: what most reads bring.
                try:
                    shell.broker.receive(self.connection, shell.view[4:size], now_ms)
                except Exception as error:
                    shell.request_failed(self.connection, error)
            else:
                self._take(shell.view[:size], size, now_ms)
        else:
            self._have += size
            if self._have == self._frame_size:
                self._frame = None
                self._frame_size = -1
                with memoryview(frame).toreadonly() as whole:
                    try:
                        shell.broker.receive(self.connection, whole, now_ms)
                    except Exception as error:
                        shell.request_failed(self.connection, error)
                shell.budget.release(self)
                shell.recycle(frame)
            elif self._have == len(frame):
                # Memory follows the bytes that really came.
                growth = min(len(frame), self._frame_size - len(frame), _GROWTH_BYTES_MAX)
                if shell.budget.may_grow(self, growth):
                    frame.extend(bytes(growth))
                else:
                    self.starved = True
                    self.stop_reading()
        shell.turn(now_ms, False, frame or self)

    def _take(self, view: memoryview, size: int, now_ms: int) -> None:
        """Hand over the whole frames in what was received; keep the rest."""
        if self._prefix:
            # The length prefix itself was cut: rare enough to copy.
            joined = self._prefix + bytes(view)
            view, size, self._prefix = memoryview(joined), len(joined), b""
        shell, connection = self.shell, self.connection
        broker, limit = shell.broker, shell.request_bytes_max
        at = frames = 0
        while size - at >= 4:
            if frames and (
                connection.paused
                # An answer that must leave, or be known not to be read, before there is another.
                or connection.has_large_answer
                or frames == _FRAMES_MAX
                or (not frames & _LOOK_MASK and shell.clock.now_ms() - now_ms > _TURN_MS)
            ):
                connection.has_large_answer = False
                self._rest = memoryview(bytes(view[at:size]))
                shell.budget.charge(self, size - at)
                self._later()
                return
            frames += 1
            length = _length(view, at)[0]
            if not 0 < length <= limit:
                shell.refuse(self, f"a request of {length} bytes, between 1 and {limit} are allowed")
                return
            start = at + 4
            at = start + length
            if at > size:
                self._begin(view[start:size], length)
                return
            try:
                broker.receive(connection, view[start:at], now_ms)
            except Exception as error:
                shell.request_failed(connection, error)
            if connection.closed:
                return
        if at < size:
            self._prefix = bytes(view[at:size])

    def _later(self) -> None:
        """Go on with the frames at hand after others had their turn, and not before our answers have left."""
        self.shell.loop.remove_reader(self.fd)
        self.shell.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        # While reading is stopped the frames stay; `resume` comes back here.
        if self.reading and not self._broken:
            rest, self._rest = self._rest, _NOTHING
            self.shell.budget.release(self)
            now_ms = self.shell.clock.now_ms()
            self._take(rest, len(rest), now_ms)
            self.shell.turn(now_ms, what="many requests of one client")
            self._read_on()

    def _read_on(self) -> None:
        if self.reading and not self._rest and not self._broken:
            self.shell.loop.add_reader(self.fd, self.readable)

    def _begin(self, first: memoryview, length: int) -> None:
        frame = self.shell.memory(length, min(length, max(_FIRST_BYTES, _FIRST_TIMES * len(first))))
        frame[: len(first)] = first
        self._frame, self._frame_size, self._have = frame, length, len(first)
        self._marked_ms, self._marked_have = self.active_ms, 0
        self.shell.budget.charge(self, len(frame))

    def go_on_growing(self, size: int) -> None:
        """There is memory for the frame again."""
        if self._frame is not None and not self._broken:
            self._frame.extend(bytes(size))
            self.starved = False
            self._marked_ms, self._marked_have = self.shell.clock.now_ms(), self._have
            if not self.paused and not self.out:
                self.resume()

    def is_stalled(self, now_ms: int, timeout_ms: int, *, large_only: bool = False) -> bool:
        """Whether too little of an unfinished frame has come within the time. Time that we did not read does not count."""
        frame = self._frame
        if frame is None or (large_only and len(frame) < _LARGE_FRAME_BYTES):
            return False
        if self.starved or self.paused:
            self._marked_ms, self._marked_have = now_ms, self._have
            return False
        if now_ms - self._marked_ms < timeout_ms:
            return False
        came = self._have - self._marked_have
        if came * 1000 < REQUEST_BYTES_PER_SECOND_MIN * timeout_ms and not self._has_more():
            return True
        self._marked_ms, self._marked_have = now_ms, self._have
        return False

    def _has_more(self) -> bool:
        """Whether bytes are here that we have not read: then it is we who are slow."""
        try:
            return self.reading and bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    @property
    def slices(self) -> int:
        """How many slices of files wait to be sent, each with a descriptor."""
        return sum(1 for part in self.out if isinstance(part, tuple))

    @property
    def frame_state(self) -> str:
        return f"{self._have} of {self._frame_size} bytes of a request have arrived"

    # --- out ----------------------------------------------------------------------------------------------------

    def send(self, parts: list[Any]) -> None:
        """Queue one response; `flush` sends."""
        disk = self.shell.disk
        pinned: list[Any] = []
        try:
            for part in parts:
                if part.__class__ not in (bytes, bytearray):
                    disk.pin(part[0])
                    pinned.append(part[0])
        except DiskError as error:
            # Deleted while the answer stood in line behind another, or no descriptor is left for it. What was before it
            # leaves; then the client learns by the closing that it must ask again.
            for file in pinned:
                disk.unpin(file)
            if error.short:
                self._send_unpinned(parts)
            else:
                self.finish()
            return
        self._append(parts)

    def _append(self, parts: list[Any]) -> None:
        self.out += parts
        if self._is_counted:
            self._queue(_in_memory(parts))

    def _send_unpinned(self, parts: list[Any]) -> None:
        """No descriptor can be held for another file. One of these helps, the cheapest first:

        - the answers before this one leave, as with a client that sends many fetches at once;
        - a small answer is copied;
        - the client goes for which most files are held, and this answer gets its descriptors;
        - this answer is copied, whatever its size: it may have more files than can be held at once.
        """
        waiting = len(self.out)
        if waiting and not self.writing:
            self.flush()
            if self.closing or self._broken:
                return
            if len(self.out) < waiting:
                self.send(parts)
                return
        slices = [part for part in parts if part.__class__ not in (bytes, bytearray)]
        if sum(part[2] for part in slices) > _COPIED_BYTES and self.shell.close_most_pinning(self):
            self.send(parts)
            return
        read = self.shell.disk.read
        try:
            copied = [part if part.__class__ in (bytes, bytearray) else read(*part) for part in parts]
        except DiskError:
            self.finish()
            return
        if any(len(data) < part[2] for part, data in zip(parts, copied, strict=True) if data is not part):
            # Cut meanwhile.
            self.finish()
            return
        self._append(copied)

    def _queue(self, size: int) -> None:
        """Account for bytes that came to `out`, or left it."""
        self.queued_bytes += size
        self.shell.budget.answers += size

    def send_now(self, answers: Sequence[list[Any]]) -> None:
        """Send the answers of a turn: most often one, of one part."""
        if self.closing:
            return
        data = None
        if not self.out:
            first = answers[0]
            if len(answers) == 1 and len(first) == 1 and first[0].__class__ is bytes:
                data = first[0]
            else:
                data = self._joined(answers)
        if data is not None:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return
            if sent == len(data):
                return
            self.out.append(memoryview(data)[sent:])
            self._wait_writable()
            return
        for parts in answers:
            # One whose file is gone ends the connection, after those before it.
            if not self.closing:
                self.send(parts)
        if not self.writing:
            self.flush()

    def _joined(self, answers: Sequence[list[Any]]) -> bytes | None:
        """Answers as one piece, if they are small. Slices of files are read at once, so that no file has to be held open.

        None if that cannot be done: then `send` and `flush` do it piece by piece, and meet the same errors.
        """
        read = self.shell.disk.read
        chunks: list[Any] = []
        left = _SEND_BYTES
        for parts in answers:
            for part in parts:
                if part.__class__ is bytes or part.__class__ is bytearray:
                    left -= len(part)
                    chunks.append(part)
                    continue
                size = part[2]
                left -= size
                if size > _READ_BYTES_MAX or left < 0:
                    return None
                try:
                    data = read(*part)
                except DiskError:
                    return None
                if len(data) < size:
                    return None
                chunks.append(data)
        return b"".join(chunks) if left >= 0 else None

    def flush(self) -> None:
        if self._broken or self.loading:
            return
        out = self.out
        try:
            while out:
                if not (self._send_joined() if self._joinable(out[0]) else self._send_file()):
                    self._wait_writable()
                    return
        except DiskError as error:
            self.close()
            self.shell.read_failed(error)
            return
        except OSError:
            self.close()
            return
        if self.writing:
            self.writing = False
            self.shell.loop.remove_writer(self.fd)
        if self._is_counted:
            self._is_counted = False
            self._queue(-self.queued_bytes)
        if self.closing:
            self.close()
        elif not self.reading and not self.paused:
            self.resume()

    def _joinable(self, part: Any) -> bool:
        if part.__class__ in (bytes, bytearray, memoryview) or not HAS_SENDFILE:
            return True
        # The rest of a slice that sendfile has begun stays with it, however small it has become.
        return len(part) == 3 and part[2] <= _READ_BYTES_MAX

    def _send_joined(self) -> bool:
        """Send the bytes and small slices at the head of the line; False if the socket is full."""
        out = self.out
        chunks: list[Any] = []
        size = left = 0
        is_counted = self._is_counted
        while out and size < _SEND_BYTES and self._joinable(out[0]):
            part = out.popleft()
            if is_counted:
                left += _in_memory((part,))
            if part.__class__ not in (bytes, bytearray, memoryview):
                part = self._read(*part)
            chunks.append(part)
            size += len(part)
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        try:
            sent = self._sock.send(data, MSG_MORE if out else 0)
        except BlockingIOError:
            sent = 0
        if sent:
            self.active_ms = self.shell.clock.now_ms()
        if sent < size:
            rest = memoryview(data)[sent:]
            out.appendleft(rest)
            if is_counted:
                self._queue(_in_memory((rest,)) - left)
            return False
        if left:
            self._queue(-left)
        return True

    def _read(self, file: Any, position: int, size: int) -> bytes:
        """A slice's bytes; of a large one where there is no sendfile, a piece, and the rest stays in line."""
        disk = self.shell.disk
        piece = min(size, _SEND_BYTES)
        try:
            data = disk.read(file, position, piece)
        except DiskError:
            disk.unpin(file)
            raise
        if len(data) < piece:
            disk.unpin(file)
            raise DiskError(f"{file.path} ends before {position + piece}")
        if piece < size:
            self.out.appendleft((file, position + piece, size - piece))
        else:
            disk.unpin(file)
        return data

    def _send_file(self) -> bool:
        """Send from the file slice at the head of the line; False if the socket is full."""
        file, position, size, *begun = self.out[0]
        # How far it is known to be in memory.
        warm_end = begun[0] if begun else position
        if position >= warm_end:
            piece = min(size, _PIECE_BYTES)
            if not in_memory(file.fd, position, piece):
                return self._load(file, position, piece)
            warm_end = position + piece
        try:
            sent = os.sendfile(self.fd, file.fd, position, warm_end - position)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in DEVICE_ERRNOS:
                # Of the file: a socket has no such errors.
                raise disk_error(file.path, error) from error
            raise
        if sent == 0:
            # The file is shorter than the answer promised: only closing tells the client so.
            raise DiskError(f"{file.path} ends before {position + size}")
        self.active_ms = self.shell.clock.now_ms()
        if sent < size:
            self.out[0] = (file, position + sent, size - sent, warm_end)
        else:
            self.out.popleft()
            self.shell.disk.unpin(file)
        return True

    def _load(self, file: Any, position: int, size: int) -> bool:
        """A cold piece is read in a thread, so that only this client waits for the device. Always False."""
        self.loading = True
        self.shell.disk.pin(file)
        fd = file.fd

        def read() -> DiskError | None:
            try:
                load(fd, position, size)
            except OSError as error:
                return disk_error(file.path, error)
            return None

        def loaded(failed: DiskError | None, error: str | None) -> None:
            self.loading = False
            self.shell.disk.unpin(file)
            if failed is None and error is None:
                self.flush()
            else:
                # It would be no more in memory the next time; the client learns by the closing.
                self.close()
                if failed is not None:
                    self.shell.read_failed(failed)

        self.shell.jobs.run(read, loaded)
        return False

    def _wait_writable(self) -> None:
        self.stop_reading()
        if not self._is_counted:
            # Only now: most answers leave at once.
            self._is_counted = True
            self._queue(_in_memory(self.out))
        if self.loading:
            if self.writing:
                self.writing = False
                self.shell.loop.remove_writer(self.fd)
        elif not self.writing:
            self.writing = True
            self.shell.loop.add_writer(self.fd, self.flush)
            if self.shell.budget.is_too_much_unread:
                self.shell.close_unread()

    # --- life ---------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        if not self.reading and not self.closing and not self._broken and not self.starved:
            self.reading = True
            if self._rest:
                self.shell.loop.call_soon(self._go_on)
            else:
                self.shell.loop.add_reader(self.fd, self.readable)

    def stop_reading(self) -> None:
        if self.reading:
            self.reading = False
            self.shell.loop.remove_reader(self.fd)

    def finish(self) -> None:
        """Close after what is queued has been sent."""
        self.closing = True
        self.stop_reading()
        if not self.out:
            self.close()

    def interrupted(self, error: Exception) -> None:
        """A callback raised: frames may be lost, and the client learns by the closing."""
        self.close()

    def close(self) -> None:
        if self._broken:
            return
        self._broken = self.closing = True
        self.stop_reading()
        if self.writing:
            self.writing = False
            self.shell.loop.remove_writer(self.fd)
        for part in self.out:
            if part.__class__ not in (bytes, bytearray, memoryview):
                self.shell.disk.unpin(part[0])
        self.out.clear()
        self._queue(-self.queued_bytes)
        self.shell.budget.release(self)
        if self._frame is not None:
            self.shell.recycle(self._frame)
            self._frame = None
        self._sock.close()
        self.shell.closed(self)
