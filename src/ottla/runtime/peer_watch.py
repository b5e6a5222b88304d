"""Failure detection by TCP (WATCH): one idle connection to each other broker.

The kernel closes the connections of a process that dies, and refuses new ones to its port. So when a
connection ends, the watcher reconnects at once. If that is refused, the broker has ended, and
`refused(node_id)` is called, seconds before its ZooKeeper session expires. A connection that was closed
because it was idle is re-created. A missing answer is no refusal: a stopped process or a network partition is
left to the session timeout.

While a port refuses connections, the watcher keeps trying, so that it is connected when the broker is back.
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
#: A continuing refusal is reported again after this long.
_REPEAT_S: Final = 1.0
#: A connection that ends sooner was not idle but rejected (too many connections): pause before the next
#: attempt.
_SHORT_S: Final = 1.0
#: Keepalive, for machines that disappear: seconds until the first probe, seconds between probes, number of
#: probes.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


class PeerWatcher:
    def __init__(self, loop: asyncio.AbstractEventLoop, refused: Callable[[int], None]) -> None:
        self._loop = loop
        self._refused = refused
        self._watches: dict[int, PeerWatch] = {}

    def watch(self, peers: Mapping[int, tuple[str, int]]) -> None:
        """Watch exactly these brokers; existing watches stay connected."""
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
    """The watch of one broker: always connecting, connected or pausing."""

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
        #: When the current refusal was last reported.
        self._reported_s: float | None = None
        self._attempt: ConnectAttempt | None = None
        self._try()

    def stop(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
        if self._pausing is not None:
            self._pausing.cancel()
        self._disconnect()

    def interrupted(self, error: Exception) -> None:
        """A callback raised: reconnect after a pause."""
        self.stop()
        self._attempt = None
        self._pause()

    def _try(self) -> None:
        self._pausing = None
        self._attempt = ConnectAttempt(self._loop, *self.address, self._connect_ended)

    def _connect_ended(self, sock: socket.socket | None, error: str | None) -> None:
        self._attempt = None
        now_s = self._loop.time()
        if sock is not None:
            self._sock, self._since_s = sock, now_s
            self._reported_s, self._pause_s = None, _PAUSE_S
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            self._loop.add_reader(sock.fileno(), self._readable)
            return
        self._pause()
        if error == REFUSED and (self._reported_s is None or now_s - self._reported_s >= _REPEAT_S):
            self._reported_s = now_s
            self._refused()

    def _readable(self) -> None:
        assert self._sock is not None
        try:
            # Nothing was requested on this connection, so received bytes are ignored.
            if self._sock.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # a reset ends the connection as well
        self._disconnect()
        if self._loop.time() - self._since_s >= _SHORT_S:
            self._try()
        else:
            self._pause()

    def _pause(self) -> None:
        self._pausing = self._loop.call_later(self._pause_s, self._try)
        self._pause_s = min(_PAUSE_MAX_S, 1.5 * self._pause_s)

    def _disconnect(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
