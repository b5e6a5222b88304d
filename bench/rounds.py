"""The sequence of a benchmark: starts, warm-up, alternating rounds, durable rounds.

Brokers are measured in turn (A B A B ...), never together, with new topics. Kafka keeps running from its last
measured start to the end, so that its JVM is warm. ottla is restarted for the durable mode, in which it runs
with its default policy. The warm-up runs the same rounds and discards their figures, until the broker's CPU
figures stop falling: a JVM keeps compiling for some hundred thousand requests.
"""

import os
import resource
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench import clients, cluster, compaction, exactly_once, groups, measure, spark, table
from bench.process import Brokers, free_port
from bench.workloads import (
    Figures,
    Volumes,
    consume_bulk,
    fresh_topic,
    produce_bulk,
    raw_in_turn,
    requests_librdkafka,
)

IDLE_S = 3.0
# A broker is warm if no figure fell by more than this share in a round.
WARM_SHARE = 0.05
WARM_FIGURES = (
    "produce_cpu_us_mb",
    "consume_cpu_us_mb",
    "request_cpu_us",
    "raw_request_cpu_us",
    "round_trip_cpu_us",
)


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Launch(Protocol):
    def __call__(self, directory: Path, *, port: int, mode: str) -> Brokers: ...


@dataclass(slots=True)
class Contender:
    """A broker under test: how to start it, and its topic settings in each mode."""

    name: str
    launch: Launch
    topic_config: Callable[[str], dict[str, str]]
    restarts_per_mode: bool
    process: Brokers | None = None
    directory: Path = field(default_factory=Path)

    def start(self, directory: Path, mode: str) -> float:
        self.stop()
        self.directory = directory
        self.process = self.launch(directory, port=free_port(), mode=mode)
        return self.process.wait_ready()

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()
            self.process = None

    @property
    def running(self) -> Brokers:
        assert self.process is not None, "measured before it was started"
        return self.process


@dataclass(frozen=True, slots=True)
class Plan:
    volumes: Volumes
    rounds: int
    warm_rounds_min: int
    warm_rounds_max: int
    starts: int
    durable_volumes: Volumes
    #: 1 KB messages in the log to compact, and the number of their keys.
    compaction_messages: int
    compaction_keys: int
    cluster_volumes: Volumes
    failover_partitions: int
    group_rounds: int
    group_sizes: groups.Sizes
    transaction_sizes: exactly_once.Sizes
    client_sizes: clients.Sizes
    spark_rounds: int
    spark_sizes: spark.Sizes


