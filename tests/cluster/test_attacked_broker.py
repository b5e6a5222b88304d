"""One broker of a cluster is attacked with expensive requests: no ISR shrinks, no leader changes, no other client sees an error.

Whether anything changed is read in the metadata log, where every change of a partition or a broker is a record: an ISR that shrinks
and grows again between two looks is seen too. How long the witness waits is printed. It is not bounded closely, since the attacker,
the witness and three brokers share the machine.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, Self

import pytest
from confluent_kafka.admin import NewTopic

from ottla.metadata import records as r
from ottla.model.errors import ErrorCode
from ottla.runtime import zookeeper_layout as layout
from ottla.runtime.local_zookeeper import LocalZookeeper
from ottla.security.broker_handshake import MECHANISM, NONCE_BYTES, Credentials
from ottla.security.cluster_secret import SECRET_BYTES, ClusterSecret
from tests import turns
from tests.cluster.attacks import ATTACKS, Target
from tests.cluster.load import Load
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.sessions import looking
from tests.cluster.topics import admin_of, controller_first, new_topic, stall_of, wait_alike
from tests.crash.broker_process import Wire
from tests.peer import is_closed
from tests.security.prover import Prover

ALL = (1, 2, 3)
ROTATED = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
WIDE_PARTITIONS = 1000
CONNECTIONS_MAX = 400
FIND_COORDINATOR, SASL_HANDSHAKE, SASL_AUTHENTICATE = 10, 17, 36


#: A third of what shrinks an ISR, and twenty times what is measured beside other work.
WAIT_MAX_S = 10.0


class Attacked(NamedTuple):
    cluster: RunningCluster
    #: Topics that the attacks name. Partition N - 1 of the last two is led by broker N, and all have three replicas.
    wide: str
    plain: str
    compacted: str

    def target(self, node_id: int) -> Target:
        return Target(
            self.cluster.nodes[node_id].address, node_id,
            wide=self.wide, plain=self.plain, compacted=self.compacted, led=node_id - 1,
        )  # fmt: skip


@pytest.fixture(scope="module")
def attacked(
    shared_zookeeper: LocalZookeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Attacked]:
    """Sessions and lag times as by default: a busy machine alone must not end a session."""
    connect = f"{shared_zookeeper.address}/attacked"
    settings = {
        "zookeeper.session.timeout.ms": "18000",
        "max.connections": str(CONNECTIONS_MAX),
        "offsets.topic.num.partitions": "3",
    }
    with RunningCluster(tmp_path_factory.mktemp("attacked"), connect, settings) as cluster:
        cluster.start(*ALL)
        admin = admin_of(cluster)
        admin.create_topics([NewTopic("wide", WIDE_PARTITIONS, 3)])["wide"].result(PATIENCE_S)
        for via in ALL:
            cluster.wait_in_sync("wide", via, ALL, range(WIDE_PARTITIONS))
        plain = new_topic(cluster, *ROTATED)
        compacted = new_topic(cluster, *ROTATED, cleanup_policy="compact", max_message_bytes="10000000")
        with Wire(cluster.nodes[1].address) as wire:
            # The coordinators exist before the attack: making their topic is a change.
            cluster.wait_until(
                lambda: not wire.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"]).coordinators[0].error_code.value,
                "there are coordinators",
            )  # fmt: skip
        for via in ALL:
            cluster.wait_in_sync("__consumer_offsets", via, ALL, range(3))
        yield Attacked(cluster, "wide", plain, compacted)
        for node in cluster.nodes.values():
            if node.is_running:
                node.stop()
                turns.look_at(node.said)


class Changes:
    """What the metadata log gets from now on."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._connect = cluster.zookeeper_connect
        with looking(self._connect) as client:
            self._from = layout.decode_end(client.get(layout.END)[0], 0).end

    def found(self) -> list[r.Record]:
        with looking(self._connect) as client:
            names = sorted(name for name in client.get_children(layout.LOG) if int(name) >= self._from)
            entries = [layout.decode_entry(client.get(f"{layout.LOG}/{name}")[0]) for name in names]
            assert layout.decode_end(client.get(layout.END)[0], 0).snapshot <= self._from, (
                "entries were removed"
            )
        return [record for entry in entries for record in entry.records()]

    def of_partitions_and_brokers(self) -> list[r.Record]:
        """Elections, changes of an ISR, and brokers that are fenced, unfenced or gone."""
        return [
            record
            for record in self.found()
            if isinstance(record, r.Partition | r.BrokerRegistration | r.BrokerRemoved)
        ]


def longest_wait_s(load: Load, since_s: float) -> float:
    """The longest time without an acknowledgement, up to now."""
    return stall_of([*load.times, time.monotonic()], since_s)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("role", ["leader", "follower", "controller"])
