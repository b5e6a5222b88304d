"""Markers on their way: those that end transactions in partitions which this broker leads are written here, the others are sent to
the brokers that lead them (WriteTxnMarkers).

What has been sent is answered for only when its answer is there, or when its connection is closed: nothing of it is still to come
then but what the other broker has already. A marker in a partition of `__consumer_offsets` goes through the coordinator of its
groups, whose offsets it commits or drops. Each is told of when it counts.

Called by the coordinators of transactions and by `api/write_txn_markers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.broker.appending import append_marker_as_leader
from ottla.broker.group_coordinating import OFFSETS_TOPIC
from ottla.log.markers import Marker as LogMarker
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.effects import ASK
from ottla.transactions.formats import Place
from ottla.transactions.host import Marker, Owed
from ottla.transactions.transaction import V2
from ottla.wire.decode import MalformedMessage, decode_response
from ottla.wire.encode import request_encoder

if TYPE_CHECKING:
    from ottla.broker.core import Broker

_WRITE_TXN_MARKERS: Final = 27
_VERSION: Final = 2
#: The lane of ASK: markers wait for replicas, and nobody else waits for them.
_LANE: Final = -2

Codes: TypeAlias = Mapping[Place, ErrorCode]


class Marking:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # --- to others ----------------------------------------------------------------------------------------------

    def send(self, owed: Owed, done: Callable[[Codes], None]) -> None:
        """Have one broker write a transaction's markers; `done` with what became of each, or nothing if that is not known."""
        if owed.node_id == self._broker.membership.node_id:
            return self._broker.put_off(lambda: self.write_all(owed.marker, owed.partitions, done))
        node = self._broker.image.brokers.get(owed.node_id)
        if node is None or node.fenced:
            return done({})

        def answered(body: memoryview | None, _error: str | None) -> None:
            done(_codes(body) if body is not None else {})

        peer = (node.node_id, node.host, node.port)
        body = request_encoder(_WRITE_TXN_MARKERS, _VERSION)({"markers": [_row(owed)]})
        self._broker.outbox.append((ASK, peer, _LANE, _WRITE_TXN_MARKERS, _VERSION, body, answered))
        return None

    # --- here ---------------------------------------------------------------------------------------------------

    def write_all(self, marker: Marker, places: tuple[Place, ...], done: Callable[[Codes], None]) -> None:
        """The same for partitions that this broker should lead."""
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
        """`done` once: when the marker counts, or with why it is not written or nobody knows."""
        broker = self._broker
        topic, number = place
        hosted = broker.hosting.by_name.get(topic)
        replica = hosted.replicas.get(number) if hosted is not None else None
        if replica is None:
            return done(broker.not_here(None, topic, number) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        written = LogMarker(marker.commit, marker.coordinator_epoch, marker.transaction_version >= V2)
        try:
            if topic == OFFSETS_TOPIC:
                tenure = broker.groups.tenure_at(number)
                tenure.end_transaction(marker.producer_id, marker.producer_epoch, written, done)
            else:
                append_marker_as_leader(
                    broker, replica, marker.producer_id, marker.producer_epoch, written, done
                )
        except Refusal as refusal:
            return done(refusal.code)
        broker.verification.marked(place, marker.producer_id)
        return None


def _row(owed: Owed) -> dict[str, Any]:
    marker = owed.marker
    by_topic: dict[str, list[int]] = {}
    for topic, number in owed.partitions:
        by_topic.setdefault(topic, []).append(number)
    return {
        "producer_id": marker.producer_id, "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.commit, "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
        "topics": [{"name": topic, "partition_indexes": numbers} for topic, numbers in by_topic.items()],
    }  # fmt: skip


def _codes(body: memoryview) -> Codes:
    try:
        answer = decode_response(_WRITE_TXN_MARKERS, _VERSION, body, 0)
    except MalformedMessage:
        return {}
    return {
        (topic.name, row.partition_index): ErrorCode(int(row.error_code))
        for marker in answer.markers
        for topic in marker.topics
        for row in topic.partitions
    }
