"""Workloads of Python clients, in a separate process: `python -m bench.client_loads JOB` prints JSON.

The job is JSON on the command line, created by `bench.clients`. Every workload warms up before the
measurement: connections, caches, compiled code. CPU is that of the whole process, all its threads, and of the
broker. Latency has a process per side: both read the machine's monotonic clock, and a message carries its
send time.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any

from bench import measure
from bench.client_faces import READERS, WRITERS, Failed, Pairs, Writer

Figures = dict[str, float]

LINGER_MS = 5
KEYS = 1000
TICK_S = 0.001
JOIN_POLLS = 5
MB = 1_000_000
STAMP = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Job:
    client: str
    work: str
    address: str
    broker_pid: int
    topic: str
    partitions: int
    #: Measured messages, and warm-up messages before them.
    messages: int = 0
    warm: int = 0
    message_bytes: int = 200
    keyed: bool = False
    in_group: bool = False
    rate_s: int = 0
    seconds: float = 0.0


class Measurement:
    """`with Measurement(job) as measured: …`, then `measured.figures`: messages/s and cost."""

    figures: Figures

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stretch = measure.Stretch((job.broker_pid,))

    def __enter__(self) -> Measurement:
        self._cpu_ns = time.process_time_ns()
        self._stretch.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stretch.__exit__(*exception)
        own_ns = time.process_time_ns() - self._cpu_ns
        span, messages = self._stretch.span, max(self._job.messages, 1)
        self.figures = {
            "messages_s": messages / span.wall_ns * 1e9,
            "mb_s": messages * self._job.message_bytes / MB / span.wall_ns * 1e9,
            "client_cpu_us": own_ns / 1e3 / messages,
            "broker_cpu_us": span.cpu_ns / 1e3 / messages,
        }


def pairs(job: Job, count: int) -> Pairs:
    value = os.urandom(job.message_bytes)
    keys: Iterator[bytes | None] = (
        cycle([b"key-%06d" % number for number in range(KEYS)]) if job.keyed else repeat(None)
    )
    return zip(keys, repeat(value, count), strict=False)


async def _writer(job: Job, linger_ms: int) -> Writer:
    writer = WRITERS[job.client](job.address, job.topic, linger_ms)
    await writer.open()
    return writer


async def produce(job: Job) -> Figures:
    writer = await _writer(job, LINGER_MS)
    await writer.write(pairs(job, job.warm))
    await writer.finish()
    writer.delivered = 0
    with Measurement(job) as measured:
        await writer.write(pairs(job, job.messages))
        await writer.finish()
    await writer.close()
    if writer.delivered != job.messages:
        raise Failed(f"{writer.delivered} of {job.messages} messages were delivered")
    return measured.figures


async def consume(job: Job) -> Figures:
    reader = READERS[job.client](job.address, job.topic, job.partitions)
    await reader.open()
    await reader.read(job.warm)
    with Measurement(job) as measured:
        await reader.rewind()
        reader.seen = 0
        size = await reader.read(job.messages)
    await reader.close()
    if size < job.messages * job.message_bytes:
        raise Failed(f"{size} bytes came of {job.messages} messages")
    return measured.figures


async def pace(job: Job) -> Figures:
    """Send this many messages per second, each with its send time."""
    writer = await _writer(job, 0)
    padding = bytes(job.message_bytes - STAMP.size)
    clock = time.perf_counter_ns
    begin = clock()
    sent = 0
    while sent < job.messages:
        due = min(job.messages, (clock() - begin) * job.rate_s // 1_000_000_000)
        if due > sent:
            await writer.write((None, STAMP.pack(clock()) + padding) for _ in range(due - sent))
            sent = due
        await asyncio.sleep(TICK_S)
    seconds = (clock() - begin) / 1e9
    await writer.finish()
    await writer.close()
    return {"rate_s": sent / seconds}


async def listen(job: Job) -> Figures:
    """Read what `pace` sends. Prints on standard output when it is ready."""
    reader = READERS[job.client](job.address, job.topic, job.partitions)
    await reader.open()
    times: list[int] = []
    clock, unpack = time.perf_counter_ns, STAMP.unpack_from
    silent = 0
    print("ready", flush=True)
    async for values in reader.values():
        now = clock()
        times += [now - unpack(value)[0] for value in values]
        silent = 0 if values else silent + 1
        if len(times) >= job.messages:
            break
        if silent > 30:
            raise Failed(f"{len(times)} of {job.messages} messages came")
    await reader.close()
    if len(times) != job.messages:
        raise Failed(f"{len(times)} messages came, {job.messages} were sent")
    ordered = sorted(times[job.warm :])
    return {
        f"{name}_ms": measure.quantile(ordered, share) / 1e6
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }


async def idle(job: Job) -> Figures:
    """The cost of a consumer that waits at the end of a topic."""
    group = f"idle-{job.client}" if job.in_group else None
    reader = READERS[job.client](job.address, job.topic, job.partitions, group)
    await reader.open()
    # A group of one is settled after its first rebalance; each poll takes a second.
    for _ in range(JOIN_POLLS if job.in_group else 1):
        await reader.poll()
    begin, cpu_ns = time.monotonic(), time.process_time_ns()
    while time.monotonic() - begin < job.seconds:
        if await reader.poll():
            raise Failed("the topic is not empty")
    percent = (time.process_time_ns() - cpu_ns) / 1e9 / (time.monotonic() - begin) * 100
    await reader.close()
    return {"group_idle_cpu_percent" if job.in_group else "idle_cpu_percent": percent}


async def grow(job: Job) -> Figures:
    """The growth of a client's memory while it writes and reads all messages."""
    stretches = job.messages // job.warm
    writer = await _writer(job, LINGER_MS)
    written = []
    for _ in range(stretches):
        await writer.write(pairs(job, job.warm))
        await writer.finish()
        written.append(measure.resident_bytes(os.getpid()))
    await writer.close()
    reader = READERS[job.client](job.address, job.topic, job.partitions)
    await reader.open()
    read = []
    for stretch in range(1, stretches + 1):
        await reader.read(stretch * job.warm)
        read.append(measure.resident_bytes(os.getpid()))
    await reader.close()
    return {"produce_growth_mb": _growth(written) / MB, "consume_growth_mb": _growth(read) / MB}


def _growth(levels: list[int]) -> int:
    """From the lowest level of the first third to that of the last: single peaks are not a leak.

    The first stretch is ignored, because compiled code is loaded in it.
    """
    third = len(levels) // 3
    return min(levels[-third:]) - min(levels[1 : third + 1])


WORKS: dict[str, Callable[[Job], Awaitable[Figures]]] = {
    work.__name__: work for work in (produce, consume, pace, listen, idle, grow)
}


def main() -> int:
    given: dict[str, Any] = json.loads(sys.argv[1])
    job = Job(**given)

    async def work() -> Figures:
        return await WORKS[job.work](job)

    try:
        figures = asyncio.run(work())
    except Failed as error:
        print(f"{job.client}, {job.work}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
