"""Run the groups of tests one after another and print how long each took.

`make test` runs the default groups without their long tests, `make test-long` runs those long tests, `make check`,
`make interop` and `make chaos` run one group. This file owns the list of groups and of long tests: every folder under tests/
belongs to exactly one group, which tests/static/test_groups.py checks. A failed group does not stop the next one; the exit
status says whether any failed.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent

# pytest's own exit status for "no tests were collected".
NO_TESTS = 5

# A file system in memory, on Linux; used if it has so much space. Containers often have 64 MB there.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30

# The scripts of the environment that runs this file; its path is not resolved, or it would lead out of .venv.
SCRIPTS = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Check:
    """A tool that is right or wrong as a whole; it counts as one test."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    folders: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    # Processes that share the group's tests: two for those that keep two cores busy, more where tests mostly wait.
    workers: int = 1
    # Whether tests are given out one by one: where some take long, or share what is dear (`xdist_group`).
    singly: bool = False
    # Whether temporary files are kept in memory where the system allows that: tests that make many files, and need no device.
    in_memory: bool = False
    # Whether its tests start Spark.
    spark: bool = False
    default: bool = True
    # Folders, files and tests (`file.py::test`), below tests/, that `make test-long` runs and `make test` does not.
    long: tuple[str, ...] = ()

    def folders_here(self) -> list[str]:
        return [f"tests/{name}" for name in self.folders if (ROOT / "tests" / name).is_dir()]

    def selection(self, part: str) -> list[str]:
        """The arguments of pytest that select this group's tests: all of them, or the short or the long ones."""
        if part == "long":
            return [f"tests/{each}" for each in self.long]
        folders = self.folders_here()
        if part == "all":
            return folders
        left_out = [f"--deselect=tests/{each}" for each in self.long]
        # A folder that is long as a whole is not even collected.
        return [*(each for each in folders if each.removeprefix("tests/") not in self.long), *left_out]


def typed_folders() -> tuple[str, ...]:
    return tuple(name for name in ("src", "testkit", "tools", "bench") if (ROOT / name).is_dir())


