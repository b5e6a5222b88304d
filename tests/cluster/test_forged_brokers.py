"""Requests of brokers, sent by somebody who is none: with the right ids and the right epochs, and without the proof.

Each was answered like a broker's own: a record was acknowledged that no replica had, and a live leader was deposed.
"""

import json
import socket
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from confluent_kafka import Producer
from kazoo.client import KazooClient

from ottla.model.errors import ErrorCode
from ottla.runtime import zookeeper_layout as layout
from ottla.security.broker_handshake import MECHANISM, NONCE_BYTES, Credentials
from ottla.security.cluster_secret import SECRET_BYTES, ClusterSecret
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.sessions import looking
from tests.cluster.topics import QUIET, controller_of, new_topic, state_of, wait_alike, write
from tests.crash.broker_process import CREATE_TOPICS, FETCH, PRODUCE, Wire, batch_of, fetching, producing
from tests.security.prover import Prover

ADD_PARTITIONS, WRITE_MARKERS, ALTER_PARTITION, ENVELOPE, HEARTBEAT, PRODUCER_IDS = 24, 27, 56, 58, 63, 67
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
ALL = (1, 2, 3)
SECRET_PATH = "/cluster_secret"


def epochs(cluster: RunningCluster) -> dict[int, int]:
    """The present broker epochs, as the registrations have them."""

    def epoch(client: KazooClient, node: int) -> int:
        data, stat = client.get(layout.broker(node))
        return int(json.loads(data).get("epoch", stat.czxid))

    with looking(cluster.zookeeper_connect) as client:
        return {node: epoch(client, node) for node in ALL}


def topic_id_of(cluster: RunningCluster, topic: str) -> bytes:
    [row] = cluster.metadata(cluster.running()[0], topic).topics
    found: bytes = row.topic_id.bytes
    return found


def forge_fetch(
    wire: Wire, cluster: RunningCluster, topic: str, offset: int, replica: int, epoch: int
) -> Any:
    fields = fetching(topic, offset)
    [asked] = fields["topics"]
    asked["topic_id"] = topic_id_of(cluster, topic)
    asked["partitions"][0]["current_leader_epoch"] = state_of(cluster, topic).leader_epoch
    return wire.ask(FETCH, 16, **fields, replica_state={"replica_id": replica, "replica_epoch": epoch})


def test_a_forged_follower_acknowledges_nothing(shared: RunningCluster) -> None:
    """Both followers stand still; the record must wait for them, or its leader's death would lose it."""
    leader, *followers = ALL
    topic = new_topic(shared, ALL, min_insync_replicas="2")
    write(shared, topic, b"zero")
    known = epochs(shared)
    address = shared.nodes[leader].address
    with Wire(address) as producer, Wire(address) as forger:
        for node in followers:
            shared.pause(node)
        producer.send(PRODUCE, 9, **producing(topic, batch_of(b"one")) | {"timeout": 2000})
        shared.wait_until(lambda: len(shared.log_bytes(leader, topic)) > 100, "the leader has the record")
        for node in followers:
            answer = forge_fetch(forger, shared, topic, 2, node, known[node])
            assert (answer.error_code, answer.responses) == (REFUSED, ())
            fields = fetching(topic, 2) | {"replica_id": node}
            # Before version 7 there is no error of the whole.
            [row] = forger.ask(FETCH, 6, **fields).responses[0].partitions
            assert row.error_code == REFUSED and not row.records
            assert forger.ask(FETCH, 11, **fields).error_code == REFUSED
        [[row]] = [each.partition_responses for each in producer.receive().responses]
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT, "acknowledged by nobody but the forger"
    for node in followers:
        shared.resume(node)
    wait_alike(shared, topic)


def test_a_forged_heartbeat_deposes_no_leader(shared: RunningCluster) -> None:
    controller = controller_of(shared)
    leader = next(node for node in ALL if node != controller)
    topic = new_topic(shared, (leader, *(node for node in ALL if node != leader)))
    before = state_of(shared, topic)
    known = epochs(shared)
    with Wire(shared.nodes[controller].address) as wire:
        for wanted in ({"want_fence": True}, {"want_shut_down": True}):
            fields = {"current_metadata_offset": 0, "want_fence": False, "want_shut_down": False, **wanted}
            answer = wire.ask(HEARTBEAT, 1, broker_id=leader, broker_epoch=known[leader], **fields)
            assert answer.error_code == REFUSED
    write(shared, topic, b"still led")
    assert state_of(shared, topic) == before


def test_a_forged_change_of_the_isr_is_refused(shared: RunningCluster) -> None:
    controller = controller_of(shared)
    topic = new_topic(shared, ALL)
    before, known = state_of(shared, topic), epochs(shared)
    row = {
        "partition_index": 0, "leader_epoch": before.leader_epoch, "partition_epoch": 0, "leader_recovery_state": 0,
        "new_isr_with_epochs": [{"broker_id": before.leader, "broker_epoch": known[before.leader]}],
    }  # fmt: skip
    topics = [{"topic_id": topic_id_of(shared, topic), "partitions": [row]}]
    with Wire(shared.nodes[controller].address) as wire:
        answer = wire.ask(
            ALTER_PARTITION, 3, broker_id=before.leader, broker_epoch=known[before.leader], topics=topics
        )
        assert (answer.error_code, answer.topics) == (REFUSED, ())
        answer = wire.ask(PRODUCER_IDS, 0, broker_id=before.leader, broker_epoch=known[before.leader])
        assert answer.error_code == REFUSED
        creating = request_encoder(CREATE_TOPICS, 5)({"topics": [], "timeout": 1000})
        enclosed = ClientConnection("client").request(CREATE_TOPICS, 5, creating)[1][4:]
        answer = wire.ask(
            ENVELOPE, 0, request_data=enclosed, request_principal=None, client_host_address=b"\x7f\0\0\1"
        )
        assert answer.error_code == REFUSED
    assert state_of(shared, topic) == before


