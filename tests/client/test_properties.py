"""Kafka's property names are understood, and errors quote no secrets."""

import pytest

from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.errors import SettingError
from ottla.client.properties import settings_from

LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="al\\"ice" password=\'s;ecret\';'


def test_a_file_of_kafkas_own_tools_is_understood() -> None:
    assert settings_from(
        {
            "bootstrap.servers": "elsewhere:9092",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": LOGIN,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/etc/ca.pem",
            "ssl.endpoint.identification.algorithm": "",
            "request.timeout.ms": "5000",
        }
    ) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": 'al"ice',
        "sasl_password": "s;ecret",
        "ssl_cafile": "/etc/ca.pem",
        "ssl_check_hostname": False,
        "request_timeout_ms": 5000,
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"security.protocoll": "SSL"}, "did you mean security_protocol"),
        ({"request.timeout.ms": "soon"}, "request_timeout_ms must be a whole number"),
        ({"ssl.check.hostname": "maybe"}, "true or false"),
        ({"ssl.truststore.type": "JKS"}, "PEM"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": "hush"},
            "needs sasl_username",
        ),
    ],
)
def test_mistakes_are_told(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message) as failure:
        settings_from(given)
    assert "hush" not in str(failure.value)


def test_each_kind_of_client_has_its_own() -> None:
    given = {"max.poll.records": "7", "enable.auto.commit": "false"}
    assert settings_from(given, ConsumerConfig) == {"max_poll_records": 7, "enable_auto_commit": False}
    with pytest.raises(SettingError, match="unknown setting"):
        settings_from(given)
