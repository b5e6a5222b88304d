"""DescribeConfigs and IncrementalAlterConfigs."""

from typing import Any

import pytest

from ottla.config.broker_table import BROKER
from ottla.config.topic_table import TOPIC

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, INVALID_CONFIG, INVALID_REQUEST = 3, 17, 40, 42
BROKER_ID_NOT_REGISTERED = 102
DESCRIBE, ALTER = 32, 44
TOPIC_TYPE, BROKER_TYPE = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
FROM_TOPIC, FROM_BROKER, FROM_DEFAULT_BROKER, FROM_FILE, BUILT_IN = 1, 2, 3, 4, 5


def describe(
    client: Any, name: str = "t", kind: int = TOPIC_TYPE, keys: list[str] | None = None, **more: Any
) -> Any:
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}]
    [result] = client.ask(DESCRIBE, resources=resources, **more).results
    return result


def source(client: Any, config: str, name: str = "t", kind: int = TOPIC_TYPE) -> tuple[str, int]:
    [row] = describe(client, name, kind, [config]).configs
    return row.value, row.config_source


def alter(
    client: Any,
    config: str,
    value: str | None,
    op: int = SET,
    name: str = "t",
    kind: int = TOPIC_TYPE,
    **more: Any,
) -> tuple[int, str | None]:
    configs = [{"name": config, "config_operation": op, "value": value}]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    [row] = client.ask(ALTER, resources=resources, **more).responses
    return row.error_code.value, row.error_message


@pytest.fixture(autouse=True)
def topic(client: Any) -> None:
    client.create("t", retention_ms="5000")


def test_every_config_of_a_topic_with_its_source(client: Any) -> None:
    rows = {row.name: row for row in describe(client).configs}
    assert rows.keys() == set(TOPIC)
    assert (rows["retention.ms"].value, rows["retention.ms"].config_source) == ("5000", FROM_TOPIC)
    assert (rows["segment.bytes"].value, rows["segment.bytes"].config_source) == ("1073741824", BUILT_IN)
    assert all(row.synonyms == () and row.documentation is None for row in rows.values())


def test_every_config_of_the_broker(drive: Any) -> None:
    client = drive(num_partitions="3").connect()
    rows = {row.name: row for row in describe(client, "1", BROKER_TYPE).configs}
    assert set(BROKER) <= rows.keys()
    assert (rows["num.partitions"].value, rows["num.partitions"].config_source) == ("3", FROM_FILE)
    assert rows["message.max.bytes"].config_source == BUILT_IN
    assert rows["log.dirs"].read_only


def test_a_default_of_the_broker_reaches_its_topics(drive: Any) -> None:
    client = drive(log_segment_bytes="2000000").connect()
    client.create("t")
    assert source(client, "segment.bytes") == ("2000000", FROM_FILE)


def test_synonyms_and_documentation_on_request(client: Any) -> None:
    result = describe(client, keys=["retention.ms"], include_synonyms=True, include_documentation=True)
    [row] = result.configs
    told = [(each.name, each.value, each.source) for each in row.synonyms]
    assert told[0] == ("retention.ms", "5000", FROM_TOPIC)
    assert told[-1][2] == BUILT_IN
    assert row.documentation


def test_resources_that_are_not_there(client: Any) -> None:
    assert describe(client, "u").error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    assert describe(client, "a b").error_code.value == INVALID_TOPIC
    assert describe(client, "2", BROKER_TYPE).error_code.value == INVALID_REQUEST
    assert describe(client, "x", 77).error_code.value == INVALID_REQUEST
    assert alter(client, "retention.ms", "1", name="u")[0] == UNKNOWN_TOPIC_OR_PARTITION
    assert alter(client, "num.partitions", "1", name="2", kind=BROKER_TYPE)[0] == BROKER_ID_NOT_REGISTERED


def test_a_change_takes_effect_at_once(client: Any, batch: Any) -> None:
    assert client.produce("t", batch(bytes(2000))).error_code.value == 0
    assert alter(client, "max.message.bytes", "1000") == (0, None)
    assert client.produce("t", batch(bytes(2000))).error_code.value == 10
    assert alter(client, "max.message.bytes", None, DELETE) == (0, None)
    assert client.produce("t", batch(bytes(2000))).error_code.value == 0
    assert source(client, "max.message.bytes")[1] == BUILT_IN


