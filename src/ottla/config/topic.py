"""The resolved settings of one topic: its overrides over the broker's defaults.

`TopicConfig.resolve` returns the same object for the same inputs, so ten thousand topics without overrides
share one. Overrides from a client are validated (`validate`) before they are stored; `resolve` refuses
invalid ones too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from ottla.config.definition import InvalidConfig, Settings, Value, unknown_name
from ottla.config.topic_table import TOPIC

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig

__all__ = ["TOPIC", "TopicConfig", "check_together", "validate"]

NAMES = tuple(TOPIC)


class TopicConfig(Settings):
    """One slot per topic setting, named with underscores; `compact` and `delete` are the parts of
    `cleanup_policy`.

    - `roll_ms`: the age at which a segment rolls: `segment_ms`, or less if max.compaction.lag.ms requires it.
    - `plain`: an append checks only the batch header and its newest timestamp.
    - `durable`: records are acknowledged and visible only after a sync.
    """

    cleanup_policy: frozenset[str]
    compact: bool
    delete: bool
    plain: bool
    durable: bool
    roll_ms: int
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    flush_policy: str
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    remote_copy_lag_bytes: int
    remote_copy_lag_ms: int
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool

    __slots__ = tuple(__annotations__)

    @staticmethod
    def resolve(overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
        """The settings of a topic with these overrides on this broker."""
        return _resolve(tuple(sorted(overrides.items())), broker.topic_defaults)


@lru_cache(maxsize=4096)
def _resolve(overrides: tuple[tuple[str, str], ...], defaults: tuple[Value, ...]) -> TopicConfig:
    values = dict(zip(NAMES, defaults, strict=True))
    for name, text in overrides:
        definition = TOPIC.get(name)
        if definition is None:
            raise unknown_name("topic", name, TOPIC)
        values[name] = definition.parse(text)
    check_together(values)
    attributes: dict[str, object] = {TOPIC[name].attribute: value for name, value in values.items()}
    policies = values["cleanup.policy"]
    assert isinstance(policies, tuple)
    attributes["cleanup_policy"] = frozenset(policies)
    attributes["compact"] = "compact" in policies
    attributes["delete"] = "delete" in policies
    attributes["plain"] = (
        "compact" not in policies
        and values["compression.type"] == "producer"
        and values["message.timestamp.type"] == "CreateTime"
        and values["message.timestamp.before.max.ms"]
        == int(TOPIC["message.timestamp.before.max.ms"].default or 0)
    )
    attributes["durable"] = values["flush.policy"] == "durable" or values["flush.messages"] == 1
    ages = [values["segment.ms"]]
    if "compact" in policies:
        # Only closed segments are compacted.
        ages.append(values["max.compaction.lag.ms"])
    attributes["roll_ms"] = min(cast("list[int]", ages))
    return TopicConfig(attributes)


def check_together(values: Mapping[str, Value]) -> None:
    """Conditions between topic settings; `values` has all of them, parsed."""
    shortest, longest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(shortest, int)
    assert isinstance(longest, int)
    if shortest > longest:
        raise InvalidConfig(
            f"Invalid value {shortest} for configuration min.compaction.lag.ms: "
            f"must be at most max.compaction.lag.ms ({longest})"
        )


def validate(overrides: Mapping[str, str | None], broker: BrokerConfig | None = None) -> None:
    """Raise `InvalidConfig` if a name is unknown, or a value is invalid alone or in combination.

    Values that are not overridden are the broker's defaults, or the table's if no broker is given.
    """
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        definition = TOPIC.get(name)
        if definition is None:
            raise unknown_name("topic", name, TOPIC)
        values[name] = definition.parse(text)
    if broker is not None:
        defaults = dict(zip(NAMES, broker.topic_defaults, strict=True))
    else:
        defaults = {name: definition.parse(definition.default) for name, definition in TOPIC.items()}
    check_together(defaults | values)
