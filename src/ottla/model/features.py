"""Cluster-wide features by Kafka's names (KIP-584): supported levels and finalized level.

Each feature has one level, so supported minimum, supported maximum and finalized level are the same number.
Level 0: Kafka knows the feature, and this broker does not have it. The levels are those of Kafka 4.0
(`kafka-features upgrade --release-version 4.0` requests exactly these). Features that Kafka 4.1 and later
added are at level 0.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Feature(NamedTuple):
    level: int
    #: The meaning of the level; for level 0, what is missing.
    meaning: str


FEATURES: Final[dict[str, Feature]] = {
    "eligible.leader.replicas.version": Feature(0, "there are no eligible leader replicas (KIP-966)"),
    "group.version": Feature(1, "the consumer group protocol of KIP-848 is on"),
    "kraft.version": Feature(
        1, "controllers come and go without configuration (KIP-853), though not by Raft"
    ),
    "metadata.version": Feature(25, "the cluster behaves as Kafka 4.0-IV3"),
    "share.version": Feature(0, "there are no share groups (KIP-932)"),
    "streams.version": Feature(0, "there are no streams groups (KIP-1071)"),
    "transaction.version": Feature(2, "transactions are those of KIP-890, part 2"),
}
