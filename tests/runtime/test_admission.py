"""Limits on new connections, and the shares of descriptors."""

import pytest

from ottla.config.broker import BrokerConfig
from ottla.runtime.admission import Admission, address_key
from ottla.runtime.descriptors import shares_of

BROKER = "10.0.0.1"


def config(**settings: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "node.id": "1",
            "log.dirs": "/x",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def fill(admission: Admission, settings: BrokerConfig, host: str = "10.0.0.9", brokers: int = 0) -> int:
    """The number of connections that one host gets."""
    count = 0
    while admission.refusal(host, settings, brokers) is None:
        admission.opened(host)
        count += 1
    return count


def test_clients_leave_slots_for_brokers() -> None:
    admission, settings = Admission(1 << 30, lambda: {BROKER}), config(max_connections="80")
    assert fill(admission, settings) == 70
    assert fill(admission, settings, BROKER) == 10
    admission.closed("10.0.0.9")
    assert admission.refusal("10.0.0.9", settings, 0) is not None
    assert admission.refusal(BROKER, settings, 0) is None


def test_authenticated_brokers_use_up_the_reserve() -> None:
    admission, settings = Admission(1 << 30, lambda: ()), config(max_connections="80")
    for _ in range(10):
        admission.opened(BROKER)
    assert fill(admission, settings, brokers=10) == 70


def test_a_broker_alone_reserves_nothing() -> None:
    assert fill(Admission(1 << 30, None), config(max_connections="80")) == 80


def test_the_descriptors_bound_max_connections() -> None:
    assert fill(Admission(33, None), config()) == 33


def test_the_rate_of_an_address_and_its_exemption() -> None:
    admission = Admission(1 << 30, lambda: {BROKER})
    settings = config(max_connection_creation_rate_per_ip="2")
    waits = [admission.wait_ms("10.0.0.9", settings, 1000) for _ in range(30)]
    assert waits[:4] == [0, 0, 500, 1000] and waits[-1] is None
    assert admission.wait_ms("10.0.0.8", settings, 1000) == 0
    assert {admission.wait_ms(BROKER, settings, 1000) for _ in range(30)} == {0}


def test_failed_authentications_slow_their_address_down() -> None:
    admission, settings = Admission(1 << 30, None), config()
    for _ in range(5):
        admission.authentication_failed("10.0.0.9", 1000)
    assert admission.wait_ms("10.0.0.9", settings, 1000) == 200
    for _ in range(1000):
        admission.authentication_failed("10.0.0.9", 1000)
    assert admission.wait_ms("10.0.0.9", settings, 1000) is None
    assert admission.wait_ms("10.0.0.8", settings, 1000) == 0
    # The wait is bounded.
    assert admission.wait_ms("10.0.0.9", settings, 31_000) == 0


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("10.0.0.9", "10.0.0.9"),
        ("::ffff:10.0.0.9", "10.0.0.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_an_ipv6_client_is_its_network(host: str, key: str) -> None:
    assert address_key(host) == key


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("limit", [256, 1024, 20_000, 1 << 20])
def test_descriptors_are_shared_out(limit: int, clustered: bool) -> None:
    shares = shares_of(limit, in_use=20, clustered=clustered)
    assert shares.files >= 64 and shares.connections >= limit // 3
    assert shares.files + shares.connections + 20 < limit


def test_only_a_clamp_that_matters_is_logged() -> None:
    few, many = (shares_of(limit, in_use=20, clustered=False) for limit in (1024, 20_000))
    assert few.news(100, is_set=True) is None
    assert "max.connections is 20000, but only" in (few.news(20_000, is_set=False) or "")
    assert many.news(20_000, is_set=False) is None and many.news(20_000, is_set=True) is not None
