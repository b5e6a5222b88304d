"""The file of client settings: Kafka's names understood, mistakes told without secrets, and a cluster reached with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.client_config import settings_from
from ottla.client.errors import SettingError
from tests.client.gate import Gate, Sasl, gated

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


def test_commands_reach_a_cluster_with_it(run_anywhere: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=alice\nsasl.password=secret\n"
    )
    with gated(Gate(sasl=Sasl("SCRAM-SHA-256", {"alice": "secret"}))) as gate:
        environment = {"OTTLA_BOOTSTRAP": gate.address, "OTTLA_CLIENT_CONFIG": str(file)}
        made = run_anywhere("--client-config", str(file), "topic", "create", "t", "--bootstrap", gate.address)
        assert made.code == 0, made.err
        written = run_anywhere("produce", "t", stdin="hello\n", env=environment)
        assert written.code == 0, written.err
        read = run_anywhere("consume", "t", "--from-beginning", "--until-end", env=environment)
        assert "hello" in read.out
        assert gate.sasl is not None
        gate.sasl.users.clear()
        refused = run_anywhere("topic", "list", env=environment)
        assert (refused.code, "as 'alice'" in refused.err) == (3, True)
        assert "secret" not in refused.err
        refused = run_anywhere("topic", "list", env={**environment, "OTTLA_CLIENT_CONFIG": "/nowhere"})
        assert "/nowhere: no such file" in refused.err
