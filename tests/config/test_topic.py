from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.definition import InvalidConfig
from ottla.config.topic import TOPIC, TopicConfig, validate

BROKER = BrokerConfig.from_properties({})

# The topic settings of Kafka 4, written separately from the table.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.copy.lag.bytes": "0",
    "remote.copy.lag.ms": "0",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_the_table_is_kafkas_and_the_flush_policy() -> None:
    assert {name: row.default for name, row in TOPIC.items()} == KAFKA_DEFAULTS | {"flush.policy": "durable"}


def test_every_setting_has_an_attribute_and_every_attribute_a_setting() -> None:
    assert set(TopicConfig.__slots__) == {row.attribute for row in TOPIC.values()} | {
        "compact",
        "delete",
        "plain",
        "durable",
        "roll_ms",
    }


def test_a_compacted_topic_closes_its_segments_before_its_records_have_waited_too_long() -> None:
    lag = {"max.compaction.lag.ms": "5000"}
    assert TopicConfig.resolve({**lag, "cleanup.policy": "compact"}, BROKER).roll_ms == 5000
    assert TopicConfig.resolve({**lag, "cleanup.policy": "compact", "segment.ms": "9"}, BROKER).roll_ms == 9
    assert TopicConfig.resolve(lag, BROKER).roll_ms == 7 * 24 * 3600 * 1000


def test_without_overrides_the_defaults_hold() -> None:
    config = TopicConfig.resolve({}, BROKER)
    assert config.cleanup_policy == {"delete"}
    assert (config.delete, config.compact) == (True, False)
    assert config.retention_ms == 7 * 24 * 3600 * 1000
    assert config.segment_bytes == 2**30
    assert config.max_message_bytes == 1_048_588
    assert config.flush_policy == "durable"
    assert config.min_cleanable_dirty_ratio == 0.5
    assert config.preallocate is False


def test_overrides_stand_over_the_broker_and_the_broker_over_the_table() -> None:
    broker = BrokerConfig.from_properties({"log.segment.bytes": "2000000", "log.retention.bytes": "5"})
    config = TopicConfig.resolve({"segment.bytes": "1000", "cleanup.policy": "compact,delete"}, broker)
    assert config.segment_bytes == 1000
    assert config.retention_bytes == 5
    assert (config.delete, config.compact) == (True, True)
    assert config.index_interval_bytes == 4096


def test_equal_inputs_share_one_object() -> None:
    other = BrokerConfig.from_properties({"node.id": "7"})
    first = TopicConfig.resolve({"segment.bytes": "1000", "retention.ms": "5"}, BROKER)
    assert TopicConfig.resolve({"retention.ms": "5", "segment.bytes": "1000"}, other) is first
    assert TopicConfig.resolve({"retention.ms": "6", "segment.bytes": "1000"}, other) is not first
    changed = BrokerConfig.from_properties({"log.index.interval.bytes": "7"})
    assert (
        TopicConfig.resolve({"segment.bytes": "1000", "retention.ms": "5"}, changed).index_interval_bytes == 7
    )


def test_resolved_settings_cannot_be_changed() -> None:
    config = TopicConfig.resolve({}, BROKER)
    with pytest.raises(AttributeError, match="immutable"):
        config.retention_ms = 1
    with pytest.raises(AttributeError, match="immutable"):
        del config.retention_ms
    with pytest.raises(AttributeError):
        config.retention = 1  # type: ignore[assignment]
    assert "retention_ms=604800000" in repr(config)


def test_validate_accepts_what_fits() -> None:
    validate({})
    validate({"cleanup.policy": "compact", "min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    validate({"flush.policy": "page-cache"})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"retention.msx": "1"},
            r"Unknown topic config name: retention\.msx \(did you mean retention\.ms\?\)",
        ),
        ({"log.retention.ms": "1"}, r"Unknown topic config name: log\.retention\.ms"),
        ({"retention.ms": "abc"}, r"Invalid value abc for configuration retention\.ms"),
        ({"retention.ms": None}, r"Null value not supported for configuration retention\.ms"),
        ({"remote.storage.enable": "true"}, "tiered storage is not available"),
        ({"flush.policy": "never"}, "must be one of durable, page-cache"),
        (
            {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"},
            r"min\.compaction\.lag\.ms: must be at most max\.compaction\.lag\.ms \(5\)",
        ),
    ],
)
def test_validate_refuses_what_does_not(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        validate(overrides)


def test_resolve_refuses_too() -> None:
    with pytest.raises(InvalidConfig, match="Unknown topic config name"):
        TopicConfig.resolve({"nope": "1"}, BROKER)
    with pytest.raises(InvalidConfig, match="must be at most"):
        TopicConfig.resolve({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}, BROKER)


def test_validate_compares_with_the_brokers_defaults() -> None:
    broker = BrokerConfig.from_properties({"log.cleaner.max.compaction.lag.ms": "100"})
    validate({"min.compaction.lag.ms": "101"})
    with pytest.raises(InvalidConfig, match=r"at most max\.compaction\.lag\.ms \(100\)"):
        validate({"min.compaction.lag.ms": "101"}, broker)
