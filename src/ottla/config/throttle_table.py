"""Replication throttles (KIP-73).

A rate applies to the replicas that the topic settings `leader.replication.throttled.replicas` and
`follower.replication.throttled.replicas` name. A reassignment sets rates and replicas at its start and
removes them at its end. Rates can change at run time.
"""

from __future__ import annotations

from ottla.config.definition import CLUSTER_WIDE, LONG_MAX, Definition
from ottla.config.zookeeper_table import CLUSTER


def _rate(name: str, doc: str) -> Definition:
    return Definition(
        name,
        "long",
        str(LONG_MAX),
        f"{doc} The default is no limit.",
        unit="bytes/s",
        minimum=0,
        dynamic=CLUSTER_WIDE,
        section=CLUSTER,
    )


THROTTLES = (
    _rate(
        "leader.replication.throttled.rate",
        "Rate at which this broker, as leader, sends throttled replicas to all followers together.",
    ),
    _rate(
        "follower.replication.throttled.rate",
        "Rate at which this broker, as follower, copies all throttled replicas together.",
    ),
    _rate(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "Rate at which this broker copies replicas between its log directories, all together.",
    ),
)
