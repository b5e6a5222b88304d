"""The exchanges in the RFCs, and servers that must be refused."""

import base64
import hashlib
import hmac

import pytest

from ottla.client.sasl.exchange import ExchangeFailed
from ottla.client.sasl.scram import ITERATIONS_MAX, Scram

RFC_5802 = (
    "sha1",
    "fyko+d2lbbFgONRv9qkxdawL",
    b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)
RFC_7677 = (
    "sha256",
    "rOprNGfwEbeRWgbNEkqO",
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


@pytest.mark.parametrize("vector", [RFC_5802, RFC_7677], ids=["RFC 5802", "RFC 7677"])
def test_the_exchange_that_the_rfc_prints(vector: tuple[str, str, bytes, bytes, bytes, bytes]) -> None:
    digest, nonce, first, challenge, final, verdict = vector
    exchange = Scram(digest, "user", "pencil", nonce)
    assert exchange.first() == first
    assert exchange.answer(challenge) == final
    assert exchange.answer(verdict) is None


def test_sha_512_against_the_formulas_of_the_rfc() -> None:
    exchange = Scram("sha512", "user", "pencil", "abc")
    first = "r=abcdef,s=c2FsdA==,i=4096"
    final = exchange.answer(first.encode())
    assert final is not None
    without_proof, _, proof = final.decode().rpartition(",p=")
    message = f"n=user,r=abc,{first},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", b"salt", 4096)
    stored = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    signature = hmac.digest(stored, message, "sha512")
    client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.sha512(client_key).digest() == stored
    verdict = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), message, "sha512")
    assert exchange.answer(b"v=" + base64.b64encode(verdict)) is None


def test_a_name_with_commas_and_equals_signs_is_escaped() -> None:
    assert Scram("sha256", "a,b=c", "x", "nonce").first() == b"n,,n=a=2Cb=3Dc,r=nonce"


def test_extensions_after_the_known_fields_are_signed_and_passed_over() -> None:
    assert Scram("sha256", "user", "pencil", "abc").answer(b"r=abcdef,s=c2FsdA==,i=4096,x=y") is not None


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"r=other,s=c2FsdA==,i=4096", "nonce"),
        (b"r=abc,s=c2FsdA==,i=4096", "nonce"),
        (b"r=abcdef,s=c2FsdA==,i=4095", "4095 iterations"),
        (b"r=abcdef,s=c2FsdA==,i=1", "iterations"),
        (f"r=abcdef,s=c2FsdA==,i={ITERATIONS_MAX + 1}".encode(), "iterations"),
        (b"r=abcdef,s=c2FsdA==,i=04096", "not SCRAM"),
        (b"r=abcdef,s=c2FsdA,i=4096", "not SCRAM"),
        (b"m=ext,r=abcdef,s=c2FsdA==,i=4096", "extension"),
        (b"", "not SCRAM"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_a_first_message_that_must_not_be_believed(challenge: bytes, reason: str) -> None:
    with pytest.raises(ExchangeFailed, match=reason):
        Scram("sha256", "user", "pencil", "abc").answer(challenge)


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "impostor"),
        (b"v=" + base64.b64encode(bytes(32)), "impostor"),
        (b"v=", "impostor"),
        (b"", "impostor"),
        (b"e=invalid-proof", "invalid-proof"),
    ],
)
def test_a_server_that_does_not_know_the_password_is_found_out(verdict: bytes, reason: str) -> None:
    exchange = Scram("sha256", "user", "pencil", RFC_7677[1])
    exchange.answer(RFC_7677[3])
    with pytest.raises(ExchangeFailed, match=reason) as failure:
        exchange.answer(verdict)
    assert "pencil" not in str(failure.value)


def test_nothing_follows_the_end() -> None:
    exchange = Scram("sha256", "user", "pencil", RFC_7677[1])
    exchange.answer(RFC_7677[3])
    exchange.answer(RFC_7677[5])
    with pytest.raises(ExchangeFailed, match="after its last"):
        exchange.answer(RFC_7677[5])
