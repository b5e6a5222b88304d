"""Invariants of groups in a cluster, checked at every step: by the records of `__consumer_offsets` and by its
coordinators.

Each committed batch is replayed once into a shard of the checker. So the state by the log is known at any
time:

    two-owners           no partition is owned by two members of a consumer group
    epoch-regression     generations, group epochs and member epochs never go back, unless their group was deleted
    state-divergence     an idle coordinator has exactly the state of the log, and so does a replay of
                         any replica's log from its start
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupPartition
from ottla.groups.classic_group import ClassicGroup, State
from ottla.groups.consumer_group import ConsumerGroup
from ottla.groups.consumer_member import STATIC_LEAVE_EPOCH
from ottla.groups.formats import Record, decode
from ottla.groups.shard import Shard
from ottla.log.markers import decode_marker
from ottla.records.batch import CONTROL_BIT, HEADER, TRANSACTIONAL_BIT
from ottla.records.compression import Buffer
from ottla.records.record import decode_batches, whole_batches
from testkit.checkers.partition import Anomaly
from testkit.sim.member import Member


class _NoHost:
    """A shard that is only replayed needs no host."""


def replayed(number: int, pieces: Iterable[bytes]) -> Shard:
    shard = Shard(number, _NoHost())  # type: ignore[arg-type]  # see there
    for data in pieces:
        for batch in whole_batches(data):
            if not replay_in_transaction(shard, batch):
                for record in records_of(batch):
                    shard.replay(record)
    return shard


def replay_in_transaction(shard: Shard, batch: memoryview) -> bool:
    """Whether it is a transactional batch: pending offsets, or a marker."""
    header = HEADER.unpack_from(batch)
    attributes, producer_id = header[5], header[9]
    if attributes & CONTROL_BIT:
        marker = decode_marker(bytes(batch))
        # Compaction empties obsolete markers.
        if marker is not None:
            shard.replay_end_marker(producer_id, marker.commit)
    elif attributes & TRANSACTIONAL_BIT:
        shard.replay_pending(producer_id, records_of(batch))
    else:
        return False
    return True


def records_of(batch: Buffer) -> list[Record]:
    found = []
    for record in decode_batches(batch):
        known = decode(record.key, record.value)
        if known is None:
            raise Anomaly("foreign-record", f"{OFFSETS_TOPIC} has {record.key!r}")
        found.append(known)
    return found


class GroupInvariants:
    def __init__(self) -> None:
        #: By partition: the state by the log, and its end offset.
        self._shards: dict[int, Shard] = {}
        self._ends: dict[int, int] = {}
        self.looks = 0

    # --- the log ------------------------------------------------------------------------------------------------

    def committed(self, number: int, last_offset: int, data: bytes) -> None:
        """A batch is committed; in the order of the log."""
        shard = self._shards.get(number)
        if shard is None:
            shard = self._shards[number] = replayed(number, ())
        self._ends[number] = last_offset + 1
        if replay_in_transaction(shard, memoryview(data)):
            return
        touched: dict[str, None] = {}
        for record in records_of(data):
            group_id = record.key[1]
            before = _epochs(shard.groups.get(group_id))
            shard.replay(record)
            after = _epochs(shard.groups.get(group_id))
            for name, epoch in after.items():
                if epoch < before.get(name, epoch):
                    raise Anomaly(
                        "epoch-regression",
                        f"{group_id}: {name} goes from {before[name]} to {epoch} with {record.key}",
                    )
            touched[group_id] = None
        for group_id in touched:
            self._check_owners(shard.groups.get(group_id))

    @staticmethod
    def _check_owners(group: Any) -> None:
        if not isinstance(group, ConsumerGroup):
            return
        owners: dict[Any, str] = {}
        for member_id, member in group.members.items():
            for place in member.current.owned_partitions:
                other = owners.setdefault(place, member_id)
                if other != member_id:
                    raise Anomaly(
                        "two-owners",
                        f"{group.group_id}: {place[0].hex()[:4]}-{place[1]} is held by {other} and {member_id}",
                    )

    # --- the coordinators ---------------------------------------------------------------------------------------

    def looked(self, member: Member) -> None:
        """Compare the coordinators on a broker with the log, where nothing is under way."""
        for number, tenure in member.broker.groups.partitions.items():
            known = self._shards.get(number)
            if known is not None and self._is_quiet(number, tenure):
                self.looks += 1
                check_same(
                    f"broker {member.node_id} coordinates {number}",
                    picture(tenure.shard, is_live=True),
                    picture(known),
                )

    def _is_quiet(self, number: int, tenure: GroupPartition) -> bool:
        if not tenure.is_loaded or tenure.unwritten:
            return False
        return tenure.replica.high_watermark == tenure.replica.log.next_offset == self._ends[number]

    def check_replica(self, name: str, number: int, pieces: Iterable[bytes]) -> None:
        """At rest: replay a replica's log from its start."""
        known = self._shards.get(number)
        if known is not None:
            check_same(name, picture(replayed(number, pieces)), picture(known))

    def offset(self, number: int, group_id: str, place: tuple[str, int]) -> int:
        """The committed offset by the log; 0 if there is none."""
        shard = self._shards.get(number)
        known = shard.offsets.get(group_id, *place) if shard is not None else None
        return 0 if known is None else known.offset

    def group(self, number: int, group_id: str) -> Any:
        """The group by the log."""
        shard = self._shards.get(number)
        return None if shard is None else shard.groups.get(group_id)


