"""`ottla partition` against one broker: refused commands, trivial results, output."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.main import main
from tests.cli.conftest import Ended


@pytest.fixture
def run(
    ottla_address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    """Run a command in this process: a separate process per command would take a second each."""
    monkeypatch.setenv("OTTLA_BOOTSTRAP", ottla_address)
    before = signal.getsignal(signal.SIGTERM)

    def against(*arguments: str) -> Ended:
        capsys.readouterr()
        code: Any = 0
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        return Ended(int(code or 0), said.out, said.err)

    yield against
    signal.signal(signal.SIGTERM, before)


def test_partitions_are_listed_with_their_problems(run: Any, made: str) -> None:
    ended = run("partition", "list", made, "--json")
    assert ended.code == 0, ended.err
    assert ended.json == [
        {"topic": made, "partition": number, "leader": 1, "replicas": [1], "isr": [1], "state": []}
        for number in (0, 1)
    ]
    text = run("partition", "list", made)
    assert text.out.splitlines()[0].split() == ["TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "STATE"]
    assert len(text.out.splitlines()) == 3
    unwell = run("partition", "list", made, "--unwell")
    assert (unwell.out, unwell.err.strip()) == ("", "all partitions are healthy")
    assert run("partition", "list", made, "--broker", "9", "--json").json == []
    assert run("partition", "list", "no-such-topic").code == 4


def test_describing_a_topic_shows_the_state_of_its_partitions(run: Any, made: str) -> None:
    [topic] = run("topic", "describe", made, "--json").json
    assert [(row["state"], row["offline_replicas"]) for row in topic["partitions"]] == [([], [])] * 2
    assert "STATE" in run("topic", "describe", made).out


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--balance", "--status"),
        ("--to", "1"),
        ("--replication-factor", "1"),
        ("--topic", "t"),
        ("--topic", "t", "--to", "1", "--replication-factor", "1"),
        ("--balance", "--topic", "t"),
        ("--topic", "t", "--partition", "0", "--replication-factor", "2"),
        ("--topic", "TOPIC", "--to", "one"),
        ("--topic", "TOPIC", "--to", "1,1"),
        ("--balance", "--throttle", "0"),
    ],
)
def test_wrong_usage_is_2(run: Any, made: str, arguments: tuple[str, ...]) -> None:
    ended = run("partition", "reassign", *(made if each == "TOPIC" else each for each in arguments))
    assert ended.code == 2, ended
    assert ended.err


def test_one_broker_has_nothing_to_balance(run: Any, made: str) -> None:
    assert "nothing to move" in run("partition", "reassign", "--balance").out
    assert run("partition", "reassign", "--balance", "--json").json == {"partitions": 0, "copies": 0}
    assert run("partition", "reassign", "--balance", "--dry-run", "--json").json == {
        "version": 1,
        "partitions": [],
    }
    assert "nothing to move" in run("partition", "reassign", "--topic", made, "--to", "1").out


def test_brokers_and_partitions_that_are_not_there_are_4(run: Any, made: str, tmp_path: Path) -> None:
    ended = run("partition", "reassign", "--topic", made, "--to", "1,7")
    assert (ended.code, "broker 7 is down or does not exist: live brokers are 1" in ended.err) == (4, True)
    assert run("partition", "reassign", "--topic", made, "--partition", "5", "--to", "1").code == 4
    assert run("partition", "reassign", "--topic", "no-such-topic", "--to", "1").code == 4
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": made, "partition": 9, "replicas": [1]}]}))
    ended = run("partition", "reassign", "--file", str(plan))
    assert (ended.code, f"partition {made}-9 does not exist" in ended.err) == (4, True)
    assert run("partition", "reassign", "--file", str(tmp_path / "none.json")).code == 4


def test_a_plan_that_is_none_is_refused_with_an_example(run: Any, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    for text in ("", "[]", '{"partitions": [{"topic": "t"}]}', '{"partitions": 5}'):
        plan.write_text(text)
        ended = run("partition", "reassign", "--file", str(plan))
        assert (ended.code, '"replicas": [1, 2]' in ended.err) == (2, True), ended


def test_a_plan_for_a_broker_that_is_not_there_is_refused_by_the_controller(
    run: Any, made: str, tmp_path: Path
) -> None:
    """And its throttle is removed."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": made, "partition": 0, "replicas": [7]}]}))
    ended = run("partition", "reassign", "--file", str(plan), "--dry-run")
    assert (ended.code, ended.out.splitlines()[1].split()) == (0, [made, "0", "1", "7"])
    ended = run("partition", "reassign", "--file", str(plan), "--throttle", "5000")
    assert ended.code != 0
    for kind, name in (("topic", made), ("broker", "1")):
        sources = {
            row["source"]
            for row in run("config", "describe", kind, name, "--json").json
            if "throttled" in row["name"]
        }
        assert sources == {"default"}


def test_more_replicas_than_brokers_cannot_be(run: Any, made: str) -> None:
    ended = run("partition", "reassign", "--topic", made, "--replication-factor", "2")
    assert (ended.code, "there are 1 brokers" in ended.err) == (1, True)


def test_what_is_being_moved(run: Any, made: str) -> None:
    assert run("partition", "reassign", "--status").out == "no partition is being moved\n"
    assert run("partition", "reassign", "--status", "--json").json == []
    assert run("partition", "reassign", "--cancel", "--topic", made).out == "no partition is being moved\n"
    assert run("partition", "reassign", "--cancel", "--json").json == {"cancelled": []}


def test_throttles_are_taken_away(run: Any, made: str) -> None:
    assert run("config", "set", "broker", "1", "leader.replication.throttled.rate=1000").code == 0
    assert run("config", "set", "topic", made, "follower.replication.throttled.replicas=0:1").code == 0
    assert run("partition", "reassign", "--unthrottle").code == 0
    for kind, name in (("topic", made), ("broker", "1")):
        rows = run("config", "describe", kind, name, "--json").json
        assert {row["source"] for row in rows if "throttled" in row["name"]} == {"default"}


def test_elections(run: Any, made: str) -> None:
    ended = run("partition", "elect", "--topic", made, "--json")
    assert ended.code == 0, ended.err
    assert [(row["partition"], row["result"]) for row in ended.json] == [(0, "not needed"), (1, "not needed")]
    assert [row["partition"] for row in run("partition", "elect", "-t", made, "-p", "1", "--json").json] == [
        1
    ]
    assert run("partition", "elect").out == "no election was needed\n"
    failed = run("partition", "elect", "--topic", made, "--partition", "8", "--json")
    assert (failed.code, failed.json[0]["error"]) == (1, "UNKNOWN_TOPIC_OR_PARTITION")
    assert run("partition", "elect", "--partition", "1").code == 2
    assert run("partition", "elect", "--topic", "no-such-topic").code == 4


def test_the_only_broker_cannot_be_drained_or_forgotten(run: Any, made: str) -> None:
    ended = run("partition", "drain", "1")
    assert (ended.code, "there is no broker to hold anything" in ended.err) == (1, True)
    ended = run("partition", "drain", "1", "--unregister")
    assert (ended.code, "run `ottla partition drain 1` first" in ended.err) == (1, True)
    ended = run("partition", "drain", "7")
    assert (ended.code, "the cluster has no broker 7" in ended.err) == (4, True)
