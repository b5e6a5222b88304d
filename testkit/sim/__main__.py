"""`python -m testkit.sim [--cluster] [SEEDS]`: run seeds, and print for each failure the command that replays
it.

Without `--cluster` a seed is one node on a disk with power cuts (`scenario.py`), with it a cluster
(`cluster.py`).

SEEDS is a number, a range (1-200), or several of either. The default is a hundred random seeds.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from testkit.sim.cluster import ClusterOptions, ClusterOutcome, run_cluster
from testkit.sim.scenario import Failure, Options, Outcome, run

_FRESH_SEEDS = 100
T = TypeVar("T", Outcome, ClusterOutcome)


def seeds_of(texts: Sequence[str]) -> list[int]:
    seeds: list[int] = []
    for text in ",".join(texts).split(","):
        first, dash, last = text.partition("-")
        if first:
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    return seeds


def _seeds(parser: argparse.ArgumentParser, texts: Sequence[str]) -> list[int]:
    try:
        seeds = seeds_of(texts)
    except ValueError:
        parser.error("seeds are numbers or ranges, such as 7 or 1-200")
    if not seeds:
        first = random.randrange(1 << 31)
        seeds = list(range(first, first + _FRESH_SEEDS))
    return seeds


def _outcomes(seeds: Sequence[int], simulate: Callable[[int], T]) -> Iterator[T]:
    """The outcome of each seed that holds. Traces and failures are printed as they come."""
    for seed in seeds:
        try:
            outcome = simulate(seed)
        except Failure as failure:
            for line in failure.trace:
                print(line)
            print(f"FAILED {failure}", flush=True)
            continue
        for line in outcome.trace:
            print(line)
        yield outcome


def parse(arguments: Sequence[str]) -> tuple[list[int], Options, bool]:
    parser = argparse.ArgumentParser(
        prog="python -m testkit.sim", description="Run the broker's core on a simulated machine."
    )
    parser.add_argument("seeds", nargs="*", help="7, 1-200, or several of either; by default 100 random ones")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--lives", type=int, default=Options.lives, help="number of incarnations of the node")
    parser.add_argument(
        "--events-max", type=int, default=Options.events_max, help="maximum number of events per incarnation"
    )
    parser.add_argument(
        "--disk", choices=("strict", "nasty"), help="what a power cut leaves of unsynced data"
    )
    parser.add_argument("--policy", choices=("durable", "page-cache", "mixed"), default=Options.policy)
    parser.add_argument(
        "--endings", help="how incarnations end, some of cut,kill,stop; repeat one to get more of it"
    )
    parser.add_argument("--directories", type=int, choices=(1, 2), default=Options.directories)
    parser.add_argument("--compacts", action="store_true", help="some of the topics are compacted")
    parser.add_argument("--faults", help="further faults, some of sync,full")
    parser.add_argument("--ignored-site", help="skip the syncs of one site, to see whether that is noticed")
    given = parser.parse_args(arguments)
    for name, allowed in (("endings", ("cut", "kill", "stop")), ("faults", ("sync", "full"))):
        if getattr(given, name) and not set(getattr(given, name).split(",")) <= set(allowed):
            parser.error(f"--{name} takes {', '.join(allowed)}")
    options = Options(
        lives=given.lives,
        is_strict=None if given.disk is None else given.disk == "strict",
        endings=tuple(given.endings.split(",")) if given.endings else Options.endings,
        policy=given.policy,
        faults=tuple(given.faults.split(",")) if given.faults else (),
        events_max=given.events_max,
        directories=given.directories,
        compacts=given.compacts,
        ignored_site=given.ignored_site,
    )
    return _seeds(parser, given.seeds), options, given.trace


def main_cluster(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m testkit.sim --cluster", description="Run a simulated cluster."
    )
    parser.add_argument("seeds", nargs="*", help="7, 1-200, or several of either; by default 100 random ones")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--brokers", type=int, help="number of brokers, instead of the seed's choice")
    parser.add_argument("--kinds", help="which faults, such as kill,pause")
    parser.add_argument("--faults", type=int, default=ClusterOptions.faults, help="how many")
    parser.add_argument("--seconds", type=int, default=ClusterOptions.seconds, help="simulated time")
    parser.add_argument(
        "--groups",
        action=argparse.BooleanOptionalAction,
        help="consumer groups, instead of in every third seed",
    )
    parser.add_argument(
        "--transactions",
        action=argparse.BooleanOptionalAction,
        help="transactions, instead of in every fourth seed",
    )
    given = parser.parse_args(arguments)
    options = ClusterOptions(
        groups=given.groups,
        transactions=given.transactions,
        seconds=given.seconds,
        faults=given.faults,
        brokers=given.brokers,
        kinds=tuple(given.kinds.split(",")) if given.kinds else (),
    )
    seeds = _seeds(parser, given.seeds)
    print(f"{len(seeds)} clusters, from seed {seeds[0]} on", flush=True)
    started = time.monotonic()
    faults: Counter[str] = Counter()
    acknowledged = commits = transactions = events = held = 0
    for outcome in _outcomes(seeds, lambda seed: run_cluster(seed, options, traced=given.trace)):
        held += 1
        faults += outcome.faults
        acknowledged += outcome.acknowledged
        commits += outcome.commits
        transactions += outcome.transactions
        events += outcome.events
    told = ", ".join(f"{count} {name}" for name, count in sorted(faults.items()))
    print(
        f"{held} of {len(seeds)} clusters held in {time.monotonic() - started:.1f} s: "
        f"{acknowledged:,} records acknowledged, {commits:,} offsets and {transactions:,} transactions committed, "
        f"{events:,} events; {told}"
    )
    return 0 if held == len(seeds) else 1


def main(arguments: Sequence[str]) -> int:
    if "--cluster" in arguments:
        return main_cluster([each for each in arguments if each != "--cluster"])
    seeds, options, traced = parse(arguments)
    print(f"{len(seeds)} seeds, from {seeds[0]} on", flush=True)
    started = time.monotonic()
    endings: Counter[str] = Counter()
    acknowledged = events = held = 0
    for outcome in _outcomes(seeds, lambda seed: run(seed, options, traced=traced)):
        held += 1
        endings += outcome.endings
        acknowledged += outcome.acknowledged
        events += outcome.events
    print(
        f"{held} of {len(seeds)} seeds held in {time.monotonic() - started:.1f} s: "
        f"{endings['cut']} power cuts, {endings['kill']} kills, {endings['stop']} clean stops, "
        f"{acknowledged:,} records acknowledged, {events:,} events"
    )
    return 0 if held == len(seeds) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
