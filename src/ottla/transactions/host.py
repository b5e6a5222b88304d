"""What a transaction shard gets from its host, and the markers that it sends.

The host is `broker/coordinators/transaction_coordinator.py`. How a shard decides and responds is in
`ports/coordination.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ottla.ports.coordination import ShardHost
from ottla.transactions.formats import Place, Record


class Marker(NamedTuple):
    """The control record that ends a transaction in each of its partitions."""

    producer_id: int
    producer_epoch: int
    commit: bool
    #: The leader epoch of the coordinator partition: a partition refuses markers of an earlier coordinator
    #: (R18).
    coordinator_epoch: int
    #: In version 2 no record of the transaction has the marker's epoch. A partition with that epoch in an
    #: open transaction is in the next one, and must refuse a late copy of this marker (KIP-890).
    transaction_version: int


class MarkerRequest(NamedTuple):
    """The markers of one transaction that one broker has to write."""

    node_id: int
    transactional_id: str
    marker: Marker
    partitions: tuple[Place, ...]


class TransactionHost(ShardHost[Record], Protocol):
    """Also the monotonic clock, producer ids, markers and the partition leaders of the cluster."""

    @property
    def now_ms(self) -> int:
        """The monotonic clock, for deadlines."""

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch of the coordinator partition."""

    def has_capacity(self, ids: int, size: int) -> bool:
        """Whether this broker can hold this many more transactional ids and bytes (`model/limits.py`)."""

    def new_producer_id(self, done: Callable[[int | None], None]) -> None:
        """Call `done` with an unused producer id, at once or later; with None if none is available."""

    def send_markers(self, requests: Sequence[MarkerRequest]) -> None:
        """Write markers. `Shard.markers_answered` is called once for each request, at once or later."""

    def leader(self, place: Place) -> int | None:
        """The leader of a partition: -1 if it has none, None if the partition does not exist."""

    def offsets_partition(self, group_id: str) -> Place | None:
        """The partition of `__consumer_offsets` for a group; None while the topic does not exist."""
