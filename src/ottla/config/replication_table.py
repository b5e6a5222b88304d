"""The settings of replication between the brokers of a cluster, under Kafka's names."""

from __future__ import annotations

from ottla.config.definition import CLUSTER_WIDE, READ_ONLY, Definition

REPLICATION_SECTION = "Replication"


def _number(
    name: str,
    default: int,
    doc: str,
    *,
    kind: str = "int",
    unit: str = "",
    minimum: int = 1,
    maximum: int | None = None,
    dynamic: str = READ_ONLY,
) -> Definition:
    return Definition(
        name,
        kind,
        str(default),
        doc,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        dynamic=dynamic,
        section=REPLICATION_SECTION,
    )


REPLICATION = (
    _number(
        "num.replica.fetchers",
        1,
        "Connections to each other broker on which this one fetches what it follows.",
        maximum=64,
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
)
