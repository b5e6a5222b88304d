"""An exception in any handler, response, timer, effect or callback affects only its own request or
connection.

`tests/sabotage.py` finds the places in the code and raises in one after another. After each, a witness that
was connected all the time produces, fetches and commits on its one connection, a new client is accepted, the
recovery point moves and retention deletes.
"""

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ottla
from ottla.broker.api.shared.api_table import APIS
from ottla.broker.storage import log_maintenance
from ottla.model.limits import REQUESTS_WAITING_PER_CONNECTION_MAX
from ottla.ports.coordination import partition_of
from ottla.records.record import Record, encode_batch
from ottla.runtime import transport
from ottla.runtime.background import Syncer
from ottla.runtime.connections import Connections
from ottla.runtime.effect_runner import EffectRunner
from ottla.runtime.transport import Transport
from testkit.fuzz.valid_requests import Known, Maker, frame_of
from testkit.injected import Injected
from tests.peer import API_VERSIONS, PATIENCE_S, Peer, fetch_fields
from tests.sabotage import Sabotage

LIST_OFFSETS, OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP, METADATA, FETCH = 2, 8, 10, 11, 3, 1
EARLIEST = -2
#: Wait for events that may not happen, such as the response of a request without one.
MOMENT_S = 0.3

CONFIG = {
    "log.flush.policy": "durable",
    "log.retention.check.interval.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "50",
    "log.cleaner.backoff.ms": "100",
    "offsets.retention.check.interval.ms": "200",
    "producer.id.expiration.check.interval.ms": "200",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "50",
    "slow.turn.log.ms": "-1",
}


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.01)


