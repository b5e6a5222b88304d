"""Watches on real sockets: events that prove the end of a process, and events that do not."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from ottla.runtime import peer_watch
from ottla.runtime.peer_watch import PeerWatcher

PATIENCE_S = 30


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE_S))

    return run


class Port:
    """A port that listens, or that is bound without listening and refuses."""

    def __init__(self) -> None:
        self._keeper = socket.socket()
        self._keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._keeper.bind(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._keeper.getsockname()
        self._listener: socket.socket | None = None
        self._accepted: list[socket.socket] = []

    def listen(self) -> None:
        sock = self._listener = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(self.address)
        sock.listen()
        sock.setblocking(False)

    async def accept(self) -> socket.socket:
        assert self._listener is not None
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        self._accepted.append(connection)
        return connection

    def refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def close(self) -> None:
        self.refuse()
        for sock in (self._keeper, *self._accepted):
            sock.close()


class Watcher:
    def __init__(self) -> None:
        self.refusals: list[int] = []
        self.times: list[float] = []
        self._news = asyncio.Event()
        self.watcher = PeerWatcher(asyncio.get_running_loop(), self._refused)

    def _refused(self, node_id: int) -> None:
        self.refusals.append(node_id)
        self.times.append(asyncio.get_running_loop().time())
        self._news.set()

    async def until(self, count: int) -> None:
        while len(self.refusals) < count:
            self._news.clear()
            await self._news.wait()


@on_a_loop
async def test_the_end_of_a_process_is_reported_when_its_port_refuses() -> None:
    port, watcher = Port(), Watcher()
    port.listen()
    watcher.watcher.watch({7: port.address})
    connection = await port.accept()
    # Like the kernel for a dead process: close the port and its connections together.
    port.refuse()
    connection.close()
    await watcher.until(1)
    assert watcher.refusals == [7]
    # The broker is back, and the watch reconnects.
    port.listen()
    connection = await port.accept()
    port.refuse()
    connection.close()
    await watcher.until(2)
    watcher.watcher.stop()
    port.close()


@on_a_loop
async def test_a_reset_ends_a_connection_too() -> None:
    port, watcher = Port(), Watcher()
    port.listen()
    watcher.watcher.watch({7: port.address})
    connection = await port.accept()
    port.refuse()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    await watcher.until(1)
    watcher.watcher.stop()
    port.close()


@on_a_loop
async def test_an_idle_connection_that_was_closed_is_recreated_without_a_report() -> None:
    port, watcher = Port(), Watcher()
    port.listen()
    watcher.watcher.watch({7: port.address})
    for _ in range(3):
        connection = await port.accept()
        connection.close()
    await port.accept()
    assert watcher.refusals == []
    watcher.watcher.stop()
    port.close()


@on_a_loop
async def test_a_continuing_refusal_is_reported_at_most_once_a_second() -> None:
    port, watcher = Port(), Watcher()
    watcher.watcher.watch({7: port.address})
    await watcher.until(3)
    gaps = [after - before for before, after in zip(watcher.times, watcher.times[1:], strict=False)]
    assert all(gap >= peer_watch._REPEAT_S for gap in gaps)
    watcher.watcher.stop()
    port.close()


@on_a_loop
async def test_silence_is_no_refusal() -> None:
    port, watcher = Port(), Watcher()
    port.listen()
    watcher.watcher.watch({7: port.address})
    connection = await port.accept()
    # A stopped process: its kernel still accepts connections, and none of them ends.
    watcher.watcher.watch({7: port.address, 8: port.address})
    await port.accept()
    assert watcher.refusals == []
    watcher.watcher.stop()
    # After `stop` the connection ends on the other side.
    connection.setblocking(False)
    assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""
    port.close()


@on_a_loop
async def test_those_no_longer_watched_are_let_go_and_the_others_are_left_alone() -> None:
    first, second, watcher = Port(), Port(), Watcher()
    first.listen()
    second.listen()
    watcher.watcher.watch({1: first.address, 2: second.address})
    one, two = await first.accept(), await second.accept()
    watcher.watcher.watch({2: second.address})
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    assert await loop.sock_recv(one, 1) == b""
    first.refuse()
    second.refuse()
    two.close()
    await watcher.until(1)
    assert watcher.refusals == [2]
    # Another address of the same broker is another watch.
    third = Port()
    third.listen()
    watcher.watcher.watch({2: third.address})
    await third.accept()
    watcher.watcher.stop()
    for port in (first, second, third):
        port.close()
