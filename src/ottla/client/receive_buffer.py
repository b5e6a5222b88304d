"""Where a connection's bytes arrive: a scratch for small answers, and for a large one as much of it at once as the kernel has.

asyncio's own way is a new object of 256 KiB for each read. After each read the event loop must get the interpreter back, for which a thread that
computes lets it wait up to 5 ms; so a fetch that comes in few large reads arrives while the caller works on the one before. For the same
reason the kernel is told not to wake anybody before what is missing of a large answer has come (SO_RCVLOWAT), or
a good part of it: fewer reads, and 5 % more records a second. A peer that ends, or a receive window that is full, wakes as ever.
"""

from __future__ import annotations

import socket
from typing import Protocol

SCRATCH_BYTES = 65_536
#: A size that a frame claims is believed this far at a time.
PIECE_BYTES_MAX = 8 << 20
#: The kernel holds back no more than this: with a megabyte and more the sender waits for a window that grows slowly (columns: 1.3 million a second
#: beside 2.4).
LOW_WATER_BYTES_MAX = 1 << 18


class Socket(Protocol):
    """Of a socket, what is needed here."""

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
        """This is where the bytes come from, and as they are: what arrives under TLS is not what is read here."""
        self._socket = plain

    def room(self) -> memoryview:
        """Where the next bytes go."""
        return self._view[self._filled :]

    def filled(self, count: int) -> bytes | bytearray:
        """So many have come; what is ready to be looked at, which is nothing while a large piece is on its way."""
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
        """So many bytes are missing of a frame."""
        if self._piece is None and count > SCRATCH_BYTES:
            self._piece = bytearray(min(count, PIECE_BYTES_MAX))
            self._view = memoryview(self._piece)
            self._wake_at(count)

    def _wake_at(self, missing_bytes: int) -> None:
        low_water_bytes = min(missing_bytes, LOW_WATER_BYTES_MAX)
        if self._socket is not None and low_water_bytes != self._low_water_bytes:
            self._low_water_bytes = low_water_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_bytes)
