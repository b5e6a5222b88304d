"""Unreachable brokers: the error of each client, the reconnect back-off, and the brokers that are tried
instead.
"""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import ottla
from ottla.client.connection import BrokerConnection
from ottla.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    DeliveryTimedOut,
    NotKafka,
    RequestTimedOut,
    TopicNotFound,
)
from ottla.client.settings import ClientConfig
from ottla.server.embedded import Broker
from tests.admin_tour import until
from tests.client.gate import Gate, gated

METADATA = 3
REBOOTSTRAP_REQUIRED = 129


@contextmanager
def listener(answer: bytes | None) -> Iterator[tuple[str, list[float]]]:
    """Takes connections and answers so, or (None) closes them at once; the list tells when they came."""
    server = socket.create_server(("127.0.0.1", 0))
    came: list[float] = []
    kept: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            came.append(time.monotonic())
            if answer is None:
                connection.close()
            else:
                connection.sendall(answer)
                kept.append(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}", came
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
        for connection in kept:
            connection.close()


@pytest.fixture
def misadvertised(free_port: int) -> Iterator[tuple[str, str]]:
    """The address of a broker, and the one that it advertises, where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    advertised = f"127.0.0.1:{free_port}"
    with Broker(port=port, config={"advertised.listeners": f"PLAINTEXT://{advertised}"}):
        yield f"127.0.0.1:{port}", advertised


WRONG_ADDRESS = r"broker 1 advertises {}, and cannot reach .*refused.*check advertised\.listeners on broker 1"


def test_the_future_of_a_record_tells_of_a_wrong_advertised_address(misadvertised: tuple[str, str]) -> None:
    address, advertised = misadvertised
    with ottla.Producer(address, delivery_timeout_ms=1_000, request_timeout_ms=500) as producer:
        future = producer.send("t", b"x")
        with pytest.raises(DeliveryTimedOut, match=WRONG_ADDRESS.format(advertised)) as failure:
            future.result(30)
    assert isinstance(failure.value.__cause__, BrokerUnreachable)


def test_a_consumer_goes_on_trying_and_says_so_once_on_its_logger(
    misadvertised: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Polling gives nothing rather than an error: brokers come back, and a consumer outlives them."""
    address, _ = misadvertised
    caplog.set_level(logging.WARNING, "ottla.client")
    with ottla.Producer(address) as producer:
        producer.partitions_for("t")
    with ottla.Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        assert consumer.poll(1_500) == {}
    (told,) = {record.getMessage() for record in caplog.records}
    assert "check advertised.listeners on broker 1" in told
    assert len(caplog.records) == 1
    assert caplog.records[0].name == "ottla.client"


def test_an_admin_call_tells_of_a_wrong_advertised_address(misadvertised: tuple[str, str]) -> None:
    address, advertised = misadvertised
    with (
        ottla.Admin(address) as admin,
        pytest.raises(BrokerUnreachable, match=WRONG_ADDRESS.format(advertised)),
    ):
        admin.create_topic("t", 1)


def test_a_broker_that_has_answered_before_is_said_to_be_down() -> None:
    with Broker() as broker, ottla.Admin(broker.address) as admin:
        broker.close()
        # A request that is written before the client sees the end of the connection fails with ConnectionLost.
        until(lambda: not admin._core._cluster.pool.open_by_load(), "the end of the connection")
        with pytest.raises(BrokerUnreachable, match=r"broker 1: cannot reach.*may be down or restarting"):
            admin.create_topic("t", 1)


def test_a_missing_topic_is_reported_although_a_later_metadata_request_has_no_answer() -> None:
    with (
        gated(Gate(), {"auto.create.topics.enable": "false"}) as gate,
        ottla.Producer(gate.address, max_block_ms=2000) as producer,
    ):
        gate.answers_left[METADATA] = 1
        with pytest.raises(TopicNotFound, match="ottla topic create"):
            producer.send("nowhere", b"v")
        # A topic that no answer names may exist.
        with pytest.raises(RequestTimedOut, match="no broker returned the metadata"):
            producer.send("elsewhere", b"v")


def test_all_dead_bootstrap_addresses_are_listed(free_port: int) -> None:
    dead = [f"127.0.0.1:{free_port}", f"no-such-host.invalid:{free_port}"]
    with pytest.raises(BrokerUnreachable) as failure:
        ottla.Producer(dead)
    assert f"cannot reach broker {dead[0]}: connection refused" in str(failure.value)
    assert f"cannot reach broker {dead[1]}: the host name does not resolve" in str(failure.value)


def test_one_live_bootstrap_address_is_enough(ottla_address: str, free_port: int) -> None:
    with ottla.Admin([f"127.0.0.1:{free_port}", ottla_address]) as admin:
        admin.describe_cluster()


def test_a_server_that_never_answers_is_named(free_port: int) -> None:
    with listener(b"") as (address, _):
        for settings in ({}, {"security_protocol": "SSL"}):
            with pytest.raises(RequestTimedOut, match=rf"{address} accepted the connection.*within 0\.2 s"):
                ottla.Admin(address, socket_connection_setup_timeout_ms=200, **settings)  # type: ignore[arg-type]


def test_a_web_server_is_recognised() -> None:
    told = pytest.raises(NotKafka, match=r"but HTTP.*web server")
    with listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (address, _), told:
        ottla.Admin(address)


def test_clients_of_a_dead_cluster_close_in_their_time(topic_name: str) -> None:
    with Broker() as broker:
        producer = ottla.Producer(broker.address)
        producer.send(topic_name, b"1").result(30)
        consumer = ottla.Consumer(
            broker.address, auto_offset_reset="earliest", group_id="g", group_protocol="consumer"
        )
        consumer.subscribe([topic_name])
        deadline = time.monotonic() + 30
        while not consumer.poll(200) and time.monotonic() < deadline:
            pass
    producer.send(topic_name, b"2")
    started = time.monotonic()
    producer.close(0.5)
    consumer.close(0.5)
    # Far below the 30 s and 60 s after which requests and commits are given up.
    assert time.monotonic() - started < 15


