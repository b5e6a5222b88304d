"""Invariants of transactions in a cluster, checked at every step: by the committed part of their logs and by
their coordinators.

Each committed batch of `__transaction_state` is replayed once into a shard of the checker. Each committed
batch of a topic with transactions goes to its history (`checkers/transactions.py`). So the state and the
outcome of every transaction are known:

    state-transition    a transactional id changes its state only as the table allows
    epoch-regression    a producer epoch never goes back
    unprepared-end      records are committed or aborted only while a committed Prepare… record says so
    two-ends            a transaction v2, which has its own epoch, has one kind of marker
    state-divergence    an idle coordinator has exactly the state of the log, and so does a replay of
                        any replica's log from its start
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ottla.broker.coordinators.transaction_coordinator import TRANSACTIONS_TOPIC
from ottla.log.markers import decode_marker
from ottla.records.batch import CONTROL_BIT, HEADER
from ottla.records.record import decode_batch, decode_batches, whole_batches
from ottla.transactions.formats import Entry, Record, State, decode
from ottla.transactions.transaction import PREPARED, TRANSITIONS
from testkit.checkers.partition import Anomaly
from testkit.checkers.transactions import Log, Place
from testkit.sim.member import Member

#: By state: its possible next states.
_NEXT: Final = {
    state: {after for (before, _event), after in TRANSITIONS.items() if before is state} for state in State
}

_COMMITTED: Final = (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
_ABORTED: Final = (State.PREPARE_ABORT, State.COMPLETE_ABORT)

Known = dict[str, Entry]


def replayed(pieces: Iterable[bytes]) -> Known:
    known: Known = {}
    for data in pieces:
        for transactional_id, entry in records_of(data):
            if entry is None:
                known.pop(transactional_id, None)
            else:
                known[transactional_id] = entry
    return known


def records_of(data: bytes) -> list[Record]:
    found = []
    for record in decode_batches(data):
        known = decode(record.key, record.value)
        if known is None:
            raise Anomaly("foreign-record", f"{TRANSACTIONS_TOPIC} has {record.key!r}")
        found.append(known)
    return found


class LateMarker(NamedTuple):
    """A marker that was written before one of a later coordinator, or of a later epoch: repeated, it must be
    refused.
    """

    place: Place
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


class TransactionInvariants:
    def __init__(self) -> None:
        #: By partition: the state by the log, and its end offset.
        self.known: dict[int, Known] = {}
        self._ends: dict[int, int] = {}
        #: The partitions with transactions.
        self.logs: dict[Place, Log] = {}
        #: By producer id and epoch: whether its markers commit.
        self._decided: dict[tuple[int, int], bool] = {}
        self._has_own_epoch: dict[tuple[int, int], bool] = {}
        #: By producer id: the last record.
        self._by_producer: dict[int, Entry] = {}
        self.looks = 0
        #: By partition and producer id: the last marker.
        self._markers: dict[tuple[Place, int], LateMarker] = {}
        self.late: list[LateMarker] = []

    # --- the logs -----------------------------------------------------------------------------------------------

    def committed(self, topic: str, place: Place, last_offset: int, data: bytes) -> None:
        """A batch is committed; in the order of the log."""
        if topic == TRANSACTIONS_TOPIC:
            known = self.known.setdefault(place[1], {})
            for record in records_of(data):
                self._check(known, record)
            self._ends[place[1]] = last_offset + 1
        elif place in self.logs:
            self._written(place, data, last_offset)

    def _check(self, known: Known, record: Record) -> None:
        transactional_id, now = record
        before = known.get(transactional_id)
        if now is None:
            known.pop(transactional_id, None)
            return
        if before is not None:
            text = f"{transactional_id}: {before} becomes {now}"
            if now.state not in _NEXT[before.state]:
                raise Anomaly("state-transition", text)
            if now.producer_id == before.producer_id and now.producer_epoch < before.producer_epoch:
                raise Anomaly("epoch-regression", text)
            if before.state in PREPARED and now.state is State.COMPLETE_COMMIT and now.partitions:
                raise Anomaly("state-transition", text)
        known[transactional_id] = self._by_producer[now.producer_id] = now
        if now.state in PREPARED:
            who = (now.producer_id, now.producer_epoch)
            self._has_own_epoch[who] = now.client_version >= 2
            if now.client_version >= 2:
                self._decide(who, now.state is State.PREPARE_COMMIT, transactional_id)

    def _decide(self, who: tuple[int, int], commit: bool, where: str) -> None:
        if self._decided.setdefault(who, commit) is not commit:
            raise Anomaly("two-ends", f"{where}: producer {who} is at once committed and aborted")

    def _written(self, place: Place, data: bytes, last_offset: int) -> None:
        log = self.logs[place]
        for batch in whole_batches(data):
            header = HEADER.unpack_from(batch)
            producer_id, epoch = header[9], header[10]
            if header[5] & CONTROL_BIT:
                marker = decode_marker(bytes(batch))
                assert marker is not None
                if producer_id in log.open:
                    self._check_prepared(log, producer_id, commit=marker.commit)
                has_own = self._has_own_epoch.get((producer_id, epoch), False)
                if has_own:
                    self._decide((producer_id, epoch), marker.commit, log.name)
                self._note(
                    LateMarker(
                        place, producer_id, epoch, *marker[:2], transaction_version=2 if has_own else 0
                    )
                )
                log.marker(producer_id, last_offset, commit=marker.commit)
            else:
                records = [(record.offset, record.value or b"") for record in decode_batch(batch)]
                log.data(producer_id, records, last_offset)

    def _check_prepared(self, log: Log, producer_id: int, *, commit: bool) -> None:
        """An open transaction ends only after its Prepare… record is committed, and accordingly. In one turn
        it may be complete already.
        """
        entry = self._by_producer.get(producer_id)
        if entry is None or entry.state not in (_COMMITTED if commit else _ABORTED):
            raise Anomaly(
                "unprepared-end", f"{log.name}: producer {producer_id}, {commit=}, which is at {entry}"
            )

    def _note(self, marker: LateMarker) -> None:
        before = self._markers.get((marker.place, marker.producer_id))
        self._markers[marker.place, marker.producer_id] = marker
        if before is not None and (
            before.coordinator_epoch < marker.coordinator_epoch
            or before.producer_epoch < marker.producer_epoch
        ):
            self.late.append(before)

    # --- the coordinators ---------------------------------------------------------------------------------------

    def looked(self, member: Member) -> None:
        """Compare the coordinators on a broker with the log, where nothing is under way."""
        for number, tenure in member.broker.transactions.partitions.items():
            replica = tenure.replica
            if number not in self.known or not tenure.is_loaded or tenure.unwritten:
                continue
            if replica.high_watermark == replica.log.next_offset == self._ends[number]:
                self.looks += 1
                has = {name: each.entry for name, each in tenure.shard.transactions.items()}
                check_same(f"broker {member.node_id} coordinates {number}", has, self.known[number])

    def check_replica(self, name: str, number: int, pieces: Iterable[bytes]) -> None:
        """At rest: replay a replica's log from its start."""
        if number in self.known:
            check_same(name, replayed(pieces), self.known[number])

    def unended(self) -> str | None:
        """A transaction that has not ended, by the log."""
        for known in self.known.values():
            for transactional_id, entry in known.items():
                if entry.state is State.ONGOING or entry.state in PREPARED:
                    return f"{transactional_id} is {entry.state.title}: {entry}"
        return None


def check_same(name: str, state: dict[str, Any], log: dict[str, Any]) -> None:
    for transactional_id in sorted({*state, *log}):
        mine, its = state.get(transactional_id), log.get(transactional_id)
        if mine != its:
            raise Anomaly("state-divergence", f"{name}: {transactional_id} is {mine}, the log says {its}")
