"""How fast replicas may be copied, of those topics whose settings name them as throttled (KIP-73).

Both rates are a broker's own, settable while it runs: a reassignment sets them on every broker that takes part, names the
replicas in the topic settings `leader.replication.throttled.replicas` and `follower.replication.throttled.replicas`, and
takes both away at its end.
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
        "How fast this broker hands out throttled replicas that it leads, all followers together.",
    ),
    _rate(
        "follower.replication.throttled.rate",
        "How fast this broker copies throttled replicas from their leaders, all together.",
    ),
    _rate(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "How fast this broker copies replicas from one of its log directories to another, all together.",
    ),
)
