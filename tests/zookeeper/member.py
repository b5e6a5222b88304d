"""A broker as the metadata store sees it, which records all events; and a proxy that breaks connections."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

from ottla.metadata import records as r
from ottla.ports.store import Registration
from ottla.runtime.zookeeper_link import ZookeeperSettings
from ottla.runtime.zookeeper_store import ZookeeperStore

LIMIT_S = 20.0


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 100))

    return run


async def until(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {LIMIT_S} s for {what or condition}"
        await asyncio.sleep(0.005)


def topic(number: int, size: int = 0) -> r.Topic:
    return r.Topic(f"t{number}" + "x" * size, number.to_bytes(16, "big"))


class Member:
    def __init__(self, connect: str, node_id: int = 1, **settings: Any) -> None:
        self.node_id = node_id
        self.records: list[Any] = []
        self.live: Mapping[int, Registration] = {}
        self.controller = (0, 0)
        #: Every call in order, by name; `committed` with the number of records, `done` with its error.
        self.calls: list[Any] = []
        self.said: list[str] = []
        settings = {"session_timeout_ms": 6000, "connection_timeout_ms": 10_000, **settings}
        self.store = ZookeeperStore(
            ZookeeperSettings(connect, **settings),
            node_id,
            self,
            now_ms=lambda: int(time.time() * 1000),
            say=self.said.append,
        )

    # --- what the store tells -------------------------------------------------------------------------------

    def restored(self, records: Sequence[Any], now_ms: int) -> None:
        self.records = list(records)
        self.calls.append(("restored", len(records)))

    def committed(self, records: list[Any], now_ms: int) -> None:
        self.records += records
        self.calls.append(("committed", len(records)))

    def rejected(self, now_ms: int) -> None:
        self.calls.append("rejected")

    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None:
        self.live = dict(live)
        self.calls.append(("live", sorted(live)))

    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None:
        self.controller = (node_id, epoch)
        self.calls.append(("controller", node_id, epoch))

    def store_suspended(self, now_ms: int) -> None:
        self.calls.append("suspended")

    def store_back(self, now_ms: int) -> None:
        self.calls.append("back")

    def store_lost(self, now_ms: int) -> None:
        self.calls.append("lost")

    # --- what is asked of it --------------------------------------------------------------------------------

    def registration(self, directory: str = "", incarnation: str = "first") -> Registration:
        directories = (directory or f"directory-{self.node_id}",)
        return Registration(self.node_id, "h", 9000 + self.node_id, None, directories, incarnation, True)

    async def register(self, directory: str = "", incarnation: str = "first") -> tuple[int, str | None]:
        return await answer(self.store.register, self.registration(directory, incarnation))

    async def claim(self) -> tuple[int, str | None]:
        return await answer(self.store.claim)

    async def usurp(self, node_id: int, epoch: int) -> tuple[int, str | None]:
        return await answer(self.store.usurp, node_id, epoch)

    async def append(self, *records: Any) -> str | None:
        return (await answer(self.store.append, records))[0]

    async def snapshot(self) -> str | None:
        return (await answer(self.store.snapshot, self.records))[0]

    async def until_controller(self, node_id: int, epoch: int) -> None:
        await until(lambda: self.controller == (node_id, epoch), f"controller {node_id} of epoch {epoch}")

    def propose(self, *records: Any) -> list[str | None]:
        """Append without waiting; the result becomes the only item of the list."""
        answers: list[str | None] = []

        def done(error: str | None) -> None:
            self.calls.append(("done", error))
            answers.append(error)

        self.store.append(records, done)
        return answers


async def answer(ask: Callable[..., None], *arguments: Any) -> Any:
    future = asyncio.get_running_loop().create_future()
    ask(*arguments, lambda *result: future.set_result(result))
    return await asyncio.wait_for(future, LIMIT_S)


@asynccontextmanager
async def member(connect: str, node_id: int = 1, **settings: Any) -> AsyncIterator[Member]:
    one = Member(connect, node_id, **settings)
    await one.store.connect()
    try:
        yield one
    finally:
        await one.store.close()


class Proxy:
    """Between a client and a server. Armed, it breaks the connection at the next request that holds a text:
    before the server sees it, or after the server has answered, whose answer it keeps.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.broken = 0
        self._text = b""
        self._before = False
        self._connections: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._swallowing: set[asyncio.StreamWriter] = set()

    def arm(self, text: bytes, *, before: bool) -> None:
        self._text, self._before = text, before

    def cut(self) -> None:
        """Close every connection now."""
        for writers in self._connections:
            for writer in writers:
                writer.close()
        self._connections.clear()

    async def serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        try:
            server_in, server_out = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            client_out.close()
            return
        self._connections.append((client_out, server_out))
        try:
            await asyncio.gather(
                self._requests(client_in, server_out, client_out), self._answers(server_in, client_out)
            )
        except OSError:
            pass
        finally:
            client_out.close()
            server_out.close()

    async def _requests(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(1 << 20):
            if self._text and self._text in data:
                self._text = b""
                self.broken += 1
                if self._before:
                    break
                self._swallowing.add(back)
            target.write(data)
        target.close()
        back.close()

    async def _answers(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 20):
            if target in self._swallowing:
                break
            target.write(data)
        target.close()


@asynccontextmanager
async def proxy(target_port: int) -> AsyncIterator[Proxy]:
    one = Proxy(target_port)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        one.cut()
