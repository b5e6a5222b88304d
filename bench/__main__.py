"""The command line of `make bench`."""

import argparse
import gc
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import confluent_kafka

from bench import (
    boundary,
    clients,
    cluster,
    compaction,
    docs,
    exactly_once,
    groups,
    growth,
    kafka,
    measure,
    ottla,
    spark,
    table,
)
from bench.process import BrokerFailed, Brokers
from bench.raw import UnexpectedAnswer
from bench.rounds import Bench, Contender, Plan, say
from bench.spark_process import SparkFailed
from bench.workloads import Volumes, WorkloadFailed

FULL = Plan(
    volumes=Volumes(bulk_messages=256_000, requests=20_000, round_trips=10_000),
    rounds=5,
    warm_rounds_min=3,
    warm_rounds_max=10,
    starts=3,
    durable_volumes=Volumes(bulk_messages=128_000, requests=10_000, round_trips=4_000),
    compaction_messages=1 << 20,
    compaction_keys=1_000_000,
    cluster_volumes=Volumes(bulk_messages=128_000, requests=8_000, round_trips=4_000),
    failover_partitions=1000,
    group_rounds=3,
    group_sizes=groups.Sizes(),
    transaction_sizes=exactly_once.Sizes(),
    client_sizes=clients.Sizes(),
    spark_rounds=3,
    spark_sizes=spark.Sizes(),
)
QUICK = Plan(
    volumes=Volumes(bulk_messages=100_000, requests=8_000, round_trips=4_000),
    rounds=2,
    warm_rounds_min=3,
    warm_rounds_max=5,
    starts=1,
    durable_volumes=Volumes(bulk_messages=50_000, requests=3_000, round_trips=1_500),
    # More than two segments.
    compaction_messages=300_000,
    compaction_keys=100_000,
    cluster_volumes=Volumes(bulk_messages=50_000, requests=3_000, round_trips=1_500),
    failover_partitions=300,
    group_rounds=1,
    group_sizes=groups.Sizes(heartbeats_s=6, commits_s=1),
    transaction_sizes=exactly_once.Sizes(
        requests=4_000, bulk_messages=40_000, small_transactions=200, copied=20
    ),
    client_sizes=clients.Sizes(
        produced_share=0.25, consumed=200_000, latency_s=2, idle_s=5, growth_messages=600_000
    ),
    spark_rounds=1,
    spark_sizes=spark.Sizes(read=400_000, written=200_000, small_batches=6, warm_rounds=1),
)
MODES = [
    table.PAGE_CACHE,
    table.DURABLE,
    table.COMPACTION,
    table.CLUSTER,
    table.GROUPS,
    table.TRANSACTIONS,
    clients.MODE,
    spark.MODE,
]
#: Modes with their own brokers; the others share one run.
APART = {table.COMPACTION, table.CLUSTER, table.GROUPS, table.TRANSACTIONS, clients.MODE, spark.MODE}
#: Modes that measure only ottla's broker.
OURS = {clients.MODE, spark.MODE}
OTHERS_SHARE_MAX = 0.05
MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures ottla beside Apache Kafka on this machine and prints one table.",
        epilog="example: python -m bench --quick --json figures.json",
    )
    parser.add_argument("--rounds", type=int, help=f"measured rounds of each broker (default {FULL.rounds})")
    parser.add_argument(
        "--quick", action="store_true", help="small volumes and two rounds: a look, not a measurement"
    )
    parser.add_argument("--only", choices=[table.KAFKA, table.OTTLA], help="measure one broker alone")
    parser.add_argument(
        "--mode",
        choices=MODES,
        action="append",
        help="repeatable; default all",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures there")
    parser.add_argument(
        "--docs",
        action="store_true",
        help="put the table into docs/performance.md, with the command beside it",
    )
    parser.add_argument(
        "--work-dir", type=Path, help="where the brokers keep their data (default: a temporary one)"
    )
    parser.add_argument(
        "--no-growth", action="store_true", help="leave out how costs grow, which takes three minutes"
    )
    parser.add_argument("--update-kafka", action="store_true", help="fetch the newest Kafka 4.x again")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    return parser.parse_args()


def kafka_contender(update: bool) -> tuple[Contender, str]:
    distribution = kafka.fetch(update=update)
    # Deleted topics leave the disk soon, as with the other broker; the first check comes after one second
    # too.
    settings = {"log.segment.delete.delay.ms": "1000", "log.initial.task.delay.ms": "1000"}

    def launch(directory: Path, *, port: int, mode: str) -> Brokers:
        if mode == table.CLUSTER:
            nodes = distribution.start_cluster(directory, count=cluster.BROKERS, settings=settings)
            return cluster.Cluster(f"Kafka {distribution.version}", nodes)
        more = {table.COMPACTION: compaction.SETTINGS, table.GROUPS: groups.SETTINGS}.get(mode, {})
        return distribution.start(directory, port=port, settings={**settings, **more})

    def topic_config(mode: str) -> dict[str, str]:
        return {"flush.messages": "1"} if mode == table.DURABLE else {}

    return Contender(
        table.KAFKA, launch, topic_config, restarts_per_mode=False
    ), f"Kafka {distribution.version}"


def ottla_contender() -> Contender:
    def launch(directory: Path, *, port: int, mode: str) -> Brokers:
        settings = {} if mode == table.DURABLE else {"log.flush.policy": "page-cache"}
        if mode == table.COMPACTION:
            settings |= compaction.SETTINGS
        if mode == table.GROUPS:
            settings |= groups.SETTINGS | groups.OTTLA_SETTINGS
        if mode == table.CLUSTER:
            return cluster.start_ottla(directory, settings)
        return ottla.start(directory, port=port, settings=settings)

    return Contender(table.OTTLA, launch, lambda mode: {}, restarts_per_mode=True)


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, found, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def machine() -> dict[str, object]:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpus": os.cpu_count(),
        "cpu_model": model[0].partition(":")[2].strip() if model else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
    }


