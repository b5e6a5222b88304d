"""Settings of the controller: preferred leader elections."""

from __future__ import annotations

from ottla.config.definition import Definition
from ottla.config.zookeeper_table import CLUSTER

CONTROLLER = (
    Definition(
        "auto.leader.rebalance.enable",
        "boolean",
        "true",
        "The controller moves leadership back to preferred replicas.",
        section=CLUSTER,
    ),
    Definition(
        "leader.imbalance.check.interval.seconds",
        "long",
        "300",
        "Time between two checks of the leader imbalance.",
        unit="s",
        minimum=1,
        section=CLUSTER,
    ),
    Definition(
        "leader.imbalance.per.broker.percentage",
        "int",
        "10",
        "Share of a broker's preferred partitions that other brokers may lead. Above it the controller "
        "moves leadership back.",
        unit="%",
        minimum=0,
        section=CLUSTER,
    ),
)
