"""The resolved settings of one broker: dynamic settings over its configuration over the defaults.

`BrokerConfig.from_properties` takes Kafka's names and text values. Unknown names are refused, so a misspelt
setting stops the start. If Kafka has several names for one setting (log.retention.ms, .minutes, .hours), the
attribute is the result in milliseconds. The layers are kept, so that DescribeConfigs can return the source of
a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ottla.config.broker_table import BROKER
from ottla.config.consumer_table import IN_ORDER
from ottla.config.definition import InvalidConfig, Settings, Value, unknown_name
from ottla.config.listener import WILDCARD_HOSTS, Listener, protocol_map, split_listener
from ottla.config.not_honoured import NOT_HONOURED
from ottla.config.topic import check_together
from ottla.config.topic_table import TOPIC

__all__ = ["BROKER", "NOT_HONOURED", "BrokerConfig", "Listener"]

# The sources of DescribeConfigs, in order of precedence.
DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT = 2, 3, 4, 5

SERVED_PROTOCOLS = ("PLAINTEXT",)
_SENSITIVE = frozenset((*(row.attribute for row in BROKER.values() if row.sensitive), "properties", "layers"))
MS_PER_UNIT = {"minutes": 60_000, "hours": 3_600_000}


class BrokerConfig(Settings):
    """One slot per broker setting: its name with underscores."""

    node_id: int
    broker_rack: str | None

    zookeeper_connect: str | None
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int | None
    zookeeper_digest: str | None
    zookeeper_set_acl: bool
    zookeeper_ssl_client_enable: bool
    zookeeper_ssl_truststore_location: str | None
    zookeeper_ssl_truststore_type: str
    zookeeper_ssl_keystore_location: str | None
    zookeeper_ssl_keystore_password: str | None
    zookeeper_ssl_keystore_type: str
    zookeeper_ssl_endpoint_identification_algorithm: str
    controlled_shutdown_enable: bool
    replica_socket_timeout_ms: int

    num_replica_fetchers: int
    replica_lag_time_max_ms: int
    replica_fetch_wait_max_ms: int
    replica_fetch_min_bytes: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_backoff_ms: int
    replica_selector_class: str
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int

    listeners: tuple[Listener, ...]
    # With an empty host (or a wildcard in `listeners` and nothing advertised) the server chooses the host.
    advertised_listeners: tuple[Listener, ...]
    socket_request_max_bytes: int
    queued_max_request_bytes: int
    socket_request_timeout_ms: int
    socket_send_buffer_bytes: int
    socket_receive_buffer_bytes: int
    socket_listen_backlog_size: int
    connections_max_idle_ms: int
    slow_turn_log_ms: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    max_connection_creation_rate: int
    max_connection_creation_rate_per_ip: int

    num_partitions: int
    default_replication_factor: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    message_max_bytes: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    min_insync_replicas: int
    unclean_leader_election_enable: bool

    log_dirs: tuple[str, ...]
    metadata_log_dir: str
    log_segment_bytes: int
    log_roll_ms: int
    log_roll_jitter_ms: int
    log_retention_ms: int
    log_retention_bytes: int
    log_retention_check_interval_ms: int
    log_cleanup_policy: frozenset[str]
    log_index_size_max_bytes: int
    log_index_interval_bytes: int
    log_preallocate: bool
    log_message_timestamp_type: str
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_after_max_ms: int
    log_segment_delete_delay_ms: int
    log_cleaner_delete_retention_ms: int
    log_cleaner_min_compaction_lag_ms: int
    log_cleaner_max_compaction_lag_ms: int
    log_cleaner_min_cleanable_ratio: float
    log_cleaner_enable: bool
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float

    log_flush_policy: str
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_recovery_point_interval_bytes: int
    num_sync_threads: int

    leader_replication_throttled_rate: int
    follower_replication_throttled_rate: int
    replica_alter_log_dirs_io_max_bytes_per_second: int

    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int

    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_min_isr: int
    transaction_state_log_segment_bytes: int
    transaction_partition_verification_enable: bool
    transaction_two_phase_commit_enable: bool
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    group_consumer_session_timeout_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_migration_policy: str
    offset_metadata_max_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int

    # Not settings: the topic defaults in the order of the topic table, the texts by source in order of
    # precedence, and the settings of the configuration text as given.
    topic_defaults: tuple[Value, ...]
    layers: tuple[tuple[int, Mapping[str, str]], ...]
    properties: Mapping[str, str]

    __slots__ = tuple(__annotations__)

    @staticmethod
    def from_properties(
        properties: Mapping[str, str],
        *,
        dynamic: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
    ) -> BrokerConfig:
        """Resolve static settings with the dynamic ones of this broker and of all brokers."""
        static = _known(properties)
        layers = (
            (DYNAMIC_BROKER, dict(dynamic or {})),
            (DYNAMIC_DEFAULT_BROKER, dict(dynamic_default or {})),
            (STATIC_BROKER, static),
        )
        given: dict[str, str] = {}
        for _, texts in reversed(layers):
            given.update(texts)
        values = _parsed(given)
        attributes: dict[str, object] = {BROKER[name].attribute: value for name, value in values.items()}
        _resolve_topic_defaults(attributes, values, given)
        if "broker.id" in given:
            attributes["node_id"] = values["broker.id"]
        attributes["log_dirs"] = values["log.dirs"] or values["log.dir"]
        if not attributes["log_dirs"]:
            raise BROKER["log.dirs"].refuse("")
        attributes["metadata_log_dir"] = (
            values["metadata.log.dir"] or cast("tuple[str, ...]", attributes["log_dirs"])[0]
        )
        attributes["max_connections_per_ip_overrides"] = _host_limits(values)
        attributes["listeners"], attributes["advertised_listeners"] = _listeners(
            values, properties.get("controller.listener.names", "")
        )
        for less, more in IN_ORDER:
            if cast(int, values[less]) > cast(int, values[more]):
                raise InvalidConfig(
                    f"Invalid value {values[less]} for configuration {less}: must be at most {more} "
                    f"({values[more]})"
                )
        attributes["layers"] = layers
        attributes["properties"] = dict(properties)
        return BrokerConfig(attributes)

    def with_dynamic(self, dynamic: Mapping[str, str], dynamic_default: Mapping[str, str]) -> BrokerConfig:
        """The same static settings with other dynamic ones."""
        return BrokerConfig.from_properties(self.properties, dynamic=dynamic, dynamic_default=dynamic_default)

    def _shown(self, name: str) -> str:
        # A repr can be logged. `properties` and `layers` are texts as given, including ignored settings.
        if name in _SENSITIVE and getattr(self, name) is not None:
            return "[hidden]"
        return super()._shown(name)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Settings that were given and have no effect, for a warning at start."""
        return tuple(sorted(name for name in self.properties if name in NOT_HONOURED))


