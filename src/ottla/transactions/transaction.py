"""One transactional id: who produces under it, what its transaction is at, and the table of how states follow each other.

Everything but the deadline follows from the last record (`Entry`), so that a coordinator that has just loaded knows what the one
before it knew. `after` makes the next record; the state becomes what it says when the host replays it.

A producer is known by its id and epoch. Clients of old (transactions of version 1) keep their epoch until they begin anew; since
KIP-890 (version 2) the epoch is raised at the end of every transaction, so that nothing of one can land in the next, and a
repeated request is known by the epoch before. `standing` is the one place that compares.

Called by `initializing.py`, `adding.py`, `ending.py` and `completing.py`, which own the transitions' reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

from ottla.model.errors import ErrorCode
from ottla.transactions.formats import EPOCH_MAX, NO_EPOCH, NO_ID, Entry, Record, State

#: Versions of transactions, as records have them. Clients of version 1 and before are all the same here.
V1: Final = 0
V2: Final = 2

#: The memory of a partition of a transaction.
PLACE_BYTES: Final = 150


class Event(Enum):
    """What happens to a transactional id. The values are the labels of the diagram."""

    INITIALIZED = "InitProducerId"
    ADDED = "partitions or offsets are added"
    COMMITTED = "EndTxn: commit"
    ABORTED = "EndTxn: abort"
    FENCED = "a new producer fences it, or it times out"
    MARKED = "every partition has its marker"
    EXPIRED = "unused for transactional.id.expiration.ms"


_ENDED: Final = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
PREPARED: Final = (State.PREPARE_COMMIT, State.PREPARE_ABORT)

#: The whole life of a transactional id. What is not here cannot happen.
TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    (State.EMPTY, Event.INITIALIZED): State.EMPTY,
    (State.EMPTY, Event.ADDED): State.ONGOING,
    (State.EMPTY, Event.ABORTED): State.PREPARE_ABORT,
    (State.EMPTY, Event.EXPIRED): State.DEAD,
    (State.ONGOING, Event.ADDED): State.ONGOING,
    (State.ONGOING, Event.COMMITTED): State.PREPARE_COMMIT,
    (State.ONGOING, Event.ABORTED): State.PREPARE_ABORT,
    (State.ONGOING, Event.FENCED): State.PREPARE_ABORT,
    (State.PREPARE_COMMIT, Event.MARKED): State.COMPLETE_COMMIT,
    (State.PREPARE_ABORT, Event.MARKED): State.COMPLETE_ABORT,
    (State.COMPLETE_COMMIT, Event.INITIALIZED): State.EMPTY,
    (State.COMPLETE_COMMIT, Event.ADDED): State.ONGOING,
    (State.COMPLETE_COMMIT, Event.ABORTED): State.PREPARE_ABORT,
    (State.COMPLETE_COMMIT, Event.EXPIRED): State.DEAD,
    (State.COMPLETE_ABORT, Event.INITIALIZED): State.EMPTY,
    (State.COMPLETE_ABORT, Event.ADDED): State.ONGOING,
    (State.COMPLETE_ABORT, Event.ABORTED): State.PREPARE_ABORT,
    (State.COMPLETE_ABORT, Event.EXPIRED): State.DEAD,
}


class ProducerMatch(Enum):
    """How an id and epoch that somebody comes with stand to those of the record."""

    #: They are the same.
    CURRENT = auto()
    #: What they were before the epoch was raised last, by whoever has the present one or was not answered.
    PREVIOUS = auto()
    #: What they will be as soon as the transaction that ends now is complete.
    NEXT = auto()
    #: An epoch that somebody else has passed, or that nobody has been given.
    FENCED = auto()
    #: Another producer's id.
    OTHER = auto()


#: What those hear who must be PRESENT.
REFUSALS: Final[Mapping[ProducerMatch, ErrorCode]] = {
    ProducerMatch.PREVIOUS: ErrorCode.PRODUCER_FENCED,
    ProducerMatch.NEXT: ErrorCode.CONCURRENT_TRANSACTIONS,
    ProducerMatch.FENCED: ErrorCode.PRODUCER_FENCED,
    ProducerMatch.OTHER: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}


class Transaction:
    __slots__ = ("deadline_ms", "entry", "transactional_id")

    def __init__(self, transactional_id: str, entry: Entry) -> None:
        self.transactional_id = transactional_id
        self.entry = entry
        #: When an ongoing transaction is aborted; None for one that may take for ever (Kafka's two-phase commit).
        self.deadline_ms: int | None = None

    @property
    def state(self) -> State:
        return self.entry.state

    @property
    def size(self) -> int:
        """The bytes of its id and of its partitions, about."""
        return len(self.transactional_id) + PLACE_BYTES * len(self.entry.partitions)

    @property
    def is_prepared(self) -> bool:
        return self.entry.state in PREPARED

    @property
    def epochs_exhausted(self) -> bool:
        return self.entry.producer_epoch >= EPOCH_MAX - 1

    @property
    def previous_producer(self) -> tuple[int, int] | None:
        """The id and epoch before the last raise, if the request that led to it may be repeated."""
        entry = self.entry
        if entry.state is State.EMPTY:
            last_epoch = entry.last_epoch
        elif entry.client_version >= V2 and (entry.state in PREPARED or entry.state in _ENDED):
            # An epoch of 0 is that of a new id: the old one's epochs were used up.
            last_epoch = (entry.producer_epoch or EPOCH_MAX) - 1
        else:
            last_epoch = NO_EPOCH
        if last_epoch == NO_EPOCH:
            return None
        return entry.previous_producer_id if entry.producer_epoch == 0 else entry.producer_id, last_epoch

    @property
    def next_producer(self) -> tuple[int, int]:
        """The id and epoch with which the producer goes on after this transaction."""
        entry = self.entry
        if entry.next_producer_id != NO_ID:
            return entry.next_producer_id, 0
        return entry.producer_id, entry.producer_epoch

    def match_producer(self, producer_id: int, producer_epoch: int) -> ProducerMatch:
        entry = self.entry
        given = (producer_id, producer_epoch)
        if given == self.previous_producer:
            return ProducerMatch.PREVIOUS
        if entry.client_version >= V2 and entry.state in PREPARED:
            if given == self.next_producer:
                return ProducerMatch.NEXT
            return ProducerMatch.FENCED if producer_id == entry.producer_id else ProducerMatch.OTHER
        if producer_id != entry.producer_id:
            return ProducerMatch.OTHER
        return ProducerMatch.CURRENT if producer_epoch == entry.producer_epoch else ProducerMatch.FENCED

    def after(self, event: Event, wall_ms: int, **changes: Any) -> Record:
        """The record that makes it what it is after an event."""
        entry = self.entry
        usual = {
            "state": TRANSITIONS[entry.state, event], "updated_ms": wall_ms,
            "previous_producer_id": entry.producer_id, "last_epoch": NO_EPOCH,
        }  # fmt: skip
        return Record(self.transactional_id, entry._replace(**{**usual, **changes}))
