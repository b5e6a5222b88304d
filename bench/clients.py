"""Python clients compared on ottla's broker: `make bench ARGS='--mode clients --no-growth'`.

Each workload of each client runs in its own process (`bench.client_loads`), one after another. The order of
the clients changes in every round, so that other load affects all of them. The table shows medians. A goal
that compares two clients uses the median of their ratios within a round.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import measure, ottla
from bench.client_faces import (
    AIOKAFKA,
    CLIENTS,
    CONFLUENT,
    CONFLUENT_TUNED,
    KAFKA_PYTHON,
    OTTLA,
    OTTLA_AIO,
    OTTLA_COLUMNS,
    OTTLA_PURE,
)
from bench.client_loads import LINGER_MS, Job
from bench.process import free_port
from bench.table import Verdict
from bench.workloads import Figures, WorkloadFailed

MODE = "clients"
PARTITIONS = 3
MESSAGE_BYTES = 200
RATE_S = 10_000
#: Warm-up messages, as a share of the measured ones.
WARM_SHARE = 0.1
#: A timeout that is reached only on errors.
LIMIT_S = 180.0
LATENCY_CLIENTS = (OTTLA, OTTLA_AIO, CONFLUENT, AIOKAFKA)

#: Otherwise librdkafka logs its telemetry.
QUIET = {"enable.metrics.push": False}

# client -> figure -> one value per round
Results = dict[str, dict[str, list[float]]]


#: Messages per round: slow clients send fewer, so that all take one or two seconds.
PRODUCED = {OTTLA: 400_000, OTTLA_AIO: 400_000, CONFLUENT: 800_000, AIOKAFKA: 150_000, KAFKA_PYTHON: 75_000}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work of each kind per round."""

    produced_share: float = 1.0
    consumed: int = 800_000
    latency_s: float = 3.0
    idle_s: float = 20.0
    growth_stretch: int = 200_000
    growth_messages: int = 3_000_000


