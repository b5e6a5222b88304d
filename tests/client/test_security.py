"""TLS and SASL of all clients, blocking and asyncio, through a proxy that speaks them; and the errors."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

import ottla
import ottla.aio
from ottla.client import connection
from ottla.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    KafkaError,
    NotKafka,
    SettingError,
    TlsFailed,
)
from ottla.client.sasl.oauthbearer import OAuthToken
from ottla.client.settings import ClientConfig
from tests.client.gate import Gate, Sasl, gated

USER = {"sasl_username": "alice", "sasl_password": "alice-secret"}
SASL = {"security_protocol": "SASL_PLAINTEXT", **USER}


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def cafile(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def server_tls(authority: trustme.CA, *names: str, client_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    if client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    return context


@contextmanager
def alerting(context: ssl.SSLContext) -> Iterator[str]:
    """Takes one connection, and says what is wrong with its handshake."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        # Closed when all was read: a reset would overtake the alert.
        with connection.dup() as raw:
            with suppress(ssl.SSLError), context.wrap_socket(connection, server_side=True) as wrapped:
                wrapped.recv(1)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(1 << 16):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    thread.join(30)
    server.close()


def tour(address: str, topic: str, **settings: Any) -> None:
    """Every client once, blocking and on asyncio."""
    with ottla.Admin(address, **settings) as admin:
        admin.create_topic(topic, 1)
    with ottla.Producer(address, **settings) as producer:
        assert producer.send(topic, b"1").result(30).offset == 0
    with ottla.Consumer(address, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([(topic, 0)])
        (records,) = consumer.poll(30_000).values()
        assert [record.value for record in records] == [b"1"]

    async def body() -> None:
        async with ottla.aio.Admin(address, **settings) as admin:
            assert topic in await admin.list_topics()
        async with ottla.aio.Producer(address, **settings) as producer:
            assert (await (await producer.send(topic, b"2"))).offset == 1
        async with ottla.aio.Consumer(address, auto_offset_reset="earliest", **settings) as consumer:
            await consumer.assign([ottla.TopicPartition(topic, 0)])
            assert await consumer.poll(30_000)

    asyncio.run(body())


# --- TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_gate(authority: trustme.CA) -> Iterator[Gate]:
    with gated(Gate(tls=server_tls(authority, "127.0.0.1"))) as gate:
        yield gate


def test_all_clients_speak_tls(tls_gate: Gate, cafile: str) -> None:
    tour(tls_gate.address, "tls", security_protocol="SSL", ssl_cafile=cafile)


def test_a_context_of_ones_own(tls_gate: Gate, cafile: str) -> None:
    context = ssl.create_default_context(cafile=cafile)
    with ottla.Admin(tls_gate.address, security_protocol="SSL", ssl_context=context) as admin:
        admin.describe_cluster()


def test_an_unknown_authority_is_explained(tls_gate: Gate) -> None:
    with pytest.raises(TlsFailed, match=r"authority that is not known.*ssl_cafile") as failure:
        ottla.Admin(tls_gate.address, security_protocol="SSL")
    assert not failure.value.retriable
    assert failure.value.broker == tls_gate.address


def test_a_certificate_for_another_host_is_explained_and_may_be_accepted(
    authority: trustme.CA, cafile: str
) -> None:
    with gated(Gate(tls=server_tls(authority, "elsewhere.example"))) as gate:
        settings: Any = {"security_protocol": "SSL", "ssl_cafile": cafile}
        with pytest.raises(TlsFailed, match=r"not for 127\.0\.0\.1.*ssl_check_hostname"):
            ottla.Producer(gate.address, **settings)
        with ottla.Admin(gate.address, ssl_check_hostname=False, **settings) as admin:
            admin.describe_cluster()


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_clients_certificate_is_demanded_and_given(
    authority: trustme.CA, cafile: str, tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    """In 1.3 the client is done with the handshake before the server refuses."""
    context = server_tls(authority, "127.0.0.1", client_certificate=True)
    context.maximum_version = newest
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    issued = authority.issue_cert("client@example.org")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    settings: Any = {"security_protocol": "SSL", "ssl_cafile": cafile}
    with gated(Gate(tls=context)) as gate:
        # The gate's TLS is asyncio's, which closes without an alert; that of OpenSSL alone sends one.
        with pytest.raises(BrokerUnreachable, match=r"closed it during.*(ssl_certfile|TLS)"):
            ottla.Admin(gate.address, **settings)
        with (
            alerting(context) as address,
            pytest.raises(TlsFailed, match="demands a client's certificate: give ssl_certfile"),
        ):
            ottla.Admin(address, **settings)
        with ottla.Admin(
            gate.address, ssl_certfile=str(certificate), ssl_keyfile=str(key), **settings
        ) as admin:
            admin.describe_cluster()


def test_a_listener_without_tls_is_explained(ottla_address: str) -> None:
    with pytest.raises(BrokerUnreachable, match=r"during the TLS handshake.*PLAINTEXT"):
        ottla.Admin(ottla_address, security_protocol="SSL")


def test_a_listener_with_tls_is_explained_to_who_comes_without(tls_gate: Gate) -> None:
    with pytest.raises((NotKafka, BrokerUnreachable), match=r"TLS.*security_protocol"):
        ottla.Admin(tls_gate.address)


# --- SASL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_all_clients_prove_who_they_are(mechanism: str) -> None:
    with gated(Gate(sasl=Sasl(mechanism, {"alice": "alice-secret"}))) as gate:
        tour(gate.address, "sasl", sasl_mechanism=mechanism, **SASL)
        assert gate.sasl is not None and gate.sasl.passed == gate.connections


def test_sasl_over_tls_with_a_token_of_a_coroutine(authority: trustme.CA, cafile: str) -> None:
    async def provider() -> OAuthToken:
        return OAuthToken("good", {"tenant": "one"})

    gate = Gate(tls=server_tls(authority, "127.0.0.1"), sasl=Sasl("OAUTHBEARER", tokens={"good"}))
    with gated(gate):
        tour(
            gate.address, "oauth", security_protocol="SASL_SSL", ssl_cafile=cafile,
            sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=provider,
        )  # fmt: skip


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("kind", [ottla.Admin, ottla.Producer, ottla.Consumer])
def test_a_wrong_password_fails_at_once_and_is_not_told(mechanism: Any, kind: Any) -> None:
    with gated(Gate(sasl=Sasl(mechanism, {"alice": "alice-secret"}))) as gate:
        with pytest.raises(
            AuthenticationFailed, match=r"as 'alice'.*bad credentials.*Check sasl_username"
        ) as failure:
            kind(gate.address, sasl_mechanism=mechanism, **{**SASL, "sasl_password": "wr0ng"})
        assert gate.connections == 1
    assert not failure.value.retriable
    assert failure.value.broker == gate.address
    assert "wr0ng" not in repr(failure.value) + str(failure.value)


def test_a_password_that_changes_while_a_producer_runs_fails_its_records() -> None:
    with gated(Gate(sasl=Sasl("PLAIN", {"alice": "alice-secret"}))) as gate:
        with ottla.Admin(gate.address, sasl_mechanism="PLAIN", **SASL) as admin:
            admin.create_topic("t", 1)
        with ottla.Producer(gate.address, sasl_mechanism="PLAIN", **SASL) as producer:
            producer.send("t", b"1").result(30)
            assert gate.sasl is not None
            gate.sasl.users["alice"] = "changed"
            gate.drop()
            with pytest.raises(KafkaError) as failure:
                producer.send("t", b"2").result(30)
            assert isinstance(failure.value, AuthenticationFailed), failure.value


@pytest.mark.parametrize(
    "group", [{}, {"group_id": "g", "group_protocol": "consumer"}], ids=["assigned", "subscribed"]
)
def test_a_password_that_changes_while_a_consumer_runs_is_told_by_poll(group: Any) -> None:
    with gated(Gate(sasl=Sasl("PLAIN", {"alice": "alice-secret"}))) as gate:
        settings: Any = {"sasl_mechanism": "PLAIN", **SASL, **group}
        with ottla.Admin(gate.address, sasl_mechanism="PLAIN", **SASL) as admin:
            admin.create_topic("t", 1)
        consumer = ottla.Consumer(gate.address, auto_offset_reset="earliest", **settings)
        if group:
            consumer.subscribe(["t"])
        else:
            consumer.assign([("t", 0)])
        # Every connection that it needs is there before the gate drops them.
        with ottla.Producer(gate.address, sasl_mechanism="PLAIN", **SASL) as producer:
            producer.send("t", b"1")
        assert next(consumer.batches())
        assert gate.sasl is not None
        gate.sasl.users.clear()
        gate.drop()

        def poll_until_refused() -> None:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                consumer.poll(200)

        with pytest.raises(AuthenticationFailed, match="as 'alice'"):
            poll_until_refused()
        consumer.close(1)


def test_a_refused_token_says_what_the_server_said() -> None:
    refused = pytest.raises(AuthenticationFailed, match=r"invalid_token.*issuer")
    with gated(Gate(sasl=Sasl("OAUTHBEARER"))) as gate, refused as failure:
        ottla.Admin(
            gate.address, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=lambda: "secret-token",
        )  # fmt: skip
    assert "secret-token" not in str(failure.value)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (ConnectionRefusedError("idp is away"), BrokerUnreachable),
        (KeyError("access_token"), AuthenticationFailed),
    ],
)
def test_a_token_provider_that_fails_is_told(problem: Exception, expected: type[KafkaError]) -> None:
    def provider() -> str:
        raise problem

    with (
        gated(Gate(sasl=Sasl("OAUTHBEARER"))) as gate,
        pytest.raises(expected, match="token provider") as failure,
    ):
        ottla.Admin(
            gate.address, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider,
        )  # fmt: skip
    assert failure.value.__cause__ is problem


