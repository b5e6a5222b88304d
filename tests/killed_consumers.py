"""Consumers as processes that keep their offsets in a store of their own, and are killed and paused while they work.

A program adds up amounts by name; whoever kills it knows what the sums must be in the end.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Self

from confluent_kafka import Producer

PATIENCE_S = 90.0
PARTITIONS = 4
_NAMES = [f"name-{number}" for number in range(7)]
_INSTANCES = ("one", "two")


def produce_amounts(address: str, topic: str, count: int, seed: int) -> dict[str, int]:
    """So many records with a name and an amount; the sums."""
    dice = random.Random(seed)
    sums: Counter[str] = Counter()
    producer = Producer({"bootstrap.servers": address, "log_level": 0, "linger.ms": 5})
    failed: list[Any] = []
    for number in range(count):
        name, amount = dice.choice(_NAMES), dice.randrange(1000)
        sums[name] += amount
        producer.produce(
            topic, str(amount), name, number % PARTITIONS,
            on_delivery=lambda error, _message: failed.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0 and not failed, failed
    return dict(sums)


class Consumers:
    """Two instances of a program; `command` plus the instance's name starts one.

    `progress` is how many records have been counted; `is_free` whether nobody is in a transaction.
    """

    def __init__(
        self,
        command: Sequence[str],
        progress: Callable[[], int],
        dice: random.Random,
        is_free: Callable[[], bool] = lambda: True,
    ) -> None:
        self._command = list(command)
        self.progress = progress
        self.kills = 0
        self._dice = dice
        self._is_free = is_free
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for name in _INSTANCES:
            self._start(name)
        return self

    def __exit__(self, *exception: object) -> None:
        for process in (*self._running.values(), *self._paused):
            process.kill()
            process.wait(PATIENCE_S)

    def _start(self, name: str) -> None:
        self._running[name] = subprocess.Popen([sys.executable, *self._command, name])

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (progress := self.progress()) < count:
            assert time.monotonic() < deadline, f"{progress} of {count} records were counted"
            for name, process in self._running.items():
                assert process.poll() is None, f"{name} ended with {process.returncode}"
            time.sleep(0.002)

    def kill_one(self) -> None:
        """In the middle of whatever it does; another takes its name."""
        name = self._dice.choice(_INSTANCES)
        self.kills += 1
        self._running[name].kill()
        self._running[name].wait(PATIENCE_S)
        self._start(name)

    def pause_one(self) -> None:
        """It stands still, and is replaced as if it were dead."""
        name = self._dice.choice(_INSTANCES)
        process = self._running[name]
        deadline = time.monotonic() + PATIENCE_S
        _stop(process)
        while not self._is_free():
            # With its locks it would hold up everybody, which is the store's affair and not ours.
            assert time.monotonic() < deadline, "the store is never free"
            process.send_signal(signal.SIGCONT)
            time.sleep(0.005)
            _stop(process)
        self._paused.append(process)
        self._start(name)

    def resume(self) -> None:
        """Those who stood still go on, know nothing of it, and end when they hear that they were replaced."""
        for process in self._paused:
            process.send_signal(signal.SIGCONT)
            assert process.wait(PATIENCE_S) != 0
        self._paused.clear()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Until it really stands still: a moment later it might hold a lock that was free."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def count_while_killed(consumers: Consumers, count: int, dice: random.Random, kills: int) -> None:
    """Have everything counted by consumers that are killed again and again; one stands still, is replaced, and goes on."""
    targets = sorted(dice.sample(range(1, count), kills + 2))
    pausing, resuming = targets[0], targets[-1]
    for target in targets:
        consumers.wait_for(target)
        if target == pausing:
            consumers.pause_one()
        elif target == resuming:
            consumers.resume()
        else:
            consumers.kill_one()
    consumers.wait_for(count)