# The table


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for ottla: at least `least`, less than `bound`, or `times` the figure of client `than`."""

    least: float | None = None
    bound: float | None = None
    times: float = 1.0
    than: str | None = None
    lower: bool = False

    def text(self) -> str:
        if self.least is not None:
            return f"≥ {self.least:,.0f}"
        if self.bound is not None:
            return f"< {self.bound:g}"
        sign = "≤" if self.lower else "≥"
        return f"{sign} {self.than}" if self.times == 1 else f"{sign} {self.times:g} × {self.than}"

    def met(self, results: Results, figure: str) -> bool | None:
        """None if a required client was not measured."""
        ours = results.get(OTTLA, {}).get(figure)
        if not ours:
            return None
        if self.least is not None:
            return median(ours) >= self.least
        if self.bound is not None:
            return median(ours) < self.bound
        theirs = results.get(self.than or "", {}).get(figure)
        if not theirs:
            return None
        share = median(shares(ours, theirs))
        return share <= self.times if self.lower else share >= self.times


def shares(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratio of two clients, round by round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


@dataclass(frozen=True, slots=True)
class Row:
    figure: str
    label: str
    digits: int
    goals: tuple[Goal, ...] = ()


def _rows(work: str, label: str, goals: tuple[Goal, ...] = ()) -> list[Row]:
    return [
        Row(f"{work}_messages_s", f"{label}, messages/s", 0, goals),
        Row(f"{work}_mb_s", f"{label}, MB/s", 0),
        Row(f"{work}_client_cpu_us", f"{label}, client CPU µs per message", 2),
        Row(f"{work}_broker_cpu_us", f"{label}, broker CPU µs per message", 2),
    ]


ROWS = [
    *_rows("produce", "produce", (Goal(least=250_000), Goal(times=5, than=KAFKA_PYTHON))),
    *_rows("keyed", "produce with keys"),
    *_rows("consume", "consume", (Goal(least=550_000), Goal(than=CONFLUENT), Goal(than=AIOKAFKA))),
    *_rows("tuned", "consume with fetch.queue.backoff.ms=1"),
    *_rows("pure", "consume without numba"),
    *_rows("columns", "consume as columns", (Goal(least=2_000_000),)),
    Row("p50_ms", "end to end at 10,000 messages/s, p50, ms", 2),
    Row("p99_ms", "the same, p99, ms", 2, (Goal(bound=5),)),
    Row("p999_ms", "the same, p99.9, ms", 2),
    Row("late_p99_ms", "of that, by the machine: who sleeps 1 ms wakes late by, p99, ms", 2),
    Row("idle_cpu_percent", "CPU of an idle consumer, %", 2, (Goal(bound=1),)),
    Row("group_idle_cpu_percent", "the same, in a group, %", 2, (Goal(bound=1),)),
    Row("produce_growth_mb", "memory: growth while producing, MB", 1, (Goal(bound=8),)),
    Row("consume_growth_mb", "memory: growth while consuming, MB", 1, (Goal(bound=8),)),
]


def render(results: Results, rows: Sequence[Row] = ROWS, columns: Sequence[str] = CLIENTS) -> str:
    clients = [client for client in columns if client in results]
    cells = [["", *clients, "goal", ""]]
    for row in rows:
        if not any(row.figure in results[client] for client in clients):
            continue
        values = (results[client].get(row.figure) for client in clients)
        verdicts = {True: "pass", False: "MISS", None: "–"}
        cells.append(
            [
                row.label,
                *("–" if not found else f"{median(found):,.{row.digits}f}" for found in values),
                "; ".join(goal.text() for goal in row.goals),
                "; ".join(verdicts[goal.met(results, row.figure)] for goal in row.goals),
            ]
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    cells.insert(1, ["-" * width for width in widths])
    lines = []
    for line in cells:
        padded = [
            cell.rjust(width) if 0 < column <= len(clients) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("| " + " | ".join(padded) + " |")
    return "\n".join(lines)


def verdicts(results: Results, rows: Sequence[Row] = ROWS) -> list[Verdict]:
    return [
        Verdict(f"{row.label} {goal.text()}", goal.met(results, row.figure))
        for row in rows
        for goal in row.goals
    ]


# The run


class Clients:
    """One run: a broker, a topic that is read repeatedly, and a new topic for every write."""

    def __init__(self, work_dir: Path, sizes: Sizes) -> None:
        self.results: Results = {}
        self._sizes = sizes
        self._directory = work_dir / "clients"
        self._topics = 0
        self._begin = time.monotonic()

    def run(self, rounds: int) -> None:
        with ExitStack() as stack:
            settings = {"log.flush.policy": "page-cache"}
            broker = ottla.start(self._directory, port=free_port(), settings=settings)
            stack.callback(broker.stop)
            broker.wait_ready()
            self._broker = broker
            self._admin = AdminClient({"bootstrap.servers": broker.address, **QUIET})
            # It ends only here, and logs errors if the broker stops first.
            stack.callback(self.__dict__.pop, "_admin")
            self._filled = self._topic("filled")
            self._fill()
            for number in range(rounds):
                # Rotate the order, so that no client is always first or always after the same one.
                turn = number % len(CLIENTS)
                for client in CLIENTS[turn:] + CLIENTS[:turn]:
                    self._round(client, f"round {number + 1}/{rounds}")
            self._idle()
            self._grow()

    def _round(self, client: str, label: str) -> None:
        found = self._written("produce", client) | self._written("keyed", client)
        consumed = self._sizes.consumed
        job = self._job(client, "consume", self._filled, consumed)
        found |= _named("consume", work(job))
        if client == OTTLA:
            found |= _named("pure", work(replace(job, client=OTTLA_PURE)))
            found |= _named("columns", work(replace(job, client=OTTLA_COLUMNS)))
        if client == CONFLUENT:
            found |= _named("tuned", work(replace(job, client=CONFLUENT_TUNED)))
        if client in LATENCY_CLIENTS:
            found |= self._latency(client)
        self._add(label, client, found)

    def _written(self, kind: str, client: str) -> Figures:
        topic = self._topic(kind)
        job = self._job(
            client,
            "produce",
            topic,
            int(PRODUCED[client] * self._sizes.produced_share),
            keyed=kind == "keyed",
        )
        found = _named(kind, work(job))
        self._expect(topic, job.messages + job.warm)
        self._admin.delete_topics([topic])[topic].result(LIMIT_S)
        return found

    def _latency(self, client: str) -> Figures:
        messages = int(self._sizes.latency_s * RATE_S)
        topic = self._topic("paced")
        listener = self._job(client, "listen", topic, messages, warm=RATE_S // 2)
        pacer = self._job(client, "pace", topic, messages, rate_s=RATE_S)
        with JobProcess(listener) as listening:
            listening.wait_ready()
            with measure.Lateness() as late:
                pace = work(pacer)
            if pace["rate_s"] < 0.95 * RATE_S:
                raise WorkloadFailed(f"{client} sent {pace['rate_s']:,.0f} messages/s, not {RATE_S:,}")
            found = {**listening.figures(), "late_p99_ms": late.p99_ms}
        self._admin.delete_topics([topic])[topic].result(LIMIT_S)
        return found

    def _idle(self) -> None:
        """All clients at once: they are idle."""
        topic = self._topic("empty")
        with ExitStack() as stack:
            idle = [
                (
                    client,
                    stack.enter_context(JobProcess(self._job(client, "idle", topic, 0, in_group=in_group))),
                )
                for client in CLIENTS
                for in_group in (False, True)
            ]
            for client, running in idle:
                self._add("idle", client, running.figures())

    def _grow(self) -> None:
        topic = self._topic("grown")
        sizes = self._sizes
        job = self._job(OTTLA, "grow", topic, sizes.growth_messages, warm=sizes.growth_stretch)
        self._add("growth", OTTLA, work(job))

    def _job(self, client: str, name: str, topic: str, messages: int, **more: int | bool) -> Job:
        given = {"warm": int(messages * WARM_SHARE), "message_bytes": MESSAGE_BYTES, **more}
        return Job(
            client=client,
            work=name,
            address=self._broker.address,
            broker_pid=self._broker.pid,
            topic=topic,
            partitions=PARTITIONS,
            messages=messages,
            seconds=self._sizes.idle_s,
            **given,  # type: ignore[arg-type]
        )

    def _topic(self, kind: str) -> str:
        self._topics += 1
        name = f"bench-{kind}-{self._topics:04}"
        topic = NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)
        self._admin.create_topics([topic])[name].result(LIMIT_S)
        return name

    def _fill(self) -> None:
        count = self._sizes.consumed
        job = self._job(CONFLUENT, "produce", self._filled, count, warm=0, keyed=True)
        work(job)
        self._expect(self._filled, count)

    def _expect(self, topic: str, count: int) -> None:
        """Check that all acknowledged messages exist."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._broker.address, "group.id": "bench", **QUIET}
        )
        try:
            found = 0
            for partition in range(PARTITIONS):
                offsets = consumer.get_watermark_offsets(
                    confluent_kafka.TopicPartition(topic, partition), timeout=LIMIT_S
                )
                found += offsets[1]
        finally:
            consumer.close()
        if found != count:
            raise WorkloadFailed(f"{topic} holds {found} messages, {count} were acknowledged")

    def _add(self, label: str, client: str, figures: Figures) -> None:
        kept = self.results.setdefault(client, defaultdict(list))
        for figure, value in figures.items():
            kept[figure].append(value)
        text = ", ".join(f"{key} {value:.4g}" for key, value in figures.items() if not key.endswith("_mb_s"))
        elapsed = time.monotonic() - self._begin
        print(f"bench: {elapsed:4.0f} s  {label:12} {client:15} {text}", file=sys.stderr, flush=True)


