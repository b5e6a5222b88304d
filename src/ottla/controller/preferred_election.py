"""Elections on request: preferred leaders (E8) and unclean elections.

`balance` is the controller's periodic leader rebalance. `elect` serves ElectLeaders and raises a `Refusal`
with the protocol's error code.
"""

from __future__ import annotations

from collections import Counter

from ottla.config.broker import BrokerConfig
from ottla.controller.leader_election import NO_LEADER, Rules, rules_of, settle
from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.model.errors import ErrorCode, Refusal

PREFERRED = 0
UNCLEAN = 1


def balance(image: Image, config: BrokerConfig) -> list[r.Record]:
    """Elect the preferred leaders of brokers above `leader.imbalance.per.broker.percentage`.

    A broker's imbalance is the share of its preferred partitions that another broker leads. Partitions whose
    preferred replica cannot lead are not included: an election would not help.
    """
    named: Counter[int] = Counter()
    elsewhere: dict[int, list[tuple[str, r.Partition]]] = {}
    for topic in image.topics.values():
        for partition in topic.partitions:
            first = partition.replicas[0]
            named[first] += 1
            if partition.leader != first and first in partition.isr and image.is_live(first):
                elsewhere.setdefault(first, []).append((topic.name, partition))
    made: list[r.Record] = []
    rules: dict[str, Rules] = {}
    for first, partitions in elsewhere.items():
        if len(partitions) * 100 <= named[first] * config.leader_imbalance_per_broker_percentage:
            continue
        for name, partition in partitions:
            if name not in rules:
                rules[name] = rules_of(image, config, name)
            made.append(settle(partition, rules[name], image.is_live, isr=partition.isr, prefer=True))
    return made


def elect(image: Image, rules: Rules, old: r.Partition, kind: int) -> r.Partition:
    """Elect a leader on request. Unclean: any live replica may lead a partition without a leader."""
    if kind == PREFERRED:
        if old.leader == old.replicas[0]:
            raise Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"broker {old.leader} leads and is preferred")
        new = settle(old, rules, image.is_live, isr=old.isr, prefer=True)
        if new.leader != old.replicas[0]:
            raise Refusal(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {old.replicas[0]} is not live and in sync"
            )
        return new
    if old.leader != NO_LEADER:
        raise Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"broker {old.leader} leads")
    new = settle(old, rules._replace(unclean=True), image.is_live, isr=old.isr)
    if new.leader == NO_LEADER:
        raise Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "none of the replicas is live")
    return new
