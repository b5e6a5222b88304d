"""The connections of one client: one per broker address and lane, opened once and closed when idle.

A lane is a separate connection for requests that the broker may hold (fetches), because responses on one
connection come in order. An address that failed is dialled again after `reconnect_backoff_ms`, doubled each
time. Connections without traffic for `connections_max_idle_ms` are closed: the broker would close them a
little later, possibly during a request. Owned by `Cluster`.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from ottla.client.backoff import Reconnects
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientClosed
from ottla.client.security import tls_context
from ottla.client.settings import ClientConfig

Address = tuple[str, int]
_Key = tuple[Address, str]

#: How long a peer may take to read the rest when the client closes.
CLOSE_S_MAX: Final = 2.0


class Pool:
    def __init__(self, settings: ClientConfig) -> None:
        self.settings = settings
        #: The addresses that worked at least once: they are not wrong if they fail now.
        self.known_good: set[Address] = set()
        self._tls = tls_context(settings)
        self._connections: dict[_Key, BrokerConnection] = {}
        self._opening: dict[_Key, asyncio.Task[BrokerConnection]] = {}
        self._reconnects = Reconnects(settings)
        self._closed = False
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None

    def connected(self, address: Address, lane: str = "") -> BrokerConnection | None:
        """The connection to an address, if it is open."""
        connection = self._connections.get((address, lane))
        return connection if connection is not None and connection.open_now else None

    def open_by_load(self) -> list[Address]:
        """The addresses with an open connection that no held request blocks, the fewest requests in flight
        first.
        """
        load = {
            address: connection.pending
            for (address, lane), connection in self._connections.items()
            if connection.open_now and not lane
        }
        return sorted(load, key=load.__getitem__)

    def soonest_first(self, addresses: list[Address]) -> list[Address]:
        """The addresses that may be dialled now before the ones that must wait. Otherwise the order stays."""
        now_s = asyncio.get_running_loop().time()
        return sorted(addresses, key=lambda address: self._reconnects.wait_s(address, now_s))

    async def reach(self, address: Address, lane: str = "") -> BrokerConnection:
        """The connection to an address, opened if needed. Concurrent callers share one attempt."""
        self._check_home()
        found = self.connected(address, lane)
        if found is not None:
            return found
        key = (address, lane)
        task = self._opening.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(key))
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(task)

    def _check_home(self) -> None:
        if self._closed:
            raise ClientClosed("this client is closed", advice="Create a new one")
        here = (os.getpid(), asyncio.get_running_loop())
        if self._home is None:
            self._home = here
        elif self._home[0] != here[0]:
            raise ClientClosed(
                "this client was created in another process, before a fork",
                advice="Create a new one after the fork",
            )
        elif self._home[1] is not here[1]:
            raise ClientClosed(
                "this client belongs to another event loop",
                advice="Use it on the loop it was started on, or create a new one",
            )

    async def _open(self, key: _Key) -> BrokerConnection:
        address, _ = key
        loop = asyncio.get_running_loop()
        wait_s = self._reconnects.wait_s(address, loop.time())
        if wait_s:
            await asyncio.sleep(wait_s)
        try:
            connection = await BrokerConnection.open(*address, self.settings, self._tls)
        except Exception:
            self._reconnects.failed(address, loop.time())
            raise
        self._reconnects.reached(address)
        self.known_good.add(address)
        return connection

    def _opened(self, key: _Key, task: asyncio.Task[BrokerConnection]) -> None:
        self._opening.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        connection = task.result()
        if self._closed:
            connection.close()
            return
        self._connections[key] = connection
        if self.settings.connections_max_idle_ms > 0:
            self._watch_idle(connection, -1)

    def _watch_idle(self, connection: BrokerConnection, requests: int) -> None:
        """Check now and then whether anything was sent, so that the hot path needs no clock."""
        if not connection.open_now:
            return
        if connection.requests == requests and not connection.pending:
            connection.close()
            return
        idle_s = self.settings.connections_max_idle_ms / 1000
        asyncio.get_running_loop().call_later(idle_s, self._watch_idle, connection, connection.requests)

    def drop_all(self) -> None:
        """Close every connection. Later requests open new ones."""
        for connection in self._connections.values():
            connection.close()

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._opening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        # The loop may end next: close the sockets before.
        await asyncio.gather(*(connection.wait_closed(CLOSE_S_MAX) for connection in connections))
