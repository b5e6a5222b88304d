"""The settings of replication between the brokers of a cluster, under Kafka's names."""

from __future__ import annotations

from typing import Any

from ottla.config.definition import CLUSTER_WIDE, Definition, number

REPLICATION_SECTION = "Replication"

#: The values of `replica.selector.class` that send consumers to a replica in their own rack.
RACK_AWARE = ("rack-aware", "org.apache.kafka.common.replica.RackAwareReplicaSelector")


def _number(
    name: str, default: int, doc: str, *, kind: str = "int", minimum: int = 1, **more: Any
) -> Definition:
    return number(REPLICATION_SECTION, name, kind, default, minimum, doc, **more)


REPLICATION = (
    _number(
        "num.replica.fetchers",
        1,
        "Connections to each other broker on which this one fetches what it follows. "
        "A change at run time applies to a partition when its leader changes next.",
        maximum=64,
        dynamic=CLUSTER_WIDE,
    ),
    _number(
        "replica.lag.time.max.ms",
        30_000,
        "How long a follower may lack something of the leader's before it leaves the ISR.",
        unit="ms",
        kind="long",
    ),
    _number(
        "replica.fetch.wait.max.ms",
        500,
        "How long a leader holds a follower's fetch for which it has nothing.",
        unit="ms",
    ),
    _number("replica.fetch.min.bytes", 1, "How much a follower's fetch waits for.", unit="bytes"),
    _number(
        "replica.fetch.max.bytes",
        1 << 20,
        "The most that a follower fetches of a partition at once, except that a batch comes whole.",
        unit="bytes",
        minimum=1024,
    ),
    _number(
        "replica.fetch.response.max.bytes",
        10 << 20,
        "The most that a follower fetches of all partitions at once, except that a batch comes whole.",
        unit="bytes",
        minimum=1024,
    ),
    _number(
        "replica.fetch.backoff.ms",
        200,
        "How long a follower waits after a fetch that failed.",
        unit="ms",
        minimum=0,
        dynamic=CLUSTER_WIDE,
    ),
    Definition(
        "replica.selector.class",
        "string",
        "leader",
        "Whom consumers read from: `leader`, or `rack-aware` (also under Kafka's names of the two classes): a replica in sync whose "
        "`broker.rack` is the consumer's `client.rack` (KIP-392). High watermarks then reach followers at once, which takes "
        "up to twice as many fetches between brokers.",
        allowed=("leader", "org.apache.kafka.common.replica.LeaderSelector", *RACK_AWARE),
        section=REPLICATION_SECTION,
    ),
)
