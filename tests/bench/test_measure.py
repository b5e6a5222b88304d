import os
import subprocess
import sys
import threading
import time

import pytest

from bench import measure

pytestmark = pytest.mark.skipif(not measure.supported(), reason="reads /proc")


def burn(cpu_ns: int) -> None:
    end = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end:
        pass


def test_cpu_of_threads_that_ended_is_counted() -> None:
    before = measure.cpu_ns(os.getpid())
    thread = threading.Thread(target=burn, args=(30_000_000,))
    thread.start()
    thread.join()
    assert measure.cpu_ns(os.getpid()) - before >= 30_000_000


def test_children_count_as_part_of_a_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in measure.family(os.getpid())
        assert measure.resident_bytes(os.getpid()) > measure.resident_bytes(child.pid) > 0
    finally:
        child.communicate(b"\n")


def test_the_clocks_agree() -> None:
    burn(50_000_000)
    clocks = measure.clocks(os.getpid())
    # Ticks lag by up to two of 10 ms; threads that ended are missing in schedstat.
    assert abs(clocks.process_clock_ns - clocks.ticks_ns) <= 40_000_000
    assert 0 < clocks.schedstat_ns <= clocks.process_clock_ns + 40_000_000


def test_quantiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert measure.quantile(values, 0.5) == 51
    assert measure.quantile(values, 0.99) == 100
    assert measure.quantile([7.0], 0.999) == 7


def test_lateness_is_what_a_sleeper_sees() -> None:
    with measure.Lateness() as late:
        pass
    assert late.p99_ms > 0
