"""The network between brokers and clients: connections with delayed, ordered bytes, and links that can be
cut.

A place is a machine with one process: `running`, `paused` (its kernel receives, the process does not read),
`gone` (the kernel refuses connections and has closed existing ones) or `off` (nothing answers). A link is cut
for each direction separately. What is sent meanwhile arrives after the repair, as TCP retransmits, unless an
end gave up before. Connections are independent: bytes on one may overtake earlier ones on another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

from ottla.broker.requests.connection import Connection
from ottla.ports.effects import REFUSED
from ottla.security.broker_handshake import HandshakeInitiator, NotProven, Request
from ottla.wire.frames import ClientConnection
from testkit.sim.world import World

State = Literal["running", "paused", "gone", "off"]

#: How long a broker waits for a response of another, or for a connection.
ASK_TIMEOUT_MS: Final = 3000
#: Delay before a watched peer is tried again after a refusal.
_WATCH_AGAIN_MS: Final = 1000

TIMED_OUT: Final = "timed out"
LOST: Final = "the connection was lost"


class Place:
    """One end of connections. `inbox` has what arrived while the process is paused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: State = "running"
        self.inbox: list[Callable[[], None]] = []
        #: The incarnation of the machine and of the process: what belongs to an earlier one is dropped.
        self.life = 0

    def take(self, life: int, action: Callable[[], None]) -> None:
        """Something arrives for an incarnation of the process."""
        if life != self.life:
            return
        if self.state == "running":
            action()
        elif self.state == "paused":
            self.inbox.append(action)


class Server(Protocol):
    """A place that listens."""

    place: Place

    def accept(self, wire: Wire) -> None: ...
    def receive(self, connection: Connection, frame: bytes) -> None: ...
    def hang_up(self, connection: Connection) -> None: ...


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.servers: dict[int, Server] = {}
        self._places: dict[int, Place] = {}
        #: Directions that are cut, and links that are slow, with the maximum delay.
        self._cut: dict[tuple[str, str], None] = {}
        self._slow: dict[tuple[str, str], int] = {}
        self._stalled: list[Pipe] = []

    def place_of(self, node_id: int) -> Place:
        """The machine of a broker, whether or not one runs there."""
        if node_id not in self._places:
            place = self._places[node_id] = Place(f"b{node_id}")
            place.state = "gone"
        return self._places[node_id]

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def cut(self, source: str, target: str) -> None:
        self._cut[source, target] = None

    def slow(self, source: str, target: str, delay_ms: int) -> None:
        self._slow[source, target] = delay_ms

    def mend(self, source: str, target: str) -> None:
        self._cut.pop((source, target), None)
        self._slow.pop((source, target), None)
        stalled, self._stalled = self._stalled, []
        for pipe in stalled:
            if self.is_cut(pipe.source.name, pipe.target.name):
                self._stalled.append(pipe)
            else:
                pipe.go_on()

    def mend_all(self) -> None:
        for source, target in [*self._cut, *self._slow]:
            self.mend(source, target)

    def delay_ms(self, source: str, target: str) -> int:
        return self.world.below(self._slow.get((source, target), 3))

    def stall(self, pipe: Pipe) -> None:
        self._stalled.append(pipe)

    def forget(self, *pipes: Pipe) -> None:
        if self._stalled:
            self._stalled = [pipe for pipe in self._stalled if pipe not in pipes]

    def connect(
        self, source: Place, node_id: int, received: Callable[[bytes], None], lost: Callable[[str], None]
    ) -> Wire:
        """Data sent before it is open waits; `lost(REFUSED)` if nobody listens there."""
        return Wire(self, source, node_id, received, lost)


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, source: Place, target: Place) -> None:
        self.source = source
        self.target = target
        self._network = network
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._at_ms = 0
        self._is_stalled = False
        self.closed = False

    def send(self, life: int, action: Callable[[], None]) -> None:
        """Call this at the other end, after everything sent before."""
        self._queue.append((life, action))
        if not self._is_stalled:
            self._schedule()

    def _schedule(self) -> None:
        world = self._network.world
        self._at_ms = max(
            self._at_ms, world.now_ms + self._network.delay_ms(self.source.name, self.target.name)
        )
        world.later(self._at_ms - world.now_ms, self._arrive)

    def _arrive(self) -> None:
        if self._is_stalled or not self._queue:
            return
        if self._network.is_cut(self.source.name, self.target.name):
            self._is_stalled = True
            self._network.stall(self)
            return
        life, action = self._queue.popleft()
        if self.target.state != "off":
            self.target.take(life, action)

    def go_on(self) -> None:
        self._is_stalled = False
        for _ in self._queue:
            self._schedule()

    def lose(self) -> None:
        """Data in flight does not arrive."""
        self._queue.clear()


