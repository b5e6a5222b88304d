"""TLS and SASL of the SDK against Apache Kafka's own listeners: every mechanism, client certificates, renewed sessions, and refusals."""

import asyncio
import base64
import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

import ottla
import ottla.aio
from bench.kafka import KafkaUnavailable, fetch, find_java
from bench.process import free_port
from ottla.client.errors import AuthenticationFailed, BrokerUnreachable, KafkaError, NotKafka, TlsFailed
from tests.crash.broker_process import wait_until

PASSWORDS = {
    "PLAIN": "plain-secret",
    "SCRAM-SHA-256": "scram-256-secret",
    "SCRAM-SHA-512": "scram-512-secret",
}
#: Listener, and the security protocol it maps to.
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "SASLTLS": "SASL_SSL",
    "SASL": "SASL_PLAINTEXT",
}
SESSION_MS = 2_000


@dataclass
class Secured:
    ports: dict[str, int]
    cafile: str
    certificate: str
    key: str

    def __getitem__(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"


def pem(issued: trustme.LeafCert, chain: Path, key: Path) -> None:
    """Kafka reads keys as PKCS 8."""
    chain.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    loaded = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    key.write_bytes(
        loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )  # fmt: skip


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    try:
        find_java()
    except KafkaUnavailable:
        pytest.skip("Java 17 is not here")
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not here")
    home = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(home / "ca.pem"))
    for name, host in (("broker", "127.0.0.1"), ("client", "client@example.org")):
        pem(authority.issue_cert(host), home / f"{name}.pem", home / f"{name}.key")
    (home / "broker-all.pem").write_bytes(
        (home / "broker.key").read_bytes() + (home / "broker.pem").read_bytes()
    )
    ports = {name: free_port() for name in LISTENERS}
    controller_port = free_port()
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        + f",CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items())
        + ",CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(home / "broker-all.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(home / "ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "connections.max.reauth.ms": str(SESSION_MS),
    }
    for listener in ("sasltls", "sasl"):
        for mechanism, module in (
            ("plain", f'plain.PlainLoginModule required user_alice="{PASSWORDS["PLAIN"]}"'),
            ("scram-sha-256", "scram.ScramLoginModule required"),
            ("scram-sha-512", "scram.ScramLoginModule required"),
            (
                "oauthbearer",
                'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker"',
            ),
        ):
            name = f"listener.name.{listener}.{mechanism}.sasl.jaas.config"
            settings[name] = f"org.apache.kafka.common.security.{module};"
    process = fetch().start(
        home / "kafka",
        port=ports["PLAINTEXT"],
        settings=settings,
        scram=[f"{m}=[name=alice,password={PASSWORDS[m]}]" for m in ("SCRAM-SHA-256", "SCRAM-SHA-512")],
    )
    try:
        process.wait_ready()
        # The other listeners come after the one that answers.
        wait_until(lambda: all(map(listens, ports.values())), "all listeners are there")
        yield Secured(ports, str(home / "ca.pem"), str(home / "client.pem"), str(home / "client.key"))
    finally:
        process.stop()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def token(subject: str = "alice", lifetime_s: float = 3600) -> str:
    """An unsecured JWT, which Kafka's own validator for tests takes."""
    # Kafka counts in whole milliseconds, and refuses what is issued a part of one later.
    now = int(time.time())
    parts = [{"alg": "none"}, {"sub": subject, "iat": now, "exp": now + lifetime_s}]
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        + "."
    )


def ways(secured: Secured) -> dict[str, tuple[str, dict[str, Any]]]:
    tls = {"ssl_cafile": secured.cafile}
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "TLS": (secured["TLS"], {"security_protocol": "SSL", **tls}),
        "mutual TLS": (
            secured["MUTUAL"],
            {
                "security_protocol": "SSL",
                **tls,
                "ssl_certfile": secured.certificate,
                "ssl_keyfile": secured.key,
            },
        ),
    }
    for listener, protocol, more in (("SASLTLS", "SASL_SSL", tls), ("SASL", "SASL_PLAINTEXT", {})):
        for mechanism, password in PASSWORDS.items():
            found[f"{mechanism} {protocol}"] = (
                secured[listener],
                {
                    "security_protocol": protocol, "sasl_mechanism": mechanism, "sasl_username": "alice",
                    "sasl_password": password, **more,
                },
            )  # fmt: skip
        found[f"OAUTHBEARER {protocol}"] = (
            secured[listener],
            {
                "security_protocol": protocol, "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": token, **more,
            },
        )  # fmt: skip
    return found


