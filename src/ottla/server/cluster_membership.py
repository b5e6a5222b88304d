"""A node's place in a cluster: the session with ZooKeeper, joining with its first life, leaving before its end.

The node opens and closes everything else; here is what waits for others. Nothing holds up the loop, and what takes long is
said, since a person may be watching. The session is closed last of all: until then the cluster knows that this broker is
alive, and a broker that was not told to leave is missed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.runtime.clock import Clock
from ottla.runtime.cluster_link import ClusterLink
from ottla.runtime.core import ClusterCore
from ottla.runtime.zookeeper_link import ZookeeperSettings
from ottla.runtime.zookeeper_store import StoreUnavailable, ZookeeperStore
from ottla.security.cluster_secret import ClusterSecret

#: How long something may take before it is said what is waited for.
_SAY_AFTER_S: Final = 1.0
#: How long the others may take to relieve a broker that stops.
LEAVE_S: Final = 10.0


#: How long a broker that was relieved stays to tell its clients who leads now. Without it, a client that knows no other broker
#: by then loses a second or more in finding one.
LINGER_S: Final = 0.5


class CannotJoin(Exception):
    """The cluster cannot be reached, or does not take this broker; the message says why."""


class ClusterMember:
    """Made and used on the thread of a running loop."""

    def __init__(self, config: BrokerConfig, clock: Clock, say: Callable[[str], None]) -> None:
        self._say = say
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.cluster = ClusterLink(self._loop, clock, say, client_id=f"broker-{config.node_id}")
        try:
            self.store = ZookeeperStore(
                ZookeeperSettings.from_config(config),
                config.node_id,
                self.cluster,
                now_ms=clock.now_ms,
                say=say,
            )
        except StoreUnavailable as error:
            raise CannotJoin(str(error)) from error
        self._connect = config.zookeeper_connect
        self._hurry = asyncio.Event()

    async def connect(self, candidate: str, secret: ClusterSecret) -> tuple[str, ClusterSecret]:
        """Read everything there is; returns id and secret of the cluster, the candidates if this is its first broker."""
        waiting = self._say_later(f"waiting for ZooKeeper at {self._connect}")
        try:
            await self.store.connect()
            return await self.store.cluster_id(candidate), await self.store.cluster_secret(secret)
        except StoreUnavailable as error:
            raise CannotJoin(str(error)) from error
        finally:
            waiting.cancel()

    async def join(self, core: ClusterCore, turn: Callable[[int], None]) -> None:
        """Register, and wait until the cluster has taken this broker in."""
        joined: asyncio.Future[str | None] = self._loop.create_future()

        def done(error: str | None) -> None:
            if not joined.done():
                joined.set_result(error)

        waiting = self._say_later("waiting for the cluster's controller to take this broker in")
        self.cluster.hand_over()
        now_ms = self._clock.now_ms()
        core.join(now_ms, done)
        turn(now_ms)
        try:
            if (error := await joined) is not None:
                raise CannotJoin(error)
        finally:
            waiting.cancel()

    def hurry(self) -> None:
        """Do not wait to be relieved."""
        self._hurry.set()

    async def leave(self, core: ClusterCore, turn: Callable[[int], None]) -> None:
        """Have others take over what this broker leads, within a limit, and let clients learn of it."""
        left = asyncio.Event()
        now_ms = self._clock.now_ms()
        core.leave(now_ms, left.set)
        turn(now_ms)
        waits = [asyncio.ensure_future(event.wait()) for event in (left, self._hurry)]
        await asyncio.wait(waits, timeout=LEAVE_S, return_when=asyncio.FIRST_COMPLETED)
        if not left.is_set():
            self._say("stopping before other brokers have taken over")
        elif len(self.cluster.live) > 1:
            await asyncio.wait(waits[1:], timeout=LINGER_S)
        for wait in waits:
            wait.cancel()

    async def close(self) -> None:
        await self.store.close()

    def _say_later(self, text: str) -> asyncio.TimerHandle:
        return self._loop.call_later(_SAY_AFTER_S, self._say, text)