def _named(kind: str, figures: Figures) -> Figures:
    return {f"{kind}_{name}": value for name, value in figures.items()}


class JobProcess:
    """A job in its own process, which ends with the block."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.client_loads", json.dumps(asdict(job))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self.figures()

    def figures(self) -> Figures:
        try:
            output, errors = self._process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise WorkloadFailed(f"{self._job.client}: {self._job.work} took over {LIMIT_S:.0f} s") from None
        if self._process.returncode or not output:
            raise WorkloadFailed(f"{self._job.client}: {self._job.work} failed: {errors.strip()[-800:]}")
        found: Figures = json.loads(output.splitlines()[-1])
        return found

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def work(job: Job) -> Figures:
    with JobProcess(job) as running:
        return running.figures()


def describe(sizes: Sizes, rounds: int, where: Mapping[str, object]) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in (CONFLUENT, AIOKAFKA, KAFKA_PYTHON))
    return (
        f"{where['cpus']} CPUs ({where['cpu_model']}), Python {where['python']}, {versions}; "
        f"{MESSAGE_BYTES}-byte messages, {PARTITIONS} partitions, acks=all, idempotent, linger {LINGER_MS} ms, batches of 256 KiB, no compression; "
        f"each client in a process of its own, every delivery checked; medians of {rounds} rounds of "
        f"{int(min(PRODUCED.values()) * sizes.produced_share):,} to "
        f"{int(max(PRODUCED.values()) * sizes.produced_share):,} messages produced and {sizes.consumed:,} consumed."
    )
