"""The settings of a broker among others, under Kafka's names. How a cluster is found is in `zookeeper_table.py`."""

from __future__ import annotations

from ottla.config.definition import Definition
from ottla.config.zookeeper_table import CLUSTER

MEMBERSHIP = (
    Definition(
        "controlled.shutdown.enable",
        "boolean",
        "true",
        "Whether a broker that is stopped first hands what it leads to other brokers.",
        section=CLUSTER,
    ),
    Definition(
        "replica.socket.timeout.ms",
        "int",
        "30000",
        "How long a broker waits for another one's answer before it gives up the connection.",
        unit="ms",
        minimum=1,
        section=CLUSTER,
    ),
)
