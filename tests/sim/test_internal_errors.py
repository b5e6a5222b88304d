"""An exception in any handler, response, timer, effect or callback affects only its own request, in a
simulated cluster.

`tests/sabotage.py` finds the places and raises in them, in brokers that produce, replicate, elect, coordinate
groups and transactions. Then it stops, and the cluster must come to rest by itself: every replica in sync,
every client answered, no acknowledged record lost.
"""

from collections import Counter
from random import Random
from typing import Any

import pytest

from ottla.broker.requests import isolation
from testkit.sim.cluster import Cluster, ClusterOptions
from testkit.sim.member import Member
from tests.sabotage import Sabotage, timed_classes

#: How often one site may fail in a run, and the probability per visit.
HITS_MAX = 3
SHARE = 0.05


def run(monkeypatch: pytest.MonkeyPatch, seed: int, options: ClusterOptions) -> Sabotage:
    cluster = Cluster(seed, options, traced=True)
    random = Random(seed)
    hits: Counter[str] = Counter()

    def decide(site: str) -> bool:
        # Not while a broker starts: one that cannot register logs it and exits.
        if site == "effect REGISTER":
            return False
        if cluster.is_healed or cluster.world.events < 300 or hits[site] >= HITS_MAX:
            return False
        if random.random() < SHARE:
            hits[site] += 1
            return True
        return False

    # All of it, for the trace of a failure.
    monkeypatch.setattr(isolation, "_LOG_EVERY_MS", 0)
    sabotage = Sabotage(monkeypatch, decide)
    perform = Member._perform

    def sabotaged(member: Member, effect: Any) -> None:
        perform(member, sabotage.effect(effect))

    monkeypatch.setattr(Member, "_perform", sabotaged)
    cluster.run()
    return sabotage


@pytest.mark.timeout(300)
def test_a_cluster_outlives_errors_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: Counter[str] = Counter()
    # In seed 544 a response is lost that asks a member to revoke partitions: its time began with that
    # response.
    for seed in (*range(301, 308), 544):
        with monkeypatch.context() as patch:
            raised += run(
                patch, seed, ClusterOptions(faults=4, groups=seed % 2 == 0, transactions=seed % 2 == 1)
            ).raised
    # Most places of a cluster were hit, of each kind; those of single brokers and of admin requests have
    # their own tests.
    for kind, least in (("handler ", 12), ("answer ", 8), ("timer ", 8), ("effect ", 5), ("callback ", 4)):
        assert len({site for site in raised if site.startswith(kind)}) >= least, (kind, raised)


def test_all_classes_with_deadlines_are_known() -> None:
    """A new place is sabotaged above; here a person checks once that its failure leaves nobody waiting."""
    assert {each.__name__ for each in timed_classes()} == {
        "Alarm", "Attempts", "ClassicMember", "CommitWait", "ConsumerMember", "DelayedProduce", "FetchSession", "HeldRequest", "Later", "PartitionWalk", "Periodic",
    }  # fmt: skip
