"""Apache's own command-line tools against a running broker."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import Java, Said

Tool = Callable[..., Said]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def row(line: str) -> dict[str, str]:
    """`Name: value` pairs between tabs."""
    pairs = (cell.split(":", 1) for cell in line.strip().split("\t"))
    return {name: value.strip() for name, value in pairs}


def produce(tool: Tool, topic: str, lines: list[str], *options: str) -> None:
    said = tool("ConsoleProducer", "--topic", topic, *options, text="".join(line + "\n" for line in lines))
    assert said.errors == ""


def offsets(tool: Tool, topic: str, time: str) -> dict[int, int]:
    said = tool("GetOffsetShell", "--topic", topic, "--time", time)
    assert said.errors == ""
    cells = [line.split(":") for line in said.lines]
    assert {name for name, _, _ in cells} <= {topic}
    return {int(partition): int(offset) for _, partition, offset in cells}


# --- topics -------------------------------------------------------------------------------------------------------


def test_a_topic_from_its_making_to_its_end(tool: Tool, topic: str) -> None:
    made = tool(
        "TopicCommand", "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=60000"
    )
    assert made.lines == [f"Created topic {topic}."]
    assert topic in tool("TopicCommand", "--list").lines

    first, *rest = tool("TopicCommand", "--describe", "--topic", topic).lines
    shown = row(first)
    topic_id = shown.pop("TopicId")
    assert shown == {
        "Topic": topic,
        "PartitionCount": "3",
        "ReplicationFactor": "1",
        "Configs": "retention.ms=60000",
    }
    assert [
        (each["Partition"], each["Leader"], each["Replicas"], each["Isr"]) for each in map(row, rest)
    ] == [(str(number), "1", "1", "1") for number in range(3)]
    by_id = tool("TopicCommand", "--describe", "--topic-id", topic_id).lines
    assert [row(line)["Topic"] for line in by_id] == [topic] * 4

    tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "5")
    assert row(tool("TopicCommand", "--describe", "--topic", topic).lines[0])["PartitionCount"] == "5"

    tool("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tool("TopicCommand", "--list").lines


def test_what_the_broker_refuses_is_said_in_its_words(tool: Tool, topic: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    again = tool("TopicCommand", "--create", "--topic", topic, code=1)
    assert "TopicExistsException" in again.out + again.errors
    fewer = tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "1", code=1)
    assert "InvalidPartitionsException" in fewer.out + fewer.errors
    copies = tool("TopicCommand", "--create", "--topic", f"{topic}-b", "--replication-factor", "2", code=1)
    assert "InvalidReplicationFactorException" in copies.out + copies.errors
    assert f"{topic}-b" not in tool("TopicCommand", "--list").lines


def test_only_topics_with_overrides_or_trouble(tool: Tool, topic: str) -> None:
    tool("TopicCommand", "--create", "--topic", f"{topic}-plain")
    tool("TopicCommand", "--create", "--topic", f"{topic}-own", "--config", "cleanup.policy=compact")
    said = tool("TopicCommand", "--describe", "--topics-with-overrides", "--topic", f"{topic}-.*")
    assert [row(line)["Topic"] for line in said.lines] == [f"{topic}-own"]
    assert tool("TopicCommand", "--describe", "--under-replicated-partitions").lines == []
    assert tool("TopicCommand", "--describe", "--unavailable-partitions").lines == []


# --- configs ------------------------------------------------------------------------------------------------------


def configs(said: Said) -> dict[str, tuple[str, str]]:
    """Name: (value, synonyms)."""
    found = re.findall(r"^  (\S+?)=(.*) sensitive=false synonyms=\{(.*)\}$", said.out, re.MULTILINE)
    return {name: (value, synonyms) for name, value, synonyms in found}


def test_configs_of_a_topic(tool: Tool, topic: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic)
    of_topic = ["--entity-type", "topics", "--entity-name", topic]
    change = "segment.bytes=2000000,cleanup.policy=[compact,delete]"
    tool("ConfigCommand", "--alter", *of_topic, "--add-config", change)
    assert configs(tool("ConfigCommand", "--describe", *of_topic)) == {
        "cleanup.policy": (
            "compact,delete",
            "DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete",
        ),
        "segment.bytes": (
            "2000000",
            "DYNAMIC_TOPIC_CONFIG:segment.bytes=2000000, DEFAULT_CONFIG:log.segment.bytes=1073741824",
        ),
    }
    tool("ConfigCommand", "--alter", *of_topic, "--delete-config", "segment.bytes")
    everything = configs(tool("ConfigCommand", "--describe", "--all", *of_topic))
    assert len(everything) > 25
    assert everything["segment.bytes"] == ("1073741824", "DEFAULT_CONFIG:log.segment.bytes=1073741824")
    assert everything["cleanup.policy"][0] == "compact,delete"

    refused = tool("ConfigCommand", "--alter", *of_topic, "--add-config", "retention.ms=long", code=1)
    assert "InvalidConfigurationException" in refused.out + refused.errors
    assert "retention.ms" in refused.out + refused.errors
    unknown = tool("ConfigCommand", "--alter", *of_topic, "--add-config", "no.such=1", code=1)
    assert "InvalidConfigurationException" in unknown.out + unknown.errors


def test_configs_of_a_broker(tool: Tool, broker: BrokerProcess) -> None:
    of_broker = ["--entity-type", "brokers", "--entity-name", "1"]
    everything = configs(tool("ConfigCommand", "--describe", "--all", *of_broker))
    assert everything["listeners"][0] == f"PLAINTEXT://{broker.address}"
    assert everything["num.partitions"] == ("1", "DEFAULT_CONFIG:num.partitions=1")


# --- records ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_produce_and_consume_with_a_codec(tool: Tool, topic: str, codec: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic)
    lines = [f"h:{number}\tkey-{number}\t{codec} {'x' * number}" for number in range(200)]
    parse = ["--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"]
    produce(tool, topic, lines, "--compression-codec", codec, *parse)

    show = []
    for what in ("key", "headers", "offset", "partition"):
        show += ["--formatter-property", f"print.{what}=true"]
    place = ["--topic", topic, "--partition", "0", "--offset", "50", "--max-messages", "150"]
    said = tool("ConsoleConsumer", *place, *show)
    assert said.lines == [
        f"Partition:0\tOffset:{number}\th:{number}\tkey-{number}\t{codec} {'x' * number}"
        for number in range(50, 200)
    ]


def test_the_broker_compresses_anew(tool: Tool, java: Java, broker: BrokerProcess, topic: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic, "--config", "compression.type=zstd")
    produce(tool, topic, ["a" * 100] * 50, "--compression-codec", "gzip")
    log = broker.data_dir / f"{topic}-0" / ("0" * 20 + ".log")
    dumped = java.tool("DumpLogSegments", "--deep-iteration", "--print-data-log", "--files", str(log))
    assert set(re.findall(r"compresscodec: (\w+)", dumped.out)) == {"zstd"}
    assert re.findall(r"payload: (\w+)", dumped.out) == ["a" * 100] * 50


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
def test_every_acks(tool: Tool, topic: str, acks: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic)
    produce(tool, topic, ["a", "b", "c"], "--producer-property", f"acks={acks}", "--sync")
    place = ["--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "3"]
    assert tool("ConsoleConsumer", *place).lines == ["a", "b", "c"]


def test_offsets_by_time(tool: Tool, topic: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    assert offsets(tool, topic, "latest") == {0: 0, 1: 0}
    assert offsets(tool, topic, "max-timestamp") == {}
    # One after another, each in a batch of its own: the time of the second lies between those of its neighbours.
    for line in "abc":
        produce(tool, topic, [f"key\t{line}"], "--reader-property", "parse.key=true")
    place = ["--topic", topic, "--offset", "earliest"]
    at = next(partition for partition, end in offsets(tool, topic, "latest").items() if end)
    said = tool(
        "ConsoleConsumer", *place, "--partition", str(at), "--max-messages", "3",
        "--formatter-property", "print.timestamp=true",
    )  # fmt: skip
    times = [int(line.removeprefix("CreateTime:").split("\t")[0]) for line in said.lines]
    assert times[0] < times[1] < times[2]

    assert offsets(tool, topic, "latest") == {at: 3, 1 - at: 0}
    assert offsets(tool, topic, "earliest") == {at: 0, 1 - at: 0}
    assert offsets(tool, topic, "earliest-local") == {at: 0, 1 - at: 0}
    assert offsets(tool, topic, "max-timestamp") == {at: 2}
    assert offsets(tool, topic, str(times[1])) == {at: 1}
    assert offsets(tool, topic, str(times[1] + 1)) == {at: 2}
    assert offsets(tool, topic, "0") == {at: 0}
    assert offsets(tool, topic, str(times[2] + 1)) == {}


def test_records_are_deleted(tool: Tool, topic: str, tmp_path: Path) -> None:
    tool("TopicCommand", "--create", "--topic", topic)
    produce(tool, topic, list("abcdef"))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}))
    said = tool("DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert said.lines[-1].split() == ["partition:", f"{topic}-0", "low_watermark:", "4"]
    assert offsets(tool, topic, "earliest") == {0: 4}
    place = ["--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "2"]
    assert tool("ConsoleConsumer", *place).lines == ["e", "f"]


def test_tools_that_produce_under_load(tool: Tool, topic: str) -> None:
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "3")
    load = ["--num-records", "20000", "--record-size", "200", "--throughput", "-1"]
    said = tool("ProducerPerformance", "--topic", topic, *load, "--command-property", "compression.type=lz4")
    assert "20000 records sent" in said.out
    assert sum(offsets(tool, topic, "latest").values()) == 20_000

    said = tool("VerifiableProducer", "--topic", topic, "--max-messages", "100", "--acks", "-1")
    reports = [json.loads(line) for line in said.lines]
    assert {report["name"] for report in reports} == {
        "startup_complete", "producer_send_success", "shutdown_complete", "tool_data",
    }  # fmt: skip
    assert reports[-1]["acked"] == 100
    assert sum(offsets(tool, topic, "latest").values()) == 20_100


# --- the cluster --------------------------------------------------------------------------------------------------


def test_what_the_broker_says_of_itself(tool: Tool, broker: BrokerProcess) -> None:
    versions = tool("BrokerApiVersionsCommand")
    assert versions.lines[0].startswith(f"{broker.address} (id: 1 rack: null isFenced: false) -> (")
    served = dict(re.findall(r"^\t(\w+)\(\d+\): (\d+ to \d+) \[usable: \d+\]", versions.out, re.MULTILINE))
    # Each in all versions that the protocol has; what is not served is named as such, and none is half known.
    assert served["Produce"] == "3 to 13" and served["Fetch"] == "4 to 18" and served["Metadata"] == "0 to 13"
    assert "UNKNOWN" not in versions.out

    cluster_id = dict(
        line.split("=", 1)
        for line in (broker.data_dir / "meta.properties").read_text().splitlines()
        if "=" in line
    )["cluster.id"]
    assert tool("ClusterTool", "cluster-id").lines == [f"Cluster ID: {cluster_id}"]
    endpoints = tool("ClusterTool", "list-endpoints").lines
    host, port = broker.address.split(":")
    assert endpoints[1].split() == ["1", host, port, "null", "unfenced", "broker"]


def test_features_are_described_and_upgraded_to_the_release_that_they_are(
    java: Java, broker: BrokerProcess
) -> None:
    def features(*arguments: str, code: int = 0) -> Said:
        # This tool takes the address before the command.
        return java.tool("FeatureCommand", "--bootstrap-server", broker.address, *arguments, code=code)

    lines = [line.split() for line in features("describe").lines]
    levels = {words[1]: words[7] for words in lines}
    assert levels == {
        "eligible.leader.replicas.version": "0", "group.version": "1", "kraft.version": "1",
        "metadata.version": "4.0-IV3", "share.version": "0", "streams.version": "0", "transaction.version": "2",
    }  # fmt: skip
    said = features("upgrade", "--release-version", "4.0").out
    assert "metadata.version was upgraded to 25." in said and "group.version was upgraded to 1." in said
    refused = features("upgrade", "--feature", "share.version=1", code=1)
    assert "there are no share groups" in refused.out + refused.errors


def test_acls_quotas_and_scram_users_without_any(tool: Tool) -> None:
    acls = tool("AclCommand", "--list", code=1)
    assert "SecurityDisabledException: No Authorizer is configured" in acls.out + acls.errors
    assert tool("ConfigCommand", "--describe", "--entity-type", "users").lines == []
    user = ("ConfigCommand", "--alter", "--entity-type", "users", "--entity-name", "bob", "--add-config")
    quota = tool(*user, "producer_byte_rate=1024", code=1)
    assert "does not enforce client quotas yet" in quota.out + quota.errors


def test_a_setting_without_effect_is_changed_at_run_time(tool: Tool) -> None:
    everyone = ("--entity-type", "brokers", "--entity-default")
    tool("ConfigCommand", "--alter", *everyone, "--add-config", "num.io.threads=4,background.threads=2")
    assert "num.io.threads=4 " in tool("ConfigCommand", "--describe", *everyone).out
    tool("ConfigCommand", "--alter", *everyone, "--delete-config", "num.io.threads,background.threads")
    assert "threads" not in tool("ConfigCommand", "--describe", *everyone).out
