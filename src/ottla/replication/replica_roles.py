"""Roles: which of the replicas here lead and which follow, as the image says; and who is in sync (R3, R4, R5).

A role begins and ends with a record of the metadata log, never by this broker's own decision, and only while the broker
serves (`broker/cluster/broker_lifecycle.py`). A leader that finds a follower caught up, or left behind, asks the controller to change the ISR
(AlterPartition); the change counts once it is in the image. All that is asked for in one turn shares a request, and one is
under way at a time. Partitions of internal topics have owners (coordinators): they hear when a role begins and when it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.metadata.records import Partition
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.model.timer_wheel import Later, Periodic
from ottla.replication.follower_state import FollowerState
from ottla.replication.isr_removal import IsrRemoval
from ottla.replication.leader_state import Follower, LeaderState
from ottla.replication.partition_walk import PartitionWalk
from ottla.replication.replica_fetcher import ReplicaFetcher

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.replication.replica import Replica

_ALTER_PARTITION_VERSION: Final = 3
#: After a request about ISRs that failed, and after one that was refused.
_AGAIN_MS: Final = 200
_REFUSED_MS: Final = 1000
#: Changes that one request asks for.
_CHANGES_MAX: Final = 1000
#: Errors with which nothing was changed, by this request or by one before it whose answer was lost. After any other the
#: controller's partition is not the one that the request spoke of: what was asked for may have been granted, and the image will tell.
_REFUSALS: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)


class Owner(Protocol):
    """Who keeps its state in the partitions of a topic, and writes there with `appending.append_as_leader`.

    `on_election` and `on_resignation` come in turns for a replica; an epoch in which the same broker goes on leading is no news. An owner may add itself to `replica.watchers` to hear when the high watermark
    has moved, once a turn.
    """

    def on_election(self, replica: Replica, now_ms: int) -> None:
        """This broker leads the partition from now on, in `replica.leader_epoch`: load what is there."""

    def on_resignation(self, replica: Replica, now_ms: int) -> None:
        """It leads it no more: forget. What was appended and did not count yet was told of before."""


class ReplicaRoles:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: By the name of their topic.
        self.owners: dict[str, Owner] = {}
        #: The replicas whose owners have heard that they lead.
        self._owned: dict[Replica, Owner] = {}
        self._is_loaded = False
        self.isr_removal = IsrRemoval(broker)
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        #: Fetchers that have something new to ask for, once the turn's records are all looked at.
        self._to_ask: dict[ReplicaFetcher, None] = {}
        #: Leaders that want their ISR changed.
        self._wanting: dict[Replica, None] = {}
        self._asking = False
        self._resting = False
        self._lag_walk = PartitionWalk(broker.timers, self._look_for_laggards)

    def start(self, now_ms: int) -> None:
        timers = self._broker.timers

        def interval_ms() -> int:
            return max(50, self._broker.config.replica_lag_time_max_ms // 2)

        timers.add(Periodic(timers, interval_ms, self._check_lags), now_ms + interval_ms())

    def loaded(self) -> None:
        """All logs that were there are known: until now nobody could read one, or would have begun another in its place."""
        self._is_loaded = True
        for name in self.owners:
            hosted = self._broker.partitions.by_name.get(name)
            for replica in list(hosted.replicas.values()) if hosted is not None else ():
                if replica.leading is not None:
                    self._tell_owner(replica)

    # --- roles ------------------------------------------------------------------------------------------------

    def assign(self, replica: Replica, topic_id: bytes, partition: Partition) -> None:
        """Give a replica the role that the metadata has for it."""
        broker = self._broker
        me, epoch = broker.lifecycle.node_id, partition.leader_epoch
        if not broker.lifecycle.is_serving or partition.leader < 0:
            self.rest(replica, epoch)
        elif broker.clustered and (replica.offline is not None or self.isr_removal.holds(replica, partition)):
            self.rest(replica, epoch)
            if me in partition.isr or me in partition.eligible:
                self.isr_removal.leave(replica)
        elif replica.is_being_cut and not (replica.following and replica.following.epoch == epoch):
            # Another role, which could write to it at once.
            self.rest(replica, epoch)
        elif partition.leader == me:
            self._lead(replica, partition)
        else:
            self._follow(replica, topic_id, partition)

    def may_have_role(self, replica: Replica) -> None:
        """What kept it from its role is over."""
        hosted = self._broker.partitions.by_name.get(replica.topic)
        partition = self._broker.image.partition(hosted.topic_id, replica.number) if hosted else None
        if hosted is not None and partition is not None and not replica.gone:
            self.assign(replica, hosted.topic_id, partition)
            self.settle()

    def settle(self) -> None:
        """The turn's records were looked at: now ask the leaders."""
        while self._to_ask:
            self._broker.isolation.run("replication", self._to_ask.popitem()[0].ask_at_once)

    def _lead(self, replica: Replica, partition: Partition) -> None:
        broker = self._broker
        isr_min = replica.config.min_insync_replicas
        leading = replica.leading
        if leading is not None and replica.leader_epoch == partition.leader_epoch:
            had_enough = leading.has_enough
            leading.change(partition, isr_min, broker.now_ms)
            if had_enough and not leading.has_enough:
                # R8: they are written, but nobody knows when they will count.
                broker.fail_waiting(replica, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            if replica.opened:
                broker.advance(replica)
                self._look_for_joiners(replica)
            return
        # In the very next epoch nobody else has led in between: what waits here still stands in the one log that counts.
        goes_on = leading is not None and partition.leader_epoch == replica.leader_epoch + 1
        if goes_on:
            self._wanting.pop(replica, None)
        else:
            self._end_role(replica)
        fresh = LeaderState(broker.lifecycle.node_id, partition, isr_min, broker.now_ms)
        replica.lead(fresh, partition.leader_epoch)
        if not goes_on:
            self._tell_owner(replica)
        elif not fresh.has_enough:
            broker.fail_waiting(replica, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        else:
            broker.answer_reached(replica)
        broker.role_changed(replica)

    def _tell_owner(self, replica: Replica) -> None:
        owner = self.owners.get(replica.topic)
        if owner is not None and self._is_loaded and replica.offline is None:
            self._owned[replica] = owner
            owner.on_election(replica, self._broker.now_ms)

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
        self._broker.role_changed(replica)

    def rest(self, replica: Replica, leader_epoch: int) -> None:
        """No role: the partition has no leader, is offline here, or this broker does not serve."""
        if replica.leading is None and replica.following is None:
            replica.leader_epoch = leader_epoch
            return
        self._end_role(replica)
        replica.rest(leader_epoch)
        self._broker.role_changed(replica)

    def damaged(self, replica: Replica) -> None:
        """R12: a replica lacks what it had reported, or has no log any more. Others must not count on it."""
        broker = self._broker
        if broker.clustered:
            self.rest(replica, replica.leader_epoch)
            self.isr_removal.leave(replica)

    def _end_role(self, replica: Replica) -> None:
        broker = self._broker
        if replica.following is not None:
            replica.following.fetcher.remove(replica.following)
            replica.following = None
        elif replica.leading is not None:
            replica.leading = None
            self._wanting.pop(replica, None)
            broker.fail_waiting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            owner = self._owned.pop(replica, None)
            if owner is not None:
                owner.on_resignation(replica, broker.now_ms)

    def _fetcher(self, leader: int, topic_id: bytes, number: int) -> ReplicaFetcher:
        spread = int.from_bytes(topic_id[-4:], "big") + number
        lane = spread % self._broker.config.num_replica_fetchers
        fetcher = self._fetchers.get((leader, lane))
        if fetcher is None:
            fetcher = self._fetchers[leader, lane] = ReplicaFetcher(self._broker, leader, lane)
        return fetcher

    # --- followers of this broker's partitions ------------------------------------------------------------------

    def fetched(self, replica: Replica, node_id: int, broker_epoch: int, offset: int) -> bool:
        """A follower has everything before this offset; False if it is none of this partition's, or in no life that it has."""
        leading = replica.leading
        follower = leading.followers.get(node_id) if leading is not None else None
        if leading is None or follower is None or not self._is_alive(follower, broker_epoch):
            return False
        broker, end = self._broker, replica.log.next_offset
        follower.fetched(offset, end, broker_epoch, broker.now_ms)
        if follower in leading.counted:
            broker.advance(replica)
            if leading.behind_ms >= 0 and leading.all_have(end):
                leading.behind_ms = -1
        elif leading.may_join(follower, replica.high_watermark):
            self._want(replica, (*leading.isr, node_id))
        return True

    def _is_alive(self, follower: Follower, epoch: int) -> bool:
        """R5: whether a fetch is of a broker's present life. What an earlier one had this one may have lost, and a client that
        calls itself a broker has nothing at all. (Kafka takes a fetch without an epoch for an old broker's; here are none.)"""
        node = self._broker.image.brokers.get(follower.node_id)
        known = node.epoch if node is not None else -1
        if epoch < max(known, follower.epoch, 0):
            return False
        # An epoch that the image here does not have yet is registered. One that nobody has told this broker of is refused, also while
        # the store is out of reach: the follower comes again when the store is back.
        live = self._broker.lifecycle.live.get(follower.node_id)
        return epoch == known or (live is not None and live.epoch == epoch)

    def nearer(self, replica: Replica, rack: str, offset: int) -> int:
        """KIP-392: the follower in this rack that is in sync and has come furthest, at least to this offset; -1 if there is none.

        None either if this broker is in that rack itself, or does not lead.
        """
        leading = replica.leading
        image = self._broker.image
        if leading is None or self._broker.config.broker_rack == rack:
            return -1
        best, best_end = -1, offset - 1
        for node_id, follower in leading.followers.items():
            if (
                follower.end > best_end
                and node_id in leading.isr
                and image.is_live(node_id)
                and image.brokers[node_id].rack == rack
            ):
                best, best_end = node_id, follower.end
        return best

    def _check_lags(self, now_ms: int) -> None:
        if self._broker.lifecycle.is_serving:
            self._lag_walk.begin(
                # Those too that are alone in their ISR: whoever was refused once must not stay outside for good.
                [
                    each
                    for each in self._broker.partitions.replicas()
                    if each.leading and each.leading.followers
                ],
                now_ms,
            )

    def _look_for_laggards(self, replica: Replica, now_ms: int) -> int:
        leading = replica.leading
        if leading is None or leading.pending is not None or not replica.opened:
            return 1
        lag_max_ms = self._broker.config.replica_lag_time_max_ms
        laggards = leading.laggards(replica.log.next_offset, lag_max_ms, now_ms)
        if laggards:
            self._want(replica, tuple(each for each in leading.isr if each not in laggards))
        else:
            self._look_for_joiners(replica)
        return 2

    def _look_for_joiners(self, replica: Replica) -> None:
        """Ask for those who were ready while something else was asked for, or who were refused: they say no more where they
        stand until there is something new."""
        leading, image = replica.leading, self._broker.image
        if leading is None or leading.pending is not None or not replica.opened:
            return
        ready = [
            node_id
            for node_id, follower in leading.followers.items()
            if leading.may_join(follower, replica.high_watermark)
            and image.is_live(node_id)
            and image.brokers[node_id].epoch == follower.epoch
        ]
        if ready:
            self._want(replica, (*leading.isr, *ready))

    # --- asking for another ISR -------------------------------------------------------------------------------

    def _want(self, replica: Replica, isr: tuple[int, ...]) -> None:
        """R4: ask the controller; until it has decided, both ISRs are waited for."""
        assert replica.leading is not None
        replica.leading.ask_for(isr)
        self._wanting[replica] = None
        self._ask_soon(0)

    def _ask_soon(self, delay_ms: int) -> None:
        if not self._resting and not self._asking:
            self._resting = True
            self._broker.timers.add(Later(self._rested), self._broker.now_ms + delay_ms)

    def _rested(self) -> None:
        self._resting = False
        self._ask()

    def _ask(self) -> None:
        broker = self._broker
        if self._asking or self._resting or broker.lifecycle.suspended:
            return
        asked: dict[tuple[bytes, int], tuple[Replica, LeaderState, int]] = {}
        topics: dict[bytes, list[dict[str, Any]]] = {}
        for replica in list(self._wanting):
            if len(asked) >= _CHANGES_MAX:
                break
            leading = replica.leading
            if leading is None or leading.pending is None:
                del self._wanting[replica]
                continue
            topic_id = broker.partitions.by_name[replica.topic].topic_id
            asked[topic_id, replica.number] = replica, leading, leading.partition_epoch
            topics.setdefault(topic_id, []).append(self._change(replica, leading))
        if not asked:
            return
        self._asking = True
        request = {
            "broker_id": broker.lifecycle.node_id,
            "broker_epoch": broker.lifecycle.broker_epoch,
            "topics": [{"topic_id": topic, "partitions": rows} for topic, rows in topics.items()],
        }

        def answered(response: Any, error: str | None) -> None:
            self._asking = False
            if error is not None or response.error_code:
                # Perhaps it was granted: both ISRs stand, and the same is asked again.
                return self._ask_soon(_AGAIN_MS)
            for topic in response.topics:
                for row in topic.partitions:
                    known = asked.get((topic.topic_id.bytes, row.partition_index))
                    if known is not None:
                        broker.isolation.run("an ISR change", self._decided, *known, row)
            if self._wanting:
                # What was asked for and is still wanted went to who controls no more.
                again = any(known[0] in self._wanting for known in asked.values())
                self._ask_soon(_AGAIN_MS if again else 0)
            return None

        try:
            broker.controller_channel.ask(ApiKey.ALTER_PARTITION, _ALTER_PARTITION_VERSION, request, answered)
        except Exception:
            self._asking = False
            self._ask_soon(_REFUSED_MS)
            raise

    def _change(self, replica: Replica, leading: LeaderState) -> dict[str, Any]:
        assert leading.pending is not None
        return {
            "partition_index": replica.number,
            "leader_epoch": replica.leader_epoch,
            "partition_epoch": leading.partition_epoch,
            "new_isr_with_epochs": [
                {"broker_id": each, "broker_epoch": self._epoch_of(leading, each)} for each in leading.pending
            ],
            "leader_recovery_state": 0,
        }

    def _epoch_of(self, leading: LeaderState, node_id: int) -> int:
        """R5: the life of a broker that this leader has heard of; the controller compares it with the present one."""
        follower = leading.followers.get(node_id)
        if follower is None:
            return self._broker.lifecycle.broker_epoch
        # One that is in the ISR and has not fetched yet is in it by the controller's word.
        return follower.epoch

    def _decided(self, replica: Replica, leading: LeaderState, partition_epoch: int, row: Any) -> None:
        if replica.leading is not leading or leading.partition_epoch != partition_epoch:
            return
        if row.error_code == ErrorCode.NOT_CONTROLLER:
            # Whoever was asked knows less than this broker: the same is asked again.
            return
        self._wanting.pop(replica, None)
        broker = self._broker
        if row.error_code not in _REFUSALS:
            # Granted, or overtaken: both ISRs are waited for until the image has what became of it, which may be any moment. A
            # leader that counted on the old one alone could acknowledge what no member of the new one has.
            broker.timers.add(
                Later(lambda: self._ask_again(replica, leading, partition_epoch)),
                broker.now_ms + _REFUSED_MS,
            )
            return
        leading.refused()
        broker.advance(replica)
        broker.timers.add(Later(lambda: self._look_for_joiners(replica)), broker.now_ms + _REFUSED_MS)

    def _ask_again(self, replica: Replica, leading: LeaderState, partition_epoch: int) -> None:
        """A controller answers by what it has proposed. If it was replaced before that was committed, no image will ever have it."""
        if (
            replica.leading is leading
            and leading.pending is not None
            and leading.partition_epoch == partition_epoch
        ):
            self._wanting[replica] = None
            self._ask_soon(0)

    def catch_up(self) -> None:
        """The store can be reached again."""
        if self._wanting:
            self._ask_soon(0)