def test_an_attack_on_one_broker_shrinks_no_isr(attacked: Attacked, role: str) -> None:
    """The attacked broker leads the witness's partition, or follows it, or is the controller (and follows it)."""
    cluster = attacked.cluster
    controller, leader, follower = controller_first(cluster)
    target = attacked.target({"leader": leader, "follower": follower, "controller": controller}[role])
    topic = new_topic(cluster, (leader, follower, controller), min_insync_replicas="3")
    with Load(cluster, topic) as load:
        load.wait_for_more(100)
        changes = Changes(cluster)
        begun_s = time.monotonic()
        for attack in ATTACKS:
            started_s = time.monotonic()
            count = attack(target)
            longest_s = longest_wait_s(load, started_s)
            print(
                f"{role}: {attack.__name__}: {count} in {time.monotonic() - started_s:.1f} s, witness waited up to {longest_s:.3f} s"
            )
        load.wait_for_more(100)
        longest_s = longest_wait_s(load, begun_s)
        print(f"{role}: the witness's longest wait was {longest_s:.3f} s")
        assert longest_s < WAIT_MAX_S
        # What the attack left behind (half-finished requests, members whose sessions end) changes nothing either.
        assert changes.of_partitions_and_brokers() == [], cluster.said()
        assert cluster.controller(leader) == controller
    wait_alike(cluster, topic)


def test_a_follower_returns_while_clients_hold_all_connections(attacked: Attacked) -> None:
    """Some connections are reserved for brokers: a flood that fills the others keeps no follower out."""
    cluster = attacked.cluster
    controller, leader, follower = controller_first(cluster)
    topic = new_topic(cluster, (leader, follower, controller), min_insync_replicas="2")
    with Load(cluster, topic) as load, Flood(attacked.target(leader)) as flood:
        load.wait_for_more(100)
        cluster.wait_until(lambda: flood.refused, "connections are refused")
        cluster.stop(follower)
        # So that it takes what the follower had.
        refused = flood.refused
        cluster.wait_until(lambda: flood.refused > refused, "more connections are refused")
        cluster.restart(follower)
        cluster.wait_in_sync(topic, controller, ALL)
        assert flood.held > CONNECTIONS_MAX / 2
        load.wait_for_more(100)
    wait_alike(cluster, topic)


class Flood:
    """Connections are made again and again, and held until the broker closes them. `with` begins and ends it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._socks: list[socket.socket] = []
        self.refused = 0

    @property
    def held(self) -> int:
        return len(self._socks)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        for sock in self._socks:
            sock.close()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            with suppress(OSError):
                self._socks += [self._target.connect() for _ in range(20)]
            closed = set(filter(is_closed, self._socks))
            self._socks = [sock for sock in self._socks if sock not in closed]
            for sock in closed:
                sock.close()
            self.refused += len(closed)


def test_wrong_proofs_slow_nobody(attacked: Attacked) -> None:
    """Clients that say they are brokers and cannot prove it, on new connections again and again.

    Last: connections of an address from which many proofs were wrong are not served for a while.
    """
    cluster = attacked.cluster
    controller, leader, follower = controller_first(cluster)
    topic = new_topic(cluster, (leader, follower, controller), min_insync_replicas="3")
    cluster_id = str(cluster.metadata(leader).cluster_id)
    stop = threading.Event()
    refused = [0] * 4

    def guess(at: int) -> None:
        wrong = ClusterSecret(bytes([at]) * SECRET_BYTES)
        while not stop.is_set():
            # Closed, or not read because too many failed before.
            with suppress(OSError):
                refused[at] += prove_wrongly(
                    attacked.target(leader), Credentials(wrong, cluster_id, follower)
                )

    with Load(cluster, topic) as load:
        load.wait_for_more(100)
        changes = Changes(cluster)
        begun_s = time.monotonic()
        threads = [threading.Thread(target=guess, args=(at,)) for at in range(len(refused))]
        for thread in threads:
            thread.start()
        load.wait_for_more(1000)
        cluster.wait_until(lambda: sum(refused) >= 20, "twenty proofs are refused")
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        longest_s = longest_wait_s(load, begun_s)
        assert changes.of_partitions_and_brokers() == [], cluster.said()
    print(
        f"{sum(refused)} wrong proofs in {time.monotonic() - begun_s:.1f} s, witness waited up to {longest_s:.3f} s"
    )
    wait_alike(cluster, topic)


def prove_wrongly(target: Target, me: Credentials) -> bool:
    """The whole handshake with the wrong secret; whether the proof was refused. Raises OSError if the broker does not listen."""
    with target.wire() as wire:
        prover = Prover(me, target.node_id, b"n" * NONCE_BYTES)
        assert wire.ask(SASL_HANDSHAKE, 1, mechanism=MECHANISM).error_code == 0
        challenge = wire.ask(SASL_AUTHENTICATE, 2, auth_bytes=prover.hello)
        assert challenge.error_code == 0
        answer = wire.ask(SASL_AUTHENTICATE, 2, auth_bytes=prover.proof(challenge.auth_bytes))
        return bool(answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED)
