"""Apache's command-line tools that look into a cluster: its metadata's keepers, directories, producers, features."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.broker_process import BrokerProcess, Wire, batch_of, wait_until
from tests.interop.programs import Java, Said

Tool = Callable[..., Said]


@pytest.fixture
def tool(java: Java, broker: BrokerProcess) -> Tool:
    """These tools want the address before their command."""

    def call(name: str, *arguments: str, text: str = "", code: int = 0) -> Said:
        return java.tool(name, "--bootstrap-server", broker.address, *arguments, text=text, code=code)

    return call


def table(said: Said) -> list[dict[str, str]]:
    """Columns between tabs, under their names."""
    names, *rows = ([cell.strip() for cell in line.split("\t")] for line in said.lines if line.strip())
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_the_keeper_of_the_metadata(tool: Tool, broker: BrokerProcess) -> None:
    status = tool("MetadataQuorumCommand", "describe", "--status")
    found = {name: value.strip() for name, value in (line.split(":", 1) for line in status.lines)}
    assert (found["LeaderId"], found["MaxFollowerLag"], found["CurrentObservers"]) == ("1", "0", "[]")
    [voter] = json.loads(found["CurrentVoters"])
    assert (voter["id"], voter["endpoints"]) == (1, [f"PLAINTEXT://{broker.address}"])
    [row] = table(tool("MetadataQuorumCommand", "describe", "--replication"))
    assert (row["NodeId"], row["Lag"], row["Status"]) == ("1", "0", "Leader")
    assert row["LogEndOffset"] == found["HighWatermark"]


def test_the_log_directory(tool: Tool, broker: BrokerProcess, topic: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    tool("ConsoleProducer", "--topic", topic, text="one\n")
    said = tool("LogDirsCommand", "--describe", "--topic-list", topic)
    [node] = json.loads(said.lines[-1])["brokers"]
    [directory] = node["logDirs"]
    assert (directory["error"], directory["logDir"]) == (None, str(broker.data_dir))
    sizes = {each["partition"]: each["size"] for each in directory["partitions"]}
    assert sizes.keys() == {f"{topic}-0", f"{topic}-1"}
    assert sum(sizes.values()) > 61


def test_the_producers_of_a_partition(tool: Tool, topic: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic)
    tool("ConsoleProducer", "--topic", topic, text="one\n")
    [row] = table(tool("TransactionsCommand", "describe-producers", "--topic", topic, "--partition", "0"))
    assert (row["ProducerEpoch"], row["LastSequence"], row["CurrentTransactionStartOffset"]) == (
        "0",
        "0",
        "None",
    )


def test_there_is_no_subscription_to_client_metrics(tool: Tool) -> None:
    assert tool("ClientMetricsCommand", "--list").out.strip() == ""


def test_a_partition_on_its_way_to_another_directory(
    java: Java, start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    broker = start_broker(log_dirs=",".join(paths))

    def homes() -> dict[str, list[tuple[str, bool]]]:
        said = java.tool("LogDirsCommand", "--bootstrap-server", broker.address, "--describe")
        [node] = json.loads(said.lines[-1])["brokers"]
        return {
            row["logDir"]: [(each["partition"], each["isFuture"]) for each in row["partitions"]]
            for row in node["logDirs"]
        }

    with Wire(broker.address) as wire:
        wire.create("t")
        wire.produce("t", batch_of(b"x"))
        assert homes() == {paths[0]: [("t-0", False)], paths[1]: []}
        dirs = [{"path": paths[1], "topics": [{"name": "t", "partitions": [0]}]}]
        answer = wire.ask(34, 2, dirs=dirs)
        assert answer.results[0].partitions[0].error_code.value == 0
        wait_until((tmp_path / "b" / "t-0").is_dir, "the move")
        assert homes() == {paths[0]: [], paths[1]: [("t-0", False)]}