def _known(properties: Mapping[str, str]) -> dict[str, str]:
    """The settings without those that have no effect."""
    known: dict[str, str] = {}
    for name, text in properties.items():
        if name in BROKER:
            known[name] = text
        elif name not in NOT_HONOURED:
            raise unknown_name("broker", name, BROKER)
    old, new = known.get("broker.id"), known.get("node.id")
    if old is not None and new is not None and old.strip() != new.strip():
        raise InvalidConfig(
            f"Invalid value {old} for configuration broker.id: must be equal to node.id ({new})"
        )
    return known


def _parsed(given: Mapping[str, str]) -> dict[str, Value | None]:
    values: dict[str, Value | None] = {}
    for name, definition in BROKER.items():
        text = given.get(name, definition.default)
        values[name] = None if text is None else definition.parse(text)
    return values


def _resolve_topic_defaults(
    attributes: dict[str, object], values: Mapping[str, Value | None], given: Mapping[str, str]
) -> None:
    """Resolve each chain of names, and the tuple of all topic defaults."""
    effective: dict[str, Value] = {}
    for topic_name, topic in TOPIC.items():
        default = topic.parse(topic.default)
        for name in topic.broker_names:
            if name in given:
                default = in_topic_unit(name, cast(Value, values[name]))
                break
        effective[topic_name] = default
        if topic.broker_name in BROKER:
            attributes[BROKER[topic.broker_name].attribute] = default
    attributes["log_cleanup_policy"] = frozenset(cast("tuple[str, ...]", effective["cleanup.policy"]))
    check_together(effective)
    attributes["topic_defaults"] = tuple(effective.values())


def in_topic_unit(broker_name: str, value: Value) -> Value:
    """A broker value in the unit of the topic setting that it is the default of."""
    factor = MS_PER_UNIT.get(BROKER[broker_name].unit)
    if factor is None or not isinstance(value, int):
        return value
    return -1 if value < 0 else value * factor


def _host_limits(values: Mapping[str, Value | None]) -> dict[str, int]:
    items = cast("tuple[str, ...]", values["max.connections.per.ip.overrides"])
    return {host.strip("[]"): int(count) for host, _, count in (item.rpartition(":") for item in items)}


def _listeners(
    values: Mapping[str, Value | None], controller_names: str
) -> tuple[tuple[Listener, ...], tuple[Listener, ...]]:
    """Addresses to bind and to advertise. Listeners of a KRaft controller are skipped."""
    protocols = protocol_map(cast("tuple[str, ...]", values["listener.security.protocol.map"]))
    left_out = {name.strip().upper() for name in controller_names.split(",")}
    bound = _endpoints("listeners", values["listeners"], protocols, left_out)
    if values["advertised.listeners"] is None:
        # A wildcard is not an address to connect to: the server advertises one of its own.
        return bound, tuple(
            listener._replace(host="") if listener.host in WILDCARD_HOSTS else listener for listener in bound
        )
    advertised = _endpoints("advertised.listeners", values["advertised.listeners"], protocols, left_out)
    for listener in advertised:
        if listener.host in WILDCARD_HOSTS:
            raise InvalidConfig(
                f"Invalid value {listener} for configuration advertised.listeners: "
                "must name a host that clients can reach, not every interface"
            )
    if not {listener.name for listener in advertised} <= {listener.name for listener in bound}:
        raise InvalidConfig(
            f"Invalid value {','.join(map(str, advertised))} for configuration advertised.listeners: "
            f"must use only the names of listeners ({', '.join(listener.name for listener in bound)})"
        )
    return bound, advertised


def _endpoints(
    setting: str, texts: Value | None, protocols: Mapping[str, str], left_out: set[str]
) -> tuple[Listener, ...]:
    listeners: dict[str, Listener] = {}
    for text in cast("tuple[str, ...]", texts):
        name, host, port = cast("tuple[str, str, int]", split_listener(text))
        if name in left_out:
            continue
        protocol = protocols.get(name)
        if protocol is None:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {setting}: "
                f"must use a name of listener.security.protocol.map ({', '.join(protocols)})"
            )
        if protocol not in SERVED_PROTOCOLS:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {setting}: "
                f"must be a listener of protocol {', '.join(SERVED_PROTOCOLS)} ({protocol} is not served yet)"
            )
        if name in listeners:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {setting}: must use each listener name once"
            )
        listeners[name] = Listener(name, protocol, host, port)
    if not listeners:
        raise BROKER[setting].refuse("")
    return tuple(listeners.values())