class Bench:
    """One run over all contenders; `results` is filled as it proceeds."""

    def __init__(self, contenders: list[Contender], plan: Plan, work_dir: Path) -> None:
        self.results: table.Results = {}
        self.warm_rounds: dict[str, dict[str, int]] = {}
        self.others_share = 0.0
        self.clocks: dict[str, measure.Clocks] = {}
        self._contenders = contenders
        self._plan = plan
        self._work_dir = work_dir
        self._begin = time.monotonic()
        self._topics = 0

    def run(self, modes: list[str]) -> None:
        machine_ns, own_ns = measure.machine_busy_ns(), measure.own_busy_ns()
        self._starts(modes[0])
        for mode in modes:
            if mode != modes[0]:
                for contender in self._contenders:
                    if contender.restarts_per_mode:
                        contender.start(self._work_dir / f"{contender.name}-{mode}", mode)
            self._mode(mode)
            if mode == table.PAGE_CACHE:
                for contender in self._contenders:
                    peak = measure.resident_bytes_peak(*contender.running.pids)
                    self._add(table.START, contender, {"rss_loaded_mb": peak / 1e6})
        self._count_others(machine_ns, own_ns)
        self.clocks = {
            contender.name: measure.clocks(contender.running.pids[0]) for contender in self._contenders
        }

    def compact(self) -> None:
        """Each broker alone, restarted, with one log to compact."""
        for contender in self._contenders:
            contender.stop()
        plan = self._plan
        for contender in self._contenders:
            contender.start(self._work_dir / f"{contender.name}-compaction", table.COMPACTION)
            with ExitStack() as stack:
                topic, other = (
                    stack.enter_context(
                        fresh_topic(contender.running, name, contender.directory, compaction.TOPIC_CONFIG)
                    )
                    for name in ("bench-compacted", "bench-beside")
                )
                compaction.fill(
                    contender.running, topic, messages=plan.compaction_messages, keys=plan.compaction_keys
                )
                self._progress(
                    table.COMPACTION, contender, f"{plan.compaction_messages:,} messages are there"
                )
                found = compaction.compact(contender.running, topic, other, contender.directory)
            self._add(table.COMPACTION, contender, found)
            text = ", ".join(f"{key} {value:.4g}" for key, value in found.items())
            self._progress(table.COMPACTION, contender, text)
            contender.stop()

    def replicate(self) -> None:
        """Three brokers of each kind, both clusters up at once, measured in turn.

        At the end a leader is killed.
        """
        for contender in self._contenders:
            contender.stop()
        for contender in self._contenders:
            seconds = contender.start(self._work_dir / f"{contender.name}-cluster", table.CLUSTER)
            self._progress(table.CLUSTER, contender, f"three brokers are up after {seconds:.2f} s")
        self._mode(table.CLUSTER)
        for contender in self._contenders:
            running = contender.running
            assert isinstance(running, cluster.Cluster)
            found = cluster.memory(running)
            found |= cluster.scaling(running, self._plan.cluster_volumes.requests)
            found |= cluster.failover(running, self._plan.failover_partitions)
            self._add(table.CLUSTER, contender, found)
            text = ", ".join(f"{key} {value:.4g}" for key, value in found.items())
            self._progress(table.CLUSTER, contender, text)
            contender.stop()

    def coordinate(self) -> None:
        """Groups: both brokers up at once, measured in turn, after one warm-up round."""
        sizes = self._plan.group_sizes
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        for contender in self._contenders:
            contender.stop()
        for contender in self._contenders:
            contender.start(self._work_dir / f"{contender.name}-groups", table.GROUPS)
            groups.prepare(contender.running, sizes)
        for number in range(self._plan.group_rounds + 1):
            for contender in self._contenders:
                durable = contender.topic_config(table.DURABLE) or {"flush.policy": "durable"}
                found = groups.round_of(contender.running, sizes, number, durable)
                self._keep(
                    table.GROUPS,
                    contender,
                    f"groups {number}/{self._plan.group_rounds}",
                    found,
                    counts=number > 0,
                )
        if hard < sizes.descriptors:
            say(f"heartbeats are left out: they need {sizes.descriptors:,} open files, the limit is {hard:,}")
            return
        for contender in self._contenders:
            self._keep(table.GROUPS, contender, "heartbeats", groups.heartbeat(contender.running, sizes))

    def transact(self) -> None:
        """Exactly-once: both brokers up at once, measured in turn, after two warm-up rounds."""
        for contender in self._contenders:
            contender.stop()
        for contender in self._contenders:
            contender.start(self._work_dir / f"{contender.name}-transactions", table.TRANSACTIONS)
        for number in range(-1, self._plan.rounds + 1):
            label = f"transactions {max(number, 0)}/{self._plan.rounds}"
            for contender in self._contenders:
                with ExitStack() as stack:
                    topics = {
                        kind: stack.enter_context(self._topic(contender, table.TRANSACTIONS, kind))
                        for kind in exactly_once.TOPICS
                    }
                    found = exactly_once.round_of(contender.running, topics, self._plan.transaction_sizes)
                self._keep(table.TRANSACTIONS, contender, label, found, counts=number > 0)

    def _keep(
        self, mode: str, contender: Contender, label: str, found: Figures, *, counts: bool = True
    ) -> None:
        if counts:
            self._add(mode, contender, found)
        self._progress(label, contender, ", ".join(f"{key} {value:.4g}" for key, value in found.items()))

    def stop(self) -> None:
        for contender in self._contenders:
            contender.stop()

    def _count_others(self, machine_ns: int, own_ns: int) -> None:
        """The share of the cores that other processes used, including write-back."""
        brokers_ns = sum(measure.cpu_ns(*contender.running.pids) for contender in self._contenders)
        ours_ns = measure.own_busy_ns() - own_ns + brokers_ns
        available_ns = (time.monotonic() - self._begin) * 1e9 * (os.cpu_count() or 1)
        self.others_share = max(0.0, measure.machine_busy_ns() - machine_ns - ours_ns) / available_ns

    def _add(self, mode: str, contender: Contender, figures: Figures) -> None:
        brokers = self.results.setdefault(mode, {})
        kept = brokers.setdefault(contender.name, defaultdict(list))
        for figure, value in figures.items():
            kept[figure].append(value)

    def _starts(self, mode: str) -> None:
        """Start times. The first start of each is discarded: it reads programs and libraries from disk."""
        for number in range(self._plan.starts + 1):
            for contender in self._contenders:
                seconds = contender.start(self._work_dir / f"{contender.name}-start-{number}", mode)
                self._progress(f"start {number}/{self._plan.starts}", contender, f"{seconds:.2f} s")
                if number:
                    self._add(table.START, contender, {"start_s": seconds})
                if number < self._plan.starts:
                    contender.stop()
                    shutil.rmtree(contender.directory, ignore_errors=True)
        before = {contender.name: measure.cpu_ns(*contender.running.pids) for contender in self._contenders}
        time.sleep(IDLE_S)
        for contender in self._contenders:
            pids = contender.running.pids
            idle_ms_s = (measure.cpu_ns(*pids) - before[contender.name]) / 1e6 / IDLE_S
            resident = measure.resident_bytes(*pids)
            self._add(table.START, contender, {"rss_idle_mb": resident / 1e6, "idle_cpu_ms_s": idle_ms_s})

    def _mode(self, mode: str) -> None:
        plan = self._plan
        volumes = {table.DURABLE: plan.durable_volumes, table.CLUSTER: plan.cluster_volumes}.get(
            mode, plan.volumes
        )
        for contender in self._contenders:
            self._warm_up(contender, mode, volumes)
        for number in range(1, self._plan.rounds + 1):
            label = f"{mode} round {number}/{self._plan.rounds}"
            found = self._round(self._contenders, mode, volumes, label)
            for contender in self._contenders:
                self._add(mode, contender, found[contender.name])

    def _warm_up(self, contender: Contender, mode: str, volumes: Volumes) -> None:
        best: Figures = {}
        rounds = 0
        while rounds < self._plan.warm_rounds_max:
            label = f"{mode} warm-up {rounds + 1}"
            figures = self._round([contender], mode, volumes, label)[contender.name]
            rounds += 1
            falling = any(figures[name] < best.get(name, 0) * (1 - WARM_SHARE) for name in WARM_FIGURES)
            best = {name: min(figures[name], best.get(name, figures[name])) for name in WARM_FIGURES}
            if rounds >= self._plan.warm_rounds_min and not falling:
                break
        self.warm_rounds.setdefault(mode, {})[contender.name] = rounds

    def _round(
        self, contenders: list[Contender], mode: str, volumes: Volumes, label: str
    ) -> dict[str, Figures]:
        """All workloads once: bulk workloads broker by broker, raw-socket workloads in short turns."""
        figures: dict[str, Figures] = {contender.name: {} for contender in contenders}

        def keep(contender: Contender, found: Figures) -> None:
            figures[contender.name] |= found
            self._progress(label, contender, ", ".join(f"{key} {value:.4g}" for key, value in found.items()))

        for contender in contenders:
            with self._topic(contender, mode, "bulk") as topic:
                keep(contender, produce_bulk(contender.running, topic, volumes))
                keep(contender, consume_bulk(contender.running, topic, volumes))
        with ExitStack() as stack:
            topics = [stack.enter_context(self._topic(contender, mode, "small")) for contender in contenders]
            for contender, topic in zip(contenders, topics, strict=True):
                keep(contender, requests_librdkafka(contender.running, topic, volumes))
            pairs = [(contender.running, topic) for contender, topic in zip(contenders, topics, strict=True)]
            for contender, found in zip(contenders, raw_in_turn(pairs, volumes), strict=True):
                keep(contender, found)
        return figures

    def _topic(self, contender: Contender, mode: str, kind: str) -> AbstractContextManager[str]:
        self._topics += 1
        name = f"bench-{kind}-{self._topics:04}"
        return fresh_topic(contender.running, name, contender.directory, contender.topic_config(mode))

    def _progress(self, label: str, contender: Contender, text: str) -> None:
        say(f"{time.monotonic() - self._begin:4.0f} s  {label:24} {contender.name:6} {text}")
