import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.definition import InvalidConfig
from ottla.config.describe import describe_broker
from ottla.runtime.zookeeper_link import ZookeeperSettings

CONNECT = "zookeeper.connect"


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("h:2181", "h:2181", ""),
        ("a:1,b:2,c:65535", "a:1,b:2,c:65535", ""),
        ("a:1,[::1]:2/clusters/one", "a:1,[::1]:2", "/clusters/one"),
        ("a:1/one/", "a:1", "/one"),
    ],
)
def test_where_zookeeper_is(text: str, hosts: str, chroot: str) -> None:
    settings = ZookeeperSettings.from_config(BrokerConfig.from_properties({CONNECT: text}))
    assert (settings.hosts, settings.chroot) == (hosts, chroot)


@pytest.mark.parametrize(
    "text", ["", "h", "h:", ":1", "h:0", "h:65536", "h:1,", "h:1/", "h:1//a", "h:1/a//b", "h:x"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="HOST:PORT items"):
        BrokerConfig.from_properties({CONNECT: text})


def test_the_time_outs_and_the_hostname_check() -> None:
    settings = ZookeeperSettings.from_config(BrokerConfig.from_properties({CONNECT: "h:1"}))
    assert settings.session_timeout_ms == settings.connection_timeout_ms == 18_000
    assert settings.check_hostname and not settings.tls and not settings.set_acl
    other = ZookeeperSettings.from_config(
        BrokerConfig.from_properties(
            {
                CONNECT: "h:1",
                "zookeeper.session.timeout.ms": "5000",
                "zookeeper.connection.timeout.ms": "7000",
                "zookeeper.ssl.endpoint.identification.algorithm": "",
            }
        )
    )
    assert (other.session_timeout_ms, other.connection_timeout_ms, other.check_hostname) == (
        5000,
        7000,
        False,
    )


def test_a_broker_alone_has_none() -> None:
    assert BrokerConfig.from_properties({}).zookeeper_connect is None


def test_secrets_are_neither_described_nor_quoted() -> None:
    config = BrokerConfig.from_properties({CONNECT: "h:1", "zookeeper.digest": "user:secret"})
    assert config.zookeeper_digest == "user:secret"
    (entry,) = describe_broker(config, ["zookeeper.digest"])
    assert entry.sensitive and entry.type_code == 9
    assert "secret" not in repr(entry)
    with pytest.raises(InvalidConfig) as refused:
        BrokerConfig.from_properties({"zookeeper.digest": "secretwithoutuser"})
    assert "secret" not in str(refused.value) and "user:password" in str(refused.value)


def test_stores_of_java_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="one of PEM"):
        BrokerConfig.from_properties({CONNECT: "h:1", "zookeeper.ssl.keystore.type": "JKS"})
