"""One client's socket: requests in, responses out, in order, without waiting.

`RequestReader` is the receiving half. This half sends: one queue of bytes and file slices. Small slices are
read and joined with their neighbours into one send. Large ones go by sendfile; the bytes before them are sent
under MSG_MORE. While the queue is blocked nothing is read from this client, so a slow reader slows down only
itself.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.ports.disk import DiskError
from ottla.runtime.core import Session
from ottla.runtime.disk_errors import DEVICE_ERRNOS, disk_error
from ottla.runtime.platform import HAS_SENDFILE, MSG_MORE, in_memory, load
from ottla.runtime.request_reader import RequestReader

if TYPE_CHECKING:
    from ottla.runtime.effect_runner import EffectRunner

#: Up to this size a slice is read and joined; above, sendfile is cheaper.
_READ_BYTES_MAX: Final = 64 * 1024
#: How much is joined for one send.
_SEND_BYTES: Final = 512 * 1024
#: A response without descriptors for its files is copied up to this size; above, another client is closed.
_COPIED_BYTES: Final = 4 << 20
#: The size of one sendfile.
_PIECE_BYTES: Final = 1 << 20


def _in_memory(parts: Iterable[Any]) -> int:
    """The memory of parts of responses: bytes, and the whole object behind a memoryview; no file slices."""
    size = 0
    for part in parts:
        if not isinstance(part, tuple):
            base: Any = part.obj if part.__class__ is memoryview else part
            size += len(base)
    return size


class ClosedSession:
    """Stands for the connection of a closed transport, so that the two do not refer to each other."""

    __slots__ = ("closed", "has_large_answer", "held_bytes", "paused", "peer", "transport", "waiting")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.closed = True
        self.paused = self.has_large_answer = False
        self.held_bytes = 0
        self.transport: Any = None
        self.waiting: tuple[()] = ()


class Transport(RequestReader):
    __slots__ = ("_is_counted", "loading", "queued_bytes", "writing")

    def __init__(
        self, runner: EffectRunner, sock: socket.socket, connection: Session, host: str, now_ms: int
    ) -> None:
        super().__init__(runner, sock, connection, host, now_ms)
        self.writing = False
        #: A piece of a file is being read in a thread.
        self.loading = False
        #: Bytes in `out` that the client does not read at once, and whether the memory pool counts them.
        self.queued_bytes = 0
        self._is_counted = False

    def send(self, parts: list[Any]) -> None:
        """Queue one response; `flush` sends."""
        disk = self.runner.disk
        pinned: list[Any] = []
        try:
            for part in parts:
                if part.__class__ not in (bytes, bytearray):
                    disk.pin(part[0])
                    pinned.append(part[0])
        except DiskError as error:
            # Deleted while the response waited behind another, or no descriptor is left for it. Earlier
            # responses leave; then the connection closes, and the client fetches again.
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
        """No descriptor is left for another file. Try in this order, the cheapest first:

        - send the responses before this one (a client that sends many fetches at once);
        - copy a small response;
        - close the client that keeps most files open, and use its descriptors;
        - copy this response whatever its size: it may need more files than can be open at once.
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
        if sum(part[2] for part in slices) > _COPIED_BYTES and self.runner.connections.close_most_pinning(
            self
        ):
            self.send(parts)
            return
        read = self.runner.disk.read
        try:
            copied = [part if part.__class__ in (bytes, bytearray) else read(*part) for part in parts]
        except DiskError:
            self.finish()
            return
        if any(len(data) < part[2] for part, data in zip(parts, copied, strict=True) if data is not part):
            # Truncated meanwhile.
            self.finish()
            return
        self._append(copied)

    def _queue(self, size: int) -> None:
        """Account for bytes that were added to `out`, or left it."""
        self.queued_bytes += size
        self.runner.memory_pool.answers += size

    def send_now(self, answers: Sequence[list[Any]]) -> None:
        """Send the responses of a turn: most often one, of one part."""
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
            # A response whose file is deleted ends the connection, after the responses before it.
            if not self.closing:
                self.send(parts)
        if not self.writing:
            self.flush()

    def _joined(self, answers: Sequence[list[Any]]) -> bytes | None:
        """Responses as one piece, if they are small. File slices are read at once: no file stays open.

        None if that is impossible: then `send` and `flush` send piece by piece, and meet the same errors.
        """
        read = self.runner.disk.read
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
            self.runner.read_failed(error)
            return
        except OSError:
            self.close()
            return
        if self.writing:
            self.writing = False
            self.runner.loop.remove_writer(self.fd)
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
        # The rest of a slice that sendfile has begun stays with sendfile, however small.
        return len(part) == 3 and part[2] <= _READ_BYTES_MAX

    def _send_joined(self) -> bool:
        """Send the bytes and small slices at the head of the queue; False if the socket is full."""
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
            self.active_ms = self.runner.clock.now_ms()
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
        """A slice's bytes. Without sendfile, one piece of a large slice; the rest stays in the queue."""
        disk = self.runner.disk
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
        """Send from the file slice at the head of the queue; False if the socket is full."""
        file, position, size, *begun = self.out[0]
        # The slice is known to be in the page cache up to here.
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
                # An error of the file: a socket has no such errors.
                raise disk_error(file.path, error) from error
            raise
        if sent == 0:
            # The file is shorter than the response's length says: closing is the only way to report it.
            raise DiskError(f"{file.path} ends before {position + size}")
        self.active_ms = self.runner.clock.now_ms()
        if sent < size:
            self.out[0] = (file, position + sent, size - sent, warm_end)
        else:
            self.out.popleft()
            self.runner.disk.unpin(file)
        return True

    def _load(self, file: Any, position: int, size: int) -> bool:
        """Read a piece into the page cache in a thread: only this client waits. Always False."""
        self.loading = True
        self.runner.disk.pin(file)
        fd = file.fd

        def read() -> DiskError | None:
            try:
                load(fd, position, size)
            except OSError as error:
                return disk_error(file.path, error)
            return None

        def loaded(failed: DiskError | None, error: str | None) -> None:
            self.loading = False
            self.runner.disk.unpin(file)
            if failed is None and error is None:
                self.flush()
            else:
                # Another attempt would fail as well: close, and the client fetches again.
                self.close()
                if failed is not None:
                    self.runner.read_failed(failed)

        self.runner.jobs.run(read, loaded)
        return False

    def _wait_writable(self) -> None:
        self.stop_reading()
        if not self._is_counted:
            # Counted only now: most responses leave at once.
            self._is_counted = True
            self._queue(_in_memory(self.out))
        if self.loading:
            if self.writing:
                self.writing = False
                self.runner.loop.remove_writer(self.fd)
        elif not self.writing:
            self.writing = True
            self.runner.loop.add_writer(self.fd, self.flush)
            if self.runner.memory_pool.is_too_much_unread:
                self.runner.connections.close_unread()

    @property
    def slices(self) -> int:
        """The number of file slices that wait to be sent, each with a descriptor."""
        return sum(1 for part in self.out if isinstance(part, tuple))

    def finish(self) -> None:
        """Close once the queue is sent."""
        self.closing = True
        self.stop_reading()
        if not self.out:
            self.close()

    def interrupted(self, error: Exception) -> None:
        """A callback raised: requests may be lost, so the connection closes."""
        self.close()

    def close(self) -> None:
        if self._broken:
            return
        self._broken = self.closing = True
        self.stop_reading()
        if self.writing:
            self.writing = False
            self.runner.loop.remove_writer(self.fd)
        for part in self.out:
            if part.__class__ not in (bytes, bytearray, memoryview):
                self.runner.disk.unpin(part[0])
        self.out.clear()
        self._queue(-self.queued_bytes)
        self.runner.memory_pool.release(self)
        if self._frame is not None:
            self.runner.memory_pool.recycle(self._frame)
            self._frame = None
        self._sock.close()
        self.runner.connections.closed(self)
