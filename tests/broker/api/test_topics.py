"""CreateTopics, CreatePartitions, DeleteTopics and Metadata: the APIs that make, widen, remove and show topics."""

from typing import Any

import pytest

from ottla.ports.disk import DiskError

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS = 3, 17, 36, 37
INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST = 38, 39, 40, 42
POLICY_VIOLATION, KAFKA_STORAGE_ERROR, TOPIC_DELETION_DISABLED, UNKNOWN_TOPIC_ID = 44, 56, 73, 100
METADATA, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 3, 19, 20, 37

BAD_NAMES = ["", ".", "..", "a b", "a/b", "ä", "a\0b", "x" * 250, "a:b", "*"]


def new(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}


def create(client: Any, *topics: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
    answer = client.ask(CREATE_TOPICS, topics=list(topics), validate_only=validate_only)
    assert len({topic.name for topic in answer.topics}) == len(answer.topics)
    return {topic.name: topic for topic in answer.topics}


def code(client: Any, topic: dict[str, Any]) -> tuple[int, str]:
    row = create(client, topic)[topic["name"]]
    return row.error_code.value, row.error_message


def known(driver: Any) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in driver.broker.image.topics.items()}


# --- CreateTopics -------------------------------------------------------------------------------------------------


def test_several_topics_at_once(client: Any, driver: Any) -> None:
    rows = create(client, new("a"), new("b", 3, configs=[{"name": "retention.ms", "value": "5"}]))
    assert [row.error_code.value for row in rows.values()] == [0, 0]
    assert (rows["b"].num_partitions, rows["b"].replication_factor) == (3, 1)
    assert rows["a"].topic_id != rows["b"].topic_id
    settings = {config.name: (config.value, config.config_source) for config in rows["b"].configs}
    assert settings["retention.ms"] == ("5", 1)
    assert settings["segment.bytes"] == ("1073741824", 5)
    assert known(driver) == {"a": 1, "b": 3}


def test_minus_one_means_the_brokers_default(drive: Any) -> None:
    driver = drive(num_partitions="4")
    rows = create(driver.connect(), new("a", -1, -1))
    assert (rows["a"].num_partitions, rows["a"].replication_factor) == (4, 1)
    assert known(driver) == {"a": 4}


def test_a_replica_assignment_by_hand(client: Any, driver: Any) -> None:
    assignments = [{"partition_index": number, "broker_ids": [1]} for number in (1, 0)]
    assert code(client, new("a", -1, -1, assignments=assignments))[0] == 0
    assert known(driver) == {"a": 2}


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ([(0, [2])], INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 1])], INVALID_REPLICA_ASSIGNMENT),
        ([(0, [])], INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1]), (2, [1])], INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1]), (0, [1])], INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_assignments_that_cannot_be(client: Any, driver: Any, assignments: Any, expected: int) -> None:
    rows = [{"partition_index": number, "broker_ids": brokers} for number, brokers in assignments]
    assert code(client, new("a", -1, -1, assignments=rows))[0] == expected
    assert known(driver) == {}


def test_an_assignment_and_a_number_of_partitions_exclude_each_other(client: Any) -> None:
    assignments = [{"partition_index": 0, "broker_ids": [1]}]
    assert code(client, new("a", 1, -1, assignments=assignments))[0] == INVALID_REQUEST


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names(client: Any, driver: Any, name: str) -> None:
    assert code(client, new(name))[0] == INVALID_TOPIC
    assert known(driver) == {}


def test_the_longest_name(client: Any, driver: Any, batch: Any) -> None:
    assert code(client, new("x" * 249))[0] == 0
    assert client.produce("x" * 249, batch(b"v")).base_offset == 0


def test_names_that_collide(client: Any, driver: Any) -> None:
    assert code(client, new("a.b"))[0] == 0
    assert code(client, new("a_b"))[0] == INVALID_TOPIC
    assert code(client, new("a.b"))[0] == TOPIC_ALREADY_EXISTS


def test_numbers_that_cannot_be(client: Any) -> None:
    assert code(client, new("a", 0))[0] == INVALID_PARTITIONS
    assert code(client, new("a", -2))[0] == INVALID_PARTITIONS
    assert code(client, new("a", 1, 0))[0] == INVALID_REPLICATION_FACTOR
    number, message = code(client, new("a", 1, 3))
    assert number == INVALID_REPLICATION_FACTOR
    assert "3" in message


