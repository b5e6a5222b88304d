"""Invariants of a cluster, checked at every step: leaders, high watermarks, committed bytes, the metadata
log.

After each turn of a broker its replicas are compared with their previous state; only changes are checked
further. `appended` sees every record of the metadata log before any broker does. A violation raises Anomaly.

    two-leaders            one leader per partition and epoch, and it is the one the log elected
    watermark-regression   a high watermark never goes back in one incarnation of a replica
    cut-below-watermark    no log ends before its own high watermark
    committed-changed      a record below a high watermark, on any replica, never changes
    not-in-sync            every member of the ISR has reached a new high watermark (durably, under that policy)
    metadata               ISR within the replicas, the leader in the ISR, epochs that increase
    replica-divergence     at rest, replicas have the same bytes below the high watermark
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ottla.broker.coordinators.group_coordinator import OFFSETS_TOPIC
from ottla.broker.coordinators.transaction_coordinator import TRANSACTIONS_TOPIC
from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.records.batch import HEADER
from ottla.records.record import whole_batches
from ottla.replication.replica import Replica
from testkit.checkers.partition import Anomaly
from testkit.sim.ensemble import Ensemble
from testkit.sim.group_invariants import GroupInvariants
from testkit.sim.member import Member
from testkit.sim.transaction_invariants import TransactionInvariants

Key = tuple[bytes, int]


class Seen(NamedTuple):
    epoch: int
    is_leading: bool
    high_watermark: int
    end: int
    start: int


class CommittedBatch(NamedTuple):
    """A batch as it must be on every replica."""

    last_offset: int
    epoch: int
    crc: int


class Invariants:
    def __init__(self, ensemble: Ensemble, members: Callable[[], dict[int, Member]]) -> None:
        self._ensemble = ensemble
        self._members = members
        #: By partition and epoch: the elected leader, and the broker that was seen leading (with its
        #: incarnation).
        self._elected: dict[tuple[bytes, int, int], int] = {}
        self._led: dict[tuple[bytes, int, int], tuple[int, int]] = {}
        #: By partition: base offset → the committed batch.
        self._committed: dict[Key, dict[int, CommittedBatch]] = {}
        #: By node: the last state of each replica of its present incarnation.
        self._seen: dict[int, dict[Key, tuple[Replica, Seen]]] = {}
        #: The ends of the replicas of a broker that is gone, where they are certain.
        self._left: dict[int, dict[Key, int]] = {}
        #: How often a partition got another leader, or a new epoch of the same one.
        self.elections = 0
        #: Check the records of groups and transactions, if there are any.
        self.groups: GroupInvariants | None = None
        self.transactions: TransactionInvariants | None = None
        #: Topics with compacted logs: they have the same content, but not the same bytes.
        self.compacted: dict[str, None] = {}
        ensemble.on_append = self.appended

    # --- the metadata log ---------------------------------------------------------------------------------------

    def appended(self, before: Image, after: Image, records: list[Any]) -> None:
        for record in records:
            if isinstance(record, r.Partition):
                self._changed(before, record)
                before = before.apply([record])
            elif isinstance(record, r.NewPartitions):
                for partition in record.partitions():
                    self._elect(partition)
                before = before.apply([record])
            elif isinstance(record, r.BrokerRegistration):
                known = before.brokers.get(record.node_id)
                if known is not None and record.epoch < known.epoch:
                    raise Anomaly("metadata", f"{record} after {known}")
                before = before.apply([record])
            else:
                before = before.apply([record])

    def _changed(self, image: Image, now: r.Partition) -> None:
        known = image.partition(now.topic_id, now.partition)
        text = f"{known} becomes {now}"
        if not set(now.isr) <= set(now.replicas) or len(set(now.isr)) != len(now.isr):
            raise Anomaly("metadata", f"an ISR that is not within the replicas: {text}")
        if set(now.eligible) & set(now.isr) or not set(now.eligible) <= set(now.replicas):
            raise Anomaly("metadata", f"eligible replicas that cannot be: {text}")
        if now.leader >= 0 and now.leader not in now.isr:
            raise Anomaly("metadata", f"a leader that is not in sync: {text}")
        if not now.isr and not now.eligible and now.last_leader < 0:
            raise Anomaly("metadata", f"nobody is left that has everything: {text}")
        if known is not None:
            if now.partition_epoch != known.partition_epoch + 1 or now.leader_epoch < known.leader_epoch:
                raise Anomaly("metadata", f"epochs: {text}")
            if now.leader != known.leader and now.leader_epoch == known.leader_epoch:
                raise Anomaly("metadata", f"another leader in the same epoch: {text}")
        self._elect(now)

    def _elect(self, partition: r.Partition) -> None:
        if partition.leader < 0:
            return
        where = (partition.topic_id, partition.partition, partition.leader_epoch)
        if where not in self._elected and partition.leader_epoch > 0:
            self.elections += 1
        elected = self._elected.setdefault(where, partition.leader)
        if elected != partition.leader:
            raise Anomaly("two-leaders", f"{elected} was elected before: {partition}")

    # --- the brokers --------------------------------------------------------------------------------------------

    def looked(self, member: Member) -> None:
        """After a turn of a broker."""
        known = self._seen.setdefault(member.node_id, {})
        if member.node_id in self._left and self._is_known(member):
            # The metadata has its present incarnation, also while it registers again.
            del self._left[member.node_id]
        replicas = list(_replicas(member))
        if self.transactions is not None:
            # Decisions of this turn come before their effects.
            replicas.sort(key=lambda each: each[1].topic != TRANSACTIONS_TOPIC)
        for topic_id, replica in replicas:
            log = replica._log
            end, start = (log.next_offset, log.log_start_offset) if log is not None else (-1, 0)
            seen = Seen(replica.leader_epoch, replica.leading is not None, replica.high_watermark, end, start)
            key = (topic_id, replica.number)
            same, before = known.get(key, (None, None))
            if same is not replica or (before is not None and start < before.start):
                # Of another incarnation, or of a partition that was moved away and came back; or its start
                # was lost in a crash, and it is fetched again.
                before = None
            if seen != before:
                known[key] = replica, seen
                self._moved(member, key, replica, before, seen)

    def _moved(self, member: Member, key: Key, replica: Replica, before: Seen | None, seen: Seen) -> None:
        name = f"b{member.node_id} {replica.topic}/{key[0].hex()[:4]}-{key[1]}"
        if seen.is_leading:
            where = (*key, seen.epoch)
            me = (member.node_id, member.life)
            if self._elected.get(where) != member.node_id or self._led.setdefault(where, me) != me:
                raise Anomaly(
                    "two-leaders",
                    f"{name} leads epoch {seen.epoch}: elected {self._elected.get(where)}, led {self._led.get(where)}",
                )
            if seen.start > 0:
                # Nobody deletes records here.
                raise Anomaly("lost-write", f"{name} leads, and begins at {seen.start}")
        if seen.end < 0:
            return
        if seen.end < seen.high_watermark:
            raise Anomaly("cut-below-watermark", f"{name}: {seen} after {before}")
        start = 0
        if before is not None and before.end >= 0:
            if seen.high_watermark < before.high_watermark:
                raise Anomaly("watermark-regression", f"{name}: {seen} after {before}")
            start = before.high_watermark
        if seen.high_watermark > start:
            self._commit(name, key, replica, start, seen.high_watermark)
            if seen.is_leading and before is not None:
                self._check_isr(name, member, key, replica, seen)
            if member.world.traced and seen.is_leading:
                member.world.log(f"{name}: the high watermark moves from {start} to {seen.high_watermark}")

    def _commit(self, name: str, key: Key, replica: Replica, start: int, end: int) -> None:
        known = self._committed.setdefault(key, {})
        groups = self.groups if replica.topic == OFFSETS_TOPIC else None
        transactions = self.transactions
        for base, batch, data in batches(replica, start, end):
            if base not in known:
                if groups is not None:
                    groups.committed(replica.number, batch.last_offset, data)
                if transactions is not None:
                    transactions.committed(replica.topic, key, batch.last_offset, data)
            there = known.setdefault(base, batch)
            if there != batch and replica.topic not in self.compacted:
                raise Anomaly("committed-changed", f"{name} offset {base}: {there} became {batch}")

    def _check_isr(self, name: str, member: Member, key: Key, replica: Replica, seen: Seen) -> None:
        partition = self._ensemble.image.partition(*key)
        if (
            partition is None
            or partition.leader != member.node_id
            or partition.leader_epoch != replica.leader_epoch
        ):
            return
        for node_id in partition.isr:
            reached = self._reached(node_id, key)
            if reached is not None and reached < seen.high_watermark:
                raise Anomaly(
                    "not-in-sync",
                    f"{name}: the high watermark is {seen.high_watermark}, broker {node_id} has come to {reached}: {partition}",
                )

    def _reached(self, node_id: int, key: Key) -> int | None:
        member = self._members().get(node_id)
        # Until the metadata has its present incarnation, the ISR refers to the previous one.
        if member is not None and member.started and self._is_known(member):
            hosted = member.broker.partitions.by_id.get(int.from_bytes(key[0], "big"))
            replica = hosted.replicas.get(key[1]) if hosted is not None else None
            if replica is not None and replica.opened:
                return replica.own_end
        return self._left.get(node_id, {}).get(key)

    def _is_known(self, member: Member) -> bool:
        known = self._ensemble.image.brokers.get(member.node_id)
        return known is not None and known.epoch == member.broker.lifecycle.broker_epoch

    def gone(self, member: Member, *, lost_power: bool) -> None:
        """An incarnation of a broker has ended: the next one finds its data, or the synced part of it."""
        left = self._left.setdefault(member.node_id, {})
        self._seen.pop(member.node_id, None)
        if not member.started:
            return
        for topic_id, replica in _replicas(member):
            key = (topic_id, replica.number)
            if replica.opened:
                if replica.durable or not lost_power:
                    left[key] = replica.own_end
                else:
                    left.pop(key, None)

    # --- at rest ------------------------------------------------------------------------------------------------

    def unrest(self) -> str | None:
        """Why the cluster has not come to rest; None if it has."""
        members = self._members()
        for node_id, member in members.items():
            if not member.joined or not member.broker.lifecycle.is_serving:
                return f"broker {node_id} does not serve"
        for topic in self._ensemble.image.topics.values():
            for partition in topic.partitions:
                name = f"{topic.name}/{topic.topic_id.hex()[:4]}-{partition.partition}"
                if partition.leader < 0 or set(partition.isr) != set(partition.replicas):
                    return f"{name} is not whole: {partition}"
                if partition.adding or partition.removing:
                    return f"{name} is still moving: {partition}"
                found = []
                for node_id in partition.replicas:
                    hosted = members[node_id].broker.partitions.by_id.get(
                        int.from_bytes(topic.topic_id, "big")
                    )
                    replica = hosted.replicas.get(partition.partition) if hosted is not None else None
                    if replica is None or replica.leader_epoch != partition.leader_epoch:
                        return f"{name} has no replica of this epoch on {node_id}: {partition}"
                    if (replica.leading is not None) != (partition.leader == node_id):
                        return f"{name}: broker {node_id} has not its role: {partition}"
                    end = replica.log.next_offset if replica.opened else 0
                    found += [replica.high_watermark, end]
                if len(set(found)) != 1:
                    return f"{name}: watermarks and ends are {found} of {partition}"
        return None

    def check_at_rest(self) -> None:
        members = self._members()
        for topic in self._ensemble.image.topics.values():
            for partition in topic.partitions:
                logs = {}
                for node_id in partition.replicas:
                    hosted = members[node_id].broker.partitions.by_id[int.from_bytes(topic.topic_id, "big")]
                    replica = hosted.replicas[partition.partition]
                    data = b""
                    if replica.opened:
                        data = b"".join(data for _, _, data in batches(replica, 0, replica.high_watermark))
                    logs[node_id] = data
                if self.groups is not None and topic.name == OFFSETS_TOPIC:
                    for node_id, data in logs.items():
                        self.groups.check_replica(f"broker {node_id}", partition.partition, [data])
                if self.transactions is not None and topic.name == TRANSACTIONS_TOPIC:
                    for node_id, data in logs.items():
                        self.transactions.check_replica(f"broker {node_id}", partition.partition, [data])
                if topic.name in self.compacted:
                    continue
                if len(set(logs.values())) != 1:
                    sizes = {node_id: len(data) for node_id, data in logs.items()}
                    raise Anomaly("replica-divergence", f"{topic.name}-{partition.partition}: {sizes}")


def _replicas(member: Member) -> Iterator[tuple[bytes, Replica]]:
    for hosted in member.broker.partitions.by_id.values():
        for replica in hosted.replicas.values():
            yield hosted.topic_id, replica


def batches(replica: Replica, start: int, end: int) -> Iterator[tuple[int, CommittedBatch, bytes]]:
    """The batches of a log from one offset to another."""
    log = replica.log
    at = max(start, log.log_start_offset)
    while at < end:
        piece = log.slice(at, end, 1 << 30, whole_first=True)
        if piece is None or not piece.size:
            raise Anomaly(
                "cut-below-watermark", f"{log.directory}: nothing at {at}, though {end} is committed"
            )
        data = log.disk.read(piece.file, piece.position, piece.size)
        for batch in whole_batches(data):
            header = HEADER.unpack_from(batch)
            last = header[0] + header[6]
            if last >= at:
                yield header[0], CommittedBatch(last, header[2], header[4]), bytes(batch)
                at = last + 1
