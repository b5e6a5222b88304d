"""The receive buffer of a connection: a scratch buffer for small responses, few large reads for large ones.

asyncio would create a new 256 KiB object per read. After each read the event loop needs the interpreter lock
again, and a busy thread keeps it for up to 5 ms. So a fetch that arrives in few large reads arrives while the
caller still works on the previous one. For the same reason SO_RCVLOWAT tells the kernel to wake the loop only
when the rest of a large response, or a good part of it, has arrived: fewer reads and 5 % more records per
second. A closed connection or a full receive window wakes it as usual.
"""

from __future__ import annotations

import socket
from typing import Protocol

SCRATCH_BYTES = 65_536
#: The most bytes to allocate at a time for the size that a frame claims.
PIECE_BYTES_MAX = 8 << 20
#: The largest SO_RCVLOWAT. With a megabyte and more the sender waits for a window that grows slowly (columns:
#: 1.3 instead of 2.4 million per second).
LOW_WATER_BYTES_MAX = 1 << 18


class Socket(Protocol):
    """The socket methods that are needed here."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


class ReceiveBuffer:
    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._piece: bytearray | None = None
        self._view = self._scratch
        self._filled = 0
        self._socket: Socket | None = None
        self._low_water_bytes = 1

    def attach(self, plain: Socket) -> None:
        """Set the socket. Only without TLS: with TLS the bytes on the socket are not the bytes that are read
        here.
        """
        self._socket = plain

    def room(self) -> memoryview:
        """The buffer for the next bytes."""
        return self._view[self._filled :]

    def filled(self, count: int) -> bytes | bytearray:
        """Bytes have arrived. Return the bytes to parse: none while a large piece is incomplete."""
        if self._piece is None:
            return bytes(self._scratch[:count])
        self._filled += count
        missing_bytes = len(self._piece) - self._filled
        if missing_bytes:
            self._wake_at(missing_bytes)
            return b""
        ready = self._piece
        self._piece, self._view, self._filled = None, self._scratch, 0
        self._wake_at(1)
        return ready

    def expect(self, count: int) -> None:
        """This number of bytes of a frame is missing."""
        if self._piece is None and count > SCRATCH_BYTES:
            self._piece = bytearray(min(count, PIECE_BYTES_MAX))
            self._view = memoryview(self._piece)
            self._wake_at(count)

    def _wake_at(self, missing_bytes: int) -> None:
        low_water_bytes = min(missing_bytes, LOW_WATER_BYTES_MAX)
        if self._socket is not None and low_water_bytes != self._low_water_bytes:
            self._low_water_bytes = low_water_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_bytes)
