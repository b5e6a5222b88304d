"""A broker's membership in a cluster: the ZooKeeper session, the registration, the controlled shutdown.

`server/node.py` opens and closes everything else. Steps that wait for other processes are here. None of them
blocks the event loop, and a step that takes long is logged, because a person may be watching. The ZooKeeper
session is closed last: until then the cluster knows that this broker is alive.
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

#: A wait is logged after this long.
_LOG_AFTER_S: Final = 1.0
#: Upper bound on a controlled shutdown.
CONTROLLED_SHUTDOWN_S: Final = 10.0
#: After a controlled shutdown the broker serves this much longer, so that clients can fetch the new leaders
#: from it. Otherwise a client that knows no other broker needs a second or more to find one.
LINGER_S: Final = 0.5


class CannotJoin(Exception):
    """The cluster cannot be reached, or rejects this broker; the message says why."""


class ClusterMembership:
    """Used only on the thread of a running event loop."""

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
        self._skip = asyncio.Event()

    async def connect(self, candidate: str, secret: ClusterSecret) -> tuple[str, ClusterSecret]:
        """Read the metadata; returns id and secret of the cluster, which its first broker sets."""
        waiting = self._log_later(f"waiting for ZooKeeper at {self._connect}")
        try:
            await self.store.connect()
            return await self.store.cluster_id(candidate), await self.store.cluster_secret(secret)
        except StoreUnavailable as error:
            raise CannotJoin(str(error)) from error
        finally:
            waiting.cancel()

    async def join(self, core: ClusterCore, turn: Callable[[int], None]) -> None:
        """Register, and wait until the controller has unfenced this broker."""
        joined: asyncio.Future[str | None] = self._loop.create_future()

        def done(error: str | None) -> None:
            if not joined.done():
                joined.set_result(error)

        waiting = self._log_later("waiting for the controller to register this broker")
        self.cluster.hand_over()
        now_ms = self._clock.now_ms()
        core.join(now_ms, done)
        turn(now_ms)
        try:
            if (error := await joined) is not None:
                raise CannotJoin(error)
        finally:
            waiting.cancel()

    def skip_controlled_shutdown(self) -> None:
        """Do not wait until other brokers lead the partitions."""
        self._skip.set()

    async def leave(self, core: ClusterCore, turn: Callable[[int], None]) -> None:
        """Controlled shutdown: other brokers become leaders within a time limit, and clients discover them."""
        left = asyncio.Event()
        now_ms = self._clock.now_ms()
        core.leave(now_ms, left.set)
        turn(now_ms)
        waits = [asyncio.ensure_future(event.wait()) for event in (left, self._skip)]
        await asyncio.wait(waits, timeout=CONTROLLED_SHUTDOWN_S, return_when=asyncio.FIRST_COMPLETED)
        if not left.is_set():
            self._say("controlled shutdown is incomplete: stopping before other brokers lead all partitions")
        elif len(self.cluster.live) > 1:
            await asyncio.wait(waits[1:], timeout=LINGER_S)
        for wait in waits:
            wait.cancel()

    async def close(self) -> None:
        await self.store.close()

    def _log_later(self, text: str) -> asyncio.TimerHandle:
        return self._loop.call_later(_LOG_AFTER_S, self._say, text)
