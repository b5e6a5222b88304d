"""A simulated cluster keeps its guarantees: forty seeds of sixty seconds, each with twenty faults.

Every third seed has consumer groups, every fourth transactions. `make sim SEEDS=1-5000` runs more. The checks
of every step are in `testkit/sim/invariants.py`, `group_invariants.py` and `transaction_invariants.py`, and
in the checkers of histories.
"""

import os
import subprocess
import sys

import pytest

from ottla.broker.cluster.broker_lifecycle import BrokerLifecycle
from testkit.sim.__main__ import main
from testkit.sim.cluster import Cluster, ClusterOptions, run_cluster
from testkit.sim.scenario import Failure

SEEDS = 40
CHUNK = 5
EVENTS_MAX = 10_000
#: With groups, which must settle after the repair, or transactions, some of which must time out.
GROUP_EVENTS_MAX = 16_000


@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_nothing_acknowledged_is_lost(first: int) -> None:
    """In chunks, so that two processes share them."""
    faults: list[int] = []
    commits = looks = transactions = 0
    for seed in range(first, first + CHUNK):
        outcome = run_cluster(seed)
        if seed % 4 == 2:
            # With transactions half of the time has enough events.
            assert outcome.faults.total() > 4
        else:
            faults.append(outcome.faults.total())
        events_max = EVENTS_MAX if seed % 3 and seed % 4 != 2 else GROUP_EVENTS_MAX
        assert outcome.acknowledged > 20 and outcome.events <= events_max, outcome
        assert outcome.seconds == 60 or outcome.events > EVENTS_MAX * 0.9
        commits += outcome.commits
        looks += outcome.looks
        transactions += outcome.transactions
    assert sum(faults) > 15 * len(faults)
    assert commits > 5 and looks > 20 and transactions > 10


def test_a_false_suspicion_costs_an_election_never_data() -> None:
    """Healthy brokers are suspected again and again, the controller too: they are fenced, and return."""
    elections = fenced = 0
    for seed in range(201, 207):
        cluster = Cluster(seed, ClusterOptions(kinds=("suspect", "usurp"), transactions=False), traced=True)
        outcome = cluster.run()
        assert outcome.acknowledged > 100
        elections += cluster.invariants.elections
        fenced += sum("was fenced by the controller, and registers again" in line for line in outcome.trace)
    assert fenced > 20 and elections > 40


def test_groups_hold_while_their_coordinators_move() -> None:
    """Only deaths and suspicions, so that coordinators move all the time."""
    commits = 0
    for seed in range(401, 404):
        kinds = ("kill", "suspect", "stop", "isolate")
        commits += run_cluster(seed, ClusterOptions(brokers=3, faults=40, kinds=kinds, groups=True)).commits
    assert commits > 50


def test_a_broker_alone_keeps_its_transactions() -> None:
    """Decisions are carried out after the next start."""
    kinds = ("kill", "cut_power", "stop", "pause", "cut_client")
    options = ClusterOptions(brokers=1, kinds=kinds, transactions=True, groups=False)
    assert sum(run_cluster(seed, options).transactions for seed in (601, 602)) > 30


def test_a_broker_alone_keeps_its_groups() -> None:
    """No other broker can take over: after the next start the coordinator has the state of its log."""
    commits = 0
    for seed in range(501, 504):
        kinds = ("kill", "cut_power", "stop", "pause", "drop")
        commits += run_cluster(seed, ClusterOptions(brokers=1, kinds=kinds, groups=True)).commits
    assert commits > 50


def test_with_all_but_one_dead_a_topic_of_min_isr_1_still_serves() -> None:
    """Kills only, in small clusters: most of the time some broker is missing."""
    for seed in range(301, 304):
        options = ClusterOptions(brokers=3, faults=40, kinds=("kill",), transactions=False)
        assert run_cluster(seed, options).acknowledged > 100


def test_a_seed_always_tells_the_same_story() -> None:
    assert run_cluster(7, traced=True).trace == run_cluster(7, traced=True).trace
    assert run_cluster(7, traced=True).trace != run_cluster(8, traced=True).trace


@pytest.mark.parametrize("seed", [11, 12])
def test_the_story_does_not_depend_on_the_hash_seed(seed: int) -> None:
    stories = [
        subprocess.run(
            [sys.executable, "-m", "testkit.sim", "--cluster", str(seed), "--trace"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, check=True, text=True,
        ).stdout.rpartition("\n1 of 1")[0]
        for hash_seed in ("1", "2")
    ]  # fmt: skip
    assert stories[0] == stories[1] and len(stories[0].splitlines()) > 300


def test_a_failure_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A broker that never learns that it was fenced.
    monkeypatch.setattr(BrokerLifecycle, "_register", lambda _self: None)
    options = ClusterOptions(seconds=5, faults=3, brokers=3, kinds=("kill", "suspect"))
    with pytest.raises(Failure) as raised:
        run_cluster(5, options)
    text, command = str(raised.value).splitlines()
    assert text.startswith("cluster seed 5 after ") and raised.value.kind == "unhealed"
    arguments = command.partition("testkit.sim ")[2].split()
    assert arguments[:3] == ["--cluster", "5", "--trace"]
    assert main(arguments) == 1
    told = capsys.readouterr().out
    assert text in told and "fault: " in told and "everything is mended" in told
