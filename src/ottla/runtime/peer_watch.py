"""Watching other brokers (WATCH): one idle connection each, whose end says that a process has ended.

A kernel closes the connections of a process that dies, however it dies, and refuses new ones to its port. So when a
connection ends, another is tried at once: if that is refused, nobody listens there any more, and `refused(node_id)` says
so, seconds before the session in the store would. A connection that was closed for being idle is simply made anew.
No answer is no refusal: a stopped process or a cut network shows nothing here, and is left to the store.

While a port refuses, it is tried again and again, so that the watch is there when the broker is back.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ottla.ports.effects import REFUSED
from ottla.runtime.connect_attempt import ConnectAttempt

_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.5
#: How often a refusal is repeated while it lasts.
_REPEAT_S: Final = 1.0
#: One that ends sooner was not idle, it was unwelcome (too many connections): no reason to try as fast as we can.
_SHORT_S: Final = 1.0
#: Of a machine that is gone without a word, the connection must not seem alive for ever: seconds until the first probe,
#: between two, and how many.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


class PeerWatcher:
    def __init__(self, loop: asyncio.AbstractEventLoop, refused: Callable[[int], None]) -> None:
        self._loop = loop
        self._refused = refused
        self._watches: dict[int, PeerWatch] = {}

    def watch(self, peers: Mapping[int, tuple[str, int]]) -> None:
        """These from now on; those that are watched already go on undisturbed."""
        for node_id, watch in list(self._watches.items()):
            if peers.get(node_id) != watch.address:
                del self._watches[node_id]
                watch.stop()
        for node_id, address in peers.items():
            if node_id not in self._watches:
                self._watches[node_id] = PeerWatch(self._loop, address, partial(self._refused, node_id))

    def stop(self) -> None:
        self.watch({})


class PeerWatch:
    """One peer. Always one of: dialing, connected, pausing."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, address: tuple[str, int], refused: Callable[[], None]
    ) -> None:
        self.address = address
        self._loop = loop
        self._refused = refused
        self._sock: socket.socket | None = None
        self._pausing: asyncio.TimerHandle | None = None
        self._pause_s = _PAUSE_S
        self._since_s = 0.0
        #: When the present refusal was told last.
        self._told_s: float | None = None
        self._dial: ConnectAttempt | None = None
        self._try()

    def stop(self) -> None:
        if self._dial is not None:
            self._dial.cancel()
        if self._pausing is not None:
            self._pausing.cancel()
        self._let_go()

    def interrupted(self, error: Exception) -> None:
        """A callback raised: it begins again after a pause."""
        self.stop()
        self._dial = None
        self._pause()

    def _try(self) -> None:
        self._pausing = None
        self._dial = ConnectAttempt(self._loop, *self.address, self._dialed)

    def _dialed(self, sock: socket.socket | None, error: str | None) -> None:
        self._dial = None
        now_s = self._loop.time()
        if sock is not None:
            self._sock, self._since_s = sock, now_s
            self._told_s, self._pause_s = None, _PAUSE_S
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            self._loop.add_reader(sock.fileno(), self._readable)
            return
        self._pause()
        if error == REFUSED and (self._told_s is None or now_s - self._told_s >= _REPEAT_S):
            self._told_s = now_s
            self._refused()

    def _readable(self) -> None:
        assert self._sock is not None
        try:
            # Nobody asked anything here, so whatever comes is not for us.
            if self._sock.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # reset: ended as well
        self._let_go()
        if self._loop.time() - self._since_s >= _SHORT_S:
            self._try()
        else:
            self._pause()

    def _pause(self) -> None:
        self._pausing = self._loop.call_later(self._pause_s, self._try)
        self._pause_s = min(_PAUSE_MAX_S, 1.5 * self._pause_s)

    def _let_go(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
