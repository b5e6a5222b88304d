from __future__ import annotations

import subprocess
import sys

import pytest

from ottla.config.broker import BROKER, NOT_HONOURED, BrokerConfig, Listener
from ottla.config.definition import InvalidConfig
from ottla.config.properties import parse_properties
from ottla.config.topic import TOPIC, TopicConfig

# The server.properties of Apache Kafka 4, without its comments.
STOCK_SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""

# Other names of a setting; its attribute has the result of all of them.
MERGED = {
    "broker.id",
    "log.dir",
    "log.retention.hours",
    "log.retention.minutes",
    "log.roll.hours",
    "log.roll.jitter.hours",
    "log.flush.scheduler.interval.ms",
    "listener.security.protocol.map",
}


def resolved(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties({name.replace("_", "."): text for name, text in properties.items()})


def test_every_setting_has_an_attribute_and_every_attribute_a_setting() -> None:
    described = {row.attribute for name, row in BROKER.items() if name not in MERGED}
    assert set(BrokerConfig.__slots__) - {"topic_defaults", "layers", "properties"} == described


def test_every_topic_setting_with_a_broker_name_has_its_broker_setting() -> None:
    for topic in TOPIC.values():
        for name in topic.broker_names:
            assert name in BROKER or name in NOT_HONOURED
    assert not set(BROKER) & set(NOT_HONOURED)


def test_the_defaults() -> None:
    config = resolved()
    assert config.node_id == 1
    assert config.listeners == (Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092),)
    assert config.advertised_listeners == config.listeners
    assert config.log_dirs == ("ottla-data",)
    assert config.log_flush_policy == "durable"
    assert config.num_partitions == 1
    assert config.auto_create_topics_enable is True
    assert config.socket_request_max_bytes == 104_857_600
    assert config.log_cleanup_policy == {"delete"}
    assert config.log_recovery_point_interval_bytes == 64 * 1024 * 1024
    assert config.broker_rack is None
    assert config.ignored == ()


def test_connections_are_bounded_by_default_and_three_thousand_of_one_address_fit() -> None:
    config = resolved()
    assert 3_000 < config.max_connections_per_ip <= config.max_connections < 2**31 - 1
    assert config.max_connection_creation_rate < 2**31 - 1
    assert config.connections_max_idle_ms == 600_000
    assert config.transaction_max_timeout_ms == 900_000


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-1", "log.retention.hours": "2"}, -1),
    ],
)
def test_retention_in_milliseconds_stands_over_minutes_over_hours(
    properties: dict[str, str], retention_ms: int
) -> None:
    config = BrokerConfig.from_properties(properties)
    assert config.log_retention_ms == retention_ms
    assert TopicConfig.resolve({}, config).retention_ms == retention_ms


def test_roll_and_flush_have_their_second_names_too() -> None:
    hours = BrokerConfig.from_properties(
        {"log.roll.hours": "1", "log.roll.jitter.hours": "2", "log.flush.scheduler.interval.ms": "3"}
    )
    assert (hours.log_roll_ms, hours.log_roll_jitter_ms, hours.log_flush_interval_ms) == (
        3_600_000,
        7_200_000,
        3,
    )
    both = BrokerConfig.from_properties(
        {
            "log.roll.hours": "1",
            "log.roll.ms": "10",
            "log.roll.jitter.hours": "2",
            "log.roll.jitter.ms": "20",
            "log.flush.scheduler.interval.ms": "3",
            "log.flush.interval.ms": "30",
        }
    )
    assert (both.log_roll_ms, both.log_roll_jitter_ms, both.log_flush_interval_ms) == (10, 20, 30)
    topic = TopicConfig.resolve({}, both)
    assert (topic.segment_ms, topic.segment_jitter_ms, topic.flush_ms) == (10, 20, 30)


def test_every_broker_default_of_a_topic_setting_reaches_topics() -> None:
    for topic in TOPIC.values():
        if topic.broker_name not in BROKER:
            continue
        text = {
            "list": "compact",
            "boolean": "true",
            "double": "0.25",
            "string": topic.allowed[-2] if topic.allowed else "",
        }
        value = text.get(topic.type, "9" if topic.maximum else "77")
        config = BrokerConfig.from_properties({topic.broker_name: value})
        expected = topic.parse(value)
        got = getattr(TopicConfig.resolve({}, config), topic.attribute)
        assert (tuple(got) if isinstance(got, frozenset) else got) == expected, topic.name


def test_broker_id_is_another_name_of_node_id() -> None:
    assert resolved(broker_id="5").node_id == 5
    assert resolved(broker_id="5", node_id=" 5").node_id == 5
    with pytest.raises(InvalidConfig, match=r"broker\.id: must be equal to node\.id \(6\)"):
        resolved(broker_id="5", node_id="6")
    with pytest.raises(InvalidConfig, match=r"configuration node\.id"):
        resolved(node_id="-1")
    with pytest.raises(InvalidConfig, match=r"configuration broker\.id"):
        resolved(broker_id="-1")


