"""One ZooKeeper for all tests, a path in it for each cluster, and clusters of real broker processes."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ottla.runtime.local_zookeeper import LocalZookeeper
from tests.cluster.running_cluster import RunningCluster
from tests.zookeeper_fixture import program, shared_zookeeper, zookeeper

__all__ = ["program", "shared_zookeeper", "zookeeper"]

_CHROOTS = itertools.count()


@pytest.fixture
def zookeeper_connect(shared_zookeeper: LocalZookeeper) -> str:
    """The zookeeper.connect of a cluster that has nothing yet."""
    return f"{shared_zookeeper.address}/clusters/{next(_CHROOTS)}"


@pytest.fixture
def start_cluster(tmp_path: Path, zookeeper_connect: str) -> Iterator[Callable[..., RunningCluster]]:
    """Start so many brokers, numbered from 1, with these settings; all that still run at the end are killed."""
    with ExitStack() as stack:

        def start(brokers: int = 3, *, connect: str = "", **settings: str) -> RunningCluster:
            names = {name.replace("_", "."): value for name, value in settings.items()}
            cluster = RunningCluster(tmp_path, connect or zookeeper_connect, names)
            stack.enter_context(cluster)
            return cluster.start(*range(1, brokers + 1))

        yield start


@pytest.fixture(scope="module")
def running(
    shared_zookeeper: LocalZookeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    """Three brokers in three racks for a whole module."""
    connect = f"{shared_zookeeper.address}/clusters/{next(_CHROOTS)}"
    with RunningCluster(tmp_path_factory.mktemp("cluster"), connect) as cluster:
        for number, rack in ((1, "a"), (2, "b"), (3, "c")):
            cluster.add(number, broker_rack=rack)
        for node in cluster.nodes.values():
            node.wait_for(" listens on ")
        yield cluster


@pytest.fixture
def shared(running: RunningCluster) -> Iterator[RunningCluster]:
    """The module's cluster. A test may do to its brokers what it likes: all live again for the next one, and no others."""
    running.heal()
    first = list(running.nodes)
    yield running
    for node in [node for node in running.nodes if node not in first]:
        running.kill(node)
        del running.nodes[node]
    running.heal()
