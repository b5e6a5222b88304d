from ottla.client.backoff import Reconnects, doubled_ms
from ottla.client.settings import ClientConfig


def test_waits_double_up_to_the_most() -> None:
    assert [doubled_ms(50, 1000, attempt) for attempt in range(1, 8)] == [50, 100, 200, 400, 800, 1000, 1000]
    assert doubled_ms(0, 1000, 40) == 0


def test_an_address_that_fails_waits_longer_each_time_and_not_at_all_when_it_was_reached() -> None:
    waits = Reconnects(
        ClientConfig(reconnect_backoff_ms=50, reconnect_backoff_max_ms=200), lambda low, high: 1.0
    )
    found = []
    for now_s in (10.0, 11.0, 12.0, 13.0):
        waits.failed("a", now_s)
        found.append(round(waits.wait_s("a", now_s), 6))
    assert found == [0.05, 0.1, 0.2, 0.2]
    assert waits.wait_s("a", 13.15) < 0.051
    assert waits.wait_s("a", 14.0) == 0
    assert waits.wait_s("b", 13.0) == 0
    waits.reached("a")
    waits.failed("a", 20.0)
    assert round(waits.wait_s("a", 20.0), 6) == 0.05
