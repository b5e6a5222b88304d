"""Brokers for the SDK: a shared one, one behind a proxy that simulates the network, and ones to kill."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ottla
from ottla.runtime.local_zookeeper import LocalZookeeper
from tests.broker_proxy import Proxy
from tests.cluster.running_cluster import RunningCluster, free_ports
from tests.crash.broker_process import BrokerProcess
from tests.running_broker import RunningBroker
from tests.zookeeper_fixture import program, shared_zookeeper, zookeeper

__all__ = ["program", "shared_zookeeper", "zookeeper"]

_NUMBERS = itertools.count()
#: Groups whose members come at once and are missed soon.
QUICK = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=500",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.heartbeat.interval.ms=200",
    "group.consumer.min.session.timeout.ms=1000",
    "offsets.topic.num.partitions=4",
    "transaction.state.log.num.partitions=4",
)


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A broker process that is reached through a proxy."""
    with Proxy() as proxy:
        broker = RunningBroker(
            tmp_path_factory.mktemp("network"),
            proxy.target_port,
            f"advertised.listeners={proxy.advertised}",
            "group.consumer.session.timeout.ms=2000",
            *QUICK,
        )
        yield proxy
        assert broker.stop() == 0


@pytest.fixture
def proxy(network: Proxy) -> Iterator[Proxy]:
    network.heal()
    yield network
    network.heal()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server whose clients these are: `tests/interop` has Apache Kafka here."""
    broker = RunningBroker(tmp_path_factory.mktemp("ottla"), 0, *QUICK)
    yield broker.address
    assert broker.stop() == 0


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker to be killed and started again."""
    settings = dict(setting.split("=") for setting in QUICK)
    with BrokerProcess(tmp_path / "data", next(free_ports()), settings) as process:
        yield process


@pytest.fixture
def make_topic() -> Callable[..., str]:
    """A new topic on a server, with so many partitions."""

    def make(address: str, partitions: int = 1, **configs: str) -> str:
        name = f"topic-{next(_NUMBERS)}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        with ottla.Admin(address) as admin:
            admin.create_topic(name, partitions, configs=settings)
        return name

    return make


@pytest.fixture(scope="module")
def three_brokers(
    shared_zookeeper: LocalZookeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    connect = f"{shared_zookeeper.address}/sdk/{next(_NUMBERS)}"
    settings = dict(setting.split("=") for setting in QUICK)
    with RunningCluster(tmp_path_factory.mktemp("cluster"), connect, settings) as cluster:
        yield cluster.start(1, 2, 3)


@pytest.fixture
def cluster(three_brokers: RunningCluster) -> Iterator[RunningCluster]:
    """Three brokers, all of which live when a test begins."""
    three_brokers.heal()
    yield three_brokers
    three_brokers.heal()
