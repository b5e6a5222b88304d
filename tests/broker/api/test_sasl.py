"""SaslHandshake and SaslAuthenticate on a PLAINTEXT listener: nothing for clients, a proof for brokers of the cluster."""

from typing import Any

import pytest

from ottla.model.limits import FAILED_AUTHENTICATION_DELAY_MS
from ottla.security.broker_handshake import MECHANISM, NONCE_BYTES, Credentials
from ottla.security.cluster_secret import SECRET_BYTES, ClusterSecret
from tests.security.prover import Prover

ILLEGAL_SASL_STATE, AUTHENTICATION_FAILED = 34, 58
SECRET = ClusterSecret(b"s" * SECRET_BYTES)
WRONG = ClusterSecret(b"w" * SECRET_BYTES)


@pytest.fixture
def clustered(driver: Any) -> Any:
    """Broker 1 of a cluster that has a secret."""
    driver.broker.credentials = Credentials(SECRET, driver.broker.cluster_id, 1)
    return driver


class Other:
    """Another broker, which dials this one."""

    def __init__(self, driver: Any, node_id: int = 2, secret: ClusterSecret = SECRET) -> None:
        self.client = driver.connect()
        me = Credentials(secret, driver.broker.cluster_id, node_id)
        self._prover = Prover(me, 1, bytes([node_id]) * NONCE_BYTES)
        self.proof = self._prover.proof

    def hello(self) -> bytes:
        answer = self.client.ask(17, 1, mechanism=MECHANISM)
        assert (answer.error_code.value, answer.mechanisms) == (0, (MECHANISM,))
        return self._prover.hello

    def authenticate(self, message: bytes) -> bytes:
        answer = self.client.ask(36, 2, auth_bytes=message)
        assert answer.error_code.value == 0, answer.error_message
        return bytes(answer.auth_bytes)

    def challenge(self) -> bytes:
        return self.authenticate(self.hello())


def fails(driver: Any, client: Any, message: bytes) -> str:
    """The message is refused after a while, and the connection closed; what is said about it."""
    client.send(36, 2, auth_bytes=message)
    assert client.answers == [] and client.is_paused
    driver.advance(FAILED_AUTHENTICATION_DELAY_MS - 10)
    assert client.answers == []
    driver.advance(20)
    [answer] = client.answers
    assert answer.error_code.value == AUTHENTICATION_FAILED and answer.auth_bytes == b""
    assert client.closed_because is not None and client.connection.broker_id is None
    return str(answer.error_message)


def test_a_broker_proves_which_one_it_is(clustered: Any) -> None:
    dialer = Other(clustered, 2)
    proof = dialer.proof(dialer.challenge())
    assert dialer.client.connection.broker_id is None
    dialer.authenticate(proof)
    assert dialer.client.connection.broker_id == 2
    # It stays that one.
    assert dialer.client.ask(17, 1, mechanism=MECHANISM).error_code.value == ILLEGAL_SASL_STATE
    assert dialer.client.ask(36, 2, auth_bytes=proof).error_code.value == ILLEGAL_SASL_STATE
    assert dialer.client.connection.broker_id == 2


def test_a_wrong_proof_is_answered_late_and_closed_and_logged_once(clustered: Any) -> None:
    for _ in range(3):
        dialer = Other(clustered, 2, WRONG)
        assert "the proof is wrong" in fails(clustered, dialer.client, dialer.proof(dialer.challenge()))
    assert len([text for text in clustered.said if "failed to authenticate" in text]) == 1


def test_a_replayed_proof_is_refused(clustered: Any) -> None:
    first = Other(clustered, 2)
    proof = first.proof(first.challenge())
    first.authenticate(proof)
    again = Other(clustered, 2)
    again.challenge()
    fails(clustered, again.client, proof)


def test_a_reflected_message_is_refused(clustered: Any) -> None:
    """What this broker sends, sent back to it."""
    dialer = Other(clustered, 2)
    challenge = dialer.challenge()
    fails(clustered, dialer.client, challenge)
    dialer = Other(clustered, 2)
    answer = dialer.authenticate(dialer.proof(dialer.challenge()))
    other = Other(clustered, 2)
    other.challenge()
    fails(clustered, other.client, answer)
    itself = Other(clustered, 1)
    assert "broker 1 does not connect to broker 1" in fails(clustered, itself.client, itself.hello())


def test_garbage_is_refused_and_who_goes_away_meanwhile_is_forgotten(clustered: Any) -> None:
    dialer = Other(clustered)
    dialer.hello()
    fails(clustered, dialer.client, b"garbage")
    dialer = Other(clustered)
    dialer.hello()
    dialer.client.send(36, 2, auth_bytes=b"garbage")
    dialer.client.disconnect()
    clustered.advance(1000)
    assert dialer.client.answers == []
    assert clustered.connect().ask(18, 0).error_code.value == 0


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "", MECHANISM])
def test_clients_are_told_that_there_is_no_sasl_here(client: Any, mechanism: str, version: int) -> None:
    """On a broker on its own there is none for brokers either. The connection goes on, as Kafka's does."""
    answer = client.ask(17, version, mechanism=mechanism)
    assert (answer.error_code.value, answer.mechanisms) == (ILLEGAL_SASL_STATE, ())
    answer = client.ask(36, 2, auth_bytes=b"\0user\0password")
    assert answer.error_code.value == ILLEGAL_SASL_STATE and "PLAINTEXT" in answer.error_message
    assert client.ask(3, topics=None).brokers and client.closed_because is None


def test_in_a_cluster_too(clustered: Any) -> None:
    client = clustered.connect()
    assert client.ask(17, 1, mechanism="PLAIN").error_code.value == ILLEGAL_SASL_STATE
    assert client.ask(17, 0, mechanism=MECHANISM).error_code.value == ILLEGAL_SASL_STATE
    assert client.ask(36, 2, auth_bytes=b"").error_code.value == ILLEGAL_SASL_STATE
