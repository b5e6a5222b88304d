"""Settings of the replication between brokers."""

from __future__ import annotations

from typing import Any

from ottla.config.definition import CLUSTER_WIDE, Definition, number

REPLICATION_SECTION = "Replication"

#: Values of `replica.selector.class` for reads from a replica in the rack of the consumer.
RACK_AWARE = ("rack-aware", "org.apache.kafka.common.replica.RackAwareReplicaSelector")


def _number(
    name: str, default: int, doc: str, *, kind: str = "int", minimum: int = 1, **more: Any
) -> Definition:
    return number(REPLICATION_SECTION, name, kind, default, minimum, doc, **more)


REPLICATION = (
    _number(
        "num.replica.fetchers",
        1,
        "Connections to each other broker for replica fetches. A change at run time applies to a partition "
        "at its next leader change.",
        maximum=64,
        dynamic=CLUSTER_WIDE,
    ),
    _number(
        "replica.lag.time.max.ms",
        30_000,
        "How long a follower may be behind the leader's log end before it leaves the ISR.",
        unit="ms",
        kind="long",
    ),
    _number(
        "replica.fetch.wait.max.ms",
        500,
        "How long a leader holds a follower's fetch without data.",
        unit="ms",
    ),
    _number(
        "replica.fetch.min.bytes",
        1,
        "Minimum size of a response to a follower's fetch, unless the wait is over.",
        unit="bytes",
    ),
    _number(
        "replica.fetch.max.bytes",
        1 << 20,
        "Maximum size per partition of a follower's fetch. A larger batch is still fetched complete.",
        unit="bytes",
        minimum=1024,
    ),
    _number(
        "replica.fetch.response.max.bytes",
        10 << 20,
        "Maximum size of a response to a follower's fetch. A larger batch is still fetched complete.",
        unit="bytes",
        minimum=1024,
    ),
    _number(
        "replica.fetch.backoff.ms",
        200,
        "How long a follower waits after a failed fetch.",
        unit="ms",
        minimum=0,
        dynamic=CLUSTER_WIDE,
    ),
    Definition(
        "replica.selector.class",
        "string",
        "leader",
        "Replica that consumers read from: `leader`, or `rack-aware` (KIP-392; Kafka's class names work "
        "too). With `rack-aware` it is an in-sync replica whose `broker.rack` is the consumer's "
        "`client.rack`. High watermarks then reach followers at once, which takes up to twice as many "
        "fetches between brokers.",
        allowed=("leader", "org.apache.kafka.common.replica.LeaderSelector", *RACK_AWARE),
        section=REPLICATION_SECTION,
    ),
)
