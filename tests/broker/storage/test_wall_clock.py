from ottla.broker.storage.wall_clock import WallClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW = 1_700_000_000_000


def test_retention_does_not_trust_a_clock_that_was_just_set_forward() -> None:
    clock = WallClock()
    said = clock.set(DAY_MS, NOW)
    assert said is not None and "forward by 86400 s" in said
    assert clock.ahead_ms == DAY_MS
    assert clock.retention_ms(NOW) == NOW
    assert clock.retention_ms(NOW + HOUR_MS - 1) == NOW + HOUR_MS - 1
    assert clock.retention_ms(NOW + HOUR_MS) == NOW + HOUR_MS + DAY_MS


def test_a_clock_that_is_corrected_has_no_effect() -> None:
    clock = WallClock()
    clock.set(DAY_MS, NOW)
    said = clock.set(0, NOW + 1000)
    assert said is not None and "back by 86400 s" in said
    for later_ms in (1000, HOUR_MS, 2 * HOUR_MS):
        assert clock.retention_ms(NOW + later_ms) == NOW + later_ms


def test_a_second_step_forward_restarts_the_hour() -> None:
    clock = WallClock()
    clock.set(DAY_MS, NOW)
    clock.set(2 * DAY_MS, NOW + HOUR_MS // 2)
    assert clock.retention_ms(NOW + HOUR_MS + 1) == NOW + HOUR_MS + 1
    assert clock.retention_ms(NOW + 2 * HOUR_MS) == NOW + 2 * HOUR_MS + 2 * DAY_MS


def test_a_step_back_is_used_at_once() -> None:
    clock = WallClock()
    clock.set(-DAY_MS, NOW)
    assert clock.retention_ms(NOW) == NOW - DAY_MS
    # And coming back from it is a step forward, which retention doubts.
    clock.set(0, NOW + 1)
    assert clock.retention_ms(NOW + 2) == NOW + 2 - DAY_MS


def test_drift_is_not_logged() -> None:
    clock = WallClock()
    assert clock.set(600, NOW) is None
    assert clock.set(-900, NOW + 1000) is None
    assert clock.retention_ms(NOW + 2000) == NOW + 2000 - 900
