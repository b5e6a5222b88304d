"""Settings of a broker in a cluster, apart from those of ZooKeeper (`zookeeper_table.py`)."""

from __future__ import annotations

from ottla.config.definition import Definition
from ottla.config.zookeeper_table import CLUSTER

MEMBERSHIP = (
    Definition(
        "controlled.shutdown.enable",
        "boolean",
        "true",
        "Hand leadership to other brokers before a shutdown.",
        section=CLUSTER,
    ),
    Definition(
        "replica.socket.timeout.ms",
        "int",
        "30000",
        "How long a broker waits for the response of another broker before it closes the connection.",
        unit="ms",
        minimum=1,
        section=CLUSTER,
    ),
)
