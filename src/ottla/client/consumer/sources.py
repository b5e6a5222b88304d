"""The brokers that a consumer fetches from, and what is on its way from each. The fetcher keeps them."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.client.consumer.fetch_session import FetchSession
from ottla.client.consumer.partition import Partition
from ottla.client.metadata import Node, TopicPartition

FULL_PATIENCE_MS: Final = 100


class Source:
    """A broker that is fetched from: its session, and when it may be asked again."""

    __slots__ = ("failures", "full_since_ms", "is_fetching", "not_before_ms", "session")

    def __init__(self) -> None:
        self.session = FetchSession()
        self.is_fetching = False
        self.failures = 0
        self.not_before_ms = 0.0
        #: Since when it waits for a partition that is full; None: it does not.
        self.full_since_ms: float | None = None

    def patience_ms(self, is_busy: bool, now: float) -> float:
        """How long the others wait for a partition that is full."""
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
    """What an answer may bring, and how long it may be held."""

    bytes_max: int
    wait_ms: int


class Asked(NamedTuple):
    """One fetch on its way: who was asked for what, and when. Topics are known by their id, or by name where ids are not."""

    node: Node
    broker: str
    partitions: dict[TopicPartition, tuple[Partition, int]]
    names: dict[bytes, str]
    since_ms: float