def test_an_invalid_config_is_named_with_its_allowed_values(client: Any, driver: Any) -> None:
    def refused(name: str, value: str | None) -> str:
        number, message = code(client, new("a", configs=[{"name": name, "value": value}]))
        assert number == INVALID_CONFIG
        return message

    message = refused("cleanup.policy", "shred")
    assert "cleanup.policy" in message and "shred" in message and "compact" in message
    assert "retention.ms" in refused("retention.ms", "soon")
    assert "retention.mss" in refused("retention.mss", "5")
    assert "retention.ms" in refused("retention.ms", None)
    twice = [{"name": "retention.ms", "value": "5"}] * 2
    assert code(client, new("a", configs=twice))[0] == INVALID_CONFIG
    assert known(driver) == {}


def test_a_topic_named_twice_is_answered_once_and_not_made(client: Any, driver: Any) -> None:
    rows = create(client, new("a"), new("b"), new("a", 2))
    assert {name: row.error_code.value for name, row in rows.items()} == {"a": INVALID_REQUEST, "b": 0}
    assert known(driver) == {"b": 1}


def test_validate_only_changes_nothing(client: Any, driver: Any) -> None:
    rows = create(client, new("a", 2), new("a b"), validate_only=True)
    assert [row.error_code.value for row in rows.values()] == [0, INVALID_TOPIC]
    assert known(driver) == {}


def test_a_topic_that_could_not_be_written_down_does_not_exist(client: Any, driver: Any) -> None:
    driver.are_proposals_held = True
    client.send(CREATE_TOPICS, topics=[new("a")])
    driver.commit("no space left on device")
    driver.turn()
    [answer] = client.answers
    assert answer.topics[0].error_code.value == KAFKA_STORAGE_ERROR
    assert "no space left" in answer.topics[0].error_message
    driver.are_proposals_held = False
    client.answers.clear()
    assert code(client, new("a"))[0] == 0


def test_a_topic_under_way_already_exists(client: Any, driver: Any) -> None:
    driver.are_proposals_held = True
    client.send(CREATE_TOPICS, topics=[new("a")])
    second = driver.connect()
    assert create(second, new("a"))["a"].error_code.value == TOPIC_ALREADY_EXISTS
    driver.commit()
    driver.turn()
    assert client.answers[0].topics[0].error_code.value == 0


# --- CreatePartitions ---------------------------------------------------------------------------------------------


def widen(client: Any, *topics: dict[str, Any], validate_only: bool = False) -> list[tuple[str, int]]:
    rows = [{"assignments": None, **topic} for topic in topics]
    answer = client.ask(CREATE_PARTITIONS, topics=rows, validate_only=validate_only)
    return [(row.name, row.error_code.value) for row in answer.results]


def test_each_topic_is_echoed(client: Any, driver: Any, batch: Any) -> None:
    client.create("a")
    client.create("b", 3)
    asked = [{"name": "a", "count": 2}, {"name": "no", "count": 2}, {"name": "b", "count": 3}]
    assert widen(client, *asked) == [("a", 0), ("no", UNKNOWN_TOPIC_OR_PARTITION), ("b", INVALID_PARTITIONS)]
    assert known(driver) == {"a": 2, "b": 3}
    assert client.produce("a", batch(b"x"), 1).base_offset == 0


def test_existing_partitions_keep_their_data(client: Any, batch: Any, values: Any) -> None:
    client.create("a")
    client.produce("a", batch(b"x"))
    assert widen(client, {"name": "a", "count": 3}) == [("a", 0)]
    assert values(client.fetch("a", 0)) == [b"x"]


def test_assignments_of_new_partitions(client: Any, driver: Any) -> None:
    client.create("a")
    for brokers in ([[2]], [[1], [1]], [[]], [[1, 1]]):
        rows = [{"broker_ids": ids} for ids in brokers]
        assert widen(client, {"name": "a", "count": 2, "assignments": rows}) == [
            ("a", INVALID_REPLICA_ASSIGNMENT)
        ]
    assert widen(client, {"name": "a", "count": 2, "assignments": [{"broker_ids": [1]}]}) == [("a", 0)]


def test_widening_with_validate_only_changes_nothing(client: Any, driver: Any) -> None:
    client.create("a")
    assert widen(client, {"name": "a", "count": 2}, validate_only=True) == [("a", 0)]
    assert widen(client, {"name": "a", "count": 1}, validate_only=True) == [("a", INVALID_PARTITIONS)]
    assert known(driver) == {"a": 1}


