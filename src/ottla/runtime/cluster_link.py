"""The outer side of a broker in a cluster: what the store tells goes to the core, what the core asks of the store and of
other brokers is performed.

Each call into the core is followed by a turn of the shell. Before the core is started (`attach`) nothing can be told:
what came is kept, for the node to start the core with: all records so far, who is alive, who controls.
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
    """A store that also knows how much of the log a new broker would have to read."""

    @property
    def records_in_log(self) -> int: ...


class ClusterLink:
    """`StoreEvents` for a store, and the performer of a cluster's effects."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, say: Callable[[str], None], *, client_id: str
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._say = say
        self._client_id = client_id
        self._core: ClusterCore | None = None
        self._store: ClusterStore
        #: What came before the core was there.
        self.records: list[Record] = []
        self.live: Mapping[int, Registration] = {}
        self.controller = (-1, 0)
        self._stopped = False

    def attach(self, core: ClusterCore, store: ClusterStore, turn: Callable[[int], None]) -> None:
        """From now on the core hears everything itself. It has been started with the records."""
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
        """Tell the core who is alive and who controls, for the first time."""
        core = self._core
        assert core is not None
        now_ms = core.now_ms = self._clock.now_ms()
        core.live_brokers(self.live, now_ms)
        core.controller_is(*self.controller, now_ms)
        self._turn(now_ms)

    def stop(self) -> None:
        """The core is about to be closed: nothing reaches it any more, nothing leaves."""
        self._stopped = True
        if self._core is not None:
            self._peers.stop()
            self._peer_watcher.stop()

    # --- what the core asks for -------------------------------------------------------------------------------

    def ask(self, peer: Peer, lane: Any, key: int, version: int, body: bytes, done: Done) -> None:
        self._peers.ask(peer, lane, key, version, body, done)

    def broker_addresses(self) -> Collection[str]:
        """The addresses at which other brokers were reached."""
        return self._peers.addresses if self._core is not None else ()

    def flush(self) -> None:
        """After the effects of a turn: let the requests to other brokers leave."""
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
            raise AssertionError(f"effect {kind} is not a cluster's")

    def _then_turn(self, done: Callable[..., None]) -> Callable[..., None]:
        def told(*arguments: Any) -> None:
            self._tell(done, *arguments)

        return told

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        core = self._core
        if self._stopped or core is None:
            return
        now_ms = core.now_ms = self._clock.now_ms()
        core.records_in_log = self._store.records_in_log
        # The store would take what this raises for its own failure, and begin again.
        core.isolation.run("the news of the store", call, *arguments)
        self._turn(now_ms)

    def _refused(self, node_id: int) -> None:
        if self._core is not None:
            self._tell(self._core.refused, node_id, self._clock.now_ms())

    # --- what the store tells ---------------------------------------------------------------------------------

    def restored(self, records: Sequence[Record], now_ms: int) -> None:
        if self._core is None:
            self.records = list(records)
        else:
            self._tell(self._core.restored, records, now_ms)

    def committed(self, records: list[Record], now_ms: int) -> None:
        if self._core is None:
            self.records += records
        else:
            with no_collections():
                self._tell(self._core.committed, records, now_ms)

    def rejected(self, _now_ms: int) -> None:
        if self._core is not None:
            self._tell(self._core.rejected)

    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None:
        self.live = live
        if self._core is not None:
            self._tell(self._core.live_brokers, live, now_ms)

    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None:
        self.controller = node_id, epoch
        if self._core is not None:
            self._tell(self._core.controller_is, node_id, epoch, now_ms)

    def store_suspended(self, now_ms: int) -> None:
        if self._core is not None:
            self._tell(self._core.store_suspended, now_ms)

    def store_back(self, now_ms: int) -> None:
        if self._core is not None:
            self._tell(self._core.store_back, now_ms)

    def store_lost(self, now_ms: int) -> None:
        if self._core is not None:
            self._tell(self._core.store_lost, now_ms)