def test_lists_are_appended_to_and_subtracted_from(client: Any) -> None:
    assert alter(client, "cleanup.policy", "compact", APPEND)[0] == 0
    assert set(source(client, "cleanup.policy")[0].split(",")) == {"delete", "compact"}
    assert alter(client, "cleanup.policy", "delete", SUBTRACT)[0] == 0
    assert source(client, "cleanup.policy") == ("compact", FROM_TOPIC)
    assert alter(client, "retention.ms", "1", APPEND)[0] == INVALID_CONFIG


@pytest.mark.parametrize(
    ("config", "value", "words"),
    [
        ("retention.ms", "soon", ("retention.ms", "soon")),
        ("cleanup.policy", "shred", ("cleanup.policy", "shred", "compact")),
        ("compression.type", "rar", ("compression.type", "rar", "zstd")),
        ("flush.policy", "never", ("flush.policy", "durable", "page-cache")),
        ("min.insync.replicas", "0", ("min.insync.replicas",)),
        ("no.such.config", "1", ("no.such.config",)),
    ],
)
def test_an_invalid_value_is_refused_with_its_name_and_what_is_allowed(
    client: Any, config: str, value: str, words: tuple[str, ...]
) -> None:
    number, message = alter(client, config, value)
    assert number == INVALID_CONFIG
    assert message is not None
    assert [word for word in words if word not in message] == []
    assert source(client, "retention.ms") == ("5000", FROM_TOPIC)


def test_a_resource_is_changed_as_a_whole_or_not_at_all(client: Any) -> None:
    client.create("u")
    good, bad = {"name": "segment.ms", "value": "7777"}, {"name": "retention.ms", "value": "soon"}
    resources = [
        {"resource_type": TOPIC_TYPE, "resource_name": "t", "configs": [good, bad]},
        {"resource_type": TOPIC_TYPE, "resource_name": "u", "configs": [good]},
    ]
    rows = client.ask(ALTER, resources=resources).responses
    assert [(row.resource_name, row.error_code.value) for row in rows] == [("t", INVALID_CONFIG), ("u", 0)]
    assert source(client, "segment.ms", "t")[1] == BUILT_IN
    assert source(client, "segment.ms", "u") == ("7777", FROM_TOPIC)


def test_duplicates_are_refused(client: Any) -> None:
    change = {"name": "segment.ms", "value": "7777"}
    twice = {"resource_type": TOPIC_TYPE, "resource_name": "t", "configs": [change, change]}
    [row] = client.ask(ALTER, resources=[twice]).responses
    assert row.error_code.value == INVALID_REQUEST
    once = twice | {"configs": [change]}
    rows = client.ask(ALTER, resources=[once, once]).responses
    assert {row.error_code.value for row in rows} == {INVALID_REQUEST}


def test_validate_only_changes_nothing(client: Any) -> None:
    assert alter(client, "retention.ms", "1", validate_only=True) == (0, None)
    assert alter(client, "retention.ms", "x", validate_only=True)[0] == INVALID_CONFIG
    assert source(client, "retention.ms") == ("5000", FROM_TOPIC)


def test_a_brokers_dynamic_config(client: Any, driver: Any) -> None:
    assert alter(client, "log.retention.ms", "9000", name="", kind=BROKER_TYPE)[0] == 0
    client.create("u")
    assert source(client, "retention.ms", "u") == ("9000", FROM_DEFAULT_BROKER)
    assert alter(client, "log.retention.ms", "8000", name="1", kind=BROKER_TYPE)[0] == 0
    assert source(client, "retention.ms", "u") == ("8000", FROM_BROKER)
    number, message = alter(client, "log.dirs", "/elsewhere", name="1", kind=BROKER_TYPE)
    assert number in (INVALID_CONFIG, INVALID_REQUEST)
    assert "log.dirs" in (message or "")