def test_a_topic_named_twice_is_not_widened(client: Any, driver: Any) -> None:
    client.create("a")
    assert widen(client, {"name": "a", "count": 2}, {"name": "a", "count": 3}) == [("a", INVALID_REQUEST)]
    assert known(driver) == {"a": 1}


def test_one_request_makes_only_so_many_partitions(client: Any, driver: Any) -> None:
    """A million partitions in a few kilobytes must hold up nobody; what is refused costs nothing."""
    driver.are_proposals_held = True
    asked = [new("a", 6_000), new("b", 6_000), new("c", 4_000), new("d", 1), new("e", 10_001)]
    client.send(CREATE_TOPICS, topics=asked)
    driver.commit()
    # Ten thousand logs are not what this is about.
    driver.broker.partitions.to_create.clear()
    driver.turn()
    codes = [row.error_code.value for row in client.answers.pop().topics]
    assert codes == [0, POLICY_VIOLATION, 0, POLICY_VIOLATION, INVALID_PARTITIONS]


def test_topics_of_one_request_collide_with_each_other(client: Any) -> None:
    codes = [
        row.error_code.value for row in client.ask(CREATE_TOPICS, topics=[new("a.b"), new("a_b")]).topics
    ]
    assert codes == [0, INVALID_TOPIC]


# --- DeleteTopics -------------------------------------------------------------------------------------------------


def delete(client: Any, *topics: dict[str, Any]) -> list[tuple[str | None, int]]:
    answer = client.ask(DELETE_TOPICS, topics=list(topics))
    return [(row.name, row.error_code.value) for row in answer.responses]


def test_topics_go_by_name_and_by_id(client: Any, driver: Any, batch: Any) -> None:
    client.create("a")
    topic_id = client.create("b")
    assert delete(client, {"name": "a"}, {"name": None, "topic_id": topic_id}) == [("a", 0), ("b", 0)]
    assert known(driver) == {}
    assert client.produce("a", batch(b"x")).error_code.value == UNKNOWN_TOPIC_OR_PARTITION


def test_topics_that_are_not_there(client: Any) -> None:
    asked = [{"name": "a"}, {"name": None, "topic_id": b"0123456789abcdef"}]
    assert delete(client, *asked) == [("a", UNKNOWN_TOPIC_OR_PARTITION), (None, UNKNOWN_TOPIC_ID)]
    topic_id = client.create("b")
    assert delete(client, {"name": "b", "topic_id": topic_id}, {"name": None})[0][1] == INVALID_REQUEST


def test_a_topic_named_twice_stays(client: Any, driver: Any) -> None:
    """As in Kafka: who contradicts himself about what to destroy destroys nothing."""
    topic_id = client.create("a")
    client.create("b")
    codes = [number for _name, number in delete(client, {"name": "a"}, {"name": None, "topic_id": topic_id})]
    assert codes == [INVALID_REQUEST, INVALID_REQUEST]
    answer = client.ask(DELETE_TOPICS, 5, topic_names=["a", "b", "a"])
    assert [(row.name, row.error_code.value) for row in answer.responses] == [
        ("a", INVALID_REQUEST),
        ("b", 0),
    ]
    assert known(driver) == {"a": 1}


