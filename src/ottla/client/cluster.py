"""The cluster as one client reaches it: bootstrap, metadata kept fresh, and one connection a broker and lane.

Connections are pooled by address, so that the bootstrap connection goes on serving when the broker advertises the same
address. A lane is a connection of its own for requests that may be held by the broker (fetches), because answers on
one connection come in order. What any broker can answer is asked of the least busy, and of the next one too if that takes long.
Metadata is refreshed when asked for, after failures (`refresh_soon`, which gathers
callers and backs off) and every `metadata_max_age_ms`. Producer, consumer and admin each own one `Cluster`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ottla.client.connection import Body, BrokerConnection
from ottla.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientClosed,
    KafkaError,
    TopicNotFound,
    refused,
)
from ottla.client.metadata import Metadata, Node, TopicInfo
from ottla.client.security import tls_context
from ottla.client.settings import Client, address_text
from ottla.model.errors import ErrorCode

METADATA = 3
GOODBYE_S_MAX = 2.0
#: How long one broker is waited for before another is asked as well.
HEDGE_S = 1.0

Result = TypeVar("Result")

Address = tuple[str, int]


def backoff_ms(settings: Client, attempt: int) -> float:
    """How long to wait before attempt number `attempt` (1 is the first retry): doubled each time, with jitter."""
    full = min(settings.retry_backoff_max_ms, settings.retry_backoff_ms << min(attempt - 1, 16))
    return full * random.uniform(0.8, 1.2)


class Cluster:
    def __init__(self, bootstrap: list[Address], settings: Client, *, create_topics: bool = False) -> None:
        self.metadata = Metadata()
        self.settings = settings
        self._tls = tls_context(settings)
        self._bootstrap = bootstrap
        self._create_topics = create_topics
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Task[BrokerConnection]] = {}
        self._watched: set[str] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._periodic: asyncio.TimerHandle | None = None
        self._closed = False
        self._changed = asyncio.Event()
        self._failures = 0

    async def start(self) -> None:
        """Reach any bootstrap broker and learn the brokers, or raise `BrokerUnreachable` naming every attempt."""
        await self.refresh(())
        self._schedule()

    async def close(self) -> None:
        self._closed = True
        if self._periodic is not None:
            self._periodic.cancel()
        tasks: list[asyncio.Task[Any]] = [*self._opening.values()]
        if self._refreshing is not None:
            tasks.append(self._refreshing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        # The loop may end next: the sockets must be closed before.
        await asyncio.gather(*(connection.wait_closed(GOODBYE_S_MAX) for connection in connections))

    # Metadata

    async def refresh(self, topics: Iterable[str] | None) -> Metadata:
        """Ask any broker for these topics (None: all of them) and merge the answer."""
        names = None if topics is None else list(topics)
        body: Body = {
            "topics": None if names is None else [{"name": name} for name in names],
            "allow_auto_topic_creation": self._create_topics,
        }
        response = await self.ask_any(METADATA, body)
        self.metadata = self.metadata.merged(response, complete=names is None)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return self.metadata

    async def topic(self, name: str, timeout_ms: float) -> TopicInfo:
        """The topic, waiting for it to be created or to get its leaders; else `TopicNotFound`."""
        self._watched.add(name)
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        attempt = 0
        while True:
            known = self.metadata.topics.get(name)
            if known is not None:
                return known
            metadata = await self.refresh((name,))
            if name in metadata.topics:
                continue
            code = metadata.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            attempt += 1
            wait_s = backoff_ms(self.settings, attempt) / 1000
            # Without auto-creation a topic that is not there will not appear by waiting, unless it was just made
            # and this broker has not heard: one more look.
            hopeless = not self._create_topics and attempt > 1
            if not code.retriable or hopeless or asyncio.get_running_loop().time() + wait_s > deadline:
                if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                    raise TopicNotFound(
                        f"topic {name!r} does not exist",
                        code=code,
                        topic=name,
                        advice=f"Create it with `ottla topic create {name}`, or look with `ottla topic list`",
                    )
                raise refused(code, f"topic {name!r}", topic=name)
            await asyncio.sleep(wait_s)

    def watch(self, topics: Iterable[str]) -> None:
        """Keep these topics in every refresh from now on."""
        self._watched.update(topics)

    def refresh_soon(self) -> None:
        """Refresh in the background; calls that come while one runs share it."""
        if self._closed or (self._refreshing is not None and not self._refreshing.done()):
            return
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh_watched())

    async def _refresh_watched(self) -> None:
        try:
            await self.refresh(self._watched)
            self._failures = 0
        except KafkaError:
            self._failures += 1
        # Whoever asks again at once, because the answer did not help, waits for this task: that is the back-off.
        await asyncio.sleep(backoff_ms(self.settings, self._failures + 1) / 1000)

    async def changed(self) -> None:
        """Wait for the next answer about metadata."""
        await self._changed.wait()

    def _schedule(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        self._periodic = loop.call_later(self.settings.metadata_max_age_ms / 1000, self._tick)

    def _tick(self) -> None:
        self.refresh_soon()
        self._schedule()

    # Connections

    def connected(self, node: Node, lane: str = "") -> BrokerConnection | None:
        """The connection to a broker if it is open now."""
        connection = self._connections.get(((node.host, node.port), lane))
        return connection if connection is not None and connection.open_now else None

    async def connection(self, node: Node, lane: str = "") -> BrokerConnection:
        """The connection to a broker, opened if need be; callers at the same time share one attempt."""
        try:
            return await self._reach((node.host, node.port), lane)
        except BrokerUnreachable as error:
            if (node.host, node.port) in self._bootstrap:
                raise
            known = ", ".join(address_text(*address) for address in self._bootstrap)
            raise BrokerUnreachable(
                f"broker {node.id} advertises {node.address}, and {error.message}",
                broker=node.address,
                advice=f"{known} answered, so check advertised.listeners on broker {node.id}: "
                "it must be an address that this machine can reach",
            ) from error

    async def controller(self) -> BrokerConnection:
        """The controller's connection, or any: Kafka forwards, and who does not answers NOT_CONTROLLER."""
        node = self.metadata.nodes.get(self.metadata.controller_id)
        return await (self.any_connection() if node is None else self.connection(node))

    async def any_connection(self) -> BrokerConnection:
        """An open connection, else one to a known broker, else to a bootstrap address."""
        return await self._any(self._reach_main)

    async def ask_any(self, api_key: int, body: Body) -> Any:
        """The answer of whichever broker gives one first."""

        async def ask(address: Address) -> Any:
            return await (await self._reach_main(address)).request(api_key, body)

        return await self._any(ask)

    async def _reach_main(self, address: Address) -> BrokerConnection:
        return await self._reach(address, "")

    def _by_load(self) -> list[Address]:
        """Where to ask what anybody knows: those that are connected, the least busy first; then the others, as chance has it."""
        load = {
            address: connection.pending
            for (address, lane), connection in self._connections.items()
            if connection.open_now and not lane
        }
        known = ((node.host, node.port) for node in self.metadata.nodes.values())
        others = [each for each in dict.fromkeys([*known, *self._bootstrap]) if each not in load]
        random.shuffle(others)
        return [*sorted(load, key=load.__getitem__), *others]

    async def _any(self, attempt: Callable[[Address], Coroutine[Any, Any, Result]]) -> Result:
        """Try brokers until one attempt succeeds: the next begins when one has failed, or has taken `HEDGE_S`.

        A broker may stand still while its connections stay open; nobody shall wait for that one while others live.
        """
        left = deque(self._by_load())
        running: set[asyncio.Task[Result]] = set()
        failures: list[KafkaError] = []
        try:
            while left or running:
                if left:
                    running.add(asyncio.get_running_loop().create_task(attempt(left.popleft())))
                done, running = await asyncio.wait(
                    running, timeout=HEDGE_S if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    try:
                        return task.result()
                    except AuthenticationFailed:
                        # The others would say the same, and count it against the user.
                        raise
                    except KafkaError as error:
                        failures.append(error)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if len(failures) == 1:
            raise failures[0]
        raise BrokerUnreachable(
            "no broker can be reached: " + "; ".join(error.message for error in failures),
            advice=failures[0].advice,
        )

    async def _reach(self, address: Address, lane: str) -> BrokerConnection:
        if self._closed:
            raise ClientClosed("this client is closed", advice="Make a new one")
        key = (address, lane)
        connection = self._connections.get(key)
        if connection is not None and connection.open_now:
            return connection
        task = self._opening.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                BrokerConnection.open(*address, self.settings, self._tls)
            )
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(task)

    def _opened(self, key: tuple[Address, str], task: asyncio.Task[BrokerConnection]) -> None:
        self._opening.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        connection = task.result()
        if self._closed:
            connection.close()
        else:
            self._connections[key] = connection
