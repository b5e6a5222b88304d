"""The password for ZooKeeper is in no log and in no repr."""

import logging
from typing import Any

import pytest
from member import member, on_a_loop, topic

from ottla.config.broker import BrokerConfig
from ottla.runtime.zookeeper_link import ZookeeperSettings
from ottla.security.cluster_secret import SECRET_BYTES, ClusterSecret

PASSWORD = "it's-a-secret"
USER = {"digest": f"ottla:{PASSWORD}", "set_acl": True}


def test_kazoos_log_does_not_show_it_at_any_level(caplog: pytest.LogCaptureFixture, cluster: str) -> None:
    @on_a_loop
    async def work() -> None:
        async with member(cluster, 1, **USER) as one:
            assert (await one.claim())[1] is None
            assert await one.append(topic(1)) is None

    with caplog.at_level(1, logger="ottla.zookeeper"):
        work()
    lines = [record.getMessage() for record in caplog.records]
    assert any("Auth(" in line and "[hidden]" in line for line in lines), "the request itself is logged"
    assert not [line for line in lines if "a-secret" in line]
    assert logging.getLogger("ottla.zookeeper").level == logging.NOTSET


@pytest.mark.parametrize("user", [{}, USER], ids=["open", "digest"])
def test_kazoos_log_shows_neither_the_cluster_secret_nor_the_sessions_password(
    caplog: pytest.LogCaptureFixture, cluster: str, user: dict[str, Any]
) -> None:
    secret = ClusterSecret(bytes(range(100, 100 + SECRET_BYTES)))

    @on_a_loop
    async def work() -> None:
        async with member(cluster, 1, **user) as one:
            # It is written by the first and read by the second.
            for candidate in (secret, ClusterSecret(bytes(SECRET_BYTES))):
                assert (await one.store.cluster_secret(candidate)).stored() == secret.stored()

    with caplog.at_level(1, logger="ottla.zookeeper"):
        work()
    lines = [record.getMessage() for record in caplog.records]
    assert any("/cluster_secret" in line and "[hidden]" in line for line in lines), "the request is logged"
    assert any("passwd=[hidden]" in line for line in lines)
    assert any("session_passwd: [hidden]" in line for line in lines)
    assert not [line for line in lines if secret.stored().decode() in line or "passwd=b" in line]


def test_settings_do_not_show_it() -> None:
    config = BrokerConfig.from_properties(
        {
            "log.dirs": "/tmp/data",
            "zookeeper.connect": "127.0.0.1:2181",
            "zookeeper.digest": f"ottla:{PASSWORD}",
            "zookeeper.ssl.keystore.password": PASSWORD,
        }
    )
    for shown in (repr(config), str(config), repr(ZookeeperSettings.from_config(config))):
        assert "a-secret" not in shown
        assert "[hidden]" in shown and "127.0.0.1:2181" in shown
    assert "digest=''" in repr(ZookeeperSettings("127.0.0.1:2181"))