class World:
    """A broker that fails at a chosen place, and a witness that must not notice."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.armed = ""
        #: Connections of clients that stay open until the end of the test.
        self.connections: list[socket.socket] = []
        patch.setattr(log_maintenance, "_FLUSH_CHECK_MS", 20)
        patch.setattr(log_maintenance, "_PRODUCERS_COUNT_MS", 200)
        self.sabotage = Sabotage(patch, self._decide)
        self._sabotage_runtime(patch)
        self.said: list[str] = []
        self.broker = ottla.Broker(str(directory), config=CONFIG, say=self.said.append)
        self._checkpoint = directory / "recovery-point-offset-checkpoint"
        self.witness = Peer(self.broker.address)
        self.witness.create("w")
        self.witness.create("old", retention_ms="1000")
        eventually(self._has_coordinator, "a coordinator")
        self._offset = 0

    def _has_coordinator(self) -> bool:
        answer = self.witness.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["witness"])
        return bool(answer.coordinators[0].error_code.value == 0)

    def _decide(self, site: str) -> bool:
        """True once per armed place."""
        if site == self.armed:
            self.armed = ""
            return True
        return False

    def _sabotage_runtime(self, patch: pytest.MonkeyPatch) -> None:
        sabotage = self.sabotage
        perform = EffectRunner._perform_other

        def sabotaged(runner: EffectRunner, kind: int, effect: Any, touched: Any) -> None:
            perform(runner, kind, sabotage.effect(effect), touched)

        patch.setattr(EffectRunner, "_perform_other", sabotaged)
        for owner, name, site in (
            (Transport, "send", "effect SEND"), (Transport, "send_now", "effect SEND"), (Syncer, "ask", "effect SYNC"),
            (Transport, "readable", "loop readable"), (Transport, "flush", "loop flush"), (Connections, "_open", "loop accept"),
            (EffectRunner, "_sweep", "loop sweep"), (EffectRunner, "_next_second", "loop next second"), (EffectRunner, "_synced", "loop synced"),
            (EffectRunner, "_finished", "loop job"), (EffectRunner, "_settle_more", "loop settle"), (Transport, "close", "loop close"),
        ):  # fmt: skip
            original = getattr(owner, name)

            def first(self: Any, *arguments: Any, original: Any = original, site: str = site) -> Any:
                # At its end, because it schedules its next call itself.
                if site in (
                    "loop sweep",
                    "loop next second",
                    "loop synced",
                    "loop job",
                    "loop settle",
                    "loop close",
                ):
                    original(self, *arguments)
                    sabotage.at(site)
                    return None
                sabotage.at(site)
                return original(self, *arguments)

            patch.setattr(owner, name, first)

    def arm(self, site: str) -> None:
        self.armed = site

    def is_raised(self, within_s: float = PATIENCE_S, unless: socket.socket | None = None) -> bool:
        """Whether the armed place is reached before data arrives on the connection `unless`."""
        deadline = time.monotonic() + within_s
        while self.armed and time.monotonic() < deadline:
            if unless is not None and select.select([unless], [], [], 0)[0]:
                break
            time.sleep(0.002)
        is_raised, self.armed = not self.armed, ""
        return is_raised

    # --- what must go on ------------------------------------------------------------------------------------

    def check_clients(self) -> None:
        witness = self.witness
        offset = witness.produce("w", b"value")
        assert offset == self._offset, "an acknowledged record is missing or doubled"
        self._offset += 1
        assert witness.fetch("w", offset) == [b"value"]
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        for _ in range(100):
            # A coordinator partition that an error interrupted is loaded again; clients wait for it.
            answer = witness.ask(
                OFFSET_COMMIT, 7, group_id="witness", generation_id_or_member_epoch=-1, member_id="",
                topics=[{"name": "w", "partitions": [row]}],
            )  # fmt: skip
            code = answer.topics[0].partitions[0].error_code.value
            if code not in (14, 15, 16):
                break
            time.sleep(0.02)
        assert code == 0
        with Peer(self.broker.address) as newcomer:
            assert newcomer.ask(METADATA, 9, topics=[{"name": "w"}]).brokers

    def check_periodic_work(self) -> None:
        """The recovery point follows the log; old records are deleted."""
        end = self.witness.produce("w", b"value") + 1
        self._offset = end
        eventually(
            lambda: (
                self._checkpoint.exists() and f"w 0 {end}\n" in self._checkpoint.read_text(encoding="ascii")
            ),
            "the recovery point",
        )
        batch = encode_batch([Record(0, 1_000, b"k", b"v")])
        data = [{"name": "old", "partition_data": [{"index": 0, "records": batch}]}]
        answer = self.witness.ask(0, 9, acks=-1, timeout=30_000, topic_data=data)
        old = answer.responses[0].partition_responses[0].base_offset + 1
        eventually(lambda: self._start_of("old") == old, "retention")

    def _start_of(self, topic: str) -> int:
        rows = [{"partition_index": 0, "timestamp": EARLIEST, "current_leader_epoch": -1}]
        topics = [{"name": topic, "partitions": rows}]
        answer = self.witness.ask(LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=topics)
        offset: int = answer.topics[0].partitions[0].offset
        return offset

    def close(self) -> None:
        self.witness.socket.close()
        self.broker.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        world = World(tmp_path_factory.mktemp("sabotaged"), patch)
        yield world
        world.close()


def attack(world: World, key: int, version: int, seed: int) -> socket.socket:
    """One valid request of an API, on its own connection."""
    maker = Maker(Random(seed), Known({"w2": bytes(16)}))
    frame = frame_of(key, version, 1, maker.body(key, version))
    host, _, port = world.broker.address.rpartition(":")
    attacker = socket.create_connection((host, int(port)))
    attacker.settimeout(PATIENCE_S)
    attacker.sendall(struct.pack(">i", len(frame)) + frame)
    return attacker


def is_closed(connection: socket.socket, site: str) -> bool:
    """Whether the broker closes the connection; False if it answers and leaves the connection open."""
    received = 0
    try:
        while data := connection.recv(1 << 16):
            received += len(data)
            connection.settimeout(MOMENT_S)
    except ConnectionResetError:
        pass
    except TimeoutError:
        assert received, f"the client of {site} hangs"
        return False
    return True


@pytest.mark.parametrize("key", sorted(APIS))
def test_in_a_handler_or_an_answer(world: World, key: int) -> None:
    """Before the handler, after it, and in the encoding of its response."""
    for place in ("handler", "handled", "answer"):
        for attempt in range(3):
            site = f"{place} {key}"
            world.arm(site)
            attacker = attack(world, key, APIS[key].newest, attempt)
            # Its response may be built elsewhere or later, or there is none; the handler is called in any
            # case.
            is_raised = (
                world.is_raised() if place == "handler" else world.is_raised(MOMENT_S, unless=attacker)
            )
            assert is_raised or place != "handler"
            # A request of an attempt before, whose answer was late, may have met the fault: then this one is answered.
            is_hit = is_raised and is_closed(attacker, site)
            attacker.close()
            if is_hit:
                break
        world.check_clients()


def test_periodic_work_goes_on_after_all_that(world: World) -> None:
    world.check_periodic_work()


PERIODIC = (
    "LogMaintenance.flush_due", "LogMaintenance.retain", "LogMaintenance.forget_producers", "LogMaintenance.count_producers", "LogCleaner.start_if_due",
    "GroupCoordinator.start.<locals>.begin",
)  # fmt: skip


@pytest.mark.parametrize("action", PERIODIC)
def test_in_periodic_work(world: World, action: str) -> None:
    for _ in range(2):
        world.arm(f"timer Periodic {action}")
        assert world.is_raised()
    world.check_clients()
    world.check_periodic_work()


def test_all_periodic_work_of_a_single_broker_is_tested(world: World) -> None:
    def seen() -> set[str]:
        return {
            site.removeprefix("timer Periodic ") for site in list(world.sabotage.seen) if "Periodic" in site
        }

    deadline = time.monotonic() + PATIENCE_S
    while not seen() >= set(PERIODIC) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert seen() == set(PERIODIC)


def test_in_the_timer_of_a_waiting_fetch(world: World) -> None:
    with Peer(world.broker.address) as reader:
        world.arm("timer FetchSession")
        reader.send(FETCH, 12, **fetch_fields("w", world.witness.produce("w", b"v") + 1, max_wait=50))
        world._offset += 1
        assert world.is_raised()
        assert reader.is_closed()
    world.check_clients()


def test_in_the_timers_of_a_group(world: World) -> None:
    """A member's session expires: its coordinator partition is loaded again, and the next member is served."""
    protocols = [{"name": "range", "metadata": b"m"}]
    fields: dict[str, Any] = {
        "session_timeout": 60, "rebalance_timeout": 60, "member_id": "", "protocol_type": "consumer",
        "protocols": protocols,
    }  # fmt: skip
    # In the coordinator partition of the witness.
    fields["group_id"] = next(
        name for name in map(str, range(99)) if partition_of(name, 2) == partition_of("witness", 2)
    )
    world.arm("timer ClassicMember")
    with Peer(world.broker.address) as member:
        assert member.ask(JOIN_GROUP, 2, **fields).error_code.value == 0
    assert world.is_raised()
    world.check_clients()
    with Peer(world.broker.address) as member:

        def has_joined() -> bool:
            return bool(member.ask(JOIN_GROUP, 2, **fields).error_code.value == 0)

        eventually(has_joined, "the group")


