"""What the shards of transactions are handed, and what they hand out: markers. How they decide and are answered is in
`ports/coordination.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.transactions.formats import Place, Record

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.ports.coordination import Decision, Timers


class Marker(NamedTuple):
    """What is written into each partition of a transaction at its end."""

    producer_id: int
    producer_epoch: int
    commit: bool
    #: The leader epoch of the coordinator's partition: a partition refuses the markers of an earlier coordinator (R18).
    coordinator_epoch: int
    #: With version 2 the epoch is one that no record of this transaction has: a partition that has it in an open
    #: transaction is at the next one, and must refuse a late copy of this marker (KIP-890).
    transaction_version: int


class Owed(NamedTuple):
    """What one broker is to write for one transaction."""

    node_id: int
    transactional_id: str
    marker: Marker
    partitions: tuple[Place, ...]


class TransactionHost(Protocol):
    """What a shard is handed: time, settings, the cluster as its broker knows it, and somebody who carries out its decisions."""

    @property
    def timers(self) -> Timers: ...

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def now_ms(self) -> int:
        """What deadlines go by."""

    @property
    def wall_ms(self) -> int:
        """The date of what happens now."""

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch of the shard's partition."""

    @property
    def is_writable(self) -> bool:
        """Whether a decision can be written now. What the shard does by itself waits until it can; requests are not let in."""

    def decided(self, decision: Decision[Record]) -> None: ...

    def fits(self, record: Record) -> bool:
        """Whether a record can be written at all: it may be too long."""

    def has_room(self, ids: int, size: int) -> bool:
        """Whether this broker can hold this many more transactional ids and bytes (`model/limits.py`)."""

    def new_producer_id(self, done: Callable[[int | None], None]) -> None:
        """`done` hears of a producer id that nobody has had, at once or later; None if there is none to be had now."""

    def send_markers(self, owed: Sequence[Owed]) -> None:
        """Have markers written. Each `Owed` is answered once, by `Shard.markers_answered`, at once or later."""

    def leader(self, place: Place) -> int | None:
        """Who leads a partition; -1 if nobody does now, None if there is no such partition (any more)."""

    def offsets_partition(self, group_id: str) -> Place | None:
        """The partition that holds a group's offsets; None while there is no such topic."""
