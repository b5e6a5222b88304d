"""The brokers that a consumer fetches from, and the fetch in flight to each. Owned by the fetcher."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.client.consumer.fetch_session import FetchSession
from ottla.client.consumer.partition import Partition
from ottla.client.metadata import Node, TopicPartition

FULL_PATIENCE_MS: Final = 100


class Source:
    """A broker to fetch from: its session, and when it may be asked again."""

    __slots__ = ("failures", "full_since_ms", "is_fetching", "not_before_ms", "session")

    def __init__(self) -> None:
        self.session = FetchSession()
        self.is_fetching = False
        self.failures = 0
        self.not_before_ms = 0.0
        #: Since when it waits for a full partition; None if it does not.
        self.full_since_ms: float | None = None

    def patience_ms(self, is_busy: bool, now: float) -> float:
        """How long the other partitions wait for a full one."""
        if not is_busy:
            self.full_since_ms = None
            return 0.0
        if self.full_since_ms is None:
            self.full_since_ms = now
        left_ms = self.full_since_ms + FULL_PATIENCE_MS - now
        if left_ms <= 0:
            self.full_since_ms = now
        return left_ms


class Room(NamedTuple):
    """The size limit of a response, and how long the broker may hold the request."""

    bytes_max: int
    wait_ms: int


class Asked(NamedTuple):
    """One fetch in flight: its partitions and its time. Topics are keyed by id, or by name if there are no
    ids.
    """

    node: Node
    broker: str
    partitions: dict[TopicPartition, tuple[Partition, int]]
    names: dict[bytes, str]
    since_ms: float