def describe(bench: Bench, plan: Plan, where: dict[str, object], file_system_kind: str) -> str:
    volumes = plan.volumes
    warm = ", ".join(
        f"{name} {rounds}" for name, rounds in bench.warm_rounds.get(table.PAGE_CACHE, {}).items()
    )
    return (
        f"{where['cpus']} CPUs ({where['cpu_model']}), Linux {where['kernel']}, {file_system_kind}, "
        f"Python {where['python']}, librdkafka {where['librdkafka']}; medians of {plan.rounds} alternating "
        "rounds, each "
        f"{volumes.bulk_messages * 1024 / 1e6:.0f} MB in 1 KiB messages, 2 × {volumes.requests:,} "
        "one-message requests "
        f"(100 B), {volumes.round_trips:,} round trips, acks=all, replication 1; warmed by such "
        f"rounds, not counted, until CPU figures stopped falling ({warm or 'durable only'} rounds); other "
        f"processes took {bench.others_share:.0%} of the CPUs meanwhile."
    )


def describe_cluster(bench: Bench, plan: Plan, where: dict[str, object]) -> str:
    volumes = plan.cluster_volumes
    warm = ", ".join(f"{name} {rounds}" for name, rounds in bench.warm_rounds.get(table.CLUSTER, {}).items())
    return (
        f"{where['cpus']} CPUs, Python {where['python']}, librdkafka {where['librdkafka']}; "
        f"{cluster.BROKERS} brokers of each, "
        f"medians of {plan.rounds} alternating rounds, each {volumes.bulk_messages * 1024 / 1e6:.0f} MB in "
        "1 KiB messages, "
        f"2 × {volumes.requests:,} one-message requests (100 B) and {volumes.round_trips:,} round trips, "
        "acks=all, replication "
        f"{cluster.BROKERS}; warmed by {warm} rounds; then a leader is killed among "
        f"{plan.failover_partitions:,} partitions."
    )