WAYS = [
    "TLS", "mutual TLS",
    *(f"{mechanism} {protocol}" for mechanism in (*PASSWORDS, "OAUTHBEARER") for protocol in ("SASL_SSL", "SASL_PLAINTEXT")),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_with_every_client(secured: Secured, topic: str, way: str) -> None:
    address, settings = ways(secured)[way]
    with ottla.Admin(address, **settings) as admin:
        admin.create_topic(topic, 1, 1)
    with ottla.Producer(address, **settings) as producer:
        assert producer.send(topic, b"1").result(60).offset == 0
    with ottla.Consumer(address, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([(topic, 0)])
        (records,) = consumer.poll(60_000).values()
        assert [record.value for record in records] == [b"1"]

    async def body() -> None:
        async with ottla.aio.Producer(address, **settings) as producer:
            assert (await (await producer.send(topic, b"2"))).offset == 1
        async with ottla.aio.Consumer(address, auto_offset_reset="earliest", **settings) as consumer:
            await consumer.assign([ottla.TopicPartition(topic, 0)])
            assert await consumer.poll(60_000)
        async with ottla.aio.Admin(address, **settings) as admin:
            await admin.delete_topics([topic])

    asyncio.run(body())


@pytest.mark.parametrize("way", [f"{mechanism} SASL_SSL" for mechanism in (*PASSWORDS, "OAUTHBEARER")])
def test_sessions_are_renewed_on_the_same_connection(secured: Secured, topic: str, way: str) -> None:
    """Kafka closes the connection of whoever goes on past its session; a record that had to be sent again would be counted."""
    address, settings = ways(secured)[way]
    with ottla.Admin(address, **settings) as admin:
        admin.create_topic(topic, 1, 1)
        with ottla.Producer(address, retry_backoff_ms=0, batch_size=16_384, **settings) as producer:
            before = connection_ids(producer)
            deadline = time.monotonic() + 3 * SESSION_MS / 1000
            while time.monotonic() < deadline:
                # Several requests are on their way at any time.
                for future in [producer.send(topic, bytes(1_000)) for _ in range(2_000)]:
                    future.result(60)
            assert connection_ids(producer) == before
        # An idle one, whose session has ended long ago, is renewed as well.
        assert topic in admin.list_topics()


def connection_ids(producer: ottla.Producer) -> set[int]:
    return {id(each) for each in producer._core._cluster.pool._connections.values()}


@pytest.mark.parametrize("mechanism", list(PASSWORDS))
@pytest.mark.parametrize("client", [ottla.Admin, ottla.Producer, ottla.Consumer])
def test_a_wrong_password_is_refused_at_once(
    secured: Secured, mechanism: str, client: Callable[..., Any]
) -> None:
    address, settings = ways(secured)[f"{mechanism} SASL_SSL"]
    with pytest.raises(AuthenticationFailed, match=r"as 'alice'.*Check sasl_username") as failure:
        client(address, **{**settings, "sasl_password": "wr0ng"})
    assert "wr0ng" not in str(failure.value)


def test_an_expired_token_is_refused_with_the_brokers_words(secured: Secured) -> None:
    address, settings = ways(secured)["OAUTHBEARER SASL_SSL"]
    settings["sasl_oauth_token_provider"] = lambda: token(lifetime_s=-60)
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        ottla.Admin(address, **settings)


def test_a_missing_client_certificate_is_explained(secured: Secured) -> None:
    with pytest.raises(KafkaError, match="ssl_certfile"):
        ottla.Admin(secured["MUTUAL"], security_protocol="SSL", ssl_cafile=secured.cafile)


def test_an_unknown_authority_and_ports_of_the_other_kind_are_explained(secured: Secured) -> None:
    with pytest.raises(TlsFailed, match="ssl_cafile"):
        ottla.Admin(secured["TLS"], security_protocol="SSL")
    with pytest.raises(BrokerUnreachable, match="PLAINTEXT"):
        ottla.Admin(secured["PLAINTEXT"], security_protocol="SSL", ssl_cafile=secured.cafile)
    with pytest.raises((NotKafka, BrokerUnreachable), match="TLS"):
        ottla.Admin(secured["TLS"])
    with pytest.raises(KafkaError, match="security_protocol"):
        ottla.Admin(secured["SASL"])
    settings: Any = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "x"}
    with pytest.raises(AuthenticationFailed, match="has no SASL"):
        ottla.Admin(secured["PLAINTEXT"], security_protocol="SASL_PLAINTEXT", **settings)