def _epochs(group: Any) -> dict[str, int]:
    if isinstance(group, ClassicGroup):
        return {"the generation": group.generation}
    if isinstance(group, ConsumerGroup):
        found = {"the epoch": group.epoch, "the assignment's epoch": group.assignment_epoch}
        for member_id, member in group.members.items():
            # A static member that is away, or has just come back, has no epoch of its own.
            if member.current.epoch not in (STATIC_LEAVE_EPOCH, 0):
                found[member_id] = member.current.epoch
        return found
    return {}


def picture(shard: Shard, *, is_live: bool = False) -> dict[str, Any]:
    """The persistent state of a shard, by group; for a live shard only groups between two changes."""
    found: dict[str, Any] = {}
    for group_id, group in shard.groups.items():
        offsets = _offsets(shard, group_id)
        if isinstance(group, ConsumerGroup):
            found[group_id] = (_consumer(group), offsets)
        elif group.state in (State.STABLE, State.EMPTY):
            found[group_id] = (_classic(group) if group.generation else None, offsets)
        elif is_live:
            found[group_id] = (..., offsets)
    for group_id in shard.offsets.by_group:
        found.setdefault(group_id, (None, _offsets(shard, group_id)))
    return {group_id: each for group_id, each in found.items() if each != (None, [])}


def _offsets(shard: Shard, group_id: str) -> list[Any]:
    """Committed offsets, and pending ones of transactions."""
    pending = shard.offsets.pending.get(group_id, {})
    return [
        *sorted(shard.offsets.of(group_id).items()),
        *((place, f"{count} pending") for place, count in sorted(pending.items())),
    ]


def _classic(group: ClassicGroup) -> Any:
    members = [
        (
            member.member_id, member.instance_id, member.client_id, member.session_timeout_ms, member.rebalance_timeout_ms,
            member.metadata(group.protocol), member.assignment,
        )
        for member in group.members.values()
    ]  # fmt: skip
    return group.generation, group.protocol_type, group.protocol, group.leader_id, members


def _consumer(group: ConsumerGroup) -> Any:
    members = sorted(
        (member_id, member.subscription, member.current) for member_id, member in group.members.items()
    )
    targets = sorted((member_id, sorted(places)) for member_id, places in group.targets.items())
    patterns = sorted((pattern, sorted(topics)) for pattern, topics in group.patterns.items())
    owners, static = sorted(group.owners.items()), sorted(group.static.items())
    return (
        group.epoch,
        group.metadata_hash,
        group.assignment_epoch,
        members,
        targets,
        patterns,
        owners,
        static,
    )


def check_same(name: str, state: dict[str, Any], log: dict[str, Any]) -> None:
    for group_id in sorted({*state, *log}):
        mine, its = state.get(group_id, (None, [])), log.get(group_id, (None, []))
        if mine[1] != its[1]:
            raise Anomaly("state-divergence", f"{name}: {group_id} has {mine[1]}, the log says {its[1]}")
        if mine[0] is not ... and mine[0] != its[0]:
            raise Anomaly("state-divergence", f"{name}: {group_id} is {mine[0]}, the log says {its[0]}")
