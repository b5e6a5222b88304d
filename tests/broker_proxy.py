"""A proxy in front of one broker, which does to its clients what networks do: delay, silence, cuts, answers that are lost.

It knows the frames of the protocol and the API of each request, so that a test can lose the answer to one Produce, hold back
one kind of request, change an answer, and count what a client has asked for. The broker listens on `target_port` and advertises
the proxy's address (`advertised` is the setting), or clients would go past it. It runs on an event loop in a thread of its own; its methods may be called
from any other.
"""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Self

from ottla.wire.decode import decode_request
from ottla.wire.encode import response_encoder
from tests.cluster.running_cluster import free_ports

PRODUCE, FETCH, METADATA, HEARTBEAT, INIT_PRODUCER_ID = 0, 1, 3, 12, 22
TIMEOUT_S = 20.0

#: API key, version and the answer from its correlation id on; what the client is to have instead.
Rewrite = Callable[[int, int, bytes], bytes]
#: API key, version and a request; its answer, which the client gets at once and the broker never hears of, or None.
AnswerItself = Callable[[int, int, bytes], bytes | None]


class _Frame(NamedTuple):
    due_s: float
    data: bytes


class _Link:
    """One connection of a client, and the one that was made for it to the broker."""

    def __init__(self, to_client: asyncio.StreamWriter, to_broker: asyncio.StreamWriter) -> None:
        self.writers = (to_client, to_broker)
        self.asked: dict[int, tuple[int, int]] = {}

    def close(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    def __init__(self) -> None:
        #: Where the broker is to listen. Until it does, whoever connects is cut off.
        self.target_port = next(free_ports())
        self.delay_s = self.jitter_s = 0.0
        self.is_refusing = False
        self.rewrite: Rewrite | None = None
        self.answer_itself: AnswerItself | None = None
        #: By API key: how many requests came, their bytes, and the most that were unanswered on one connection.
        self.requests: Counter[int] = Counter()
        self.request_bytes: Counter[int] = Counter()
        self.in_flight_max: Counter[int] = Counter()
        #: By API key: how many answers the broker gave.
        self.answers: Counter[int] = Counter()
        self.connections_made = 0
        self._swallowing: Counter[int] = Counter()
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._open = asyncio.Event()
        self._held: dict[int, asyncio.Event] = {}
        self._held_answers: dict[int, asyncio.Event] = {}
        self._server = self._run(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.advertised = f"PLAINTEXT://{self.address}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    # --- what a network does ----------------------------------------------------------------------------------

    def pause(self) -> None:
        """Nothing passes, in either direction, and nobody is told."""
        self._call(self._open.clear)

    def resume(self) -> None:
        """What was held passes, in its order."""
        self._call(self._open.set)

    def cut(self) -> None:
        """Break every connection."""
        self._call(self._cut)

    def hold(self, api_key: int) -> None:
        """Keep requests of this kind, and what follows them on their connection, from the broker."""
        self._call(lambda: self._held.setdefault(api_key, asyncio.Event()))

    def release(self, api_key: int) -> None:
        self._call(lambda: self._held.pop(api_key).set())

    def hold_answers(self, api_key: int) -> None:
        """The broker hears requests of this kind and does them; its answers, and what follows them on their connection, are kept back."""
        self._call(lambda: self._held_answers.setdefault(api_key, asyncio.Event()))

    def release_answers(self, api_key: int) -> None:
        self._call(lambda: self._held_answers.pop(api_key).set())

    def lose_answers(self, api_key: int, times: int = 1) -> None:
        """The broker hears the next requests of this kind and does them; its answer is lost with the connection."""
        self._call(lambda: self._swallowing.update({api_key: times}))

    def forget(self) -> None:
        """Count from nothing."""
        for counter in (self.requests, self.request_bytes, self.in_flight_max, self.answers):
            counter.clear()

    def heal(self) -> None:
        """All is as it was at first; connections stay."""
        self.delay_s = self.jitter_s = 0.0
        self.is_refusing, self.rewrite, self.answer_itself = False, None, None
        self._call(self._swallowing.clear)
        for api_key in list(self._held):
            self.release(api_key)
        for api_key in list(self._held_answers):
            self.release_answers(api_key)
        self.resume()
        self.forget()

    # --- on its loop ------------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def _call(self, function: Callable[[], object]) -> None:
        async def run() -> None:
            function()

        self._run(run())

    async def _listen(self) -> asyncio.Server:
        self._open.set()
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    def _cut(self) -> None:
        for link in list(self._links):
            link.close()

    async def _close(self) -> None:
        self._server.close()
        self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            if self.is_refusing:
                raise ConnectionRefusedError
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            to_client.transport.abort()
            return
        self.connections_made += 1
        link = _Link(to_client, to_broker)
        self._links.add(link)
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._carry(
                    from_client,
                    to_broker,
                    lambda frame: self._count(link, frame),
                    lambda frame: self._request(link, frame),
                ),
                self._carry(from_broker, to_client, len, lambda frame: self._answer(link, frame)),
            )
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._links.discard(link)
            link.close()

    async def _carry(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        heard: Callable[[bytes], object],
        pass_on: Callable[[bytes], Coroutine[Any, Any, bytes | None]],
    ) -> None:
        """Until either end closes. What `pass_on` makes of a frame goes on; nothing if that is empty, and None ends it. The delay is of each frame, not of the rate: any number may be on their way."""
        frames: asyncio.Queue[_Frame] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                frame = await frames.get()
                await asyncio.sleep(max(0.0, frame.due_s - self._loop.time()))
                await self._open.wait()
                data = await pass_on(frame.data)
                if data is None:
                    return
                if data:
                    target.write(_framed(data))
                    await target.drain()

        async def receive() -> None:
            while True:
                size = int.from_bytes(await source.readexactly(4), "big")
                data = await source.readexactly(size)
                heard(data)
                late_s = self.delay_s + random.uniform(0.0, self.jitter_s)
                frames.put_nowait(_Frame(self._loop.time() + late_s, data))

        tasks = [asyncio.create_task(receive()), asyncio.create_task(deliver())]
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                for done in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                    done.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _count(self, link: _Link, frame: bytes) -> None:
        api_key, version, number = _head(frame)
        self.requests[api_key] += 1
        self.request_bytes[api_key] += len(frame)
        link.asked[number] = api_key, version
        together = sum(key == api_key for key, _version in link.asked.values())
        self.in_flight_max[api_key] = max(self.in_flight_max[api_key], together)

    async def _request(self, link: _Link, frame: bytes) -> bytes:
        api_key, version, number = _head(frame)
        while (held := self._held.get(api_key)) is not None:
            await held.wait()
        answer = None if self.answer_itself is None else self.answer_itself(api_key, version, frame)
        if answer is None:
            return frame
        link.asked.pop(number)
        link.writers[0].write(_framed(answer))
        return b""

    async def _answer(self, link: _Link, frame: bytes) -> bytes | None:
        api_key, version = link.asked.pop(int.from_bytes(frame[:4], "big"))
        self.answers[api_key] += 1
        while (held := self._held_answers.get(api_key)) is not None:
            await held.wait()
        if self._swallowing[api_key] > 0:
            self._swallowing[api_key] -= 1
            return None
        return frame if self.rewrite is None else self.rewrite(api_key, version, frame)


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _head(frame: bytes) -> tuple[int, int, int]:
    """API key, version, correlation id."""
    return (
        int.from_bytes(frame[:2], "big"),
        int.from_bytes(frame[2:4], "big"),
        int.from_bytes(frame[4:8], "big"),
    )


def refuse_produces(proxy: Proxy, code: int, times: int = 1) -> None:
    """The next Produce requests are answered with this error for each of their partitions; the broker never sees them."""
    left = times

    def answer(api_key: int, version: int, frame: bytes) -> bytes | None:
        nonlocal left
        if api_key != PRODUCE or left <= 0:
            return None
        left -= 1
        # The client's id is a string with its length before it; then, in flexible versions, no tags.
        start = 10 + max(int.from_bytes(frame[8:10], "big", signed=True), 0) + (version >= 9)
        topics = [
            {
                **({"topic_id": topic.topic_id.bytes} if version >= 13 else {"name": topic.name}),
                "partition_responses": [
                    {"index": part.index, "error_code": code, "base_offset": -1}
                    for part in topic.partition_data
                ],
            }
            for topic in decode_request(api_key, version, frame, start).topic_data
        ]
        body = response_encoder(api_key, version)({"responses": topics})
        return frame[4:8] + (b"\0" if version >= 9 else b"") + body

    proxy.answer_itself = answer
