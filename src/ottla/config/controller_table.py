"""The settings of the controller, under Kafka's names: when leadership goes back to where it belongs."""

from __future__ import annotations

from ottla.config.definition import Definition
from ottla.config.zookeeper_table import CLUSTER

CONTROLLER = (
    Definition(
        "auto.leader.rebalance.enable",
        "boolean",
        "true",
        "Whether the controller lets the first replica of a partition lead again by itself.",
        section=CLUSTER,
    ),
    Definition(
        "leader.imbalance.check.interval.seconds",
        "long",
        "300",
        "How often the controller looks whether leaders are where they belong.",
        unit="s",
        minimum=1,
        section=CLUSTER,
    ),
    Definition(
        "leader.imbalance.per.broker.percentage",
        "int",
        "10",
        "How many of the partitions that a broker should lead others may lead before the controller changes that.",
        unit="%",
        minimum=0,
        section=CLUSTER,
    ),
)