def test_a_forged_coordinator_ends_no_transaction(shared: RunningCluster) -> None:
    """Half of a transaction that goes on could be committed, or aborted, under its producer's feet."""
    leader = 1
    topic = new_topic(shared, ALL)
    producer = Producer(
        {
            "bootstrap.servers": shared.bootstrap,
            "transactional.id": topic,
            "transaction.timeout.ms": 600_000,
            **QUIET,
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    with Wire(shared.nodes[leader].address) as wire:
        rows = [{"name": topic, "partition_indexes": [0]}]
        [[known]] = [each.partitions for each in wire.ask(61, 0, topics=rows).topics]
        [active] = known.active_producers
        for commit in (True, False):
            marker = {
                "producer_id": active.producer_id, "producer_epoch": active.producer_epoch, "coordinator_epoch": 0,
                "transaction_result": commit, "transaction_version": 0, "topics": rows,
            }  # fmt: skip
            [[row]] = [
                each.partitions for each in wire.ask(WRITE_MARKERS, 2, markers=[marker]).markers[0].topics
            ]
            assert row.error_code == REFUSED, f"commit={commit}"
        who = {
            "transactional_id": topic,
            "producer_id": active.producer_id,
            "producer_epoch": active.producer_epoch,
        }
        added = {**who, "verify_only": False, "topics": [{"name": topic, "partitions": [0]}]}
        for version in (4, 5):
            assert wire.ask(ADD_PARTITIONS, version, transactions=[added]).error_code == REFUSED
        [[known]] = [each.partitions for each in wire.ask(61, 0, topics=rows).topics]
        assert known.active_producers[0].current_txn_start_offset == 0
    producer.commit_transaction(PATIENCE_S)


# --- the handshake on real sockets --------------------------------------------------------------------------------


def secret_of(cluster: RunningCluster) -> ClusterSecret:
    with looking(cluster.zookeeper_connect) as client:
        return ClusterSecret.from_stored(client.get(SECRET_PATH)[0])


def cluster_id_of(cluster: RunningCluster) -> str:
    return str(cluster.metadata(1).cluster_id)


def is_closed(wire: Wire) -> bool:
    with suppress(ConnectionResetError):
        return wire.socket.recv(1) == b""
    return True


def test_wrong_and_replayed_proofs_are_refused_and_a_right_one_is_a_broker(shared: RunningCluster) -> None:
    secret = secret_of(shared)
    wrong = ClusterSecret(b"?" * SECRET_BYTES)
    failed = ErrorCode.SASL_AUTHENTICATION_FAILED

    def challenged(with_secret: ClusterSecret) -> tuple[Wire, bytes]:
        """A connection that has been asked for its proof, and the proof."""
        wire = stack.enter_context(Wire(shared.nodes[1].address))
        prover = Prover(Credentials(with_secret, cluster_id_of(shared), 2), 1, b"n" * NONCE_BYTES)
        assert wire.ask(SASL_HANDSHAKE, 1, mechanism=MECHANISM).error_code == 0
        answer = wire.ask(SASL_AUTHENTICATE, 2, auth_bytes=prover.hello)
        assert answer.error_code == 0
        return wire, prover.proof(answer.auth_bytes)

    with ExitStack() as stack:
        refused, proof = challenged(wrong)
        assert refused.ask(SASL_AUTHENTICATE, 2, auth_bytes=proof).error_code == failed
        assert is_closed(refused)
        proven, proof = challenged(secret)
        assert proven.ask(SASL_AUTHENTICATE, 2, auth_bytes=proof).error_code == 0
        replaying, _own = challenged(secret)
        assert replaying.ask(SASL_AUTHENTICATE, 2, auth_bytes=proof).error_code == failed
        assert is_closed(replaying)
        # On the one that is proven the request of broker 2 is looked at; that of broker 3 is not.
        known = epochs(shared)
        for node, is_refused in ((2, False), (3, True)):
            answer = proven.ask(PRODUCER_IDS, 0, broker_id=node, broker_epoch=known[node])
            assert (answer.error_code == REFUSED) is is_refused
    assert secret.stored().decode() not in shared.said()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_sasl_client_on_a_plaintext_listener_hears_so(shared: RunningCluster, mechanism: str) -> None:
    with Wire(shared.nodes[1].address) as wire:
        assert wire.ask(SASL_HANDSHAKE, 1, mechanism=mechanism).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.ask(SASL_AUTHENTICATE, 2, auth_bytes=b"").error_code == ErrorCode.ILLEGAL_SASL_STATE
        wire.socket.shutdown(socket.SHUT_WR)