class Wire:
    """A connection from some place to a broker, which the core knows as a connection's `transport`."""

    def __init__(
        self,
        network: Network,
        source: Place,
        node_id: int,
        received: Callable[[bytes], None],
        lost: Callable[[str], None],
    ) -> None:
        self._network = network
        self._source = source
        self._target = target = network.place_of(node_id)
        self._source_life = source.life
        self._target_life = target.life
        self._there = Pipe(network, source, target)
        self._back = Pipe(network, target, source)
        self._received = received
        self._lost = lost
        #: Whether this end, and the broker's, still receives.
        self.open = True
        self._server: Server | None = None
        self.connection: Connection | None = None
        self.paused = False
        self._held: list[bytes] = []
        # The kernel accepts the connection, or not, whatever the process does.
        world = network.world
        world.later(network.delay_ms(source.name, target.name), lambda: self._knock(node_id))

    def _knock(self, node_id: int) -> None:
        network = self._network
        if not self.open:
            return
        source, target = self._source.name, self._target.name
        if self._target.state == "off" or network.is_cut(source, target) or network.is_cut(target, source):
            # The kernel retries with increasing delays, until it succeeds or the caller gives up.
            network.world.later(500, lambda: self._knock(node_id))
            return
        server = network.servers.get(node_id)
        if self._target.state == "gone" or server is None:
            self._back.send(self._source_life, lambda: self._end(REFUSED))
            return
        self._server = server
        self._target_life = self._target.life
        self._target.take(self._target_life, lambda: server.accept(self))
        for frame in self._held:
            self._send(frame)
        self._held.clear()

    # --- the end that connected -----------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if self._server is None:
            self._held.append(frame)
        else:
            self._send(frame)

    def _send(self, frame: bytes) -> None:
        self._there.send(self._target_life, lambda: self._arrived(frame))

    def close(self) -> None:
        """From this end: nothing more arrives, and the broker is notified after what was sent."""
        if self.open:
            self.open = False
            self._back.lose()
            self._there.send(self._target_life, self._hung_up)

    def _end(self, why: str) -> None:
        if self.open:
            self.open = False
            self._network.forget(self._there, self._back)
            self._lost(why)

    def _take(self, data: bytes) -> None:
        if self.open:
            self._received(data)

    # --- the broker's end -----------------------------------------------------------------------------------------

    def _arrived(self, frame: bytes) -> None:
        if self.connection is None or self._server is None:
            return
        if self.paused:
            self._held.append(frame)
        else:
            self._server.receive(self.connection, frame)

    def resume(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        for frame in held:
            self._arrived(frame)

    def _hung_up(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None and self._server is not None:
            self._server.hang_up(connection)

    def deliver(self, data: bytes) -> None:
        self._back.send(self._source_life, lambda: self._take(data))

    def broken(self) -> None:
        """The broker closed it."""
        self.connection = None
        self._back.send(self._source_life, lambda: self._end(LOST))

    def die(self) -> None:
        """The broker's process is gone: its kernel closes the connection, and data in flight may or may not
        arrive.
        """
        if self._network.world.chance(0.5):
            self._back.lose()
        self.broken()

    def silence(self) -> None:
        """The machine of either end is off: data in flight does not arrive, and nobody is notified."""
        if self._target.state == "off":
            self.connection = None
            self._back.lose()
        else:
            self.open = False
            self._there.lose()

    def reset(self) -> None:
        """The machine is on again, without this connection: the other end notices when it sends."""
        if self._server is not None and self._target_life == self._target.life:
            self._there.send(self._target_life, self._hung_up)
        elif self.open:
            self._back.send(self._source_life, lambda: self._end(LOST))


class _Asked:
    __slots__ = ("deadline_ms", "done", "key")

    def __init__(self, key: int, deadline_ms: int, done: Callable[[Any, str | None], None]) -> None:
        self.key = key
        self.deadline_ms = deadline_ms
        self.done = done


class Lane:
    """A broker's requests to another one that share a connection (ASK): answered in order.

    As in `runtime/peers.py` the connection begins with the handshake of `prove_to`, if there is one.
    """

    def __init__(
        self,
        network: Network,
        place: Place,
        node_id: int,
        finished: Callable[[], None],
        timeout_ms: int = ASK_TIMEOUT_MS,
        prove_to: Callable[[int], HandshakeInitiator | None] | None = None,
    ) -> None:
        self._network = network
        self._place = place
        self._life = place.life
        self._node_id = node_id
        self._finished = finished
        self._prove_to = prove_to
        self._handshake: HandshakeInitiator | None = None
        #: Requests that wait for the handshake.
        self._unsent: list[tuple[int, int, bytes]] = []
        self._timeout_ms = timeout_ms
        self._wire: Wire | None = None
        self._framing = ClientConnection(None)
        self._waiting: deque[_Asked] = deque()
        self._timer = False

    def ask(self, key: int, version: int, body: bytes, done: Callable[[Any, str | None], None]) -> None:
        if self._wire is None:
            self._framing = ClientConnection(self._place.name)
            self._wire = self._network.connect(self._place, self._node_id, self._received, self._lost)
            self._handshake = self._prove_to(self._node_id) if self._prove_to is not None else None
            if self._handshake is not None:
                self._prove(self._handshake.first())
        self._waiting.append(self._asked(key, done))
        if self._handshake is None:
            self._send(key, version, bytes(body))
        else:
            self._unsent.append((key, version, bytes(body)))
        self._set_timer()

    def _asked(self, key: int, done: Callable[[Any, str | None], None]) -> _Asked:
        return _Asked(key, self._network.world.now_ms + self._timeout_ms, done)

    def _send(self, key: int, version: int, body: bytes) -> None:
        assert self._wire is not None
        self._wire.send(self._framing.request(key, version, body)[1])

    def _prove(self, request: Request) -> None:
        self._waiting.appendleft(self._asked(request.key, self._proof_answered))
        self._send(*request)

    def _proof_answered(self, answer: Any, _error: str | None) -> None:
        if answer is None or self._handshake is None:
            return
        try:
            request = self._handshake.answered(answer)
        except NotProven as error:
            wire = self._wire
            assert wire is not None
            wire.close()
            self._lost(f"not proven: {error}")
            return
        if request is not None:
            self._prove(request)
            return
        self._handshake = None
        unsent, self._unsent = self._unsent, []
        for held in unsent:
            self._send(*held)

    def _received(self, data: bytes) -> None:
        for _, body in self._framing.feed(data):
            copy = bytearray(body)
            self._waiting.popleft().done(memoryview(copy).toreadonly(), None)
            # Valid during the call only.
            copy[:] = b"\xee" * len(copy)
        self._finished()

    def _lost(self, why: str) -> None:
        self._wire = self._handshake = None
        self._unsent.clear()
        waiting, self._waiting = self._waiting, deque()
        for asked in waiting:
            asked.done(None, why)
        self._finished()

    def _set_timer(self) -> None:
        """One at a time."""
        if self._timer or not self._waiting:
            return
        self._timer = True
        world = self._network.world
        life = self._life
        world.later(
            max(1, self._waiting[0].deadline_ms - world.now_ms), lambda: self._place.take(life, self._check)
        )

    def _check(self) -> None:
        self._timer = False
        if self._waiting and self._waiting[0].deadline_ms <= self._network.world.now_ms:
            wire = self._wire
            if wire is not None:
                wire.close()
            self._lost(TIMED_OUT)
        self._set_timer()

    @property
    def wire(self) -> Wire | None:
        return self._wire

    def close(self) -> None:
        """The process is gone."""
        if self._wire is not None:
            self._wire.close()


class Watch:
    """An idle connection to another broker (WATCH): reports when it has ended and the port refuses another."""

    def __init__(self, network: Network, place: Place, node_id: int, refused: Callable[[], None]) -> None:
        self._network = network
        self._place = place
        self._life = place.life
        self._node_id = node_id
        self._refused = refused
        self._wire: Wire | None = None
        self.closed = False
        self._connect()

    def _connect(self) -> None:
        if not self.closed:
            self._wire = self._network.connect(self._place, self._node_id, lambda _: None, self._lost)

    def _lost(self, why: str) -> None:
        self._wire = None
        again_ms = 1
        if why == REFUSED:
            again_ms = _WATCH_AGAIN_MS
            self._refused()
        life = self._life
        self._network.world.later(again_ms, lambda: self._place.take(life, self._connect))

    @property
    def wire(self) -> Wire | None:
        return self._wire

    def close(self) -> None:
        self.closed = True
        if self._wire is not None:
            self._wire.close()