def describe_groups(plan: Plan, where: dict[str, object], file_system_kind: str) -> str:
    sizes = plan.group_sizes
    return (
        f"{where['cpus']} CPUs, {file_system_kind}, Python {where['python']}; medians of "
        f"{plan.group_rounds} alternating rounds after one "
        f"that is not counted, {sizes.commits_s:g} s of each kind of commits a round; "
        f"{sizes.heartbeats_s:g} s of heartbeats, once."
    )


def describe_transactions(plan: Plan, where: dict[str, object], file_system_kind: str) -> str:
    sizes = plan.transaction_sizes
    return (
        f"{where['cpus']} CPUs, {file_system_kind}, Python {where['python']}, librdkafka "
        f"{where['librdkafka']}; medians of {plan.rounds} "
        f"alternating rounds after two that are not counted, each {sizes.requests:,} requests and fetches "
        "of a kind on raw sockets, "
        f"{sizes.bulk_messages * 1024 / 1e6:.0f} MB in 1 KiB messages of a kind, "
        f"{sizes.small_transactions:,} transactions of one message, "
        f"{sizes.copied:,} of {exactly_once.TRANSACTION_MESSAGES}."
    )


def summed_up(description: str, results: table.Results, names: dict[str, str]) -> str:
    """The table with its description, and the number of goals that are met."""
    return f"{description}\n\n{table.render(results, names)}{goals_met(table.verdicts(results))}"


def goals_met(verdicts: list[table.Verdict]) -> str:
    missed = [verdict.label for verdict in verdicts if verdict.met is False]
    judged = sum(verdict.met is not None for verdict in verdicts)
    if not judged:
        return ""
    return f"\n\n{judged - len(missed)} of {judged} goals met" + (
        f"; missed: {'; '.join(missed)}." if missed else "."
    )


