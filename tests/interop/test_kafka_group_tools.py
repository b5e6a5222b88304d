"""Apache's command-line tools for consumer groups against a running broker."""

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.crash.broker_process import PATIENCE_S, BrokerProcess
from tests.interop.members import Member, share
from tests.interop.programs import Java, Program, Said
from tests.interop.test_java_client import TIME, create

Tool = Callable[..., Said]
#: It ends with 0 whatever happens.
COMMAND = "consumer.group.ConsumerGroupCommand"
_NUMBERS = itertools.count()


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """Two partitions with ten records each, a second apart."""
    create(broker, topic, 2)
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for number in range(20):
        producer.produce(topic, b"x", partition=number % 2, timestamp=TIME + number // 2 * 1000)
    assert producer.flush(PATIENCE_S) == 0
    return topic


@pytest.fixture
def group(broker: BrokerProcess, filled: str) -> str:
    """A group that has committed 5 in both partitions, and has no members."""
    name = f"tools-{next(_NUMBERS)}"
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": name, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(filled, number, 5) for number in (0, 1)], asynchronous=False)
    consumer.close()
    return name


@pytest.fixture(params=["classic", "consumer"])
def member(
    request: pytest.FixtureRequest, java_member: Program, broker: BrokerProcess, filled: str, group: str
) -> Iterator[Member]:
    """A member of the group, of either protocol."""
    protocol = f"group.protocol={request.param}"
    with java_member.join(broker.address, group, f"topics:{filled}", protocol, "client.id=reader") as member:
        share([member], {(filled, 0), (filled, 1)})
        yield member


def offsets(broker: BrokerProcess, group: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return {row.partition: row.offset for row in asked[group].result(PATIENCE_S).topic_partitions}


def table(said: Said) -> list[dict[str, str]]:
    """Columns between spaces, under their names. The last may be empty: groups that others left have no protocol."""
    names, *rows = (re.split(r"\s{2,}|(?<=\S)\s+(?=\S)", line.strip()) for line in said.lines if line.strip())
    may_lack = names[-1] == "PROTOCOL"
    assert all(len(row) in (len(names), len(names) - may_lack) for row in rows), said.out
    return [dict(zip(names, row, strict=False)) for row in rows]


# --- telling ------------------------------------------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type(tool: Tool, group: str, member: Member) -> None:
    kind = "Consumer" if member_protocol(member) == "consumer" else "Classic"
    other = "classic" if kind == "Consumer" else "consumer"
    assert group in tool(COMMAND, "--list").lines
    assert {"GROUP": group, "STATE": "Stable"} in table(tool(COMMAND, "--list", "--state"))
    assert {"GROUP": group, "TYPE": kind} in table(tool(COMMAND, "--list", "--type"))
    assert {"GROUP": group, "STATE": "Stable"} in table(tool(COMMAND, "--list", "--state", "stable"))
    assert group not in tool(COMMAND, "--list", "--state", "empty").out
    assert group not in tool(COMMAND, "--list", "--type", other).out
    listed = table(tool("GroupsCommand", "--list"))
    assert {"GROUP": group, "TYPE": kind, "PROTOCOL": "consumer"} in listed
    assert group in tool("GroupsCommand", "--list", "--consumer").out
    member.leave()
    assert {"GROUP": group, "STATE": "Empty"} in table(tool(COMMAND, "--list", "--state", "empty"))


def member_protocol(member: Member) -> str:
    return "consumer" if "group.protocol=consumer" in member.command else "classic"


def test_a_group_is_described(tool: Tool, filled: str, group: str, member: Member) -> None:
    is_new = member_protocol(member) == "consumer"
    member.wait_until(lambda: len(member.read) == 10, "it reads")
    member.commit()
    rows = table(tool(COMMAND, "--describe", "--group", group, "--offsets", "--verbose"))
    assert [(row["PARTITION"], row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for row in rows] == [
        ("0", "10", "10", "0"), ("1", "10", "10", "0"),
    ]  # fmt: skip
    assert {(row["TOPIC"], row["HOST"], row["CLIENT-ID"]) for row in rows} == {
        (filled, "/127.0.0.1", "reader")
    }
    [who] = {row["CONSUMER-ID"] for row in rows}
    [row] = table(tool(COMMAND, "--describe", "--group", group, "--members", "--verbose"))
    assert (row["CONSUMER-ID"], row["#PARTITIONS"], row["CURRENT-ASSIGNMENT"]) == (who, "2", f"{filled}:0,1")
    if is_new:
        assert (row["CURRENT-EPOCH"], row["TARGET-EPOCH"], row["TARGET-ASSIGNMENT"]) == (
            "1",
            "1",
            f"{filled}:0,1",
        )
    said = tool(COMMAND, "--describe", "--group", group, "--state", "--verbose").out
    assert "Stable" in said and ("uniform" if is_new else "range") in said
    assert re.search(r"127\.0\.0\.1:\d+ +\(1\)", said)


def test_a_group_that_is_not_there(tool: Tool) -> None:
    said = tool(COMMAND, "--describe", "--group", "nobody")
    assert "GroupIdNotFoundException" in said.out + said.errors


# --- changing -----------------------------------------------------------------------------------------------------

DURATION = datetime.now(UTC) - datetime.fromtimestamp(TIME / 1000, UTC) - timedelta(seconds=4)

RESETS: dict[str, tuple[list[str], int]] = {
    "earliest": (["--to-earliest"], 0),
    "latest": (["--to-latest"], 10),
    "offset": (["--to-offset", "7"], 7),
    "an offset beyond the end": (["--to-offset", "70"], 10),
    "current": (["--to-current"], 5),
    "back": (["--shift-by", "-2"], 3),
    "on": (["--shift-by", "3"], 8),
    "time": (
        ["--to-datetime", datetime.fromtimestamp(TIME / 1000 + 6, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")],
        6,
    ),
    "long ago": (["--by-duration", f"PT{int(DURATION.total_seconds()) + 3600}S"], 0),
}


@pytest.mark.parametrize("way", RESETS)
def test_offsets_are_reset(tool: Tool, broker: BrokerProcess, group: str, filled: str, way: str) -> None:
    arguments, wanted = RESETS[way]
    call = (COMMAND, "--group", group, "--reset-offsets", "--topic", filled, *arguments)
    if way == "earliest":
        would = table(tool(*call, "--dry-run"))
        assert {row["NEW-OFFSET"] for row in would} == {str(wanted)}
        assert offsets(broker, group) == {0: 5, 1: 5}
    done = table(tool(*call, "--execute"))
    assert [(row["GROUP"], row["TOPIC"], row["NEW-OFFSET"]) for row in done] == [
        (group, filled, str(wanted))
    ] * 2
    assert offsets(broker, group) == {0: wanted, 1: wanted}


def test_offsets_are_exported_and_set_from_a_file(
    tool: Tool, broker: BrokerProcess, group: str, filled: str, tmp_path: Path
) -> None:
    call = (COMMAND, "--group", group, "--reset-offsets")
    said = tool(*call, "--all-topics", "--to-earliest", "--export", "--dry-run")
    rows = sorted(csv.reader(io.StringIO(said.out.strip())))
    assert rows == [[filled, "0", "0"], [filled, "1", "0"]]
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{filled},0,2\n{filled},1,9\n")
    tool(*call, "--from-file", str(plan), "--execute")
    assert offsets(broker, group) == {0: 2, 1: 9}
    tool(*call, "--topic", f"{filled}:1", "--to-earliest", "--execute")
    assert offsets(broker, group) == {0: 2, 1: 0}


def test_an_active_group_is_neither_reset_nor_deleted(
    tool: Tool, broker: BrokerProcess, group: str, filled: str, member: Member
) -> None:
    del member
    said = tool(COMMAND, "--group", group, "--reset-offsets", "--all-topics", "--to-earliest", "--execute")
    assert "Assignments can only be reset if the group" in said.out + said.errors
    said = tool(COMMAND, "--group", group, "--delete")
    assert "GroupNotEmptyException" in said.out + said.errors
    said = tool(COMMAND, "--group", group, "--delete-offsets", "--topic", filled)
    assert "GroupSubscribedToTopicException" in said.out + said.errors or "subscribed to" in said.out
    assert offsets(broker, group) == {0: 5, 1: 5}


def test_a_group_is_deleted_with_its_offsets(
    tool: Tool, broker: BrokerProcess, group: str, filled: str
) -> None:
    tool(COMMAND, "--group", group, "--delete-offsets", "--topic", f"{filled}:1")
    assert offsets(broker, group) == {0: 5}
    assert "was successful" in tool(COMMAND, "--group", group, "--delete").out
    assert group not in tool(COMMAND, "--list").lines
    again = tool(COMMAND, "--group", group, "--delete")
    assert "GroupIdNotFoundException" in again.out + again.errors


def test_a_group_has_settings_of_its_own(tool: Tool, group: str) -> None:
    entity = ("ConfigCommand", "--entity-type", "groups", "--entity-name", group)
    changed = "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=6000"
    tool(*entity, "--alter", "--add-config", changed)
    shown = tool(*entity, "--describe").out
    assert "consumer.session.timeout.ms=50000" in shown and "consumer.heartbeat.interval.ms=6000" in shown
    assert "DYNAMIC_GROUP_CONFIG" in shown
    tool(*entity, "--alter", "--delete-config", "consumer.session.timeout.ms")
    shown = tool(*entity, "--describe").out
    assert "consumer.session.timeout.ms" not in shown and "consumer.heartbeat.interval.ms=6000" in shown
    wrong = tool(*entity, "--alter", "--add-config", "consumer.session.timeout.ms=1", code=1)
    assert "InvalidConfigurationException" in wrong.out + wrong.errors


# --- consuming ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_console_consumer_goes_on_where_its_group_was(
    tool: Tool, broker: BrokerProcess, filled: str, protocol: str
) -> None:
    call = (
        "ConsoleConsumer", "--topic", filled, "--group", f"console-{protocol}", "--command-property",
        f"group.protocol={protocol}", "--command-property", "auto.offset.reset=earliest",
        "--formatter-property", "print.partition=true", "--formatter-property", "print.offset=true",
    )  # fmt: skip
    seen = [*tool(*call, "--max-messages", "8").lines, *tool(*call, "--max-messages", "12").lines]
    assert sorted(seen) == sorted(f"Partition:{number % 2}\tOffset:{number // 2}\tx" for number in range(20))
    assert offsets(broker, f"console-{protocol}") == {0: 10, 1: 10}


def test_the_verifiable_consumer(java: Java, broker: BrokerProcess, filled: str) -> None:
    said = java.tool(
        "VerifiableConsumer", "--bootstrap-server", broker.address, "--topic", filled, "--group-id", "verifiable",
        "--group-protocol", "consumer", "--group-remote-assignor", "range", "--max-messages", "20",
        "--reset-policy", "earliest",
    )  # fmt: skip
    events = [json.loads(line) for line in said.lines if line.startswith("{")]
    names = [event["name"] for event in events]
    assert names[0] == "startup_complete" and "partitions_assigned" in names
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 20
    commits = [event for event in events if event["name"] == "offsets_committed"]
    assert commits and all(event["success"] for event in commits)
    assert offsets(broker, "verifiable") == {0: 10, 1: 10}
