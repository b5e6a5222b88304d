"""Apache's own tools for clusters, on three brokers of ours."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.runtime.local_zookeeper import LocalZookeeper, find_program, free_ports
from tests.cluster.running_cluster import RunningCluster
from tests.interop.programs import Java, Said
from tests.interop.test_kafka_tools import row

Tool = Callable[..., Said]
ALL = (1, 2, 3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    home = tmp_path_factory.mktemp("cluster")
    zookeeper = LocalZookeeper(find_program(), home / "zookeeper", free_ports(1)[0], durable=False)
    zookeeper.start()
    try:
        with RunningCluster(home, zookeeper.address) as running:
            yield running.start(*ALL)
    finally:
        zookeeper.stop()


@pytest.fixture
def tools(java: Java, cluster: RunningCluster) -> Tool:
    """Runs one of Apache's command-line tools against the cluster."""

    def call(name: str, *arguments: str, text: str = "", code: int = 0) -> Said:
        return java.tool(name, *arguments, "--bootstrap-server", cluster.bootstrap, text=text, code=code)

    return call


def described(tools: Tool, topic: str, *options: str) -> list[dict[str, str]]:
    lines = tools("TopicCommand", "--describe", "--topic", topic, *options).lines
    return [row(line) for line in lines if "Partition:" in line]


def test_a_topic_is_spread_and_its_replicas_are_in_sync(tools: Tool, topic: str) -> None:
    tools("TopicCommand", "--create", "--topic", topic, "--partitions", "3", "--replication-factor", "3")
    rows = described(tools, topic)
    assert sorted(each["Leader"] for each in rows) == ["1", "2", "3"]
    assert all(sorted(each["Isr"].split(",")) == ["1", "2", "3"] for each in rows)
    assert described(tools, topic, "--under-replicated-partitions") == []


def test_partitions_are_moved_and_the_move_is_verified(
    tools: Tool, cluster: RunningCluster, topic: str, tmp_path: Path
) -> None:
    tools("TopicCommand", "--create", "--topic", topic, "--replica-assignment", "1:2,2:1")
    tools("ConsoleProducer", "--topic", topic, text="".join(f"{number}\n" for number in range(100)))
    plan = {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": 0, "replicas": [3, 1], "log_dirs": ["any", "any"]},
            {"topic": topic, "partition": 1, "replicas": [2, 3, 1], "log_dirs": ["any"] * 3},
        ],
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    options = ["--reassignment-json-file", str(file)]
    begun = tools("reassign.ReassignPartitionsCommand", *options, "--execute", "--throttle", "100000000")
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in "\n".join(begun.lines)

    def is_done() -> bool:
        said = tools("reassign.ReassignPartitionsCommand", *options, "--verify")
        return all(
            f"Reassignment of partition {topic}-{number} is completed." in said.lines for number in (0, 1)
        )

    cluster.wait_until(is_done, "the move is over")
    rows = described(tools, topic)
    assert [each["Replicas"] for each in rows] == ["3,1", "2,3,1"]
    # Verifying has taken the throttles away.
    shown = tools("ConfigCommand", "--describe", "--entity-type", "topics", "--entity-name", topic).lines
    assert not any("throttled" in line for line in shown)


def test_the_preferred_leader_leads_again(tools: Tool, cluster: RunningCluster, topic: str) -> None:
    tools("TopicCommand", "--create", "--topic", topic, "--replica-assignment", "3:1:2")
    cluster.stop(3)
    cluster.wait_until(lambda: described(tools, topic)[0]["Leader"] == "1", "another one leads")
    assert described(tools, topic, "--under-replicated-partitions") != []
    cluster.start(3)
    cluster.wait_in_sync(topic, 1, ALL)
    said = tools(
        "LeaderElectionCommand", "--election-type", "preferred", "--topic", topic, "--partition", "0"
    )
    assert "Successfully completed leader election (PREFERRED)" in "\n".join(said.lines)
    cluster.wait_until(lambda: described(tools, topic)[0]["Leader"] == "3", "the preferred one leads")


def test_the_cluster_says_who_it_is(tools: Tool, java: Java, cluster: RunningCluster) -> None:
    assert "Cluster ID: " in tools("ClusterTool", "cluster-id").lines[0]
    # This one wants its options in front.
    address = ("--bootstrap-server", cluster.bootstrap)
    shown = java.tool("MetadataQuorumCommand", *address, "describe", "--status").lines
    assert any(line.startswith("LeaderId:") for line in shown)
