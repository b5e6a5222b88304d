"""From Prepare… to Complete…: writes the missing markers of ending transactions.

- A completion begins when the Prepare record is committed. From then on the outcome is final, and the next
  coordinator continues with it (R18).
- The leader of each partition writes its marker. The coordinator retries until every partition has its marker
  or no longer exists.
- A partition may get its marker twice, which does no harm. The Prepare record alone tells which markers are
  missing, so single markers are not recorded.
- When no marker is missing, the Complete record is written.
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

#: The pause between two attempts doubles each time.
_RETRY_MS_MIN: Final = 20
_RETRY_MS_MAX: Final = 1_000

#: The partition has its marker, or its message format has no transactions. All other errors are retried: most
#: are transient (a leader moves, a group coordinator loads), and a permanent one must stay visible.
_FINAL_CODES: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)


class Completion:
    """One transaction with missing markers."""

    __slots__ = ("alarm", "retry_ms", "sent", "transaction", "unmarked")

    def __init__(self, transaction: Transaction, alarm: Alarm) -> None:
        self.transaction = transaction
        self.alarm = alarm
        self.retry_ms = _RETRY_MS_MIN
        self.unmarked: set[Place] = set(transaction.entry.partitions)
        #: Requests without a response yet, by partition.
        self.sent: dict[Place, MarkerRequest] = {}


class PendingCompletions:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._host = shard.host
        #: By transactional id.
        self.pending: dict[str, Completion] = {}

    def begin(self, transactional_id: str) -> None:
        """The Prepare record is committed."""
        transaction = self._shard.transactions[transactional_id]
        assert transaction.is_prepared and transactional_id not in self.pending
        # By id: an alarm that refers to its completion would be a reference cycle.
        alarm = Alarm(self._host.timers, partial(self._retry, transactional_id))
        completion = self.pending[transactional_id] = Completion(transaction, alarm)
        self._send_unmarked(completion)

    def _retry(self, transactional_id: str, _now_ms: int) -> None:
        completion = self.pending.get(transactional_id)
        if completion is not None:
            self._send_unmarked(completion)

    def answered(self, request: MarkerRequest, codes: Mapping[Place, ErrorCode]) -> None:
        """The response of a broker. Partitions without a code are retried."""
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
                # The topic was deleted.
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
            # Last: the responses may arrive within this call.
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
