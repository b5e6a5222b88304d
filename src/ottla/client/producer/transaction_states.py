"""The states of a transactional producer and the contents of its transaction, without I/O.

    INITIALIZING --> READY --> ONGOING --> COMMITTING --> READY
                                 |  \\          |
                                 |   ABORTABLE <+  (something failed: only abort() is left)
                                 v       v
                                 ABORTING --> READY          FATAL from everywhere: only close() is left

There are two protocols. In v1, each partition is added to the transaction before its first batch (`admitted`
holds the batch back until then), and each group before its offsets. In v2 (KIP-890), partitions join with
their first batch and groups with their offsets. Every end of a transaction gives a new epoch, so that a late
batch of one transaction cannot get into the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto

from ottla.client.errors import (
    ClientClosed,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    TransactionMisused,
)
from ottla.client.metadata import TopicPartition
from ottla.client.producer.batches import ProducerId
from ottla.model.errors import ErrorCode


class State(Enum):
    INITIALIZING = auto()
    READY = auto()
    ONGOING = auto()
    COMMITTING = auto()
    ABORTABLE = auto()
    ABORTING = auto()
    FATAL = auto()


TRANSITIONS: dict[State, frozenset[State]] = {
    State.INITIALIZING: frozenset({State.READY, State.FATAL}),
    State.READY: frozenset({State.ONGOING, State.FATAL}),
    State.ONGOING: frozenset({State.COMMITTING, State.ABORTABLE, State.ABORTING, State.FATAL}),
    State.COMMITTING: frozenset({State.READY, State.ONGOING, State.ABORTABLE, State.FATAL}),
    State.ABORTABLE: frozenset({State.ABORTING, State.FATAL}),
    State.ABORTING: frozenset({State.READY, State.FATAL}),
    State.FATAL: frozenset(),
}

#: Errors that an abort resolves.
ABORTABLE_CODES = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    }
)
#: Errors of a batch after which an abort would fail too. INVALID_PRODUCER_EPOCH is not among them: the
#: coordinator answers the abort with PRODUCER_FENCED if the producer is fenced.
FATAL_OF_BATCHES = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


class TransactionStates:
    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.INITIALIZING
        self.error: KafkaError | None = None
        self.producer: ProducerId | None = None
        #: v2 transactions (KIP-890): partitions and groups join with their first batch or offsets.
        self.implicit = False
        #: Whether a broker may know the transaction, so that EndTxn is needed.
        self.started = False
        #: A batch with sequence numbers was given up: continue under a new epoch.
        self.gap = False
        self.partitions: set[TopicPartition] = set()
        self.pending: set[TopicPartition] = set()
        self.groups: set[str] = set()

    def _go(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state.name} to {state.name}"
        self.state = state

    def _misused(self, what: str, advice: str) -> TransactionMisused:
        return TransactionMisused(
            f"cannot {what}: the producer {self.transactional_id!r} {_DOING[self.state]}", advice=advice
        )

    # What the application asks for

    def initialized(self, producer: ProducerId, *, implicit: bool) -> None:
        if self.state is State.INITIALIZING:
            self._go(State.READY)
        self.producer, self.implicit = producer, implicit

    def check_between(self, what: str) -> None:
        """Raise if a transaction is open."""
        self._check_alive()
        if self.state is not State.READY:
            raise self._misused(what, "commit() or abort() first")

    def begin(self) -> None:
        self.check_between("begin")
        self._go(State.ONGOING)
        self.started = self.gap = False
        self.partitions.clear()
        self.pending.clear()
        self.groups.clear()

    def commit(self) -> None:
        """Start to commit. After a commit that timed out, a second call continues it."""
        self._check_alive()
        if self.state is State.COMMITTING:
            return
        if self.state is State.ABORTABLE:
            raise self._abortable("commit")
        if self.state is not State.ONGOING:
            raise self._misused("commit", "begin() first")
        self._go(State.COMMITTING)

    def commit_given_up(self) -> None:
        """The caller gave up the commit before EndTxn was sent."""
        if self.state is State.COMMITTING:
            self._go(State.ONGOING)

    def abort(self) -> None:
        self._check_alive()
        if self.state is State.COMMITTING:
            raise self._misused(
                "abort", "It may be committed already: call commit() again, or create a new producer"
            )
        if self.state is State.READY or self.state is State.INITIALIZING:
            raise self._misused("abort", "begin() first")
        if self.state is not State.ABORTING:
            self._go(State.ABORTING)

    def check_ongoing(self, what: str) -> None:
        refusal = self.refusal()
        if refusal is not None:
            self._check_alive()
            raise self._abortable(what) if self.state is State.ABORTABLE else refusal()

    def ended(self, producer: ProducerId | None) -> None:
        """The transaction has ended; with v2 the response has the next epoch."""
        if producer is not None:
            self.producer = producer
        self._go(State.READY)
        self.error = None

    def refusal(self) -> Callable[[], KafkaError] | None:
        """The error that `send` raises in this state; None if it may send."""
        if self.state is State.ONGOING:
            return None
        if self.state is State.ABORTABLE:
            return lambda: self._abortable("send")
        if self.state is State.FATAL:
            return self._fatal
        return lambda: self._misused("send", "begin() first, or send within `with producer.transaction():`")

    # What went wrong

    def perhaps_started(self) -> None:
        """The coordinator may have started the transaction, but its answer was lost: only a new epoch ends it
        for certain.
        """
        self.gap = self.gap or not self.started

    def failed(self, error: KafkaError, *, ending: bool = False) -> None:
        """A coordinator refused a request for good. `ending`: it was EndTxn."""
        if self.state in (State.FATAL, State.INITIALIZING):
            return
        if error.code not in ABORTABLE_CODES or (ending and self.state is State.ABORTING):
            self.fatal(error)
        elif self.state in (State.ONGOING, State.COMMITTING):
            self._fail(error)

    def batch_failed(self, error: KafkaError, *, numbered: bool) -> None:
        """A batch of the transaction failed for good."""
        self.gap = self.gap or numbered
        if error.code in FATAL_OF_BATCHES:
            self.fatal(error)
        elif self.state in (State.ONGOING, State.COMMITTING) and not isinstance(error, ClientClosed):
            self._fail(error)

    def _fail(self, error: KafkaError) -> None:
        self._go(State.ABORTABLE)
        self.error = error

    def fatal(self, error: KafkaError) -> None:
        if self.state is not State.FATAL:
            self._go(State.FATAL)
            self.error = error

    def _check_alive(self) -> None:
        if self.state is State.FATAL:
            raise self._fatal()

    def _fatal(self) -> KafkaError:
        assert self.error is not None
        kind = ProducerFenced if isinstance(self.error, ProducerFenced) else KafkaError
        error = kind(
            f"the producer {self.transactional_id!r} cannot be used any more: {self.error.message}",
            code=self.error.code,
            broker=self.error.broker,
            advice=self.error.advice or "Close it and create a new one",
        )
        error.__cause__ = self.error
        return error

    def _abortable(self, what: str) -> TransactionAbortable:
        assert self.error is not None
        error = TransactionAbortable(
            f"cannot {what}: a part of the transaction of {self.transactional_id!r} failed: "
            f"{self.error.message}",
            code=self.error.code,
            broker=self.error.broker,
            topic=self.error.topic,
            partition=self.error.partition,
            advice="abort() and try again",
        )
        error.__cause__ = self.error
        return error

    # What is in it

    def admitted(self, tp: TopicPartition) -> bool:
        """Whether batches for the partition may be sent. If not, the partition becomes pending."""
        if tp in self.partitions:
            return True
        if self.implicit:
            self.partitions.add(tp)
            self.started = True
            return True
        self.pending.add(tp)
        return False

    def added(self, tps: Collection[TopicPartition]) -> None:
        self.partitions.update(tps)
        self.pending.difference_update(tps)


_DOING = {
    State.INITIALIZING: "is not ready yet",
    State.READY: "is in no transaction",
    State.ONGOING: "is in a transaction",
    State.COMMITTING: "has a commit under way",
    State.ABORTABLE: "has a transaction that must be aborted",
    State.ABORTING: "has an abort under way",
    State.FATAL: "cannot be used any more",
}
