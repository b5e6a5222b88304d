"""Roles of the replicas on this broker: leader, follower, or neither, as the image says (R2, R8).

A role begins and ends with a record of the metadata log, and only while the broker serves
(`broker/cluster/broker_lifecycle.py`). One exception: a replica that lost records gives up its role by itself
(R12).

Internal topics have owners, the coordinators. An owner is notified when this broker becomes leader of one of
their partitions, and when it stops leading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.metadata.records import Partition
from ottla.model.errors import ErrorCode
from ottla.replication.follower_positions import FollowerPositions
from ottla.replication.follower_state import FollowerState
from ottla.replication.isr_updates import IsrRemoval, IsrUpdates
from ottla.replication.leader_state import LeaderState
from ottla.replication.replica_fetcher import ReplicaFetcher

if TYPE_CHECKING:
    from ottla.replication.host import ReplicationHost
    from ottla.replication.replica import Replica


class Owner(Protocol):
    """A coordinator, which keeps its state in an internal topic (`internal_appends.append_as_leader`).

    Calls of `on_election` and `on_resignation` alternate for each replica. There is no call for a new leader epoch of the same
    leader. An owner may add itself to `replica.watchers`: it is then notified of a moved high watermark, once
    a turn.
    """

    def on_election(self, replica: Replica, now_ms: int) -> None:
        """This broker became leader of the partition, in `replica.leader_epoch`: load its records."""

    def on_resignation(self, replica: Replica, now_ms: int) -> None:
        """This broker stopped leading: drop the state. Uncommitted appends were reported as failed before."""


class ReplicaRoles:
    def __init__(self, host: ReplicationHost) -> None:
        self._host = host
        #: By topic name.
        self.owners: dict[str, Owner] = {}
        #: Replicas whose owners were notified that this broker leads them.
        self._owned: dict[Replica, Owner] = {}
        self._is_loaded = False
        self.isr_updates = IsrUpdates(host)
        self.isr_removal = IsrRemoval(host)
        self.follower_positions = FollowerPositions(host, self.isr_updates)
        #: By leader and lane.
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        #: Fetchers with new partitions, which send a request when all records of this turn are applied.
        self._to_ask: dict[ReplicaFetcher, None] = {}

    def start(self, now_ms: int) -> None:
        self.isr_updates.start(now_ms)

    def loaded(self) -> None:
        """All logs are known. Owners wait for that: an earlier read would have created an empty log."""
        self._is_loaded = True
        for name in self.owners:
            hosted = self._host.partitions.by_name.get(name)
            for replica in list(hosted.replicas.values()) if hosted is not None else ():
                if replica.leading is not None:
                    self._notify_owner(replica)

    # --- roles ----------------------------------------------------------------------------------------------

    def assign(self, replica: Replica, topic_id: bytes, partition: Partition) -> None:
        """Give a replica its role in this state of the partition."""
        host = self._host
        me, epoch = host.lifecycle.node_id, partition.leader_epoch
        if not host.lifecycle.is_serving or partition.leader < 0:
            self.rest(replica, epoch)
        elif host.clustered and (replica.offline is not None or self.isr_removal.holds(replica, partition)):
            self.rest(replica, epoch)
            if me in partition.isr or me in partition.eligible:
                self.isr_removal.leave(replica)
        elif replica.is_being_cut and not (replica.following and replica.following.epoch == epoch):
            # A new role could append before the truncation is durable.
            self.rest(replica, epoch)
        elif partition.leader == me:
            self._lead(replica, partition)
        else:
            self._follow(replica, topic_id, partition)

    def may_have_role(self, replica: Replica) -> None:
        """The replica was kept from its role, and the reason is gone."""
        hosted = self._host.partitions.by_name.get(replica.topic)
        partition = self._host.image.partition(hosted.topic_id, replica.number) if hosted else None
        if hosted is not None and partition is not None and not replica.gone:
            self.assign(replica, hosted.topic_id, partition)
            self.settle()

    def settle(self) -> None:
        """All metadata records of this turn are applied: send the fetch requests."""
        while self._to_ask:
            self._host.isolation.run("replication", self._to_ask.popitem()[0].ask_at_once)

    def _lead(self, replica: Replica, partition: Partition) -> None:
        host = self._host
        isr_min = replica.config.min_insync_replicas
        leading = replica.leading
        if leading is not None and replica.leader_epoch == partition.leader_epoch:
            had_enough = leading.has_enough
            leading.change(partition, isr_min, host.now_ms)
            if had_enough and not leading.has_enough:
                # R8: the records are written, but nobody knows when they will be committed.
                host.fail_waiting(replica, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            if replica.opened:
                host.advance(replica)
                self.isr_updates.expand(replica)
            return
        # No other broker led between two consecutive epochs: the waiting records are still in the leader's
        # log.
        goes_on = leading is not None and partition.leader_epoch == replica.leader_epoch + 1
        if goes_on:
            self.isr_updates.cancel(replica)
        else:
            self._end_role(replica)
        fresh = LeaderState(host.lifecycle.node_id, partition, isr_min, host.now_ms)
        replica.lead(fresh, partition.leader_epoch)
        if not goes_on:
            self._notify_owner(replica)
        elif not fresh.has_enough:
            host.fail_waiting(replica, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        else:
            host.answer_reached(replica)
        host.role_changed(replica)

    def _notify_owner(self, replica: Replica) -> None:
        owner = self.owners.get(replica.topic)
        if owner is not None and self._is_loaded and replica.offline is None:
            self._owned[replica] = owner
            owner.on_election(replica, self._host.now_ms)

    def _follow(self, replica: Replica, topic_id: bytes, partition: Partition) -> None:
        following = replica.following
        fetcher = self._fetcher(partition.leader, topic_id, partition.partition)
        if (
            following is not None
            and following.epoch == partition.leader_epoch
            and following.fetcher is fetcher
        ):
            return
        self._end_role(replica)
        following = FollowerState(fetcher, replica, (topic_id, partition.partition), partition.leader_epoch)
        replica.follow(following, partition.leader_epoch)
        fetcher.add(following)
        self._to_ask[fetcher] = None
        self._host.role_changed(replica)

    def rest(self, replica: Replica, leader_epoch: int) -> None:
        """End the role: the partition has no leader, is offline here, or this broker does not serve."""
        if replica.leading is None and replica.following is None:
            replica.leader_epoch = leader_epoch
            return
        self._end_role(replica)
        replica.rest(leader_epoch)
        self._host.role_changed(replica)

    def damaged(self, replica: Replica) -> None:
        """R12: a replica lost records that it had reported, or its log. It must not stay in the ISR."""
        host = self._host
        if host.clustered:
            self.rest(replica, replica.leader_epoch)
            self.isr_removal.leave(replica)

    def _end_role(self, replica: Replica) -> None:
        host = self._host
        if replica.following is not None:
            replica.following.fetcher.remove(replica.following)
            replica.following = None
        elif replica.leading is not None:
            replica.leading = None
            self.isr_updates.cancel(replica)
            host.fail_waiting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            owner = self._owned.pop(replica, None)
            if owner is not None:
                owner.on_resignation(replica, host.now_ms)

    def _fetcher(self, leader: int, topic_id: bytes, number: int) -> ReplicaFetcher:
        spread = int.from_bytes(topic_id[-4:], "big") + number
        lane = spread % self._host.config.num_replica_fetchers
        fetcher = self._fetchers.get((leader, lane))
        if fetcher is None:
            fetcher = self._fetchers[leader, lane] = ReplicaFetcher(self._host, leader, lane)
        return fetcher
