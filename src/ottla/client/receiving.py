"""Where a connection's bytes arrive: a scratch for small answers, and for a large one as much of it at once as the kernel has.

asyncio's own way is a new object of 256 KiB for each read. After each read the event loop must get the interpreter back, for which a thread that
computes lets it wait up to 5 ms; so a fetch that comes in few large reads arrives while the caller works on the one before.
"""

from __future__ import annotations

SCRATCH_BYTES = 65_536
#: A size that a frame claims is believed this far at a time.
PIECE_BYTES_MAX = 8 << 20


class ReceiveBuffer:
    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._piece: bytearray | None = None
        self._view = self._scratch
        self._filled = 0

    def room(self) -> memoryview:
        """Where the next bytes go."""
        return self._view[self._filled :]

    def filled(self, count: int) -> bytes | bytearray:
        """So many have come; what is ready to be looked at, which is nothing while a large piece is on its way."""
        if self._piece is None:
            return bytes(self._scratch[:count])
        self._filled += count
        if self._filled < len(self._piece):
            return b""
        ready = self._piece
        self._piece, self._view, self._filled = None, self._scratch, 0
        return ready

    def expect(self, count: int) -> None:
        """So many bytes are missing of a frame."""
        if self._piece is None and count > SCRATCH_BYTES:
            self._piece = bytearray(min(count, PIECE_BYTES_MAX))
            self._view = memoryview(self._piece)
