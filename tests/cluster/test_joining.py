"""How a broker enters a cluster, and why it may not."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ottla
from ottla.runtime.local_zookeeper import LocalZookeeper
from ottla.server.node import CannotStart
from tests.cluster.running_cluster import RunningCluster, free_ports
from tests.crash.broker_process import BrokerProcess, Wire

StartCluster = Callable[..., RunningCluster]


def test_a_number_that_another_directory_has_is_refused_and_an_earlier_life_is_replaced(
    start_cluster: StartCluster, tmp_path: Path, zookeeper_connect: str
) -> None:
    cluster = start_cluster(1, zookeeper_session_timeout_ms="60000")
    [first] = cluster.nodes.values()
    settings = {"node.id": "1", "zookeeper.connect": zookeeper_connect}
    second = BrokerProcess(tmp_path / "another", 0, settings).spawn()
    assert second.end() == 1
    assert f"node id 1 is in use by the broker at {first.address}" in second.words
    # What holds the number after a kill is its own earlier life, whose session lasts for a minute: nobody waits for that.
    cluster.kill(1)
    killed_s = time.monotonic()
    cluster.restart(1)
    print(f"serves again {time.monotonic() - killed_s:.3f} s after a kill")
    assert time.monotonic() - killed_s < 30
    cluster.stop(1)


def test_a_crash_is_not_hidden_by_a_start_that_comes_to_nothing(
    start_cluster: StartCluster, tmp_path: Path, zookeeper_connect: str
) -> None:
    cluster = start_cluster(1)
    settings = {"node.id": "1", "zookeeper.connect": zookeeper_connect}
    mark = tmp_path / "broker-1" / ".kafka_cleanshutdown"
    cluster.stop(1)
    assert mark.exists()
    # The number is another's now.
    other = BrokerProcess(tmp_path / "another", next(free_ports()), settings).start()
    again = BrokerProcess(tmp_path / "broker-1", next(free_ports()), settings).spawn()
    assert again.end() == 1
    assert "node id 1 is in use" in again.words
    assert mark.exists(), "it was closed in order, and still is"
    # As after a kill.
    mark.unlink()
    again = BrokerProcess(tmp_path / "broker-1", next(free_ports()), settings).spawn()
    assert again.end() == 1
    assert not mark.exists(), "the controller has not heard of it yet"
    assert other.stop() == 0


def test_all_of_a_cluster_bear_one_id_and_another_clusters_directory_is_refused(
    start_cluster: StartCluster, tmp_path: Path, shared_zookeeper: LocalZookeeper
) -> None:
    cluster = start_cluster(2)
    assert len({cluster.metadata(node_id).cluster_id for node_id in (1, 2)}) == 1
    cluster.stop(2)
    settings = {"node.id": "2", "zookeeper.connect": f"{shared_zookeeper.address}/clusters/elsewhere"}
    moved = BrokerProcess(tmp_path / "broker-2", 0, settings).spawn()
    assert moved.end() == 1
    assert f"{tmp_path / 'broker-2'} belongs to cluster.id" in moved.words


def test_what_a_broker_alone_knew_is_not_taken_into_a_cluster_nor_the_other_way(
    start_cluster: StartCluster, tmp_path: Path, zookeeper_connect: str
) -> None:
    alone = BrokerProcess(tmp_path / "alone", next(free_ports()))
    alone.start()
    with Wire(alone.address) as wire:
        wire.create("t")
    assert alone.stop() == 0
    joining = BrokerProcess(tmp_path / "alone", 0, {"zookeeper.connect": zookeeper_connect}).spawn()
    assert joining.end() == 1
    assert f"{tmp_path / 'alone'} has 1 topics of a single broker" in joining.words
    # It is as it was.
    alone.start()
    assert alone.stop() == 0

    cluster = start_cluster(1)
    cluster.stop(1)
    leaving = BrokerProcess(tmp_path / "broker-1", 0).spawn()
    assert leaving.end() == 1
    assert f"start it with --zookeeper {zookeeper_connect}" in leaving.words
    cluster.restart(1)


def test_a_start_waits_for_zookeeper_and_says_so(tmp_path: Path, zookeeper: LocalZookeeper) -> None:
    zookeeper.stop()
    broker = BrokerProcess(tmp_path / "data", 0, {"zookeeper.connect": zookeeper.address}).spawn()
    broker.wait_for(f"waiting for ZooKeeper at {zookeeper.address}")
    zookeeper.start()
    broker.wait_for(" listens on ")
    assert broker.stop() == 0
    zookeeper.stop()
    settings = {"zookeeper.connect": zookeeper.address, "zookeeper.connection.timeout.ms": "300"}
    late = BrokerProcess(tmp_path / "data", 0, settings).spawn()
    assert late.end() == 1
    assert f"no ZooKeeper answers at {zookeeper.address} within 0.3 s" in late.words


def test_a_signal_ends_a_start_that_waits(tmp_path: Path, zookeeper: LocalZookeeper) -> None:
    zookeeper.stop()
    broker = BrokerProcess(tmp_path / "data", 0, {"zookeeper.connect": zookeeper.address}).spawn()
    broker.wait_for("waiting for ZooKeeper")
    assert broker.stop() == 0


def test_a_broker_inside_a_program_joins_too(start_cluster: StartCluster, zookeeper_connect: str) -> None:
    cluster = start_cluster(1)
    config = {"node.id": "2", "zookeeper.connect": zookeeper_connect}
    with ottla.Broker(config=config) as inside:
        cluster.wait_until(
            lambda: {row.node_id for row in cluster.metadata(1).brokers} == {1, 2},
            "both are known to the first",
        )
        assert inside.address in {f"{row.host}:{row.port}" for row in cluster.metadata(1).brokers}
        with pytest.raises(CannotStart, match="node id 2 is in use"):
            ottla.Broker(config=config)
    cluster.wait_until(lambda: {row.node_id for row in cluster.metadata(1).brokers} == {1}, "it has left")
