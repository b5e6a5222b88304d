"""What can befall a broker's session with ZooKeeper: it ends at the server's word, or the way there is cut.

A session belongs to whoever knows its number and its password. The number is in the broker's registration; the password
ZooKeeper makes of the number, with Java's random numbers. So a test can take a session over and close it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Self

from kazoo.client import KazooClient

from ottla.runtime import zookeeper_layout as layout

_SECRET = 0xB3415C00
_PATIENCE_S = 10.0


def expire_session(connect: str, node_id: int) -> None:
    """End the session of this broker behind its back."""
    with looking(connect) as client:
        _data, stat = client.get(layout.broker(node_id))
        session = stat.ephemeralOwner
        address = connect.partition("/")[0]
        # The broker, cut off by the thief, may take its session back before the thief has closed it.
        while client.exists(layout.broker(node_id), watch=None) and (
            client.get(layout.broker(node_id))[1].ephemeralOwner == session
        ):
            thief = KazooClient(address, client_id=(session, _password(session)), timeout=_PATIENCE_S)
            with contextlib.suppress(thief.handler.timeout_exception):
                thief.start(timeout=2)
            thief.stop()
            thief.close()


@contextlib.contextmanager
def looking(connect: str) -> Iterator[KazooClient]:
    """A client that looks at what the cluster has in ZooKeeper."""
    client = KazooClient(connect, timeout=_PATIENCE_S)
    client.start(timeout=_PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def _password(session: int) -> bytes:
    """`new Random(session ^ secret).nextBytes(new byte[16])`"""
    seed = ((session ^ _SECRET) ^ 0x5DEECE66D) & ((1 << 48) - 1)
    password = b""
    for _ in range(4):
        seed = (seed * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        password += (seed >> 16).to_bytes(4, "little")
    return password


class Line:
    """The way from one broker to ZooKeeper, which can be cut and mended. `with` opens it."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.port = 0
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exception: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def cut(self) -> None:
        """Whatever is open breaks, and nothing gets through any more."""
        self._run(self._cut())

    def mend(self) -> None:
        self._is_cut = False

    def _run(self, coroutine):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE_S)

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        for source, target in ((reader, onward_writer), (onward_reader, writer)):
            self._writers.add(target)
            task = self._loop.create_task(self._pump(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        self._writers.discard(target)
        target.transport.abort()
