"""GetTelemetrySubscriptions and PushTelemetry."""

from typing import Any

from ottla.broker.api.get_telemetry_subscriptions import TELEMETRY_BYTES_MAX

INVALID_REQUEST, UNSUPPORTED_COMPRESSION_TYPE, UNKNOWN_SUBSCRIPTION_ID, TELEMETRY_TOO_LARGE = 42, 76, 117, 118
CLIENT = bytes(range(16))


def push(client: Any, **fields: Any) -> int:
    good = {
        "client_instance_id": CLIENT, "subscription_id": subscription(client), "terminating": False,
        "compression_type": 0, "metrics": b"some",
    }  # fmt: skip
    code: int = client.ask(72, **good | fields).error_code.value
    return code


def subscription(client: Any) -> int:
    number: int = client.ask(71, client_instance_id=CLIENT).subscription_id
    return number


def test_a_client_without_an_id_gets_its_own(client: Any) -> None:
    ids = {client.ask(71).client_instance_id for _ in range(3)}
    assert len(ids) == 3 and None not in ids
    assert client.ask(71, client_instance_id=CLIENT).client_instance_id.bytes == CLIENT


def test_no_metric_is_asked_for(client: Any) -> None:
    answer = client.ask(71, client_instance_id=CLIENT)
    assert answer.requested_metrics == ()
    assert answer.push_interval.total_seconds() == 300
    assert answer.telemetry_max_bytes == TELEMETRY_BYTES_MAX
    assert set(answer.accepted_compression_types) == {1, 2, 3, 4}


def test_metrics_are_taken_in_every_codec(client: Any) -> None:
    for codec in (0, *client.ask(71).accepted_compression_types):
        assert push(client, compression_type=codec) == 0
    assert push(client, terminating=True) == 0
    assert push(client, metrics=b"") == 0


def test_what_is_refused(client: Any) -> None:
    assert push(client, client_instance_id=None) == INVALID_REQUEST
    assert push(client, subscription_id=subscription(client) + 1) == UNKNOWN_SUBSCRIPTION_ID
    assert push(client, compression_type=9) == UNSUPPORTED_COMPRESSION_TYPE
    assert push(client, metrics=bytes(TELEMETRY_BYTES_MAX)) == 0
    assert push(client, metrics=bytes(TELEMETRY_BYTES_MAX + 1)) == TELEMETRY_TOO_LARGE