def test_a_mechanism_that_is_not_offered_is_told_with_those_that_are() -> None:
    refused = pytest.raises(AuthenticationFailed, match="does not offer PLAIN, but SCRAM-SHA-512")
    with gated(Gate(sasl=Sasl("SCRAM-SHA-512"))) as gate, refused:
        ottla.Admin(gate.address, sasl_mechanism="PLAIN", **SASL)


def test_a_broker_without_sasl_is_told(ottla_address: str) -> None:
    with pytest.raises(AuthenticationFailed, match="has no SASL"):
        ottla.Admin(ottla_address, sasl_mechanism="PLAIN", **SASL)


def test_who_comes_without_sasl_is_told_what_may_be_missing() -> None:
    with gated(Gate(sasl=Sasl("PLAIN"))) as gate, pytest.raises(KafkaError, match="security_protocol"):
        ottla.Admin(gate.address)


def test_sessions_are_renewed_while_records_flow() -> None:
    """KIP-368: the gate closes the connection of whoever sends anything else in between."""
    sasl = Sasl("SCRAM-SHA-256", {"alice": "alice-secret"}, session_ms=300)
    with gated(Gate(sasl=sasl)) as gate:
        settings: Any = {"sasl_mechanism": "SCRAM-SHA-256", **SASL}
        with ottla.Admin(gate.address, **settings) as admin:
            admin.create_topic("t", 1)
        with ottla.Producer(gate.address, **settings) as producer:
            connections, passed = gate.connections, sasl.passed
            sent = 0
            while sasl.passed < passed + 4:
                producer.send("t", b"x").result(30)
                sent += 1
            assert gate.connections == connections
            assert producer.send("t", b"last").result(30).offset == sent