def test_a_dead_broker_is_not_dialled_in_a_storm() -> None:
    """Many callers, who all want it now, share attempts that come less and less often."""
    with listener(None) as (address, came):

        async def body() -> None:
            from ottla.client.pool import Pool

            host, _, port = address.rpartition(":")
            pool = Pool(ClientConfig(reconnect_backoff_ms=50, reconnect_backoff_max_ms=400))
            deadline = time.monotonic() + 1.5

            async def insist() -> None:
                while time.monotonic() < deadline:
                    with pytest.raises(BrokerUnreachable):
                        await pool.reach((host, int(port)))

            await asyncio.gather(*(insist() for _ in range(20)))
            await pool.close()

        asyncio.run(body())
    # 0, 50, 150, 350, 750, 1150, 1550 ms, a fifth sooner or later.
    assert 2 <= len(came) <= 9


def test_a_name_with_several_addresses_has_them_all_tried(
    ottla_address: str, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = ottla_address.rpartition(":")
    real = socket.getaddrinfo

    def several(name: str, *rest: Any, **more: Any) -> Any:
        if name != "several.example":
            return real(name, *rest, **more)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, free_port)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, int(port))),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", several)

    async def body() -> None:
        connection = await BrokerConnection.open("several.example", 9092, ClientConfig())
        connection.close()
        await connection.wait_closed(5)

    asyncio.run(body())


def test_sockets_are_set_up_as_the_settings_say(ottla_address: str) -> None:
    host, _, port = ottla_address.rpartition(":")

    async def body() -> None:
        settings = ClientConfig(send_buffer_bytes=40_000, receive_buffer_bytes=50_000)
        connection = await BrokerConnection.open(host, int(port), settings)
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        # Linux doubles what it is given.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (40_000, 80_000)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (50_000, 100_000)
        connection.close()
        await connection.wait_closed(5)

    asyncio.run(body())


def test_an_idle_connection_is_closed_and_opened_again() -> None:
    with gated(Gate()) as gate, ottla.Admin(gate.address, connections_max_idle_ms=100) as admin:
        admin.describe_cluster()
        assert gate.connections == 1
        deadline = time.monotonic() + 30
        while gate.open_now and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not gate.open_now
        admin.describe_cluster()
        assert gate.connections == 2


def test_the_bootstrap_addresses_are_asked_when_all_known_brokers_are_gone(free_port: int) -> None:
    with Broker() as first, ottla.Admin([first.address, f"127.0.0.1:{free_port}"]) as admin:
        before = admin.describe_cluster()
        first.close()
        with Broker(port=free_port):
            after = admin.describe_cluster()
    assert {node.port for node in before.nodes} != {node.port for node in after.nodes} == {free_port}


def test_a_broker_that_demands_it_has_the_client_bootstrap_again() -> None:
    """KIP-1102."""
    with gated(Gate()) as gate, ottla.Admin(gate.address) as admin:
        gate.instead[METADATA] = [{"error_code": REBOOTSTRAP_REQUIRED, "brokers": [], "topics": []}]
        assert admin.describe_cluster().nodes
        assert not gate.instead[METADATA]
        assert gate.connections == 2


def test_metadata_is_asked_of_another_broker_when_the_connection_breaks() -> None:
    with gated(Gate()) as gate, ottla.Admin(gate.address) as admin:
        gate.drop()
        assert admin.describe_cluster().nodes


FORK = """
import os, ottla
from ottla.client.errors import ClientClosed
from ottla.server.embedded import Broker
broker = Broker()
producer = ottla.Producer(broker.address)
producer.send("t", b"1").result(30)
consumer = ottla.Consumer(broker.address, auto_offset_reset="earliest")
consumer.assign([("t", 0)])
admin = ottla.Admin(broker.address)
child = os.fork()
if child == 0:
    told = 0
    for use in (lambda: producer.send("t", b"2"), producer.flush, lambda: consumer.poll(100), admin.list_topics):
        try:
            use()
        except ClientClosed as error:
            told += "before a fork" in str(error) and "a new one" in str(error)
    for each in (producer, consumer, admin):
        each.close()
    os._exit(0 if told == 4 else 1)
assert os.waitpid(child, 0)[1] == 0
assert producer.send("t", b"3").result(30).offset == 1
assert sum(len(each) for each in consumer.poll(10_000).values()) >= 1
for each in (producer, consumer, admin, broker):
    each.close()
"""


def test_a_client_that_is_used_in_a_forked_child_says_so_and_the_parents_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_program_that_closes_nothing_ends_in_silence(ottla_address: str, topic_name: str) -> None:
    program = (
        "import sys, ottla\n"
        "address, topic = sys.argv[1:]\n"
        "producer, admin = ottla.Producer(address), ottla.Admin(address)\n"
        "producer.send(topic, b'1').result(30)\n"
        "consumer = ottla.Consumer(address, group_id=topic, auto_offset_reset='earliest')\n"
        "consumer.subscribe([topic])\n"
        "while not consumer.poll(100):\n"
        "    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, ottla_address, topic_name],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_client_that_is_used_on_another_loop_says_so(ottla_address: str) -> None:
    import ottla.aio

    admin = ottla.aio.Admin(ottla_address)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(admin.start())
    with pytest.raises(ClientClosed, match="another event loop"):
        asyncio.run(admin._cluster.pool.reach(("127.0.0.1", 1)))
    loop.run_until_complete(admin.close())
    loop.close()
