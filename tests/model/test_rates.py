from ottla.model.rates import RateLimiter


def test_a_burst_then_the_rate() -> None:
    limiter = RateLimiter(100)

    def take(now_ms: int) -> float | None:
        return limiter.take("a", now_ms, rate=10, burst=3, wait_ms_max=250)

    assert [take(5000) for _ in range(7)] == [0, 0, 0, 100, 200, None, None]
    # Refused ones took no token: 100 ms later there is one place more in the queue.
    assert [take(5100), take(5100)] == [200, None]
    assert limiter.wait_ms("a", 5100) == 300 and limiter.wait_ms("b", 5100) == 0
    # After a pause the whole burst, and no more.
    assert [take(60_000) for _ in range(4)] == [0, 0, 0, 100]


def test_keys_do_not_share_their_tokens() -> None:
    limiter = RateLimiter(100)
    while limiter.take("a", 0, rate=1, burst=1) is not None:
        pass
    assert limiter.take("b", 0, rate=1, burst=1) == 0


def test_memory_is_bounded_by_the_number_of_keys() -> None:
    limiter = RateLimiter(1000)
    for number in range(20_000):
        assert limiter.take(number, number // 10, rate=1, burst=1) == 0
        assert len(limiter) <= 1000
    # A key in use is remembered while there is space.
    assert limiter.take(19_999, 1999, rate=1, burst=1) is None
