import random
import tracemalloc

from ottla.model.timer_wheel import EXPIRED_PER_TURN_MAX, TimerWheel


class Alarm:
    def __init__(self, deadline_ms: int) -> None:
        self.bucket = -1
        self.deadline_ms = deadline_ms
        self.rang_ms: int | None = None

    def expire(self, now_ms: int) -> None:
        assert self.rang_ms is None
        self.rang_ms = now_ms


def test_nothing_rings_early_and_nothing_more_than_a_bucket_late() -> None:
    timers = TimerWheel()
    alarms = [Alarm(deadline) for deadline in random.Random(3).sample(range(1000, 3000), 300)]
    for alarm in alarms:
        timers.add(alarm, alarm.deadline_ms)
    for now_ms in range(1000, 3020):
        timers.expire(now_ms)
    for alarm in alarms:
        assert alarm.rang_ms is not None
        assert 0 <= alarm.rang_ms - alarm.deadline_ms <= 8
    assert timers.next_ms is None


def test_next_is_when_something_rings() -> None:
    timers = TimerWheel()
    assert timers.next_ms is None
    late, early = Alarm(2000), Alarm(1000)
    timers.add(late, 2000)
    timers.add(early, 1000)
    assert timers.next_ms is not None
    assert 1000 <= timers.next_ms <= 1008
    timers.expire(timers.next_ms - 1)
    assert early.rang_ms is None
    timers.expire(timers.next_ms)
    assert early.rang_ms is not None
    assert late.rang_ms is None


def test_what_is_cancelled_does_not_ring_and_leaves_nothing_behind() -> None:
    timers = TimerWheel()
    alarms = [Alarm(30_000) for _ in range(100)]
    for alarm in alarms:
        timers.add(alarm, alarm.deadline_ms)
    for alarm in alarms:
        timers.cancel(alarm)
        timers.cancel(alarm)
    assert timers.next_ms is None
    timers.expire(60_000)
    assert [alarm.rang_ms for alarm in alarms] == [None] * 100


def test_deadlines_of_weeks_that_are_cancelled_are_not_kept_for_weeks() -> None:
    timers = TimerWheel()
    kept = [Alarm(day * 86_400_000) for day in range(1, 20)]
    for alarm in kept:
        timers.add(alarm, alarm.deadline_ms)
    tracemalloc.start()
    try:
        for at in range(40_000):
            alarm = Alarm(2**31 - 1 - 16 * at)
            timers.add(alarm, alarm.deadline_ms)
            timers.cancel(alarm)
        assert tracemalloc.get_traced_memory()[0] < 5_000_000
    finally:
        tracemalloc.stop()
    timers.expire(2**31)
    assert all(alarm.rang_ms for alarm in kept)


def test_an_alarm_that_rings_may_have_the_empty_ones_swept_away() -> None:
    timers = TimerWheel()

    class Busy(Alarm):
        def expire(self, now_ms: int) -> None:
            super().expire(now_ms)
            for at in range(40_000):
                other = Alarm(0)
                timers.add(other, 10_000 + 16 * at)
                timers.cancel(other)

    alarms = [Busy(100), Alarm(100), Alarm(200), Alarm(5_000_000)]
    for alarm in alarms:
        timers.add(alarm, alarm.deadline_ms)
    timers.expire(300)
    assert [alarm.rang_ms for alarm in alarms] == [300, 300, 300, None]
    timers.expire(6_000_000)
    assert alarms[-1].rang_ms == 6_000_000


def test_an_alarm_that_is_set_again_while_it_rings() -> None:
    timers = TimerWheel()

    class Again(Alarm):
        def expire(self, now_ms: int) -> None:
            if now_ms < 100:
                timers.add(self, now_ms + 10)
            else:
                self.rang_ms = now_ms

    again = Again(0)
    timers.add(again, 0)
    for now_ms in range(200):
        timers.expire(now_ms)
    assert again.rang_ms is not None


def test_alarms_that_cancel_each_other() -> None:
    timers = TimerWheel()

    class Jealous(Alarm):
        other: Alarm

        def expire(self, now_ms: int) -> None:
            super().expire(now_ms)
            timers.cancel(self.other)

    first, second = Jealous(100), Jealous(100)
    first.other, second.other = second, first
    timers.add(first, 100)
    timers.add(second, 100)
    timers.expire(200)
    assert [first.rang_ms, second.rang_ms].count(None) == 1


def test_of_very_many_that_are_due_at_once_some_expire_a_turn_in_their_order() -> None:
    """A client can align the session timeouts of thousands of members; requests of others come in between."""
    timers = TimerWheel()
    rang: list[int] = []

    class Numbered(Alarm):
        def __init__(self, number: int) -> None:
            super().__init__(1000)
            self.number = number

        def expire(self, now_ms: int) -> None:
            super().expire(now_ms)
            rang.append(self.number)

    alarms = [Numbered(number) for number in range(3 * EXPIRED_PER_TURN_MAX)]
    for alarm in alarms:
        timers.add(alarm, 1000)
    later = Alarm(1016)
    timers.add(later, 1016)
    timers.expire(2000)
    assert rang == list(range(EXPIRED_PER_TURN_MAX))
    assert timers.next_ms is not None and timers.next_ms <= 2000
    timers.cancel(alarms[-1])
    turns = 1
    while timers.next_ms is not None and timers.next_ms <= 2000:
        timers.expire(2000)
        turns += 1
    assert rang == list(range(3 * EXPIRED_PER_TURN_MAX - 1)) and later.rang_ms == 2000
    assert turns <= 4 and timers.next_ms is None