GROUPS = (
    Group(
        name="static",
        folders=("static",),
        checks=(
            Check("lint", (sys.executable, "-m", "ruff", "check", "--quiet", ".")),
            Check("format", (sys.executable, "-m", "ruff", "format", "--quiet", "--check", "--diff", ".")),
            Check("types", (sys.executable, "-m", "mypy", "--strict", *typed_folders())),
            Check("layers", (str(SCRIPTS / "lint-imports"), "--no-logo")),
        ),
    ),
    Group(
        name="unit",
        # One folder a room of src/ottla, in the order of the layers from below; then what lies beside the package.
        folders=(
            "model",
            "ports",
            "metrics",
            "config",
            "wire",
            "records",
            "log",
            "security",
            "transactions",
            "groups",
            "metadata",
            "controller",
            "replication",
            "runtime",
            "broker",
            "server",
            "console",
            "cli",
            "tools",
            "bench",
        ),
        workers=3,
        in_memory=True,
        long=(
            "broker/test_turn_cost.py",
            "broker/test_group_turn_cost.py",
            "broker/test_waiting_fetches.py",
            "cli/test_bench_and_demo.py",
            "cli/test_offsets_page.py",
            "cli/test_transactions_page.py",
            "runtime/test_long_requests.py",
            "runtime/test_memory_pool.py",
            "server/test_internal_errors.py",
            "bench",
        ),
    ),
    # The SDK, by itself and on brokers that are killed, paused and cut off; its tests mostly wait.
    Group(
        name="sdk",
        folders=("client", "sdk"),
        workers=5,
        in_memory=True,
        long=(
            "client/producer/test_transactions.py",
            "sdk/test_cluster.py",
            "sdk/test_groups.py",
            "sdk/test_network.py",
            "sdk/test_nothing_left.py",
        ),
    ),
    # The cluster store on a real ZooKeeper, which is stopped, paused and cut off.
    Group(
        name="zookeeper",
        folders=("zookeeper",),
        workers=3,
        in_memory=True,
        long=("zookeeper/test_zookeeper_store_faults.py",),
    ),
    # Three brokers and a ZooKeeper as processes, some of which are killed, paused and started again.
    Group(
        name="cluster",
        folders=("cluster",),
        workers=2,
        in_memory=True,
        long=(
            "cluster/test_any_broker.py",
            "cluster/test_attacked_broker.py",
            "cluster/test_elections.py",
            "cluster/test_few_brokers.py",
            "cluster/test_group_failover.py",
            "cluster/test_joining.py",
            "cluster/test_local_cluster.py",
            "cluster/test_moves.py",
            "cluster/test_other_clients.py",
            "cluster/test_sessions.py",
            "cluster/test_store_away.py",
            "cluster/test_transactions.py",
            "cluster/test_txn_admin.py",
        ),
    ),
    # Third-party clients, unmodified, and the SDK, against running brokers.
    Group(
        name="clients",
        folders=("clients",),
        workers=4,
        in_memory=True,
        long=("clients/test_any_group.py", "clients/test_restart.py"),
    ),
    # One test a claim of the mission.
    Group(
        name="seeds",
        folders=("seeds",),
        workers=4,
        singly=True,
        spark=True,
        long=(
            "seeds/test_spark.py::test_F3_counting_is_exactly_once_though_micro_batches_run_again",
            "seeds/test_spark.py::test_G2_results_and_offsets_are_stored_together_or_not_at_all",
            "seeds/test_spark.py::test_G3_one_topic_serves_batches_and_streams",
            "seeds/test_spark.py::test_G4_spark_runs_locally_by_default",
        ),
    ),
    # Processes killed at random points.
    Group(
        name="crash",
        folders=("crash",),
        workers=4,
        long=(
            "crash/test_compaction.py",
            "crash/test_group_commits.py",
            "crash/test_idempotent_produce.py::test_kill_9_loses_nothing_repeats_nothing_and_keeps_the_order[page-cache-15-1073741824]",
            "crash/test_idempotent_produce.py::test_kill_9_loses_nothing_repeats_nothing_and_keeps_the_order[durable-50-1073741824]",
            "crash/test_many_partitions.py",
            "crash/test_metadata.py",
            "crash/test_start_and_stop.py",
            "crash/test_transactions.py",
        ),
    ),
    # Mutated requests and damaged files; a thirtieth of what `make fuzz` does.
    Group(
        name="fuzz",
        folders=("fuzz",),
        workers=2,
        long=(
            "fuzz/test_costs.py",
            "fuzz/test_requests.py",
        ),
    ),
    # Disks, files and clocks that fail a running broker.
    Group(
        name="faults",
        folders=("faults",),
        workers=3,
        long=(
            "faults/test_damaged_files.py",
            "faults/test_device_errors.py",
            "faults/test_directory.py",
            "faults/test_disk_full.py",
        ),
    ),
    # The real core on a simulated disk, network and clock.
    Group(name="sim", folders=("sim",), workers=2),
    # Topics in a real Spark: each process of the tests has one of its own.
    Group(
        name="spark",
        folders=("spark",),
        workers=2,
        singly=True,
        spark=True,
        long=("spark",),
    ),
    Group(name="interop", folders=("interop",), spark=True, default=False),
    Group(name="chaos", folders=("chaos",), spark=True, default=False),
)


@dataclass(slots=True)
class Outcome:
    """What a group, or a part of one, came to."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def add(self, other: "Outcome") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.seconds += other.seconds


def run_check(check: Check) -> Outcome:
    started = time.monotonic()
    status = subprocess.run(check.command, cwd=ROOT, check=False).returncode
    seconds = time.monotonic() - started
    verdict = "ok" if status == 0 else "FAILED"
    print(f"{check.name}: {verdict} ({seconds:.1f} s)", flush=True)
    return Outcome(passed=int(status == 0), failed=int(status != 0), seconds=seconds)


def counts(report: Path) -> Outcome:
    """Read the counts from pytest's XML report, which sums over worker processes.

    A test whose body and teardown both fail has two entries there, and is one failed test.
    """
    verdicts: dict[tuple[str | None, str | None], str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        test = case.get("classname"), case.get("name")
        if case.find("failure") is not None or case.find("error") is not None:
            verdicts[test] = "failed"
        elif case.find("skipped") is not None:
            verdicts.setdefault(test, "skipped")
        else:
            verdicts.setdefault(test, "passed")
    tally = Counter(verdicts.values())
    return Outcome(passed=tally["passed"], failed=tally["failed"], skipped=tally["skipped"])


class SparkClasses:
    """The archive of `tests/spark_classes.py`, made beside the first groups if there is none."""

    def __init__(self) -> None:
        self._maker: subprocess.Popen[bytes] | None = None
        if not Path(sys.prefix, "spark-classes.jsa").exists():
            self._maker = subprocess.Popen(
                [sys.executable, "-m", "tests.spark_classes"],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def wait(self) -> None:
        """Whatever became of it: tests can do without."""
        if self._maker is not None:
            self._maker.wait()


def scratch_folder(*, in_memory: bool) -> str | None:
    """Where a group's temporary files go; None is where the system puts them."""
    if not in_memory or not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return None
    return str(MEMORY) if shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN else None


