"""Spark's Kafka connector and ottla's, on one ottla broker: `make bench ARGS='--mode spark --no-growth'`.

Each side is a Spark driver (`bench.spark_driver`) that is started once and kept. Only one works at a time.
The order of the sides changes in every round, so that other load affects all of them. Goals use the median of
the ratios within a round. The first rounds warm up the JVMs and are discarded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import clients, measure, ottla, spark_official
from bench.client_faces import OTTLA
from bench.clients import LIMIT_S, QUIET, Goal, Results, Row
from bench.process import free_port
from bench.spark_process import SparkProcess
from bench.table import Verdict
from bench.workloads import Figures, WorkloadFailed

MODE = "spark"
HERE = Path(__file__).resolve().parent
LEAST_ONCE = "ottla, at least once"
CONNECTOR = "Spark's connector"
TUNED = "Spark's connector, tuned"
SIDES = (CONNECTOR, TUNED, OTTLA, LEAST_ONCE)
PARTITIONS = 4
VALUE_BYTES = 100
CODECS = {"plain": "none", "lz4": "lz4"}
#: Settings of Spark's connector for long reads, and for small micro-batches. At the end of a topic its
#: consumers request offsets on a connection with a waiting fetch, and wait for that fetch: 0.5 s by default,
#: also with Apache Kafka.
TUNING = {"kafka.max.partition.fetch.bytes": str(8 << 20), "kafka.max.poll.records": "10000"}
SMALL_TUNING = {"kafka.fetch.max.wait.ms": "10"}
#: Micro-batches of a stream that copies a topic.
BATCHES = 4
#: One part in this many of the work runs first: Spark stops Python workers that were idle for a minute.
AWAKE = 10
#: Messages per latency measurement, and the number of warm-up measurements.
SMALL_BATCH = 10
LATENCY_WARM = 5
SMALL_WORKS = ("latency", "source")
#: Pauses of the sender in ms, in turn: not multiples of Spark's own intervals.
PAUSES_MS = (3, 17, 31, 44, 8, 23, 59)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work of each kind per round."""

    read: int = 2_000_000
    written: int = 1_000_000
    small_batches: int = 25
    warm_rounds: int = 2


def _rows(work: str, label: str, goals: tuple[Goal, ...] = ()) -> list[Row]:
    return [
        Row(f"{work}_rows_s", f"{label}, rows/s", 0, goals),
        Row(f"{work}_cpu_us", f"{label}, Spark's CPU µs per row", 2),
    ]


READ = (Goal(times=2, than=CONNECTOR), Goal(times=1.5, than=TUNED))
NO_LESS = (Goal(than=CONNECTOR),)
NO_LONGER = (Goal(than=CONNECTOR, lower=True),)
ROWS = [
    *_rows("read_plain", "read, plain", READ),
    *_rows("read_lz4", "read, lz4", READ),
    *_rows("write", "write", NO_LESS),
    *_rows("copy", "stream from topic to topic"),
    Row("latency_p50_ms", "stream: sent to visible in the output, p50, ms", 0, NO_LONGER),
    Row("latency_p90_ms", "the same, p90, ms", 0),
    Row("batch_ms", "stream: a small micro-batch, p50, ms", 0, NO_LONGER),
    Row("source_batch_ms", "the same, to no sink, p50, ms", 0, NO_LONGER),
]


def render(results: Results) -> str:
    return clients.render(results, ROWS, SIDES)


def verdicts(results: Results) -> list[Verdict]:
    return clients.verdicts(results, ROWS)


#: One workload of one side. It returns the figures.
Work = Callable[[], Figures]


