"""A broker of a simulated cluster: a SimNode with store, network and other brokers.

It starts as in `server/node.py`: the store is read, the core is started with its content, clients are
accepted, and the broker joins. It can be paused (arriving events wait, and happen at once when it resumes),
killed, cut from its power together with its disk cache, and shut down. A member is one incarnation; the
machine (`cluster.py`) has the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla.broker.core import Broker
from ottla.broker.requests.connection import Connection
from ottla.config.broker import BrokerConfig
from ottla.metadata.records import Record
from ottla.ports.effects import ASK, CLAIM, PROPOSE, REGISTER, SNAPSHOT, USURP, WATCH
from ottla.ports.store import Registration
from testkit.checkers.partition import Anomaly
from testkit.injected import Injected
from testkit.sim.disk import SimDisk
from testkit.sim.ensemble import Ensemble
from testkit.sim.network import Lane, Network, Watch, Wire
from testkit.sim.node import Delays, SimNode
from testkit.sim.store import SimStore
from testkit.sim.world import SeededEntropy, World


class Member(SimNode):
    def __init__(
        self,
        world: World,
        disk: SimDisk,
        config: BrokerConfig,
        delays: Delays,
        network: Network,
        ensemble: Ensemble,
        on_turn: Callable[[Member], None] = lambda _member: None,
    ) -> None:
        self.network = network
        self.ensemble = ensemble
        self.node_id = config.node_id
        self.place = network.place_of(config.node_id)
        #: Called after each turn, for checks of the core's state.
        self._on_turn = on_turn
        self.started = False
        self.joined = False
        self.stopping = False
        self._lanes: dict[tuple[int, str, int, Any], Lane] = {}
        self._watches: dict[int, tuple[tuple[str, int], Watch]] = {}
        self._ghosts: list[Wire] = []
        #: What arrived before the core was started.
        self._records: list[Record] = []
        self._live: Mapping[int, Registration] = {}
        self._controller = (-1, 0)
        super().__init__(world, disk, config, delays)

    def _assemble(self, config: BrokerConfig) -> None:
        self.broker = Broker(
            config,
            self.disk,
            SeededEntropy(self.world.random, self.world.tokens),
            say=self._say,
            clustered=True,
        )
        self.client = SimStore(self.ensemble, self, config.node_id, self)

    # --- life -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The process starts; it serves clients once it has read the store."""
        self.place.life += 1
        self.place.state = "running"
        self.place.inbox.clear()
        self.life = self.place.life
        self.client.connect(self._opened)

    def _opened(self) -> None:
        broker, now_ms = self.broker, self.world.now_ms
        broker.start(self._records, now_ms, cluster_id=self.ensemble.cluster_id, secret=self.ensemble.secret)
        self._records = []
        self.started = True
        self.network.servers[self.node_id] = self
        broker.live_brokers(self._live, now_ms)
        broker.controller_is(*self._controller, now_ms)
        self._turn()

        def joined(error: str | None) -> None:
            self.world.log(f"b{self.node_id}: joined, {error or 'serves'}")
            if error is not None:
                raise Anomaly("cannot-join", f"broker {self.node_id}: {error}")
            self.joined = True

        broker.join(now_ms, joined)
        self._turn()

    @property
    def is_running(self) -> bool:
        return self.alive and not self.stopping and self.place.state == "running"

    def pause(self) -> None:
        self.place.state = "paused"
        self.client.pause()

    def resume(self) -> None:
        """Everything that arrived meanwhile happens at once; then it notices the state of the store."""
        self.place.state = "running"
        inbox, self.place.inbox = self.place.inbox, []
        for action in inbox:
            if self.alive:
                action()
        self.client.resume()

    def kill(self) -> None:
        if not self.alive:
            return
        self._leave_network("gone")
        for lane in self._lanes.values():
            lane.close()
        for _address, watch in self._watches.values():
            watch.close()
        for link in self._links:
            link.die()

    def lose_power(self) -> None:
        """Unsynced data is lost with it."""
        if self.alive:
            self._leave_network("off")
            wires = [lane.wire for lane in self._lanes.values()]
            wires += [watch.wire for _address, watch in self._watches.values()]
            for _address, watch in self._watches.values():
                watch.closed = True
            self._ghosts = [wire for wire in (*self._links, *wires) if wire is not None]
            for wire in self._ghosts:
                wire.silence()
        self.disk.crash()

    def power_returns(self) -> None:
        """The machine is on again, without a process: peers with open connections notice."""
        self.place.state = "gone"
        ghosts, self._ghosts = self._ghosts, []
        for wire in ghosts:
            wire.reset()

    def _leave_network(self, state: Any) -> None:
        self.alive = False
        self.place.life += 1
        self.place.state = state
        self.place.inbox.clear()
        self.network.servers.pop(self.node_id, None)
        self.client.die()

    def stop_later(self, stopped: Callable[[], None]) -> None:
        """A clean shutdown: others take over leadership, then everything is closed."""
        self.stopping = True

        def left() -> None:
            self.schedule(0, stop)

        def stop() -> None:
            self.client.close()
            for link in self._links:
                if link.connection is not None:
                    self.broker.disconnected(link.connection)
            for path, error in self.sync_failures:
                self.broker.sync_failed(path, error)
            self.broker.stop()
            self.kill()
            stopped()

        self.broker.leave(self.world.now_ms, left)
        self._turn()

    def _say(self, text: str) -> None:
        self.world.log(f"b{self.node_id}: {text}")

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> None:
        life = self.life
        self.world.later(delay_ms, lambda: self.place.take(life, action))

    # --- connections ------------------------------------------------------------------------------------------

    def accept(self, wire: Wire) -> None:
        wire.connection = connection = self.broker.connected("peer")
        connection.transport = wire
        self._links.append(wire)

    def hang_up(self, connection: Connection) -> None:
        self._links = [link for link in self._links if link.connection is not None]
        self.broker.disconnected(connection)
        self._turn()

    def _turn(self) -> None:
        if self.alive:
            super()._turn()
            self._on_turn(self)

    # --- effects ----------------------------------------------------------------------------------------------

    def _perform(self, effect: Any) -> None:
        kind = effect[0]
        if kind == PROPOSE:
            if self.is_withdrawn:
                raise Injected("a change before this one was not written")
            self.client.append(effect[1], self._then_turn(effect[2]))
        elif kind == ASK:
            self._ask(*effect[1:])
        elif kind == WATCH:
            self._watch(effect[1])
        elif kind == REGISTER:
            self.client.register(effect[1], self._then_turn(effect[2]))
        elif kind == CLAIM:
            self.client.claim(self._then_turn(effect[1]))
        elif kind == USURP:
            self.client.usurp(effect[1], effect[2], self._then_turn(effect[3]))
        elif kind == SNAPSHOT:
            self.client.snapshot(effect[1], self._then_turn(effect[2]))
        else:
            super()._perform(effect)

    def _then_turn(self, done: Callable[..., None]) -> Callable[..., None]:
        def told(*arguments: Any) -> None:
            if self.alive:
                self._notify(done, *arguments)

        return told

    def _notify(self, call: Callable[..., None], *arguments: Any) -> None:
        broker, ensemble = self.broker, self.ensemble
        broker.now_ms = self.world.now_ms
        broker.records_in_log = ensemble.end - (ensemble.snapshot[0] if ensemble.snapshot else 0)
        self.isolation.run("the news of the store", call, *arguments)
        self._turn()

    def _ask(
        self,
        peer: tuple[int, str, int],
        lane: Any,
        key: int,
        version: int,
        body: bytes,
        done: Callable[[Any, str | None], None],
    ) -> None:
        place = (*peer, lane)
        if place not in self._lanes:
            self._lanes[place] = Lane(
                self.network, self.place, peer[0], self._turn, prove_to=self.broker.prove_to
            )

        def answered(answer: Any, error: str | None) -> None:
            self.broker.now_ms = self.world.now_ms
            self.isolation.run("the answer of another broker", done, answer, error)

        self._lanes[place].ask(key, version, body, answered)

    def _watch(self, peers: Mapping[int, tuple[str, int]]) -> None:
        before, self._watches = self._watches, {}
        for node_id, address in peers.items():
            kept = before.pop(node_id, None)
            if kept is not None and kept[0] == address:
                self._watches[node_id] = kept
                continue
            if kept is not None:
                kept[1].close()
            refused = self._then_turn(lambda node_id=node_id: self.refuse(node_id))
            self._watches[node_id] = (address, Watch(self.network, self.place, node_id, refused))
        for _address, watch in before.values():
            watch.close()

    def suspect(self, node_id: int) -> None:
        if self.is_running:
            self._then_turn(self.refuse)(node_id)

    def refuse(self, node_id: int) -> None:
        """The port of a watched broker refuses connections, or the watch is mistaken."""
        self.world.log(f"b{self.node_id}: the port of broker {node_id} refuses")
        self.broker.refused(node_id, self.world.now_ms)

    # --- what the store tells ---------------------------------------------------------------------------------

    def restored(self, records: Sequence[Record], now_ms: int) -> None:
        if self.started:
            self._notify(self.broker.restored, records, now_ms)
        else:
            self._records = list(records)

    def committed(self, records: list[Record], now_ms: int) -> None:
        if self.started:
            self._notify(self.broker.committed, records, now_ms)
        else:
            self._records += records

    def rejected(self, _now_ms: int) -> None:
        if self.started:
            self._notify(self.broker.rejected)

    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None:
        self._live = live
        if self.started:
            self._notify(self.broker.live_brokers, live, now_ms)

    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None:
        self._controller = node_id, epoch
        if self.started:
            self._notify(self.broker.controller_is, node_id, epoch, now_ms)

    def store_suspended(self, now_ms: int) -> None:
        self.world.log(f"b{self.node_id}: the store is out of reach")
        if self.started:
            self._notify(self.broker.store_suspended, now_ms)

    def store_back(self, now_ms: int) -> None:
        self.world.log(f"b{self.node_id}: the store is back")
        if self.started:
            self._notify(self.broker.store_back, now_ms)

    def store_lost(self, now_ms: int) -> None:
        self.world.log(f"b{self.node_id}: the session is lost")
        if self.started:
            self._notify(self.broker.store_lost, now_ms)
