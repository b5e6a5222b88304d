"""Guarantees of the whole broker in the simulator. A failure has its seed and the command that replays it."""

import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from testkit.sim.__main__ import main, parse
from testkit.sim.scenario import Failure, Options, Outcome, run


def run_seeds(seeds: range, **options: Any) -> tuple[Counter[str], int]:
    endings: Counter[str] = Counter()
    acknowledged = 0
    for seed in seeds:
        outcome = run(seed, Options(**options))
        endings += outcome.endings
        acknowledged += outcome.acknowledged
    return endings, acknowledged


@pytest.mark.parametrize("is_strict", [True, False])
def test_two_hundred_power_cuts_lose_nothing_acknowledged(is_strict: bool) -> None:
    endings, acknowledged = run_seeds(range(1, 91), lives=5, policy="durable", is_strict=is_strict)
    assert endings["cut"] >= 200
    assert endings["kill"] and endings["stop"]
    assert acknowledged > 3000


def test_in_page_cache_mode_a_power_cut_loses_only_what_was_not_flushed() -> None:
    endings, acknowledged = run_seeds(range(1, 61), policy="page-cache")
    assert endings["cut"] > 100 and acknowledged > 1000


def test_a_killed_process_loses_nothing_acknowledged_in_either_mode() -> None:
    endings, acknowledged = run_seeds(range(1, 41), endings=("kill",))
    assert endings == {"kill": 160} and acknowledged > 1000


def test_a_clean_stop_keeps_everything_whatever_comes_after() -> None:
    endings, _ = run_seeds(range(1, 41), endings=("stop", "cut"))
    assert endings["stop"] > 50 and endings["cut"] > 50


def test_a_failed_sync_is_the_end_of_writing_and_loses_nothing_acknowledged() -> None:
    offline = 0
    for seed in range(1, 31):
        outcome = run(seed, Options(policy="durable", faults=("sync",), endings=("cut",)), traced=True)
        offline += sum("is offline" in line for line in outcome.trace)
    assert offline > 5


@pytest.mark.parametrize("directories", [1, 2])
def test_logs_that_are_compacted_keep_the_newest_record_of_every_key(directories: int) -> None:
    """Also while they move between directories."""
    swapped = finished = moved = 0
    for seed in range(1, 61):
        options = Options(compacts=True, directories=directories, events_max=1500)
        trace = run(seed, options, traced=True).trace
        swapped += sum(" rename " in line and line.endswith(".log.swap") for line in trace)
        finished += sum(" remove " in line and line.endswith(".log.deleted") for line in trace)
        moved += sum(" was moved to " in line for line in trace)
    assert swapped > 20 and finished > 5
    assert moved > 5 or directories == 1


def test_partitions_that_move_between_directories_lose_nothing_acknowledged() -> None:
    moved = 0
    for seed in range(1, 81):
        outcome = run(seed, Options(directories=2, events_max=1500), traced=True)
        moved += sum(" was moved to " in line for line in outcome.trace)
    assert moved > 20


def test_one_of_two_directories_fails_and_the_other_goes_on() -> None:
    offline = went_on = 0
    for seed in range(1, 41):
        options = Options(directories=2, policy="durable", faults=("sync",), events_max=1000)
        text = "\n".join(run(seed, options, traced=True).trace)
        assert "/var/data is offline" not in text
        _before, failed, after = text.partition("/var/more is offline")
        offline += bool(failed)
        went_on += " is at " in after.partition("---")[0]
    assert offline > 5 and went_on > 3


def test_a_full_disk_refuses_and_resumes() -> None:
    refused = resumed = 0
    for seed in range(1, 31):
        outcome = run(seed, Options(faults=("full",), endings=("cut", "kill", "stop")), traced=True)
        text = "\n".join(outcome.trace)
        refused += "kafka_storage_error" in text
        resumed += (
            "there is disk space again" in text
            and " is at " in text.rpartition("there is disk space again")[2]
        )
    assert refused > 5 and resumed > 5


def test_a_seed_always_tells_the_same_story() -> None:
    assert run(7, traced=True).trace == run(7, traced=True).trace
    assert run(7, traced=True).trace != run(8, traced=True).trace


def test_the_story_does_not_depend_on_the_hash_seed() -> None:
    stories = [
        subprocess.run(
            [sys.executable, "-m", "testkit.sim", "11", "--trace"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, check=True, text=True,
        ).stdout.rpartition("\n1 of 1")[0]
        for hash_seed in ("1", "2")
    ]  # fmt: skip
    assert stories[0] == stories[1] and len(stories[0].splitlines()) > 50


def test_a_failure_says_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(lives=2, policy="durable", is_strict=True, ignored_site="SYNC file", endings=("cut",))
    failures: list[Failure] = []
    seed = 0
    while not failures:
        seed += 1
        try:
            run(seed, options)
        except Failure as failure:
            failures.append(failure)
    text, command = str(failures[0]).splitlines()
    assert text.startswith(f"seed {seed}: {failures[0].kind}: ")
    arguments = command.partition("testkit.sim ")[2].replace("'SYNC file'", "SYNC_file").replace("'", "")
    words = [word.replace("SYNC_file", "SYNC file") for word in arguments.split()]
    assert parse(words) == ([seed], options, True)
    assert main(words) == 1
    told = capsys.readouterr().out
    assert text in told and "the power is cut (strict)" in told and "is at" in told


def test_seeds_are_numbers_and_ranges() -> None:
    assert parse(["3", "10-12,20"])[0] == [3, 10, 11, 12, 20]
    assert len(parse([])[0]) == 100
    with pytest.raises(SystemExit):
        parse(["many"])
    with pytest.raises(SystemExit):
        parse(["1", "--endings", "fire"])


def test_an_outcome_counts() -> None:
    outcome = run(1, Options(lives=2))
    assert isinstance(outcome, Outcome) and outcome.endings.total() == 2
    assert outcome.events and outcome.sites and not outcome.ignored and not outcome.trace
