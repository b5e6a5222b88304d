"""One transactional id: its producer, the state of its transaction, and the table of state transitions.

All state but the deadline is in the last record (`Entry`). So a coordinator that has just loaded knows what
the previous one knew. `after` builds the next record; the state changes when the host replays it.

A producer is identified by its id and epoch. Clients before KIP-890 (transactions of version 1) keep their
epoch until they initialize again. Since KIP-890 (version 2) the end of every transaction raises the epoch. So
no batch of one transaction can land in the next, and a retry is recognized by the previous epoch. Only
`match_producer` compares them.

Called by `init_producer_id.py`, `add_partitions.py`, `end_txn.py` and `completion.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

from ottla.model.errors import ErrorCode
from ottla.transactions.formats import EPOCH_MAX, NO_EPOCH, NO_ID, Entry, Record, State

#: The transaction versions in records. Versions 0 and 1 are treated alike.
V1: Final = 0
V2: Final = 2

#: The memory for one partition of a transaction.
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

#: All transitions of a transactional id.
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
    """How the id and epoch in a request compare with those of the record."""

    #: The current ones.
    CURRENT = auto()
    #: The ones before the epoch was last raised: a retry.
    PREVIOUS = auto()
    #: The ones after the transaction that is ending now.
    NEXT = auto()
    #: The current id with an epoch that was fenced, or never allocated.
    FENCED = auto()
    #: The id of another producer.
    OTHER = auto()


#: The errors for requests that need CURRENT.
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
        #: When an ongoing transaction is aborted; None without a timeout (Kafka's two-phase commit).
        self.deadline_ms: int | None = None

    @property
    def state(self) -> State:
        return self.entry.state

    @property
    def size(self) -> int:
        """The approximate bytes of its id and partitions."""
        return len(self.transactional_id) + PLACE_BYTES * len(self.entry.partitions)

    @property
    def is_prepared(self) -> bool:
        return self.entry.state in PREPARED

    @property
    def epochs_exhausted(self) -> bool:
        return self.entry.producer_epoch >= EPOCH_MAX - 1

    @property
    def previous_producer(self) -> tuple[int, int] | None:
        """The id and epoch before the last raise, if the request that raised it may be retried."""
        entry = self.entry
        if entry.state is State.EMPTY:
            last_epoch = entry.last_epoch
        elif entry.client_version >= V2 and (entry.state in PREPARED or entry.state in _ENDED):
            # Epoch 0 is that of a new id: the epochs of the old one were used up.
            last_epoch = (entry.producer_epoch or EPOCH_MAX) - 1
        else:
            last_epoch = NO_EPOCH
        if last_epoch == NO_EPOCH:
            return None
        return entry.previous_producer_id if entry.producer_epoch == 0 else entry.producer_id, last_epoch

    @property
    def next_producer(self) -> tuple[int, int]:
        """The id and epoch of the producer after this transaction."""
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
        """The record that applies an event."""
        entry = self.entry
        usual = {
            "state": TRANSITIONS[entry.state, event], "updated_ms": wall_ms,
            "previous_producer_id": entry.producer_id, "last_epoch": NO_EPOCH,
        }  # fmt: skip
        return Record(self.transactional_id, entry._replace(**{**usual, **changes}))
