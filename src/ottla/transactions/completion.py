"""From Prepare… to Complete…: the markers that a transaction's partitions are still owed.

It begins when the Prepare record counts, not before: from then on the end is final, and whoever coordinates next goes on with it
(R18). Each partition is told by its leader, again and again until it has its marker or does not exist any more. A marker may come
twice to a partition; that does no harm, and what is owed is known from the record alone, so nothing about single markers is
written down. When nothing is owed the Complete record is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.model.errors import ErrorCode
from ottla.ports.coordination import Alarm
from ottla.transactions.formats import NO_ID, Place, State
from ottla.transactions.host import Marker, MarkerRequest
from ottla.transactions.transaction import Event, Transaction

if TYPE_CHECKING:
    from ottla.transactions.shard import Shard

#: Between two attempts, twice as long each time.
_RETRY_MS_MIN: Final = 20
_RETRY_MS_MAX: Final = 1_000

#: A partition that has its marker, or that cannot have one since its format knows no transactions. Anything else is tried again:
#: most of it passes (a leader that moves, a coordinator of groups that loads), and what does not must be seen, not forgotten.
_FINAL_CODES: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)


class Completion:
    """What is left to be done for one transaction."""

    __slots__ = ("alarm", "retry_ms", "sent", "transaction", "unmarked")

    def __init__(self, transaction: Transaction, alarm: Alarm) -> None:
        self.transaction = transaction
        self.alarm = alarm
        self.retry_ms = _RETRY_MS_MIN
        self.unmarked: set[Place] = set(transaction.entry.partitions)
        #: What has been sent and not been answered.
        self.sent: dict[Place, MarkerRequest] = {}


class PendingCompletions:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host
        #: By transactional id.
        self.pending: dict[str, Completion] = {}

    def begin(self, transactional_id: str) -> None:
        """The Prepare record counts."""
        transaction = self._shard.transactions[transactional_id]
        assert transaction.is_prepared and transactional_id not in self.pending
        # By its id: an alarm that refers to its completion would be a reference cycle.
        alarm = Alarm(self._host.timers, partial(self._retry, transactional_id))
        completion = self.pending[transactional_id] = Completion(transaction, alarm)
        self._send_unmarked(completion)

    def _retry(self, transactional_id: str, _now_ms: int) -> None:
        completion = self.pending.get(transactional_id)
        if completion is not None:
            self._send_unmarked(completion)

    def answered(self, request: MarkerRequest, codes: Mapping[Place, ErrorCode]) -> None:
        """What a broker says of its partitions; those of which it says nothing have to be told again."""
        completion = self.pending.get(request.transactional_id)
        if completion is None:
            return
        for place in request.partitions:
            if completion.sent.get(place) is request:
                del completion.sent[place]
                if codes.get(place, ErrorCode.UNKNOWN_SERVER_ERROR) in _FINAL_CODES:
                    completion.unmarked.discard(place)
        if not completion.unmarked:
            self._complete(completion)
        elif len(completion.sent) < len(completion.unmarked):
            self._schedule_retry(completion)

    def unload(self) -> None:
        for completion in self.pending.values():
            completion.alarm.clear()
        self.pending.clear()

    def _send_unmarked(self, completion: Completion) -> None:
        by_node: dict[int, list[Place]] = {}
        has_leaders = True
        for place in sorted(completion.unmarked - completion.sent.keys()):
            leader = self._host.leader(place)
            if leader is None:
                # Its topic was deleted, and with it what the marker would have been about.
                completion.unmarked.discard(place)
            elif leader < 0:
                has_leaders = False
            else:
                by_node.setdefault(leader, []).append(place)
        if not completion.unmarked:
            self._complete(completion)
            return
        if not has_leaders:
            self._schedule_retry(completion)
        self._send(completion, by_node)

    def _send(self, completion: Completion, by_node: Mapping[int, list[Place]]) -> None:
        entry, transactional_id = completion.transaction.entry, completion.transaction.transactional_id
        marker = Marker(
            entry.producer_id, entry.producer_epoch, entry.state is State.PREPARE_COMMIT, self._host.coordinator_epoch,
            entry.client_version,
        )  # fmt: skip
        sent = [
            MarkerRequest(node_id, transactional_id, marker, tuple(places))
            for node_id, places in by_node.items()
        ]
        for request in sent:
            completion.sent.update(dict.fromkeys(request.partitions, request))
        if sent:
            # Last of all: they may be answered at once.
            self._host.send_markers(sent)

    def _schedule_retry(self, completion: Completion) -> None:
        if not completion.alarm.is_set:
            completion.alarm.set(self._host.now_ms + completion.retry_ms)
            completion.retry_ms = min(2 * completion.retry_ms, _RETRY_MS_MAX)

    def _complete(self, completion: Completion) -> None:
        if not self._host.is_writable:
            self._schedule_retry(completion)
            return
        completion.alarm.clear()
        transaction = completion.transaction
        del self.pending[transaction.transactional_id]
        producer_id, producer_epoch = transaction.next_producer
        record = transaction.after(
            Event.MARKED,
            self._host.wall_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            next_producer_id=NO_ID,
            partitions=frozenset(),
        )
        self._shard.write([record])