def run_pytest(group: Group, part: str, seed: int, pytest_args: Sequence[str]) -> Outcome:
    selection = group.selection(part)
    if not any(not each.startswith("--") for each in selection):
        return Outcome()
    folder = scratch_folder(in_memory=group.in_memory)
    with tempfile.TemporaryDirectory(prefix="ottla-tests-", dir=folder) as scratch:
        report = Path(scratch, "report.xml")
        command = [
            sys.executable,
            "-m",
            "pytest",
            f"--junitxml={report}",
            f"--randomly-seed={seed}",
            "-q",
            *selection,
        ]
        if group.workers > 1:
            command += ["-n", str(group.workers), *(["--dist", "loadgroup"] if group.singly else [])]
        started = time.monotonic()
        environment = os.environ if folder is None else {**os.environ, "TMPDIR": scratch}
        status = subprocess.run([*command, *pytest_args], cwd=ROOT, env=environment, check=False).returncode
        seconds = time.monotonic() - started
        outcome = counts(report) if report.is_file() else Outcome()
    outcome.seconds = seconds
    if status == NO_TESTS and (pytest_args or not group.default):
        # An expression that selects nothing here may select something in the next group.
        print(f"{group.name}: no tests here" + (" that match" if pytest_args else " yet"), flush=True)
    elif status != 0:
        # A crash of pytest itself leaves no failed test behind, yet is no success.
        outcome.failed = max(outcome.failed, 1)
    return outcome


def run_group(group: Group, part: str, seed: int, pytest_args: Sequence[str]) -> Outcome:
    outcome = Outcome()
    for check in group.checks if part != "long" else ():
        outcome.add(run_check(check))
    outcome.add(run_pytest(group, part, seed, pytest_args))
    return outcome


def table(outcomes: dict[str, Outcome]) -> str:
    total = Outcome()
    lines = [f"{'group':<9} {'seconds':>8} {'passed':>7} {'failed':>7} {'skipped':>8}"]
    for name, outcome in outcomes.items():
        total.add(outcome)
        lines.append(
            f"{name:<9} {outcome.seconds:>8.1f} {outcome.passed:>7} {outcome.failed:>7} {outcome.skipped:>8}"
        )
    lines.append(f"{'total':<9} {total.seconds:>8.1f}")
    lines.append("")
    lines.append(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return "\n".join(lines)


def chosen_groups(names: Sequence[str]) -> list[Group]:
    return [group for group in GROUPS if (group.name in names if names else group.default)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Run groups of tests.",
        epilog="Arguments after -- go to pytest, for example: run_tests.py unit -- -k produce",
    )
    # Not `choices`: with nargs="*" Python 3.11 refuses the empty list of names.
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(group.name for group in GROUPS))
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat it")
    parser.add_argument(
        "--part", choices=("all", "short", "long"), default="all", help="which tests of each group (all)"
    )
    own, pytest_args = list(arguments), []
    if "--" in own:
        cut = own.index("--")
        own, pytest_args = own[:cut], own[cut + 1 :]
    options = parser.parse_args(own)
    names = options.groups
    unknown = sorted(set(names) - {group.name for group in GROUPS})
    if unknown:
        parser.error(f"no such group: {', '.join(unknown)}")

    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(
        f"seed {seed} (SEED={seed} repeats the order of the tests and what they draw at random)", flush=True
    )

    outcomes: dict[str, Outcome] = {}
    interrupted = False
    groups = chosen_groups(names)
    classes = SparkClasses() if any(group.spark for group in groups) else None
    for group in groups:
        if not group.selection(options.part) and not group.checks:
            if names:
                print(f"{group.name}: nothing here yet")
            continue
        if options.part == "long" and not group.long:
            continue
        print(f"\n== {group.name} ==", flush=True)
        try:
            if group.spark and classes is not None:
                classes.wait()
            outcomes[group.name] = run_group(group, options.part, seed, pytest_args)
        except KeyboardInterrupt:
            interrupted = True
            break
        print(f"{group.name}: {outcomes[group.name].seconds:.1f} s", flush=True)

    if outcomes:
        print(f"\n{table(outcomes)}")
    if interrupted:
        print("interrupted: the groups after this one did not run")
        return 130
    return 1 if any(outcome.failed for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
