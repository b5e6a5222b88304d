"""TLS with PEM files that are valid for a century; tls/README.md says how they were created."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from member import Member, member, on_a_loop, topic

from ottla.config.broker import BrokerConfig
from ottla.runtime.local_zookeeper import LocalZookeeper, Program, free_ports
from ottla.runtime.zookeeper_link import ZookeeperSettings
from ottla.runtime.zookeeper_store import StoreUnavailable

PEM = Path(__file__).parent / "tls"


def settings(port: int, **given: str) -> dict[str, Any]:
    """The settings of a broker with this configuration."""
    properties = {
        "zookeeper.connect": f"127.0.0.1:{port}/tls",
        "zookeeper.session.timeout.ms": "6000",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": str(PEM / "ca.pem"),
        "zookeeper.ssl.keystore.location": str(PEM / "client.pem"),
        **{name.replace("_", "."): value for name, value in given.items()},
    }
    return ZookeeperSettings.from_config(BrokerConfig.from_properties(properties))._asdict()


def served_with(program: Program, directory: Path, certificate: str) -> tuple[LocalZookeeper, int]:
    plain, secure = free_ports(2)
    server = LocalZookeeper(
        program,
        directory,
        plain,
        durable=False,
        settings=[
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"secureClientPort={secure}",
            "secureClientPortAddress=127.0.0.1",
            f"ssl.keyStore.location={PEM / certificate}",
            f"ssl.trustStore.location={PEM / 'ca.pem'}",
            "ssl.clientAuth=need",
        ],
    )
    server.start()
    return server, secure


@pytest.fixture(scope="module")
def secure_port(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    server, port = served_with(program, tmp_path_factory.mktemp("tls"), "server.pem")
    yield port
    server.stop()


@on_a_loop
async def test_with_certificates_on_both_sides(secure_port: int) -> None:
    encrypted = {
        "zookeeper_ssl_keystore_location": str(PEM / "client-encrypted.pem"),
        "zookeeper_ssl_keystore_password": "secret",
    }
    async with (
        member(node_id=1, **settings(secure_port)) as one,
        member(node_id=2, **settings(secure_port, **encrypted)) as two,
    ):
        assert (await one.claim())[1] is None
        # More than one TLS record.
        assert await one.append(*(topic(number, 1000) for number in range(300))) is None
        assert (await two.register())[1] is None
        await asyncio.wait_for(one.until_controller(1, 1), 10)
    async with member(node_id=3, **settings(secure_port)) as late:
        assert late.records == one.records


@on_a_loop
async def test_without_a_certificate_or_without_tls_there_is_no_way_in(secure_port: int) -> None:
    connection = {"zookeeper_connection_timeout_ms": "700"}
    without = settings(secure_port, **connection)
    without["keystore"] = None
    with pytest.raises(StoreUnavailable, match="no ZooKeeper answers"):
        await Member(**without).store.connect()
    with pytest.raises(StoreUnavailable, match="no ZooKeeper answers"):
        await Member(
            **settings(secure_port, zookeeper_ssl_client_enable="false", **connection)
        ).store.connect()
    distrusting = settings(secure_port, **connection)
    distrusting["truststore"] = None
    with pytest.raises(
        StoreUnavailable, match=r"within 0.7 s \(.*(CERTIFICATE_VERIFY_FAILED|certificate verify failed)"
    ):
        await Member(**distrusting).store.connect()


@on_a_loop
async def test_a_file_that_is_missing_is_said_at_once(free_port: int) -> None:
    for name, password in (("missing.pem", "x"), ("ca.pem", "x"), ("client-encrypted.pem", "wrong")):
        given = {
            "zookeeper_ssl_keystore_location": str(PEM / name),
            "zookeeper_ssl_keystore_password": password,
        }
        with pytest.raises(StoreUnavailable, match="cannot use the TLS files for ZooKeeper"):
            Member(**settings(free_port, **given))


@on_a_loop
async def test_a_certificate_that_bears_another_name(program: Program, tmp_path: Path) -> None:
    server, port = await asyncio.to_thread(served_with, program, tmp_path, "elsewhere.pem")
    try:
        strict = settings(port, zookeeper_connection_timeout_ms="700")
        with pytest.raises(StoreUnavailable, match="no ZooKeeper answers"):
            await Member(**strict).store.connect()
        lenient = settings(port, zookeeper_ssl_endpoint_identification_algorithm="")
        async with member(node_id=1, **lenient) as one:
            assert (await one.claim())[1] is None
    finally:
        server.stop()