GROUP_TYPE, FROM_GROUP = 32, 8
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_a_group_has_settings_of_its_own(client: Any) -> None:
    """Whether it exists or not."""
    assert source(client, SESSION, "g", GROUP_TYPE) == ("45000", BUILT_IN)
    assert alter(client, SESSION, "50000", name="g", kind=GROUP_TYPE) == (0, None)
    assert source(client, SESSION, "g", GROUP_TYPE) == ("50000", FROM_GROUP)
    assert source(client, SESSION, "other", GROUP_TYPE) == ("45000", BUILT_IN)
    assert [row.name for row in describe(client, "g", GROUP_TYPE).configs] == [HEARTBEAT, SESSION]
    listed = client.ask(74, 1, resource_types=[GROUP_TYPE]).config_resources
    assert [(row.resource_type, row.resource_name) for row in listed] == [(GROUP_TYPE, "g")]
    assert alter(client, SESSION, None, DELETE, name="g", kind=GROUP_TYPE) == (0, None)
    assert source(client, SESSION, "g", GROUP_TYPE) == ("45000", BUILT_IN)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        (SESSION, "44999", INVALID_CONFIG),
        (SESSION, "60001", INVALID_CONFIG),
        (SESSION, "soon", INVALID_CONFIG),
        (HEARTBEAT, "4999", INVALID_CONFIG),
        (HEARTBEAT, "15001", INVALID_CONFIG),
        ("retention.ms", "1", INVALID_CONFIG),
    ],
)
def test_settings_of_a_group_that_it_cannot_have(client: Any, name: str, value: str, code: int) -> None:
    assert alter(client, name, value, name="g", kind=GROUP_TYPE)[0] == code
    assert client.ask(74, 1, resource_types=[GROUP_TYPE]).config_resources == ()


def test_settings_of_groups_need_a_name(client: Any) -> None:
    assert alter(client, SESSION, "50000", name="", kind=GROUP_TYPE)[0] == INVALID_REQUEST
    assert describe(client, "", GROUP_TYPE).error_code.value == INVALID_REQUEST


def test_a_heartbeat_tells_the_interval_that_the_group_has(client: Any) -> None:
    client.ask(10, 4, key_type=0, coordinator_keys=["g"])
    assert alter(client, HEARTBEAT, "7000", name="g", kind=GROUP_TYPE) == (0, None)
    answer = client.ask(
        68, 1, group_id="g", member_id="m", member_epoch=0, rebalance_timeout=1000, subscribed_topic_names=["t"],
        topic_partitions=[],
    )  # fmt: skip
    assert answer.heartbeat_interval.total_seconds() == 7


# --- settings that Kafka changes at run time and that have no effect here --------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        "num.io.threads", "num.network.threads", "background.threads", "log.cleaner.threads",
        "num.recovery.threads.per.data.dir", "remote.log.reader.threads",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("name", "from_where"), [("1", FROM_BROKER), ("", FROM_DEFAULT_BROKER)])
def test_a_setting_without_effect_is_accepted_logged_and_described(
    client: Any, driver: Any, config: str, name: str, from_where: int
) -> None:
    for value in ("4", "6"):
        assert alter(client, config, value, name=name, kind=BROKER_TYPE) == (0, None)
        assert source(client, config, "1", BROKER_TYPE) == (value, from_where)
        assert source(client, config, name, BROKER_TYPE) == (value, from_where)
    [line] = [text for text in driver.said if config in text]
    assert "has no effect here" in line
    assert alter(client, config, None, DELETE, name=name, kind=BROKER_TYPE) == (0, None)
    assert describe(client, "1", BROKER_TYPE, [config]).configs == ()


def test_a_setting_without_effect_is_checked_nevertheless(client: Any) -> None:
    code, message = alter(client, "num.io.threads", "none", name="1", kind=BROKER_TYPE)
    assert code == INVALID_CONFIG and "num.io.threads" in (message or "")
    code, message = alter(client, "process.roles", "broker", name="1", kind=BROKER_TYPE)
    assert code == INVALID_CONFIG


def test_the_number_of_replica_fetchers_changes_at_run_time(client: Any, driver: Any) -> None:
    assert alter(client, "num.replica.fetchers", "3", name="", kind=BROKER_TYPE) == (0, None)
    assert driver.broker.config.num_replica_fetchers == 3
    assert source(client, "num.replica.fetchers", "1", BROKER_TYPE) == ("3", FROM_DEFAULT_BROKER)


# --- types of resources are named ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (8, "BROKER_LOGGER resources have no settings"),
        (16, "CLIENT_METRICS resources have no settings"),
        (77, "resource type 77 is unknown"),
    ],
)
def test_a_type_of_resource_is_named_in_the_error(client: Any, kind: int, words: str) -> None:
    result = describe(client, "1", kind)
    assert result.error_code.value == INVALID_REQUEST and words in result.error_message
    code, message = alter(client, "x", "1", name="1", kind=kind)
    assert code == INVALID_REQUEST and words in (message or "")


def test_a_resource_named_twice_is_named_with_its_type(client: Any) -> None:
    twice = [{"resource_type": TOPIC_TYPE, "resource_name": "t", "configs": ()}] * 2
    for api in (ALTER, 33):
        rows = client.ask(api, resources=twice).responses
        assert {row.error_message for row in rows} == {"TOPIC 't' is named 2 times"}