def test_log_dirs_stand_over_log_dir() -> None:
    assert resolved(log_dir="/a").log_dirs == ("/a",)
    assert resolved(log_dir="/a", log_dirs="/b, /c").log_dirs == ("/b", "/c")
    with pytest.raises(InvalidConfig, match=r"log\.dirs"):
        resolved(log_dir="")


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)),
        ("plaintext://broker-1.example:1", Listener("PLAINTEXT", "PLAINTEXT", "broker-1.example", 1)),
        ("PLAINTEXT://:0", Listener("PLAINTEXT", "PLAINTEXT", "", 0)),
        ("PLAINTEXT://[::1]:65535", Listener("PLAINTEXT", "PLAINTEXT", "::1", 65535)),
    ],
)
def test_listeners_are_parsed(text: str, listener: Listener) -> None:
    (got,) = resolved(listeners=text).listeners
    assert got == listener
    assert str(got).lower() == text.lower()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:9092",
        "PLAINTEXT://127.0.0.1",
        "PLAINTEXT://127.0.0.1:",
        "PLAINTEXT://127.0.0.1:65536",
        "PLAINTEXT://127.0.0.1:-1",
        "PLAINTEXT://::1:9092",
        "PLAINTEXT://a b:9092",
        "PLAINTEXT://host/path:9092",
        "://h:1",
    ],
)
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="configuration listeners: must be NAME://HOST:PORT"):
        resolved(listeners=text)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"listeners": "SSL://h:1"}, "SSL is not served yet"),
        ({"listeners": "INTERNAL://h:1"}, "must use a name of listener.security.protocol.map"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "each listener name once"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "must name a host that clients can reach"),
        (
            {
                "advertised.listeners": "B://h:1",
                "listener.security.protocol.map": "B:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            },
            r"must use only the names of listeners \(PLAINTEXT\)",
        ),
        ({"listener.security.protocol.map": "A:TLS"}, "NAME:PROTOCOL pairs"),
        ({"max.connections.per.ip.overrides": "h"}, "HOST:COUNT"),
        ({"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"}, "must be at most"),
        (
            {"log.cleaner.min.compaction.lag.ms": "10", "log.cleaner.max.compaction.lag.ms": "9"},
            "must be at most",
        ),
        ({"num.partitions": "0"}, r"num\.partitions: must be an integer ≥ 1"),
        (
            {"num.partition": "1"},
            r"Unknown broker config name: num\.partition \(did you mean num\.partitions\?\)",
        ),
        ({"ssl.keystore.location": "/k"}, r"Unknown broker config name: ssl\.keystore\.location"),
    ],
)
def test_what_does_not_fit_stops_the_start(properties: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        BrokerConfig.from_properties(properties)


def test_named_listeners_and_what_they_advertise() -> None:
    config = BrokerConfig.from_properties(
        {
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "listeners": "INSIDE://10.0.0.1:9092,OUTSIDE://0.0.0.0:9093",
            "advertised.listeners": "INSIDE://10.0.0.1:9092,OUTSIDE://kafka.example:443",
        }
    )
    assert [str(listener) for listener in config.listeners] == [
        "INSIDE://10.0.0.1:9092",
        "OUTSIDE://0.0.0.0:9093",
    ]
    assert config.advertised_listeners[1] == Listener("OUTSIDE", "PLAINTEXT", "kafka.example", 443)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_a_wildcard_is_bound_but_its_advertised_host_is_left_to_the_server(host: str) -> None:
    config = resolved(listeners=f"PLAINTEXT://{host}:9092")
    assert config.listeners[0].host == host.strip("[]")
    assert config.advertised_listeners[0].host == ""
    assert config.advertised_listeners[0].port == 9092


def test_limits_of_single_addresses() -> None:
    config = BrokerConfig.from_properties({"max.connections.per.ip.overrides": "10.0.0.1:5, [::1]:7"})
    assert config.max_connections_per_ip_overrides == {"10.0.0.1": 5, "::1": 7}


def test_a_stock_server_properties_is_taken_and_what_has_no_effect_is_named() -> None:
    config = BrokerConfig.from_properties(parse_properties(STOCK_SERVER_PROPERTIES))
    assert config.listeners == (Listener("PLAINTEXT", "PLAINTEXT", "", 9092),)
    assert config.advertised_listeners == (Listener("PLAINTEXT", "PLAINTEXT", "localhost", 9092),)
    assert config.socket_send_buffer_bytes == 102_400
    assert "num.io.threads" in config.ignored
    assert set(config.ignored) <= set(NOT_HONOURED)
    again = config.with_dynamic({"log.retention.ms": "5"}, {})
    assert again.listeners == config.listeners
    assert again.ignored == config.ignored


def test_dynamic_settings_stand_over_those_for_all_over_static_ones() -> None:
    static = BrokerConfig.from_properties(
        {"max.connections": "1", "log.retention.bytes": "1", "message.max.bytes": "1"}
    )
    config = static.with_dynamic(
        {"max.connections": "3"}, {"max.connections": "2", "log.retention.bytes": "2"}
    )
    assert (config.max_connections, config.log_retention_bytes, config.message_max_bytes) == (3, 2, 1)
    assert TopicConfig.resolve({}, config).retention_bytes == 2
    assert config.with_dynamic({}, {}).max_connections == 1


def test_importing_the_settings_stays_light() -> None:
    # These imports cost more than the whole package; a count of modules is more stable than a time.
    heavy = {"dataclasses", "difflib", "inspect", "kio", "tomllib"}
    code = (
        "import sys, ottla.config.broker, ottla.config.describe, ottla.config.alter, ottla.config.properties\n"
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