def test_a_deletion_that_the_disk_refuses_takes_the_directory_offline(
    client: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create("a")
    assert driver.replica("a").opened

    def refuse(source: str, _target: str) -> None:
        raise DiskError(f"{source}: Input/output error", broken=True)

    monkeypatch.setattr(driver.disk, "rename", refuse)
    assert delete(client, {"name": "a"}) == [("a", 0)]
    assert "Input/output error" in driver.broker.directories.all[0].offline


def test_deletion_can_be_forbidden(drive: Any) -> None:
    client = drive(delete_topic_enable="false").connect()
    client.create("a")
    assert delete(client, {"name": "a"}) == [("a", TOPIC_DELETION_DISABLED)]


def test_the_files_of_a_deleted_topic_go_after_a_while(
    client: Any, driver: Any, batch: Any, tmp_path: Any
) -> None:
    client.create("a", 2)
    client.produce("a", batch(b"x"))
    delete(client, {"name": "a"})
    left = sorted(path.name for path in (tmp_path / "data-0").glob("a-*"))
    assert len(left) == 2 and all(name.endswith("-delete") for name in left)
    driver.advance(61_000)
    assert list((tmp_path / "data-0").glob("a-*")) == []


def test_a_topic_made_anew_is_empty(client: Any, batch: Any) -> None:
    client.create("a")
    client.produce("a", batch(b"x"))
    delete(client, {"name": "a"})
    client.create("a")
    assert client.fetch("a", 0).high_watermark == 0


# --- Metadata -----------------------------------------------------------------------------------------------------


def ask_metadata(client: Any, topics: list[str] | None, version: int = 12, **fields: Any) -> dict[str, Any]:
    rows = None if topics is None else [{"name": name} for name in topics]
    answer = client.ask(METADATA, version, topics=rows, **fields)
    return {topic.name: topic for topic in answer.topics}


def test_all_topics_or_none(client: Any) -> None:
    client.create("a")
    client.create("b")
    assert ask_metadata(client, None).keys() == {"a", "b"}
    assert ask_metadata(client, []) == {}
    assert ask_metadata(client, [], 0).keys() == {"a", "b"}


@pytest.mark.parametrize("version", [0, 3, 4, 12, 13])
def test_a_missing_topic_is_made_with_the_default_number_of_partitions(drive: Any, version: int) -> None:
    driver = drive(num_partitions="3")
    topic = ask_metadata(driver.connect(), ["new"], version, allow_auto_topic_creation=True)["new"]
    assert topic.error_code.value == 0
    assert len(topic.partitions) == 3
    assert known(driver) == {"new": 3}


def test_a_missing_topic_is_not_made_against_the_requests_flag(client: Any, driver: Any) -> None:
    topic = ask_metadata(client, ["new"], allow_auto_topic_creation=False)["new"]
    assert topic.error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    assert known(driver) == {}


def test_a_missing_topic_is_not_made_against_the_brokers_setting(drive: Any) -> None:
    driver = drive(auto_create_topics_enable="false")
    topic = ask_metadata(driver.connect(), ["new"], allow_auto_topic_creation=True)["new"]
    assert topic.error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    assert known(driver) == {}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_not_made(client: Any, driver: Any, name: str) -> None:
    topic = ask_metadata(client, [name, "good"], allow_auto_topic_creation=True)
    assert topic[name].error_code.value == INVALID_TOPIC
    assert topic["good"].error_code.value == 0
    assert known(driver) == {"good": 1}


def test_two_clients_that_want_the_same_new_topic(client: Any, driver: Any) -> None:
    second = driver.connect()
    driver.are_proposals_held = True
    for each in (client, second):
        each.send(METADATA, 12, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    assert client.answers == second.answers == []
    driver.commit()
    driver.turn()
    assert [each.answers[0].topics[0].error_code.value for each in (client, second)] == [0, 0]
    assert known(driver) == {"new": 1}


def test_topics_by_id(client: Any) -> None:
    topic_id = client.create("a")
    for version in (12, 13):
        rows = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": b"0123456789abcdef"}]
        found, missing = client.ask(METADATA, version, topics=rows).topics
        assert (found.name, found.error_code.value) == ("a", 0)
        assert (missing.name, missing.error_code.value) == (None, UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("name", ["", "another"])
def test_an_id_goes_before_a_name(client: Any, driver: Any, name: str) -> None:
    topic_id = client.create("a")
    rows = [{"name": name, "topic_id": topic_id}, {"name": name, "topic_id": b"0123456789abcdef"}]
    found, missing = client.ask(METADATA, 13, topics=rows, allow_auto_topic_creation=True).topics
    assert (found.name, found.topic_id.bytes, found.error_code.value) == ("a", topic_id, 0)
    assert (missing.name, missing.error_code.value) == (None, UNKNOWN_TOPIC_ID)
    assert missing.topic_id.bytes == b"0123456789abcdef"
    assert known(driver) == {"a": 1}


@pytest.mark.parametrize("version", [10, 11])
def test_versions_that_have_ids_but_not_in_requests(client: Any, version: int) -> None:
    rows = [{"name": None, "topic_id": b"0123456789abcdef"}, {"name": None}]
    answers = client.ask(METADATA, version, topics=rows).topics
    assert [bool(topic.error_code.value) for topic in answers] == [True, True]


def test_operations_are_told_when_asked_for(client: Any) -> None:
    client.create("a")
    not_asked = -(2**31)
    assert ask_metadata(client, ["a"])["a"].topic_authorized_operations == not_asked
    told = ask_metadata(client, ["a"], include_topic_authorized_operations=True)["a"]
    assert told.topic_authorized_operations > 0
