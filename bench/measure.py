"""The cost of a process, as the kernel counts it.

CPU comes from the process's CPU clock: nanoseconds, all threads, including ended ones. The 10 ms ticks of
/proc/PID/stat are too coarse for a cost per request, and /proc/PID/task/*/schedstat forgets ended threads.
`clocks` compares the three; the report prints it, so that a kernel with other accounting is noticed. Children
are included in a broker's cost. Linux only: callers check `supported()` first.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def supported() -> bool:
    return sys.platform == "linux" and PROC.is_dir()


def family(pid: int) -> list[int]:
    """The process and its living descendants."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for task in (PROC / str(parent) / "task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _cpu_clock_ns(pid: int) -> int:
    # The clock id of clock_getcpuclockid(3) for a process id: the complement, shifted, with "scheduler time".
    return time.clock_gettime_ns((~pid << 3) | 2)


def cpu_ns(*pids: int) -> int:
    total = 0
    for pid in pids:
        for member in family(pid):
            with suppress(OSError):
                total += _cpu_clock_ns(member)
    return total


def cpu_ns_each(pid: int) -> dict[int, int]:
    """CPU time of the process and each living descendant, for processes that come and go."""
    found = {}
    for member in family(pid):
        with suppress(OSError):
            found[member] = _cpu_clock_ns(member)
    return found


def machine_busy_ns() -> int:
    """CPU time of all processes and the kernel since boot, over all cores."""
    with (PROC / "stat").open() as lines:
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, lines.readline().split()[1:])
    return (user + nice + system + irq + softirq) * 1_000_000_000 // TICKS_PER_S


def own_busy_ns() -> int:
    """CPU time of this process and of its ended children."""
    used = os.times()
    return int((used.user + used.system + used.children_user + used.children_system) * 1e9)


@dataclass(frozen=True, slots=True)
class Clocks:
    """A process's CPU time by three clocks that should agree."""

    process_clock_ns: int
    schedstat_ns: int
    ticks_ns: int


def clocks(pid: int) -> Clocks:
    schedstat_ns = 0
    for task in (PROC / str(pid) / "task").iterdir():
        with suppress(OSError):
            schedstat_ns += int((task / "schedstat").read_text().split()[0])
    # The command name is in parentheses and may contain spaces: fields are counted after it.
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return Clocks(_cpu_clock_ns(pid), schedstat_ns, ticks * 1_000_000_000 // TICKS_PER_S)


def _status_kib(pid: int, field: str) -> int:
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def resident_bytes(*pids: int) -> int:
    return sum(_status_kib(member, "VmRSS") for pid in pids for member in family(pid)) * 1024


def resident_bytes_peak(*pids: int) -> int:
    return sum(_status_kib(member, "VmHWM") for pid in pids for member in family(pid)) * 1024


def quantile(ordered: Sequence[float], share: float) -> float:
    """The percentile of sorted values: the nearest value, without interpolation."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Lateness:
    """`with Lateness() as late: …`, then `late.p99_ms`: how late a thread that sleeps 1 ms wakes up.

    This is what the machine adds to every latency meanwhile: on a shared host, the time slices of others.
    """

    p99_ms: float

    def __enter__(self) -> Self:
        self._late_ms: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.p99_ms = quantile(sorted(self._late_ms), 0.99)

    def _sample(self) -> None:
        # At least once, however short the measurement is.
        while not (self._late_ms and self._over.is_set()):
            begin = time.perf_counter()
            time.sleep(0.001)
            self._late_ms.append((time.perf_counter() - begin) * 1000 - 1)


@dataclass(frozen=True, slots=True)
class Span:
    """Wall time and broker CPU time of one measured stretch."""

    wall_ns: int
    cpu_ns: int


class Stretch:
    """`with Stretch(pids) as stretch: ...`, then `stretch.span`."""

    span: Span
    begin_ns: int

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids

    def __enter__(self) -> Self:
        self._cpu_ns = cpu_ns(*self._pids)
        self.begin_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *exception: object) -> None:
        wall_ns = time.perf_counter_ns() - self.begin_ns
        self.span = Span(wall_ns, cpu_ns(*self._pids) - self._cpu_ns)
