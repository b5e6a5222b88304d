"""A running broker for each claim: as a process of its own, or embedded in this one where a test must look inside."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.runtime.local_zookeeper import LocalZookeeper, find_program, free_ports
from ottla.server.embedded import Broker
from tests.broker_proxy import Proxy
from tests.cluster.running_cluster import RunningCluster
from tests.crash.broker_process import BrokerProcess, Wire


@pytest.fixture
def broker(tmp_path: Path, free_port: int) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", free_port) as process:
        yield process


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    """A bare connection to `broker`."""
    with Wire(broker.address) as connection:
        yield connection


@pytest.fixture
def embed() -> Iterator[Callable[..., Broker]]:
    """Start a broker in this process; settings with underscores instead of dots."""
    running: list[Broker] = []
    directory = tempfile.mkdtemp(prefix="ottla-seeds-")

    def start(**settings: str) -> Broker:
        config = {name.replace("_", "."): value for name, value in settings.items()}
        running.append(Broker(f"{directory}/{len(running)}", config=config))
        return running[-1]

    yield start
    for each in running:
        each.close()
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def network() -> Iterator[Proxy]:
    """A broker in this process that clients reach through a proxy, and whose groups are quick."""
    config = {
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "500",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "200",
        "transaction.state.log.num.partitions": "2",
    }
    with Proxy() as proxy:
        config["advertised.listeners"] = proxy.advertised
        with Broker(port=proxy.target_port, config=config):
            yield proxy


@pytest.fixture
def proxy(network: Proxy) -> Iterator[Proxy]:
    """All tests of a module share the broker, each with topics and groups of its own; the network is healthy when a test begins."""
    network.heal()
    yield network
    network.heal()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZookeeper]:
    server = LocalZookeeper(
        find_program(), tmp_path_factory.mktemp("zookeeper"), free_ports(1)[0], durable=False
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def three_brokers(
    zookeeper: LocalZookeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    """A session lasts longer than any test: whatever happens here does not wait for its end."""
    settings = {
        "zookeeper.session.timeout.ms": "60000",
        "replica.lag.time.max.ms": "1500",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    with RunningCluster(
        tmp_path_factory.mktemp("cluster"), f"{zookeeper.address}/seeds", settings
    ) as cluster:
        for number, rack in ((1, "a"), (2, "a"), (3, "b")):
            cluster.add(number, broker_rack=rack)
        for node in cluster.nodes.values():
            node.wait_for(" listens on ")
        yield cluster


@pytest.fixture
def cluster(three_brokers: RunningCluster) -> Iterator[RunningCluster]:
    """Three brokers in two racks, all of which live when a test begins."""
    three_brokers.heal()
    yield three_brokers
    three_brokers.heal()
