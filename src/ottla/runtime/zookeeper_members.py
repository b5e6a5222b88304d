"""Live brokers and the controller in ZooKeeper: ephemeral znodes, watched by all brokers.

Each coroutine can be restarted after its connection broke: a registration or a claim that succeeded unnoticed
is recognized by the session that owns its znode. `zookeeper_store.py` runs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import NoNodeError

from ottla.controller.broker_epoch import registered_epoch
from ottla.ports.store import Registration, StoreEvents
from ottla.runtime import zookeeper_layout as layout
from ottla.runtime.zookeeper_layout import Control, Holder
from ottla.runtime.zookeeper_link import Link, raise_unless_race


class Members:
    """The last reported brokers and controller; only changes are reported."""

    def __init__(self, link: Link, events: StoreEvents, now_ms: Callable[[], int]) -> None:
        self._link = link
        self._events = events
        self._now_ms = now_ms
        self._live: dict[int, Registration] | None = None
        self._holder: Holder | None = None

    async def read_brokers(self, moved: asyncio.Event) -> None:
        names = await self._link.children(layout.IDS, watch=moved.set)
        asked = [(node_id, self._link.get(layout.broker(node_id))) for node_id in sorted(map(int, names))]
        live: dict[int, Registration] = {}
        for node_id, answer in asked:
            try:
                data, stat = await answer
            except NoNodeError:
                continue  # deleted meanwhile: the watch has fired
            live[node_id] = layout.decode_registration(node_id, data, stat.czxid)
        if live != self._live:
            self._live = live
            self._events.live_brokers(live, self._now_ms())

    async def read_controller(self, moved: asyncio.Event) -> None:
        try:
            data, _ = await self._link.get(layout.CONTROLLER, watch=moved.set)
        except NoNodeError:
            if await self._link.exists(layout.CONTROLLER, watch=moved.set) is not None:
                # Claimed between the two requests: read again.
                moved.set()
                return
            epoch, _ = await self._link.get(layout.CONTROLLER_EPOCH)
            holder = Holder(-1, int(epoch))
        else:
            holder = layout.decode_holder(data)
        if holder != self._holder:
            self._holder = holder
            self._events.controller_is(holder.node_id, holder.epoch, self._now_ms())


async def register(link: Link, registration: Registration) -> tuple[int, str | None]:
    """(broker epoch, None), or 0 and the broker that uses the node id."""
    path = layout.broker(registration.node_id)
    while True:
        parent, present = link.get(layout.IDS), link.get(path)
        # Every registration increases this version: our multi fails if anything has changed since this read.
        _, parent_stat = await parent
        operations: list[tuple[Any, ...]] = [("set", layout.IDS, b"", parent_stat.version)]
        replaced = 0
        try:
            found, stat = await present
        except NoNodeError:
            pass
        else:
            ours = stat.ephemeralOwner == link.session
            other = layout.decode_registration(registration.node_id, found, stat.czxid)
            if ours and other._replace(epoch=0) == registration._replace(epoch=0):
                return other.epoch, None
            if not ours and set(other.directories).isdisjoint(registration.directories):
                return 0, (
                    f"node id {registration.node_id} is in use by the broker at {other.host}:{other.port} "
                    "with another data directory: set another node.id for this broker"
                )
            replaced = other.epoch
            operations.append(("delete", path))
        epoch = registered_epoch(registration.epoch, parent_stat.version + 1, replaced)
        data = layout.encode_registration(registration._replace(epoch=epoch))
        # In either case the next round sees the owner of the znode.
        raise_unless_race(await link.multi([*operations, ("ephemeral", path, data)]))


async def claim(link: Link, node_id: int, rival: Holder | None) -> tuple[Control | None, str | None]:
    """Our control, or an error that names the controller. `rival` is replaced if it is the controller."""
    while True:
        present, asked = link.get(layout.CONTROLLER), link.get(layout.CONTROLLER_EPOCH)
        operations: list[tuple[Any, ...]] = []
        try:
            found, stat = await present
        except NoNodeError:
            found = None
        text, epoch_stat = await asked
        epoch = int(text)
        if found is not None:
            holder = layout.decode_holder(found)
            if stat.ephemeralOwner == link.session and holder == (node_id, epoch):
                return Control(epoch, epoch_stat.version), None
            if holder != rival:
                return None, f"held by {holder.node_id}"
            # A successor of the rival would change the epoch, which is set below by version. So no other
            # znode is deleted.
            operations.append(("delete", layout.CONTROLLER))
        operations += [
            ("ephemeral", layout.CONTROLLER, layout.encode_holder(Holder(node_id, epoch + 1))),
            ("set", layout.CONTROLLER_EPOCH, str(epoch + 1).encode(), epoch_stat.version),
        ]
        raise_unless_race(await link.multi(operations))
