import dataclasses

import pytest

from ottla.client import settings
from ottla.client.consumer import settings as consumer_settings
from ottla.client.errors import SettingError
from ottla.client.producer import settings as producer_settings


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        (settings.ClientSettings, settings.ClientConfig),
        (producer_settings.ProducerSettings, producer_settings.ProducerConfig),
        (consumer_settings.ConsumerSettings, consumer_settings.ConsumerConfig),
    ],
)
def test_type_checkers_know_the_same_names_as_the_code(typed: type, kind: type) -> None:
    assert set(typed.__annotations__) | set(settings.ClientSettings.__annotations__) == {
        field.name for field in dataclasses.fields(kind)
    }


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean linger_ms"):
        settings.settings_of(producer_settings.ProducerConfig, {"linger.ms": 5})


@pytest.mark.parametrize(
    "given",
    [
        {"acks": 2},
        {"compression_type": "rar"},
        {"linger_ms": -1},
        {"linger_ms": "5"},
        {"acks": 1, "enable_idempotence": True},
    ],
)
def test_a_wrong_value_is_refused_by_name(given: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=next(iter(given)) if len(given) == 1 else "enable_idempotence"):
        settings.settings_of(producer_settings.ProducerConfig, given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"max_in_flight_requests_per_connection": 0}, "max_in_flight_requests_per_connection"),
        ({"max_in_flight_requests_per_connection": 6}, "1 to 5 with enable_idempotence"),
        ({"retries": -1}, "retries"),
        ({"partitioner": "random"}, "sticky, round_robin"),
        ({"key_serializer": "yaml"}, "key_serializer"),
        ({"value_serializer": 5}, "value_serializer"),
        ({"interceptors": "mine"}, "interceptors"),
        ({"transactional_id": ""}, "transactional_id"),
        ({"transactional_id": "x", "enable_idempotence": False}, "transactional_id needs"),
        ({"transactional_id": "x", "transaction_timeout_ms": 0}, "transaction_timeout_ms"),
    ],
)
def test_what_cannot_be_of_a_producer_is_refused(given: dict[str, object], name: str) -> None:
    with pytest.raises(SettingError, match=name):
        settings.settings_of(producer_settings.ProducerConfig, given)


def test_without_idempotence_any_number_may_be_in_flight() -> None:
    assert producer_settings.ProducerConfig(acks=1, max_in_flight_requests_per_connection=20)


def test_idempotence_follows_acks_unless_said() -> None:
    assert producer_settings.ProducerConfig().idempotent
    assert not producer_settings.ProducerConfig(acks=1).idempotent
    assert not producer_settings.ProducerConfig(enable_idempotence=False).idempotent


def test_bootstrap_addresses() -> None:
    assert settings.bootstrap_addresses("a:1, [::1]:2,") == [("a", 1), ("::1", 2)]
    assert settings.bootstrap_addresses(["b:3"]) == [("b", 3)]


@pytest.mark.parametrize("text", ["", "host", "host:", ":9092", "host:0", "host:99999", "host:x"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingError, match=r"127\.0\.0\.1:9092"):
        settings.bootstrap_addresses(text)
