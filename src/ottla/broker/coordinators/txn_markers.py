"""Transaction markers: written here for partitions that this broker leads, sent to the other leaders with
WriteTxnMarkers.

A sent request is finished when its response arrives or its connection is closed. After that, only what the
other broker has already received can still be written. A marker in `__consumer_offsets` goes through the
group coordinator, which commits or drops the pending offsets. Each marker is reported when it is committed.

Called by `transaction_coordinator.py` and by `api/write_txn_markers.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ottla.broker.coordinators.group_coordinator import OFFSETS_TOPIC
from ottla.broker.coordinators.hanging_transactions import Coordinated
from ottla.broker.coordinators.internal_appends import append_marker_as_leader
from ottla.log.markers import Marker as LogMarker
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import Steps
from ottla.ports.disk import DiskError
from ottla.ports.effects import ASK
from ottla.transactions.formats import Place
from ottla.transactions.host import Marker, MarkerRequest
from ottla.transactions.transaction import V2
from ottla.wire.decode import MalformedMessage, decode_response
from ottla.wire.encode import request_encoder

if TYPE_CHECKING:
    from ottla.broker.coordinators.host import TxnMarkersHost
    from ottla.replication.replica import Replica

_VERSION: Final = 2
#: The lane of ASK: markers wait for replicas, and no other request waits for markers.
_LANE: Final = -2
#: Markers written in one step, and the cost of each (`model/steps.py`): the log may have to be opened.
_MARKERS_PER_STEP: Final = 25
_MARKER_COST: Final = 20
#: Transactions whose markers are written in the same turn as their commit.
_TRANSACTIONS_AT_ONCE_MAX: Final = 10

Codes: TypeAlias = Mapping[Place, ErrorCode]


class Abort(NamedTuple):
    """An abort marker from a client, and the callback for the outcome in each partition."""

    marker: Marker
    places: tuple[Place, ...]
    done: Callable[[Codes], None]


class Opened(NamedTuple):
    """An open transaction of a partition: its first offset, and the leader epoch at the time of the check."""

    first_offset: int
    leader_epoch: int


class TxnMarkers:
    def __init__(self, broker: TxnMarkersHost) -> None:
        self._broker = broker
        #: Markers to be written here.
        self._queued: deque[tuple[MarkerRequest, Callable[[Codes], None]]] = deque()

    # --- to other brokers -----------------------------------------------------------------------------------

    def send(self, request: MarkerRequest, done: Callable[[Codes], None]) -> None:
        """Have one broker write the markers of a transaction; `done(codes)`, without codes if the outcome is
        unknown."""
        if request.node_id == self._broker.lifecycle.node_id:
            if not self._queued:
                self._broker.put_off(self._write_queued)
            self._queued.append((request, done))
            return None
        node = self._broker.image.brokers.get(request.node_id)
        if node is None or node.fenced:
            return done({})

        def answered(body: memoryview | None, _error: str | None) -> None:
            done(_codes(body) if body is not None else {})

        peer = (node.node_id, node.host, node.port)
        body = request_encoder(ApiKey.WRITE_TXN_MARKERS, _VERSION)({"markers": [_row(request)]})
        self._broker.outbox.append((ASK, peer, _LANE, ApiKey.WRITE_TXN_MARKERS, _VERSION, body, answered))
        return None

    # --- on this broker -------------------------------------------------------------------------------------

    def _write_queued(self) -> None:
        """Thousands of transactions may time out together: the first few are marked now, the others in
        slices."""
        for _ in range(min(len(self._queued), _TRANSACTIONS_AT_ONCE_MAX)):
            self._write_next()
        if self._queued:
            self._broker.slices.begin(self._write_rest(), self._on_rest_written)

    def _write_rest(self) -> Steps[None]:
        while self._queued:
            yield _MARKER_COST * min(len(self._queued[0][0].partitions), _MARKERS_PER_STEP)
            self._write_next()

    def _on_rest_written(self, _result: None, error: Exception | None) -> None:
        if error is not None:
            self._broker.isolation.contain("the markers of transactions", error)
        if self._queued:
            self._broker.put_off(self._write_queued)

    def _write_next(self) -> None:
        if self._queued:
            self._broker.isolation.run(
                "the markers of a transaction", self._write_here, *self._queued.popleft()
            )

    def _write_here(self, request: MarkerRequest, done: Callable[[Codes], None]) -> None:
        if len(request.partitions) <= _MARKERS_PER_STEP:
            return self.write_all(request.marker, request.partitions, done)

        def ended(_result: None, error: Exception | None) -> None:
            if error is not None:
                self._broker.isolation.contain("the markers of a transaction", error)
                done({})

        return self._broker.slices.begin(self.write_in_steps(request.marker, request.partitions, done), ended)

    def write_in_steps(
        self, marker: Marker, places: tuple[Place, ...], done: Callable[[Codes], None]
    ) -> Steps[None]:
        """`write_all` for very many partitions. If it is closed early, no more markers are written and `done`
        is not called."""
        codes: dict[Place, ErrorCode] = {}
        wanted = list(dict.fromkeys(places))

        def some_written(some: Codes) -> None:
            codes.update(some)
            if len(codes) == len(wanted):
                done(codes)

        for at in range(0, len(wanted), _MARKERS_PER_STEP):
            some = wanted[at : at + _MARKERS_PER_STEP]
            yield _MARKER_COST * len(some)
            began = len(self._broker.outbox)
            self.write_all(marker, tuple(some), some_written)
            self._broker.let_others_sync_first(began)
        if not wanted:
            done(codes)

    def abort_hanging(self, aborts: Sequence[Abort]) -> None:
        """Write abort markers for a client, only for hanging transactions. The coordinators are asked
        once."""
        opened = [
            {place: self._opened(abort.marker, place) for place in dict.fromkeys(abort.places)}
            for abort in aborts
        ]
        producer_ids = {
            abort.marker.producer_id
            for abort, found in zip(aborts, opened, strict=True)
            if any(not isinstance(each, ErrorCode) for each in found.values())
        }

        def asked(coordinated: Coordinated) -> None:
            for abort, before in zip(aborts, opened, strict=True):
                self._abort(abort, before, coordinated)

        if producer_ids:
            self._broker.hanging_transactions.ask(producer_ids, asked)
        else:
            asked(None)

    def _abort(
        self, abort: Abort, before: Mapping[Place, Opened | ErrorCode], coordinated: Coordinated
    ) -> None:
        codes: dict[Place, ErrorCode] = {}
        hanging = []
        for place, opened in before.items():
            if isinstance(opened, ErrorCode):
                codes[place] = opened
            elif coordinated is None:
                codes[place] = ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif place in coordinated.get(abort.marker.producer_id, ()):
                codes[place] = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            elif (now := self._opened(abort.marker, place)) != opened:
                codes[place] = now if isinstance(now, ErrorCode) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            else:
                hanging.append(place)
        self.write_all(abort.marker, tuple(hanging), lambda written: abort.done({**codes, **written}))

    def _opened(self, marker: Marker, place: Place) -> Opened | ErrorCode:
        """The open transaction that an abort marker of a client would end, or the error for the client."""
        replica = self._replica(place)
        if isinstance(replica, ErrorCode):
            return replica
        if marker.commit:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if replica.leading is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            producer = replica.log.producers.by_id.get(marker.producer_id)
        except DiskError:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if producer is None or producer.transaction_start < 0:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if marker.producer_epoch != producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if marker.coordinator_epoch > max(producer.coordinator_epoch, 0):
            # It would fence the coordinator of the producer's next transaction.
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return Opened(producer.transaction_start, replica.leader_epoch)

    def _replica(self, place: Place) -> Replica | ErrorCode:
        topic, number = place
        hosted = self._broker.partitions.by_name.get(topic)
        replica = hosted.replicas.get(number) if hosted is not None else None
        if replica is None:
            return self._broker.not_here(None, topic, number) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return replica

    def write_all(self, marker: Marker, places: tuple[Place, ...], done: Callable[[Codes], None]) -> None:
        """Write a marker to partitions that this broker leads; `done` with an error code for each."""
        codes: dict[Place, ErrorCode] = {}
        wanted = dict.fromkeys(places)
        if not wanted:
            return done(codes)

        def written(place: Place, code: ErrorCode) -> None:
            codes[place] = code
            if len(codes) == len(wanted):
                done(codes)

        for place in wanted:
            try:
                self._write(marker, place, partial(written, place))
            except Exception as error:
                self._broker.isolation.contain(f"a marker for {place[0]}-{place[1]}", error)
                if place not in codes:
                    written(place, ErrorCode.UNKNOWN_SERVER_ERROR)
        return None

    def _write(self, marker: Marker, place: Place, done: Callable[[ErrorCode], None]) -> None:
        """Calls `done` once: when the marker is committed, or with the error."""
        broker = self._broker
        topic, number = place
        replica = self._replica(place)
        if isinstance(replica, ErrorCode):
            return done(replica)
        written = LogMarker(marker.commit, marker.coordinator_epoch, marker.transaction_version >= V2)
        try:
            if topic == OFFSETS_TOPIC:
                partition = broker.groups.partition_at(number)
                partition.end_transaction(marker.producer_id, marker.producer_epoch, written, done)
            else:
                append_marker_as_leader(
                    broker, replica, marker.producer_id, marker.producer_epoch, written, done
                )
        except Refusal as refusal:
            return done(refusal.code)
        broker.txn_verification.marked(place, marker.producer_id)
        return None


def _row(request: MarkerRequest) -> dict[str, Any]:
    marker = request.marker
    by_topic: dict[str, list[int]] = {}
    for topic, number in request.partitions:
        by_topic.setdefault(topic, []).append(number)
    return {
        "producer_id": marker.producer_id, "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.commit, "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
        "topics": [{"name": topic, "partition_indexes": numbers} for topic, numbers in by_topic.items()],
    }  # fmt: skip


def _codes(body: memoryview) -> Codes:
    try:
        answer = decode_response(ApiKey.WRITE_TXN_MARKERS, _VERSION, body, 0)
    except MalformedMessage:
        return {}
    return {
        (topic.name, row.partition_index): ErrorCode(int(row.error_code))
        for marker in answer.markers
        for topic in marker.topics
        for row in topic.partitions
    }
