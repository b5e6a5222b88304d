"""The simulated network: order within a connection, none between two; refused only without a listener;
repaired cuts.
"""

from ottla.broker.requests.connection import Connection
from ottla.ports.effects import REFUSED
from testkit.sim.network import ASK_TIMEOUT_MS, TIMED_OUT, Lane, Network, Place, Watch, Wire
from testkit.sim.world import START_MS, World


class Echo:
    """A server that answers each request with its body: a response header is the correlation id and, here, no
    tags.
    """

    def __init__(self, network: Network, node_id: int) -> None:
        self.place = network.place_of(node_id)
        self.place.life += 1
        self.place.state = "running"
        self.seen: list[bytes] = []
        self.gone = 0
        self.wires: list[Wire] = []
        network.servers[node_id] = self

    def accept(self, wire: Wire) -> None:
        wire.connection = Connection("peer")
        wire.connection.transport = wire
        self.wires.append(wire)

    def receive(self, connection: Connection, frame: bytes) -> None:
        body = frame[-1:]
        self.seen.append(body)
        answer = frame[8:12] + body
        connection.transport.deliver(len(answer).to_bytes(4, "big") + answer)

    def hang_up(self, connection: Connection) -> None:
        self.gone += 1


METADATA_V0 = (3, 0)


def asked(world: World, lane: Lane, *bodies: bytes) -> list[tuple[bytes | None, str | None]]:
    answers: list[tuple[bytes | None, str | None]] = []
    for body in bodies:
        lane.ask(*METADATA_V0, body, lambda answer, error: answers.append((answer and bytes(answer), error)))
    while len(answers) < len(bodies):
        assert world.step()
    return answers


def made(seed: int = 1) -> tuple[World, Network, Lane]:
    world = World(seed)
    network = Network(world)
    return world, network, Lane(network, Place("client"), 1, lambda: None)


def test_a_lane_keeps_its_order_and_two_lanes_have_none() -> None:
    orders = set()
    for seed in range(30):
        world, network, lane = made(seed)
        server = Echo(network, 1)
        other = Lane(network, Place("client"), 1, lambda: None)
        other.ask(*METADATA_V0, b"x", lambda _answer, _error: None)
        assert asked(world, lane, b"1", b"2", b"3") == [(b"1", None), (b"2", None), (b"3", None)]
        while world.step() and b"x" not in server.seen:
            pass
        assert [each for each in server.seen if each != b"x"] == [b"1", b"2", b"3"]
        orders.add(server.seen.index(b"x"))
    assert len(orders) > 1


def test_refused_only_where_nobody_listens() -> None:
    world, network, lane = made()
    assert asked(world, lane, b"1") == [(None, REFUSED)]
    assert world.now_ms - START_MS < 100
    server = Echo(network, 1)
    for state in ("paused", "off"):
        server.place.state = state  # type: ignore[assignment]
        began_ms = world.now_ms
        assert asked(world, lane, b"1") == [(None, TIMED_OUT)]
        assert world.now_ms - began_ms == ASK_TIMEOUT_MS
    server.place.state = "running"
    network.cut("client", "b1")
    assert asked(world, lane, b"1") == [(None, TIMED_OUT)]


def test_what_was_sent_over_a_cut_arrives_when_it_is_mended() -> None:
    world, network, lane = made()
    server = Echo(network, 1)
    assert asked(world, lane, b"1") == [(b"1", None)]
    network.cut("client", "b1")
    world.later(1000, lambda: network.mend("client", "b1"))
    assert asked(world, lane, b"2", b"3") == [(b"2", None), (b"3", None)]
    # In the other direction the request arrives, and its response does not.
    network.cut("b1", "client")
    assert asked(world, lane, b"4") == [(None, TIMED_OUT)]
    assert server.seen == [b"1", b"2", b"3", b"4"]


def test_a_watch_tells_when_the_port_refuses_and_not_when_it_is_silent() -> None:
    world, network, _lane = made()
    server = Echo(network, 1)
    told: list[int] = []
    Watch(network, Place("watcher"), 1, lambda: told.append(world.now_ms))

    def run(milliseconds: int) -> None:
        world.later(milliseconds, lambda: None)
        deadline_ms = world.now_ms + milliseconds
        while world.now_ms < deadline_ms:
            world.step()

    run(100)
    server.place.state = "paused"
    run(5000)
    assert told == []
    server.place.state = "gone"
    server.place.life += 1
    for wire in server.wires:
        wire.die()
    run(100)
    assert len(told) == 1