def provoke(world: World, effect: str) -> None:
    """A request that needs this effect, on its own connection."""
    peer = Peer(world.broker.address)
    if effect == "PROPOSE":
        peer.send(
            19, 7, topics=[{"name": f"t{time.monotonic_ns()}", "num_partitions": 1, "replication_factor": 1}]
        )
    elif effect == "CLOSE":
        peer.socket.sendall(struct.pack(">i", -5))
    elif effect in ("PAUSE", "RESUME"):
        wait = fetch_fields("w", world._offset, max_wait=100)
        peer.socket.sendall(
            b"".join(peer.frame(FETCH, 12, **wait) for _ in range(REQUESTS_WAITING_PER_CONNECTION_MAX + 1))
        )
    elif effect == "WORK":
        with Peer(world.broker.address) as writer:
            name = f"c{time.monotonic_ns()}"
            writer.create(
                name, cleanup_policy="compact", segment_bytes="100", min_cleanable_dirty_ratio="0.01"
            )
            for _ in range(4):
                writer.produce(name, b"value" * 10)
    else:
        # SEND, SYNC, RUN: the next request of the witness, or of any client.
        peer.send(METADATA, 9, topics=None)
    world.connections.append(peer.socket)


EFFECTS = ("CLOSE", "PAUSE", "PROPOSE", "RESUME", "RUN", "SEND", "WORK")


@pytest.mark.parametrize(
    "site", [f"effect {name}" for name in EFFECTS] + ["callback of RUN", "callback of PROPOSE"]
)
def test_in_an_effect_or_its_callback(world: World, site: str) -> None:
    world.arm(site)
    provoke(world, site.rpartition(" ")[2])
    try:
        if "RUN" in site:
            world.check_clients()
        assert world.is_raised()
        world.check_clients()
        world.check_periodic_work()
    finally:
        while world.connections:
            world.connections.pop().close()


def test_a_sync_that_could_not_be_asked_for_is_asked_for_again(world: World) -> None:
    world.arm("effect SYNC")
    world.check_clients()
    assert world.is_raised()
    world.check_periodic_work()


@pytest.mark.parametrize(
    "name", ["readable", "flush", "accept", "sweep", "next second", "synced", "job", "settle", "close"]
)
def test_in_a_callback_of_the_event_loop(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site = f"loop {name}"
    if name == "flush":
        # Responses that are too large for one piece are flushed; with this limit any two are.
        monkeypatch.setattr(transport, "_SEND_BYTES", 1)
    if name == "accept":
        world.arm(site)
    with Peer(world.broker.address) as peer:
        if name != "accept":
            # After this response, earlier connections are completely closed.
            peer.ask(API_VERSIONS, 0)
            world.arm(site)
        peer.socket.sendall(peer.frame(METADATA, 9, topics=None) + peer.frame(METADATA, 9, topics=None))
        if name in ("readable", "flush", "accept"):
            assert peer.is_closed()
    if name in ("synced", "job", "settle"):
        world.check_clients()
    assert world.is_raised()
    world.check_clients()
    world.check_periodic_work()


def test_every_injected_error_was_logged_and_there_was_no_other(world: World) -> None:
    errors = [text for text in world.said if "internal error" in text]
    assert errors and all(Injected.__name__ in text for text in errors), errors
