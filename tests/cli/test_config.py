from typing import Any


def test_topic_configs_are_set_shown_and_unset(run: Any, made: str) -> None:
    assert run("config", "set", "topic", made, "retention.ms=5000", "cleanup.policy=compact").code == 0
    rows = {row["name"]: row for row in run("config", "describe", "topic", made, "--changed", "--json").json}
    assert (rows["retention.ms"]["value"], rows["retention.ms"]["source"]) == ("5000", "topic")
    assert run("config", "unset", "topic", made, "retention.ms").code == 0
    (row,) = run("config", "describe", "topic", made, "retention.ms", "--json").json
    assert row["source"] != "topic"


def test_text_names_value_source_and_meaning(run: Any, made: str) -> None:
    text = run("config", "describe", "topic", made, "retention.ms", "--doc").out
    for word in ("CONFIG", "VALUE", "SOURCE", "MEANING", "retention.ms", "604800000"):
        assert word in text


def test_broker_configs(run: Any) -> None:
    rows = {row["name"]: row for row in run("config", "describe", "broker", "1", "--json").json}
    assert rows["log.dirs"]["value"]
    ended = run("config", "describe", "broker", "99")
    assert ended.code == 4
    assert "99" in ended.err


def test_a_value_that_cannot_be_is_refused_by_name(run: Any, made: str) -> None:
    ended = run("config", "set", "topic", made, "retention.ms=soon")
    assert ended.code == 1
    assert "retention.ms" in ended.err and "soon" in ended.err
    assert run("config", "set", "topic", made, "nonsense").code == 2


def test_validate_only_changes_nothing(run: Any, made: str) -> None:
    assert run("config", "set", "topic", made, "retention.ms=5", "--validate-only").code == 0
    assert run("config", "describe", "topic", made, "retention.ms", "--json").json[0]["value"] != "5"
