from typing import Any


def test_create_list_describe_alter_delete(run: Any, topic_name: str) -> None:
    created = run("topic", "create", topic_name, "-p", "2", "-c", "retention.ms=5000", "--json")
    assert created.json == {"topic": topic_name, "created": True, "partitions": 2}
    rows = {row["topic"]: row for row in run("topic", "list", "--json").json}
    assert rows[topic_name] == {"topic": topic_name, "partitions": 2, "replication_factor": 1}
    assert (
        run("topic", "alter", topic_name, "-p", "3", "-c", "segment.ms=60000", "--unset", "retention.ms").code
        == 0
    )
    (described,) = run("topic", "describe", topic_name, "--json").json
    assert described["configs"] == {"segment.ms": "60000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert (
        described["partitions"][0] | {"start": 0, "end": 0, "replicas": [1], "isr": [1]}
        == described["partitions"][0]
    )
    assert run("topic", "delete", topic_name).code == 0
    assert topic_name not in run("topic", "list").out


def test_text_for_people(run: Any, made: str) -> None:
    assert made in run("topic", "list").out
    text = run("topic", "describe", made).out
    assert "PARTITION" in text and "all default" in text


def test_creating_twice(run: Any, made: str) -> None:
    ended = run("topic", "create", made)
    assert ended.code == 1
    assert "already exists" in ended.err and "ottla topic describe" in ended.err
    assert run("topic", "create", made, "--if-not-exists", "--json").json["created"] is False


def test_validate_only_creates_nothing(run: Any, topic_name: str) -> None:
    assert run("topic", "create", topic_name, "--validate-only").code == 0
    assert topic_name not in run("topic", "list").out


def test_what_is_not_there_is_4(run: Any, made: str) -> None:
    for arguments in (["describe", "no-such"], ["delete", "no-such"], ["alter", "no-such", "-p", "3"]):
        ended = run("topic", *arguments)
        assert ended.code == 4, ended
        assert "no-such" in ended.err
    assert run("topic", "delete", "no-such", "--if-exists").code == 0


def test_nothing_is_deleted_when_one_of_several_is_missing(run: Any, made: str) -> None:
    assert run("topic", "delete", made, "no-such").code == 4
    assert made in run("topic", "list").out


def test_a_refusal_of_the_broker_is_1_with_its_reason(run: Any, topic_name: str) -> None:
    ended = run("topic", "create", topic_name, "-c", "cleanup.policy=shred")
    assert ended.code == 1
    assert "cleanup.policy" in ended.err


def test_an_alter_without_a_change_is_wrong_usage(run: Any, made: str) -> None:
    assert run("topic", "alter", made).code == 2
