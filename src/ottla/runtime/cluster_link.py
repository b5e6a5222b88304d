"""The link between the core and its cluster: events of the metadata store in, cluster effects out.

Each call into the core is followed by a turn of the effect runner. Before the core is started (`attach`),
events are kept: all metadata records, the live brokers and the controller. The node starts the core with
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from ottla.metadata.records import Record
from ottla.ports.effects import CLAIM, PROPOSE, REGISTER, SNAPSHOT, USURP, WATCH
from ottla.ports.store import Registration, Store
from ottla.runtime.clock import Clock
from ottla.runtime.core import ClusterCore
from ottla.runtime.garbage import no_collections
from ottla.runtime.peer_watch import PeerWatcher
from ottla.runtime.peers import Done, Peer, Peers


class ClusterStore(Store, Protocol):
    """A store that also knows how many records of the metadata log a new broker has to read."""

    @property
    def records_in_log(self) -> int: ...


class ClusterLink:
    """`StoreEvents` of the metadata store; performs the effects of a cluster."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, say: Callable[[str], None], *, client_id: str
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._say = say
        self._client_id = client_id
        self._core: ClusterCore | None = None
        self._store: ClusterStore
        #: Events before the core was started.
        self.records: list[Record] = []
        self.live: Mapping[int, Registration] = {}
        self.controller = (-1, 0)
        self._stopped = False

    def attach(self, core: ClusterCore, store: ClusterStore, turn: Callable[[int], None]) -> None:
        """Events go to the core from here on. It has been started with the records."""
        self._core, self._store, self._turn = core, store, turn
        self._peers = Peers(
            self._loop,
            self._clock,
            core,
            turn,
            core.isolation.contain,
            self._say,
            client_id=self._client_id,
            prove_to=core.prove_to,
        )
        self._peer_watcher = PeerWatcher(self._loop, self._refused)
        self.records = []
        core.records_in_log = store.records_in_log

    def hand_over(self) -> None:
        """Hand the live brokers and the controller to the core for the first time."""
        core = self._core
        assert core is not None
        now_ms = core.now_ms = self._clock.now_ms()
        core.live_brokers(self.live, now_ms)
        core.controller_is(*self.controller, now_ms)
        self._turn(now_ms)

    def stop(self) -> None:
        """The core is about to be closed: drop further events and effects."""
        self._stopped = True
        if self._core is not None:
            self._peers.stop()
            self._peer_watcher.stop()

    # --- effects of the core --------------------------------------------------------------------------------

    def ask(self, peer: Peer, lane: Any, key: int, version: int, body: bytes, done: Done) -> None:
        self._peers.ask(peer, lane, key, version, body, done)

    def broker_addresses(self) -> Collection[str]:
        """The addresses of other brokers that this broker has connected to."""
        return self._peers.addresses if self._core is not None else ()

    def flush(self) -> None:
        """Send the requests to other brokers; called after the effects of a turn."""
        self._peers.flush()

    def perform(self, effect: tuple[Any, ...]) -> None:
        kind = effect[0]
        if kind == PROPOSE:
            self._store.append(effect[1], self._then_turn(effect[2]))
        elif kind == WATCH:
            self._peer_watcher.watch(effect[1])
        elif kind == REGISTER:
            self._store.register(effect[1], self._then_turn(effect[2]))
        elif kind == CLAIM:
            self._store.claim(self._then_turn(effect[1]))
        elif kind == USURP:
            self._store.usurp(effect[1], effect[2], self._then_turn(effect[3]))
        elif kind == SNAPSHOT:
            self._store.snapshot(effect[1], self._then_turn(effect[2]))
        else:
            raise AssertionError(f"effect {kind} is not a cluster effect")

    def _then_turn(self, done: Callable[..., None]) -> Callable[..., None]:
        def notify(*arguments: Any) -> None:
            self._notify(done, *arguments)

        return notify

    def _notify(self, call: Callable[..., None], *arguments: Any) -> None:
        core = self._core
        if self._stopped or core is None:
            return
        now_ms = core.now_ms = self._clock.now_ms()
        core.records_in_log = self._store.records_in_log
        # The store would treat an exception as its own failure, and start again.
        core.isolation.run("an event of the metadata store", call, *arguments)
        self._turn(now_ms)

    def _refused(self, node_id: int) -> None:
        if self._core is not None:
            self._notify(self._core.refused, node_id, self._clock.now_ms())

    # --- events of the store --------------------------------------------------------------------------------

    def restored(self, records: Sequence[Record], now_ms: int) -> None:
        if self._core is None:
            self.records = list(records)
        else:
            self._notify(self._core.restored, records, now_ms)

    def committed(self, records: list[Record], now_ms: int) -> None:
        if self._core is None:
            self.records += records
        else:
            with no_collections():
                self._notify(self._core.committed, records, now_ms)

    def rejected(self, _now_ms: int) -> None:
        if self._core is not None:
            self._notify(self._core.rejected)

    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None:
        self.live = live
        if self._core is not None:
            self._notify(self._core.live_brokers, live, now_ms)

    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None:
        self.controller = node_id, epoch
        if self._core is not None:
            self._notify(self._core.controller_is, node_id, epoch, now_ms)

    def store_suspended(self, now_ms: int) -> None:
        if self._core is not None:
            self._notify(self._core.store_suspended, now_ms)

    def store_back(self, now_ms: int) -> None:
        if self._core is not None:
            self._notify(self._core.store_back, now_ms)

    def store_lost(self, now_ms: int) -> None:
        if self._core is not None:
            self._notify(self._core.store_lost, now_ms)