class SideBySide:
    """One run: a broker, two topics that are read repeatedly, and new topics for all writes."""

    def __init__(self, work_dir: Path, sizes: Sizes) -> None:
        self.results: Results = {}
        self.versions: dict[str, str] = {}
        self._sizes = sizes
        self._directory = work_dir / "spark"
        self._made = 0
        self._begin = time.monotonic()
        self._drivers: dict[str, SparkProcess] = {}

    def run(self, rounds: int) -> None:
        with ExitStack() as stack:
            broker = ottla.start(
                self._directory, port=free_port(), settings={"log.flush.policy": "page-cache"}
            )
            stack.callback(broker.stop)
            broker.wait_ready()
            self._broker = broker
            self._admin = AdminClient({"bootstrap.servers": broker.address, **QUIET})
            # It ends only here, and logs errors if the broker stops first.
            stack.callback(self.__dict__.pop, "_admin")
            self._start_drivers(stack)
            self._filled = {name: self._fill(codec, self._sizes.read) for name, codec in CODECS.items()}
            self._small = self._fill("none", self._sizes.read // AWAKE)
            self._check()
            works = self._works()
            for number in range(self._sizes.warm_rounds + rounds):
                warm = number < self._sizes.warm_rounds
                label = "warm" if warm else f"round {number - self._sizes.warm_rounds + 1}/{rounds}"
                for kind in works:
                    # Small batches have their own warm-up.
                    if warm and kind[0][1].__name__ in SMALL_WORKS:
                        continue
                    # Rotate the order, so that no side is always first or always after the same one.
                    turn = number % len(kind)
                    for side, work in kind[turn:] + kind[:turn]:
                        self._add(label, side, work(), counts=not warm)

    # Drivers

    def _start_drivers(self, stack: ExitStack) -> None:
        try:
            official = spark_official.fetch()
        except spark_official.SparkUnavailable as error:
            self._say(f"Spark's own connector is left out: {error}")
        else:
            environment = {**official.environment, "BENCH_FORMAT": "kafka"}
            self._drivers[CONNECTOR] = self._driver(str(official.python), environment, "connector")
        self._drivers[OTTLA] = self._driver(sys.executable, our_environment(), "ottla")
        for side, driver in self._drivers.items():
            stack.callback(driver.stop)
            driver.wait_ready()
            self.versions[side] = driver.version
        self._say(f"drivers are up: {', '.join(f'{side} {text}' for side, text in self.versions.items())}")

    def _driver(self, python: str, environment: Mapping[str, str], name: str) -> SparkProcess:
        program = [python, str(HERE / "spark_driver.py")]
        given = {**environment, "SPARK_WAREHOUSE": str(self._directory / "warehouse")}
        return SparkProcess(program, given, self._directory / f"{name}.log")

    def _works(self) -> list[list[tuple[str, Work]]]:
        """The workloads of a round, by kind: the sides of one kind run one after another."""
        sides = [side for side in SIDES if _driver_of(side) in self._drivers]
        read = [side for side in sides if side != LEAST_ONCE]
        write = [side for side in sides if side != TUNED]
        return [
            *([(side, self._reading(side, name)) for side in read] for name in CODECS),
            [(side, self._writing(side)) for side in write],
            [(side, self._copying(side)) for side in write],
            [(side, self._latency(side)) for side in sides],
            [(side, self._source_latency(side)) for side in read],
        ]

    # Workloads

    def _reading(self, side: str, name: str) -> Work:
        driver = self._drivers[_driver_of(side)]

        def read() -> Figures:
            options = self._source(self._filled[name], TUNING if side == TUNED else {})
            driver.ask("read", options={**options, "endingOffsets": self._awake_end(self._filled[name])})
            with self._cost(driver) as cost:
                cost.wall_s = driver.ask("read", options=options)
            return cost.figures(f"read_{name}", self._sizes.read)

        return read

    def _writing(self, side: str) -> Work:
        driver = self._drivers[_driver_of(side)]

        def write() -> Figures:
            rows = self._sizes.written
            with self._topic("written") as topic:
                asked = {"options": self._sink(side, topic), "value_bytes": VALUE_BYTES}
                driver.ask("write", rows=rows // AWAKE, **asked)
                with self._cost(driver) as cost:
                    cost.wall_s = driver.ask("write", rows=rows, **asked)
                self._expect(driver, topic, rows + rows // AWAKE)
            return cost.figures("write", rows)

        return write

    def _copying(self, side: str) -> Work:
        driver = self._drivers[_driver_of(side)]

        def copy() -> Figures:
            rows = self._sizes.read
            source = self._source(self._filled["plain"], {"maxOffsetsPerTrigger": str(rows // BATCHES)})
            with self._topic("copied") as topic:
                sink, awake = self._sink(side, topic), self._source(self._small, {})
                driver.ask("copy", source=awake, sink=sink, checkpoint=self._checkpoint())
                with self._cost(driver) as cost:
                    cost.wall_s = driver.ask("copy", source=source, sink=sink, checkpoint=self._checkpoint())
                self._expect(driver, topic, rows + rows // AWAKE)
            return cost.figures("copy", rows)

        return copy

    def _latency(self, side: str) -> Work:
        driver = self._drivers[_driver_of(side)]

        def latency() -> Figures:
            with self._topic("sent", 2) as source, self._topic("seen", 2) as target:
                asked = {"source": self._small_source(side, source), "sink": self._sink(side, target)}
                driver.ask(
                    "start", query="small", checkpoint=self._checkpoint(), available_now=False, **asked
                )
                took_ms = sorted(self._through(source, target))
                batches = driver.ask("progress", query="small")[LATENCY_WARM:]
                driver.ask("stop", query="small")
            return {
                "latency_p50_ms": measure.quantile(took_ms, 0.5),
                "latency_p90_ms": measure.quantile(took_ms, 0.9),
                "batch_ms": median(batch["triggerExecution"] for batch in batches),
            }

        return latency

    def _source_latency(self, side: str) -> Work:
        driver = self._drivers[_driver_of(side)]

        def source() -> Figures:
            with self._topic("sent", 2) as topic:
                asked = {"source": self._small_source(side, topic), "sink": {"format": "noop"}}
                driver.ask(
                    "start", query="small", checkpoint=self._checkpoint(), available_now=False, **asked
                )
                producer = confluent_kafka.Producer(
                    {"bootstrap.servers": self._broker.address, "linger.ms": 0, **QUIET}
                )
                wanted = self._sizes.small_batches + LATENCY_WARM
                deadline = time.monotonic() + LIMIT_S
                done: list[dict[str, float]] = []
                while len(done) < wanted:
                    _send(producer, topic, len(done))
                    known = len(done)
                    while len(done) == known:
                        if time.monotonic() > deadline:
                            raise WorkloadFailed(f"{side}: {len(done)} small batches within {LIMIT_S:.0f} s")
                        time.sleep(0.1)
                        done = driver.ask("progress", query="small")
                driver.ask("stop", query="small")
            return {"source_batch_ms": median(batch["triggerExecution"] for batch in done[LATENCY_WARM:])}

        return source

    def _through(self, source: str, target: str) -> Iterator[float]:
        """Milliseconds from sending a few messages until the last is visible in the output, per batch."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._broker.address,
                "group.id": "bench",
                "fetch.wait.max.ms": 10,
                "isolation.level": "read_committed",
                **QUIET,
            }
        )
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._broker.address, "linger.ms": 0, **QUIET}
        )
        consumer.assign([confluent_kafka.TopicPartition(target, each, 0) for each in range(2)])
        try:
            for number in range(LATENCY_WARM + self._sizes.small_batches):
                began = time.perf_counter()
                _send(producer, source, number)
                seen = 0
                while seen < SMALL_BATCH:
                    message = consumer.poll(LIMIT_S)
                    if message is None or message.error() is not None:
                        raise WorkloadFailed(
                            f"{seen} of {SMALL_BATCH} rows came out: {message and message.error()}"
                        )
                    if message.key() != str(number).encode():
                        raise WorkloadFailed(f"row {message.key()!r} came out in batch {number}")
                    seen += 1
                if number >= LATENCY_WARM:
                    yield (time.perf_counter() - began) * 1000
                time.sleep(PAUSES_MS[number % len(PAUSES_MS)] / 1000)
        finally:
            consumer.close()

    # Preparation and checks

    def _source(self, topic: str, more: Mapping[str, str]) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self._broker.address, "subscribe": topic}
        return {**given, "startingOffsets": "earliest", **more}

    def _awake_end(self, topic: str) -> str:
        """The offsets at the end of a part of a topic."""
        end = self._sizes.read // PARTITIONS // AWAKE
        return json.dumps({topic: {str(partition): end for partition in range(PARTITIONS)}})

    def _small_source(self, side: str, topic: str) -> dict[str, str]:
        return self._source(topic, SMALL_TUNING if side == TUNED else {})

    def _sink(self, side: str, topic: str) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self._broker.address, "topic": topic}
        return {**given, "guarantee": "at-least-once"} if side == LEAST_ONCE else given

    def _checkpoint(self) -> str:
        self._made += 1
        return str(self._directory / f"checkpoint-{self._made:04}")

    @contextmanager
    def _topic(self, kind: str, partitions: int = PARTITIONS) -> Iterator[str]:
        self._made += 1
        name = f"bench-{kind}-{self._made:04}"
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(LIMIT_S)
        yield name
        self._admin.delete_topics([name])[name].result(LIMIT_S)

    def _fill(self, codec: str, rows: int) -> str:
        """Create a topic to read. Its values are realistic, so that lz4 has to work."""
        with ExitStack() as kept:
            topic = kept.enter_context(self._topic(f"filled-{codec}"))
            kept.pop_all()
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._broker.address,
                "compression.type": codec,
                "linger.ms": 5,
                "batch.size": 256 << 10,
                "queue.buffering.max.messages": 1_000_000,
                **QUIET,
            }
        )
        for number in range(rows):
            value = b'{"order": %09d, "customer": %07d, "amount": %06d, "state": "open", "note": ' % (
                number,
                number * 7919 % 1_000_003,
                number * 31 % 100_003,
            )
            value = value.ljust(VALUE_BYTES, b".")
            while True:
                try:
                    producer.produce(topic, value, b"%08d" % number, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.05)
        if producer.flush(LIMIT_S):
            raise WorkloadFailed(f"{topic} could not be filled within {LIMIT_S:.0f} s")
        return topic

    def _check(self) -> None:
        """Before the measurement: check that both sides read every row."""
        rows = self._sizes.read
        each = rows // PARTITIONS
        wanted = [rows, rows * VALUE_BYTES, PARTITIONS * (each * (each - 1) // 2)]
        for topic in self._filled.values():
            for side, driver in self._drivers.items():
                found = driver.ask("check", options=self._source(topic, {}))
                if found != wanted:
                    raise WorkloadFailed(f"{side} reads {found} from {topic}, there are {wanted}")

    def _expect(self, driver: SparkProcess, topic: str, rows: int) -> None:
        """Check that all written rows are visible to a read_committed consumer."""
        options = self._source(topic, {"kafka.isolation.level": "read_committed"})
        found = driver.ask("check", options=options)[0]
        if found != rows:
            raise WorkloadFailed(f"{topic} holds {found} rows, {rows} were written")

    @contextmanager
    def _cost(self, driver: SparkProcess) -> Iterator[Cost]:
        cost = Cost()
        before = measure.cpu_ns_each(driver.pid)
        yield cost
        # A worker that ended meanwhile had been idle for a minute.
        after = measure.cpu_ns_each(driver.pid)
        cost.cpu_ns = sum(used - before.get(pid, 0) for pid, used in after.items())

    def _add(self, label: str, side: str, figures: Figures, *, counts: bool) -> None:
        if counts:
            kept = self.results.setdefault(side, defaultdict(list))
            for figure, value in figures.items():
                kept[figure].append(value)
        text = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
        self._say(f"{label:10} {side:24} {text}")

    def _say(self, text: str) -> None:
        elapsed = time.monotonic() - self._begin
        print(f"bench: {elapsed:4.0f} s  {text}", file=sys.stderr, flush=True)


@dataclass(slots=True)
class Cost:
    """The cost of one action: the driver's wall time, and the CPU of Java and the Python workers."""

    wall_s: float = 0.0
    cpu_ns: int = 0

    def figures(self, work: str, rows: int) -> Figures:
        return {f"{work}_rows_s": rows / self.wall_s, f"{work}_cpu_us": self.cpu_ns / rows / 1000}


def our_environment() -> dict[str, str]:
    """The environment of this process, without the connector."""
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    from ottla.spark.java import find_java

    home = find_java()
    if home is not None:
        kept["JAVA_HOME"] = home
    return {**kept, "PYSPARK_PYTHON": sys.executable, "BENCH_FORMAT": "ottla"}


def _driver_of(side: str) -> str:
    return {TUNED: CONNECTOR, LEAST_ONCE: OTTLA}.get(side, side)


def _send(producer: confluent_kafka.Producer, topic: str, number: int) -> None:
    for each in range(SMALL_BATCH):
        producer.produce(topic, b"x" * VALUE_BYTES, str(number).encode(), partition=each % 2)
    if producer.flush(LIMIT_S):
        raise WorkloadFailed(f"{topic} took no messages within {LIMIT_S:.0f} s")


def describe(sizes: Sizes, rounds: int, where: Mapping[str, object], versions: Mapping[str, str]) -> str:
    sides = ", ".join(f"{side} on Spark {version}" for side, version in versions.items())
    return (
        f"{where['cpus']} CPUs ({where['cpu_model']}), Python {where['python']}; {sides}, local[2], on the "
        "same machine as the broker; "
        f"values of {VALUE_BYTES} bytes, {PARTITIONS} partitions; medians of {rounds} alternating rounds "
        f"after {sizes.warm_rounds} that do not count, each "
        f"{sizes.read:,} rows read and copied, {sizes.written:,} written, {sizes.small_batches} small "
        "micro-batches."
    )
