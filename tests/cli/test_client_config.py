"""The file of client settings, and commands that use it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.client.gate import Gate, Sasl, gated


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
