"""The handshake between brokers, message by message: both ends know the secret, or nothing is proven."""

import pickle

import pytest

from ottla.model.api_key import ApiKey
from ottla.security.broker_handshake import (
    NONCE_BYTES,
    Credentials,
    HandshakeAcceptor,
    HandshakeInitiator,
    NotProven,
)
from ottla.security.cluster_secret import SECRET_BYTES, ClusterSecret
from ottla.wire.encode import response_encoder
from tests.security.prover import Prover

SECRET = ClusterSecret(b"s" * SECRET_BYTES)
ONE, TWO, THREE = (Credentials(SECRET, "cluster", node) for node in (1, 2, 3))
STRANGER = Credentials(ClusterSecret(b"x" * SECRET_BYTES), "cluster", 1)
NEIGHBOUR = Credentials(SECRET, "another cluster", 1)


def nonce(letter: str) -> bytes:
    return letter.encode() * NONCE_BYTES


def dial(me: Credentials = ONE, accepting_id: int = 2, letter: str = "d") -> Prover:
    return Prover(me, accepting_id, nonce(letter))


def prove(dialing: Prover, accepting: HandshakeAcceptor) -> bytes:
    """Up to the proof of the dialing end."""
    return dialing.proof(accepting.answer(dialing.hello))


def test_both_ends_prove_themselves() -> None:
    dialing, accepting = dial(), HandshakeAcceptor(TWO, nonce("a"))
    proof = prove(dialing, accepting)
    assert (accepting.claimed_id, accepting.is_proven) == (1, False)
    assert dialing.answered(accepting.answer(proof)) is None
    assert (accepting.claimed_id, accepting.is_proven) == (1, True)


@pytest.mark.parametrize("me", [STRANGER, NEIGHBOUR], ids=["another secret", "another cluster"])
def test_a_wrong_proof_is_refused(me: Credentials) -> None:
    accepting = HandshakeAcceptor(TWO, nonce("a"))
    proof = prove(dial(me), accepting)
    with pytest.raises(NotProven, match="the proof is wrong"):
        accepting.answer(proof)
    assert not accepting.is_proven


def test_a_replayed_proof_is_refused() -> None:
    first = HandshakeAcceptor(TWO, nonce("a"))
    recorded_hello = dial().hello
    dialing = dial()
    proof = prove(dialing, first)
    first.answer(proof)
    assert first.is_proven
    second = HandshakeAcceptor(TWO, nonce("b"))
    second.answer(recorded_hello)
    with pytest.raises(NotProven):
        second.answer(proof)
    assert not second.is_proven


def test_a_proof_for_one_broker_is_of_no_use_at_another() -> None:
    """Broker 1 dials an attacker in place of broker 2, who relays everything to broker 3."""
    dialing, third = dial(ONE, accepting_id=2), HandshakeAcceptor(THREE, nonce("a"))
    with pytest.raises(NotProven, match="this is broker 3, not broker 2"):
        third.answer(dialing.hello)
    # The attacker changes the id in the first message: the proof is for another one.
    third = HandshakeAcceptor(THREE, nonce("a"))
    challenge = third.answer(dial(STRANGER, accepting_id=3).hello)
    dialing = dial(ONE, accepting_id=2)
    with pytest.raises(NotProven):
        third.answer(dialing.proof(challenge))
    assert not third.is_proven


def test_a_reflected_proof_is_refused() -> None:
    """An attacker sends the messages of broker 2 back to it, so that broker 2 would prove itself for it."""
    accepting = HandshakeAcceptor(TWO, nonce("a"))
    challenge = accepting.answer(dial(STRANGER).hello)
    # Broker 2 dials the attacker in place of broker 1, and gets its own nonce as the challenge.
    dialing = dial(TWO, accepting_id=1, letter="d")
    with pytest.raises(NotProven):
        accepting.answer(dialing.proof(challenge))
    # The same with the response of the accepting end.
    other = HandshakeAcceptor(TWO, nonce("d"))
    proven = other.answer(prove(dial(letter="a"), other))
    with pytest.raises(NotProven):
        accepting.answer(proven)
    assert not accepting.is_proven
    with pytest.raises(NotProven, match="broker 2 does not connect to broker 2"):
        HandshakeAcceptor(TWO, nonce("a")).answer(dial(TWO).hello)


def test_the_accepting_end_is_not_believed_either() -> None:
    dialing = dial()
    proof = dialing.proof(b"\1" + nonce("f"))
    for false in (b"\1" + nonce("f"), proof, b"\1" + bytes(32)):
        with pytest.raises(NotProven, match="does not know the cluster secret"):
            dialing.answered(false)


def test_what_the_accepting_end_refuses_is_told() -> None:
    refusal = response_encoder(ApiKey.SASL_HANDSHAKE, 1)({"error_code": 34, "mechanisms": []})
    with pytest.raises(NotProven, match="ILLEGAL_SASL_STATE"):
        HandshakeInitiator(ONE, 2, nonce("d")).answered(memoryview(refusal))
    dialing = dial()
    with pytest.raises(NotProven, match="this is broker 9"):
        dialing.answered(b"", 58, "this is broker 9")


@pytest.mark.parametrize(
    "garbage", [b"", b"\1", b"\0" * 41, b"\2" + bytes(40), bytes(10_000), b"\1" + bytes(33)]
)
def test_garbage_is_refused_at_every_step(garbage: bytes) -> None:
    with pytest.raises(NotProven):
        HandshakeAcceptor(TWO, nonce("a")).answer(garbage)
    accepting = HandshakeAcceptor(TWO, nonce("a"))
    accepting.answer(dial().hello)
    with pytest.raises(NotProven):
        accepting.answer(garbage)
    dialing = dial()
    with pytest.raises(NotProven):
        dialing.answered(garbage)


def test_the_secret_does_not_show() -> None:
    key = bytes(range(SECRET_BYTES))
    secret = ClusterSecret(key)
    shown = f"{secret!r} {secret} {Credentials(secret, 'c', 1)}"
    assert key.hex() not in shown and repr(key)[2:20] not in shown
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert ClusterSecret.from_stored(secret.stored()).mac(b"m") == secret.mac(b"m")
    for text in (b"", b"00", key, b"zz" * SECRET_BYTES, b"ab" * (SECRET_BYTES + 1)):
        with pytest.raises(ValueError, match="64 hexadecimal digits") as error:
            ClusterSecret.from_stored(text)
        assert error.value.__context__ is None
