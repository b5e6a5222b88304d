"""Verification of transactional batches: before the first batch of a transaction, the partition leader asks
the transaction coordinator (R17, KIP-890).

Without the check, a late batch could open a transaction that no coordinator ends. For clients of version 1
the coordinator verifies that they have added the partition. For clients of version 2 it adds the partition.

A positive answer is valid under these conditions:

- This broker led the partition all the time.
- Version 1: no marker arrived meanwhile, since that would be the marker of this very transaction. In version
  2 it may be the marker of the previous transaction; an own marker has a higher epoch, and the append refuses
  the batch.
- Version 1: no newer coordinator has written a marker. If the image still names the older coordinator, it is
  not asked.

Batches that a producer sends during the check wait behind it, to keep their order. A batch refused with a
retriable error is sent again. If the partition does not know the producer, later batches are rejected until
the refused one is resent.

Called by `api/produce.py` and `api/txn_offset_commit.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ottla.broker.coordinators.transaction_coordinator import TRANSACTIONS_TOPIC
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.strings import is_name
from ottla.model.timer_wheel import Later
from ottla.ports.disk import DiskError
from ottla.ports.effects import ASK
from ottla.transactions.add_partitions import Add
from ottla.transactions.formats import Place
from ottla.wire.decode import MalformedMessage, decode_response
from ottla.wire.encode import request_encoder

if TYPE_CHECKING:
    from ottla.broker.coordinators.host import TxnVerificationHost
    from ottla.replication.replica import Replica

_ADD_PARTITIONS: Final = 24
_VERSION: Final = 5
#: The lane of ASK: produce requests wait for it.
_LANE: Final = -3

#: While the previous transaction completes: the retry interval, and the total time before the produce fails.
_RETRY_MS: Final = 20
_PATIENCE_MS: Final = 100

#: The timeout of one check: the coordinator may be dead. The client retries before its own request timeout. A
#: later answer is ignored.
_ANSWER_MS: Final = 10_000

#: Upper bound on the bytes of waiting requests. Beyond it requests are refused, and clients retry.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024

#: Upper bound on `_lowest`. Most entries are removed with the first batch.
_LOWEST_MAX: Final = 10_000
_SEQUENCE_MASK: Final = 0x7FFFFFFF

Codes: TypeAlias = dict[Place, ErrorCode]
Done: TypeAlias = Callable[[Mapping[Place, ErrorCode]], None]


class Producer(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int


class _Guard:
    """Notes changes of a partition during a check."""

    __slots__ = ("_leader_epoch", "_replica", "is_marked")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._leader_epoch = replica.leader_epoch
        self.is_marked = False

    @property
    def is_moved(self) -> bool:
        return self._replica.leader_epoch != self._leader_epoch

    def coordinator_epoch(self, producer_id: int) -> int:
        try:
            known = self._replica.log.producers.by_id.get(producer_id)
        except DiskError:
            # The append will return the error.
            return -1
        return -1 if known is None else known.coordinator_epoch


class TxnVerification:
    def __init__(self, broker: TxnVerificationHost) -> None:
        self._broker = broker
        #: Producers with a check in progress, and their requests that wait behind it.
        self._lines: dict[Producer, deque[Callable[[], None]]] = {}
        #: The bytes of waiting requests.
        self.held_bytes = 0
        #: By partition and producer id: the checks in progress. Two epochs of one producer may be checked at
        #: once.
        self._guards: dict[tuple[Place, int], dict[Producer, _Guard]] = {}
        #: By partition and producer id: the epoch and the lowest sequence of the batches not appended yet.
        self._lowest: dict[tuple[Place, int], tuple[int, int]] = {}

    def is_busy(self, producer: Producer) -> bool:
        """Whether a check of this producer is in progress."""
        return producer in self._lines

    def waits(self, producer: Producer, again: Callable[[], None]) -> bool:
        """If a check of this producer is in progress, call `again` after it and return True."""
        line = self._lines.get(producer)
        if line is None:
            return False
        line.append(again)
        return True

    def verify(
        self, producer: Producer, replicas: Mapping[Place, Replica], *, adds: bool, done: Done
    ) -> None:
        """Check partitions that this broker leads; `done` gets an error code for each, now or later."""
        assert producer not in self._lines
        self._lines[producer] = deque()
        for place, replica in replicas.items():
            self._guards.setdefault((place, producer.producer_id), {})[producer] = _Guard(replica)
        places = frozenset(replicas)
        give_up_ms = self._broker.now_ms + _PATIENCE_MS
        is_over = False

        def ask() -> None:
            if not is_over:
                self._ask(producer, places, adds, answered)

        def answered(codes: Codes) -> None:
            nonlocal is_over
            if is_over:
                return
            if (
                adds
                and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
                and self._broker.now_ms < give_up_ms
            ):
                self._broker.timers.add(Later(ask), self._broker.now_ms + _RETRY_MS)
                return
            is_over = True
            self._broker.timers.cancel(limit)
            self._finish(producer, codes, done, is_guarded=not adds)

        limit = Later(lambda: answered(dict.fromkeys(places, ErrorCode.NETWORK_EXCEPTION)))
        self._broker.timers.add(limit, self._broker.now_ms + _ANSWER_MS)
        ask()

    def marked(self, place: Place, producer_id: int) -> None:
        """A marker was appended: checks that began before it are not valid for batches after it."""
        for guard in self._guards.get((place, producer_id), {}).values():
            guard.is_marked = True
        self.taken(place, producer_id)

    # --- the first batch ------------------------------------------------------------------------------------

    def sent(self, place: Place, producer: Producer, sequence: int) -> None:
        """A batch has arrived that needs a check."""
        key = (place, producer.producer_id)
        epoch, lowest = self._lowest.get(key, (-1, 0))
        if producer.producer_epoch > epoch:
            self._lowest[key] = (producer.producer_epoch, sequence)
            if len(self._lowest) > _LOWEST_MAX:
                del self._lowest[next(iter(self._lowest))]
        elif producer.producer_epoch == epoch and _is_behind(sequence, lowest):
            self._lowest[key] = (epoch, sequence)

    def is_first(self, place: Place, producer: Producer, sequence: int) -> bool:
        """Whether no earlier batch is still to be resent."""
        epoch, lowest = self._lowest.get((place, producer.producer_id), (-1, 0))
        return producer.producer_epoch != epoch or not _is_behind(lowest, sequence)

    def taken(self, place: Place, producer_id: int) -> None:
        """A batch or marker of the producer was appended: the log checks the next sequence itself."""
        self._lowest.pop((place, producer_id), None)

    # --- the answer -----------------------------------------------------------------------------------------

    def _finish(self, producer: Producer, codes: Codes, done: Done, *, is_guarded: bool) -> None:
        for place, code in codes.items():
            guard = self._unguard(place, producer)
            if code is not ErrorCode.NONE:
                continue
            if guard.is_moved:
                codes[place] = ErrorCode.NOT_COORDINATOR
            elif guard.is_marked and is_guarded:
                codes[place] = ErrorCode.INVALID_TXN_STATE
        line = self._lines.pop(producer)
        run = self._broker.isolation.run
        run("a produce in a transaction", done, codes)
        while line:
            run("a produce in a transaction", line.popleft())
            behind = self._lines.get(producer)
            if behind is not None:
                behind.extend(line)
                return

    def _unguard(self, place: Place, producer: Producer) -> _Guard:
        guards = self._guards[place, producer.producer_id]
        guard = guards.pop(producer)
        if not guards:
            del self._guards[place, producer.producer_id]
        return guard

    # --- the coordinator ------------------------------------------------------------------------------------

    def _ask(
        self, producer: Producer, places: frozenset[Place], adds: bool, done: Callable[[Codes], None]
    ) -> None:
        broker = self._broker
        if not is_name(producer.transactional_id):
            return done(dict.fromkeys(places, ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        number = broker.transactions.partition_number(producer.transactional_id)
        if number is None:
            return done(dict.fromkeys(places, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        partition = broker.image.topics[TRANSACTIONS_TOPIC].partitions[number]
        leader = partition.leader
        if not adds and partition.leader_epoch < self._newest_coordinator(producer, places):
            # A newer coordinator has written a marker: the one in the image may not know that the transaction
            # has ended.
            return done(dict.fromkeys(places, ErrorCode.NOT_COORDINATOR))
        if leader == broker.lifecycle.node_id:
            return self._ask_here(producer, places, adds, done)
        node = broker.image.brokers.get(leader)
        if node is None or node.fenced:
            return done(dict.fromkeys(places, ErrorCode.COORDINATOR_NOT_AVAILABLE))

        def answered(body: memoryview | None, _error: str | None) -> None:
            codes = dict.fromkeys(places, ErrorCode.NETWORK_EXCEPTION)
            if body is not None:
                codes.update(_codes(body, places))
            done(codes)

        body = request_encoder(_ADD_PARTITIONS, _VERSION)({"transactions": [_row(producer, places, adds)]})
        peer = (node.node_id, node.host, node.port)
        broker.outbox.append((ASK, peer, _LANE, _ADD_PARTITIONS, _VERSION, body, answered))
        return None

    def _newest_coordinator(self, producer: Producer, places: Collection[Place]) -> int:
        """The largest coordinator epoch in the markers of this producer in these partitions."""
        guards = [self._guards[place, producer.producer_id][producer] for place in places]
        return max(guard.coordinator_epoch(producer.producer_id) for guard in guards)

    def _ask_here(
        self, producer: Producer, places: frozenset[Place], adds: bool, done: Callable[[Codes], None]
    ) -> None:
        transactions = self._broker.transactions
        try:
            partition = transactions.writable_partition(producer.transactional_id)
        except Refusal as refusal:
            if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and transactions.wait_for_load(
                producer.transactional_id, lambda: self._ask(producer, places, adds, done)
            ):
                return None
            return done(dict.fromkeys(places, refusal.code))
        request = Add(*producer, places, _VERSION, verify_only=not adds)
        reply = _Reply(self._broker, places, done)
        partition.shard.add_partitions.add(request, reply)
        reply.is_late = True
        return None


class _Reply:
    """The response of a coordinator on this broker: now, or when its record is committed."""

    __slots__ = ("_broker", "_done", "_places", "is_late")

    def __init__(
        self, broker: TxnVerificationHost, places: Collection[Place], done: Callable[[Codes], None]
    ) -> None:
        self._broker = broker
        self._places = places
        self._done = done
        self.is_late = False

    def answer(self, response: Mapping[str, Any]) -> None:
        self._finish({place: ErrorCode(code) for place, code in response["partitions"].items()})

    def refuse(self, code: ErrorCode) -> None:
        self._finish(dict.fromkeys(self._places, code))

    def _finish(self, codes: Codes) -> None:
        if self.is_late:
            self._broker.put_off(lambda: self._done(codes))
        else:
            self._done(codes)


def _is_behind(sequence: int, other: int) -> bool:
    """Whether `sequence` is before `other`; sequences wrap around to 0."""
    return 0 < (other - sequence) & _SEQUENCE_MASK < 1 << 30


def _row(producer: Producer, places: Collection[Place], adds: bool) -> dict[str, Any]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(places):
        by_topic.setdefault(topic, []).append(number)
    return {
        **producer._asdict(),
        "verify_only": not adds,
        "topics": [{"name": topic, "partitions": numbers} for topic, numbers in by_topic.items()],
    }


def _codes(body: memoryview, places: Collection[Place]) -> Codes:
    """The error codes of the requested partitions in the response."""
    try:
        answer = decode_response(_ADD_PARTITIONS, _VERSION, body, 0)
    except MalformedMessage:
        return {}
    if int(answer.error_code):
        return dict.fromkeys(places, ErrorCode(int(answer.error_code)))
    return {
        (topic.name, row.partition_index): ErrorCode(int(row.partition_error_code))
        for each in answer.results_by_transaction
        for topic in each.topic_results
        for row in topic.results_by_partition
        if (topic.name, row.partition_index) in places
    }
