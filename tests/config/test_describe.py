from __future__ import annotations

from ottla.config.broker import BROKER, BrokerConfig
from ottla.config.describe import Entry, describe_broker, describe_broker_default, describe_topic
from ottla.config.topic import TOPIC, TopicConfig

TOPIC_OVERRIDE, DYNAMIC, DYNAMIC_ALL, STATIC, DEFAULT = 1, 2, 3, 4, 5


def one(entries: list[Entry]) -> Entry:
    (entry,) = entries
    return entry


def topic(name: str, overrides: dict[str, str], broker: BrokerConfig) -> Entry:
    return one(describe_topic(overrides, broker, [name]))


def test_a_topic_answers_every_setting_with_the_value_that_holds() -> None:
    broker = BrokerConfig.from_properties(
        {"log.retention.hours": "2", "log.roll.ms": "9", "log.cleanup.policy": "compact"}
    )
    overrides = {"segment.bytes": "1000", "preallocate": "TRUE"}
    entries = describe_topic(overrides, broker)
    assert [entry.name for entry in entries] == list(TOPIC)
    resolved = TopicConfig.resolve(overrides, broker)
    for entry in entries:
        row = TOPIC[entry.name]
        assert entry.value is not None
        value = row.parse(entry.value)
        assert (
            frozenset(value) if row.name == "cleanup.policy" and isinstance(value, tuple) else value
        ) == getattr(resolved, row.attribute)
        assert entry.documentation == row.doc
        assert not entry.read_only
        assert not entry.sensitive


def test_a_default_says_so_and_names_the_brokers_setting() -> None:
    broker = BrokerConfig.from_properties({})
    entry = topic("segment.bytes", {}, broker)
    assert (entry.value, entry.source, entry.is_default) == ("1073741824", DEFAULT, True)
    assert entry.synonyms == (("log.segment.bytes", "1073741824", DEFAULT),)
    retention = topic("retention.ms", {}, broker)
    assert (retention.value, retention.synonyms) == ("604800000", (("log.retention.hours", "168", DEFAULT),))
    local = topic("local.retention.ms", {}, broker)
    assert (local.value, local.synonyms) == ("-2", (("log.local.retention.ms", "-2", DEFAULT),))
    assert topic("remote.storage.enable", {}, broker).synonyms == ()


def test_synonyms_list_all_that_stands_behind_strongest_first() -> None:
    broker = BrokerConfig.from_properties(
        {"log.retention.ms": "4", "log.retention.hours": "1"},
        dynamic={"log.retention.ms": "2"},
        dynamic_default={"log.retention.ms": "3"},
    )
    entry = topic("retention.ms", {"retention.ms": "01"}, broker)
    assert (entry.value, entry.source) == ("1", TOPIC_OVERRIDE)
    assert entry.synonyms == (
        ("retention.ms", "1", TOPIC_OVERRIDE),
        ("log.retention.ms", "2", DYNAMIC),
        ("log.retention.ms", "3", DYNAMIC_ALL),
        ("log.retention.ms", "4", STATIC),
        ("log.retention.hours", "1", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    )
    inherited = topic("retention.ms", {}, broker)
    assert (inherited.value, inherited.source) == ("2", DYNAMIC)


def test_a_value_in_hours_is_described_in_the_topics_unit() -> None:
    broker = BrokerConfig.from_properties({"log.retention.hours": "1"})
    entry = topic("retention.ms", {}, broker)
    assert (entry.value, entry.source) == ("3600000", STATIC)
    assert entry.synonyms[0] == ("log.retention.hours", "1", STATIC)


def test_type_codes_are_the_protocols() -> None:
    codes = {entry.name: entry.type_code for entry in describe_topic({}, BrokerConfig.from_properties({}))}
    assert codes["preallocate"] == 1
    assert codes["compression.type"] == 2
    assert codes["segment.bytes"] == 3
    assert codes["retention.ms"] == 5
    assert codes["min.cleanable.dirty.ratio"] == 6
    assert codes["cleanup.policy"] == 7


def test_only_the_named_settings_and_no_unknown_ones() -> None:
    broker = BrokerConfig.from_properties({})
    assert [entry.name for entry in describe_topic({}, broker, ["segment.ms", "nope", "flush.policy"])] == [
        "flush.policy",
        "segment.ms",
    ]
    assert describe_topic({}, broker, []) == []
    assert [entry.name for entry in describe_broker(broker, ["node.id", "nope"])] == ["node.id"]


def test_a_broker_answers_every_setting() -> None:
    broker = BrokerConfig.from_properties(
        {"broker.id": "3", "num.partitions": "04"}, dynamic={"max.connections": "9"}
    )
    entries = {entry.name: entry for entry in describe_broker(broker)}
    assert list(entries) == list(BROKER)
    assert (entries["node.id"].value, entries["node.id"].source) == ("3", STATIC)
    assert entries["broker.id"].value == "3"
    assert entries["num.partitions"].value == "4"
    assert entries["num.partitions"].read_only
    assert (entries["max.connections"].value, entries["max.connections"].source) == ("9", DYNAMIC)
    assert entries["max.connections"].synonyms == (
        ("max.connections", "9", DYNAMIC),
        ("max.connections", "20000", DEFAULT),
    )
    assert not entries["max.connections"].read_only
    assert (entries["log.retention.ms"].value, entries["log.retention.ms"].source) == (None, DEFAULT)
    assert entries["log.retention.hours"].value == "168"


def test_settings_for_all_brokers_are_those_that_were_set() -> None:
    entry = one(describe_broker_default({"log.retention.ms": "5"}))
    assert (entry.name, entry.value, entry.source) == ("log.retention.ms", "5", DYNAMIC_ALL)
    assert describe_broker_default({"log.retention.ms": "5"}, ["max.connections"]) == []