def test_a_renewal_that_goes_wrong_in_another_way_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("out of order")

    sasl = Sasl("PLAIN", {"alice": "alice-secret"}, session_ms=50)
    with gated(Gate(sasl=sasl)) as gate, ottla.Admin(gate.address, sasl_mechanism="PLAIN", **SASL) as admin:
        monkeypatch.setattr(connection, "authenticate", broken)

        def renew() -> None:
            while True:
                admin._thread.run(admin._core._cluster.refresh(()), 10)

        with pytest.raises((KafkaError, ValueError), match="out of order"):
            renew()


def test_requests_that_come_while_a_session_is_renewed_are_held() -> None:
    sasl = Sasl("SCRAM-SHA-512", {"alice": "alice-secret"}, session_ms=200)

    async def body(address: str) -> None:
        async with ottla.aio.Admin(address, sasl_mechanism="SCRAM-SHA-512", **SASL) as admin:

            async def go_on_asking() -> None:
                while sasl.passed < 4:
                    await admin.describe_cluster()

            await asyncio.gather(*(go_on_asking() for _ in range(20)))

    with gated(Gate(sasl=sasl)) as gate:
        asyncio.run(body(gate.address))
        assert gate.connections == 1


def test_a_renewal_that_fails_closes_the_connection_and_is_told() -> None:
    sasl = Sasl("PLAIN", {"alice": "alice-secret"}, session_ms=50)
    with gated(Gate(sasl=sasl)) as gate, ottla.Admin(gate.address, sasl_mechanism="PLAIN", **SASL) as admin:
        sasl.users.clear()

        def ask_until_refused() -> None:
            while True:
                admin.describe_cluster()

        with pytest.raises(AuthenticationFailed, match="bad credentials"):
            ask_until_refused()


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"security_protocol": "TLS"}, "must be one of PLAINTEXT, SSL"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism, one of PLAIN"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "sasl_mechanism.*'GSSAPI'"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_password": "x"}, "needs sasl_username"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "x"}, "needs sasl_password"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "x", "sasl_password": 5}, "must be a string"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "a\0b", "sasl_password": "x"}, "NUL"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "needs sasl_oauth_token_provider"),
        ({"sasl_username": "x"}, "PLAINTEXT does not use it"),
        ({"ssl_cafile": "x"}, "PLAINTEXT does not use it"),
        ({"security_protocol": "SSL", "ssl_keyfile": "x"}, "needs ssl_certfile"),
        ({"security_protocol": "SSL", "ssl_context": "x"}, "must be an ssl.SSLContext"),
        ({"security_protocol": "SSL", "ssl_context": ssl.create_default_context(), "ssl_cafile": "x"}, "cannot be combined"),
        ({"security_protocol": "SSL", "ssl_cafile": "/nowhere/ca.pem"}, "ssl_cafile /nowhere/ca.pem: no such file"),
        ({"security_protocol": "SSL", "ssl_certfile": "/nowhere/c.pem"}, "/nowhere/c.pem: no such file"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_fail_where_they_are_written(given: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ottla.Producer("127.0.0.1:1", **given)


def test_an_encrypted_key_without_its_password_is_explained(authority: trustme.CA, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    issued = authority.issue_cert("client@example.org")
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    loaded = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"opensesame")
        )
    )  # fmt: skip
    settings: Any = {"security_protocol": "SSL", "ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    for given in ({}, {"ssl_password": "wr0ng"}):
        with pytest.raises(SettingError, match="ssl_password") as failure:
            ottla.Admin("127.0.0.1:1", **settings, **given)
        assert "wr0ng" not in str(failure.value)
    with pytest.raises(BrokerUnreachable):
        ottla.Admin("127.0.0.1:1", ssl_password="opensesame", **settings)


def test_secrets_are_not_in_the_repr() -> None:
    settings = ClientConfig(
        security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="alice", sasl_password="alice-secret",
        ssl_certfile="c", ssl_keyfile="k", ssl_password="key-secret",
    )  # fmt: skip
    assert "alice'" in repr(settings)
    assert "secret" not in repr(settings)