def main() -> int:
    options = arguments()
    if not measure.supported():
        print("error: the benchmark reads CPU and memory from /proc: run it on Linux", file=sys.stderr)
        return 2
    if options.rounds is not None and options.rounds < 1:
        print("error: --rounds must be at least 1", file=sys.stderr)
        return 2

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    gc.disable()  # the client's pauses are not the broker's
    plan = QUICK if options.quick else FULL
    if options.rounds is not None:
        plan = replace(plan, rounds=options.rounds, spark_rounds=options.rounds)
    modes = sorted(set(options.mode or MODES), reverse=True)

    contenders: list[Contender] = []
    names = {table.OTTLA: "ottla"}
    brokers_too = not set(modes) <= OURS
    if options.only != table.OTTLA and brokers_too:
        try:
            contender, names[table.KAFKA] = kafka_contender(options.update_kafka)
            contenders.append(contender)
        except kafka.KafkaUnavailable as error:
            if options.only == table.KAFKA:
                print(f"error: {error}", file=sys.stderr)
                return 1
            say(f"Apache Kafka is left out: {error}")
    if options.only != table.KAFKA and brokers_too:
        for line in boundary.report():
            say(line)
        contenders.append(ottla_contender())

    if options.work_dir is not None:
        options.work_dir.mkdir(parents=True, exist_ok=True)
    work_dir = Path(tempfile.mkdtemp(prefix="bench-", dir=options.work_dir)).resolve()
    kind = file_system(work_dir)
    if kind in MEMORY_FILE_SYSTEMS:
        say(
            f"{work_dir} is on {kind}: syncing costs nothing there. Give --work-dir on a disk for the "
            "durable mode."
        )
    bench = Bench(contenders, plan, work_dir)
    side_by_side = clients.Clients(work_dir, plan.client_sizes)
    connectors = spark.SideBySide(work_dir, plan.spark_sizes)
    begin = time.monotonic()
    curves: growth.Curves = {}
    try:
        loads = [mode for mode in modes if mode not in APART]
        if loads:
            bench.run(loads)
        if table.COMPACTION in modes:
            bench.compact()
        if table.CLUSTER in modes:
            bench.replicate()
        if table.GROUPS in modes:
            bench.coordinate()
        if table.TRANSACTIONS in modes:
            bench.transact()
        bench.stop()
        if clients.MODE in modes and options.only != table.KAFKA:
            side_by_side.run(plan.rounds)
        if spark.MODE in modes and options.only != table.KAFKA:
            connectors.run(plan.spark_rounds)
        if not options.no_growth:
            curves = growth.measured(options.only, quick=options.quick, work_dir=work_dir)
    except KeyboardInterrupt:
        say("interrupted; stopping the brokers")
        return 130
    except BrokerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (
        WorkloadFailed,
        SparkFailed,
        UnexpectedAnswer,
        growth.NotAnswered,
        OSError,
        confluent_kafka.KafkaException,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        for contender in contenders:
            if contender.process is not None and not contender.process.alive():
                print(f"{contender.name} is dead. {contender.process.log_tail()}", file=sys.stderr)
        return 1
    finally:
        bench.stop()
        shutil.rmtree(work_dir, ignore_errors=True)

    where = machine()
    results = dict(bench.results)
    together = {mode: results.pop(mode) for mode in (table.CLUSTER,) if mode in results}
    in_groups = {mode: results.pop(mode) for mode in (table.GROUPS,) if mode in results}
    exactly = {mode: results.pop(mode) for mode in (table.TRANSACTIONS,) if mode in results}
    #: By the names of their sections in docs/performance.md.
    reports = {}
    if results:
        reports["figures"] = summed_up(describe(bench, plan, where, kind), results, names)
    if together:
        reports["clusters"] = summed_up(describe_cluster(bench, plan, where), together, names)
    if in_groups:
        reports["groups"] = summed_up(describe_groups(plan, where, kind), in_groups, names)
    if exactly:
        reports["transactions"] = summed_up(describe_transactions(plan, where, kind), exactly, names)
    if side_by_side.results:
        description = clients.describe(plan.client_sizes, plan.rounds, where)
        judged = clients.verdicts(side_by_side.results)
        reports["clients"] = f"{description}\n\n{clients.render(side_by_side.results)}{goals_met(judged)}"
    if connectors.results:
        description = spark.describe(plan.spark_sizes, plan.spark_rounds, where, connectors.versions)
        judged = spark.verdicts(connectors.results)
        reports["spark"] = f"{description}\n\n{spark.render(connectors.results)}{goals_met(judged)}"
    print("\n\n".join(reports.values()))
    verdicts = [
        *table.verdicts(bench.results),
        *clients.verdicts(side_by_side.results),
        *spark.verdicts(connectors.results),
    ]
    missed = [verdict.label for verdict in verdicts if verdict.met is False]
    if curves:
        print(f"\n**Growth: broker CPU, µs per request**\n\n{growth.render(curves)}")
    if bench.others_share > OTHERS_SHARE_MAX:
        say(f"other processes took {bench.others_share:.0%} of the CPUs: measure again on an idle machine")
    say(f"done in {time.monotonic() - begin:.0f} s")
    if options.docs:
        for name, report in reports.items():
            docs.write(name, report)
        if curves:
            growth.write_docs(curves)
    if options.json is not None:
        document = {
            "machine": {**where, "file_system": kind},
            "names": names,
            "plan": asdict(plan),
            "others_share": bench.others_share,
            "warm_rounds": bench.warm_rounds,
            "results": bench.results,
            "clients": side_by_side.results,
            "spark": connectors.results,
            "clocks": {name: asdict(clocks) for name, clocks in bench.clocks.items()},
            "goals_missed": missed,
            "growth": curves,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
