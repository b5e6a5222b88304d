"""Changes of the ISR: the AlterPartition request, its retries and its answer (R3, R4, R5, R12; KIP-497).

Two kinds of changes are requested from the controller:

- `IsrUpdates`: a leader expands its ISR by a follower that has caught up, or shrinks it by one that lags. The
  change is in force once it is in the image. Until then the high watermark waits for the members of both
  ISRs.
- `IsrRemoval`: a replica that lost records leaves its ISRs, as leader or follower. Kafka lets only leaders
  ask for another ISR; here every member may ask to be left out.

Each kind has one request in flight at a time. It carries all changes that are due, up to `_CHANGES_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.model.timer_wheel import Later, Periodic
from ottla.replication.partition_walk import PartitionWalk

if TYPE_CHECKING:
    from ottla.metadata.records import Partition
    from ottla.replication.host import ReplicationHost
    from ottla.replication.leader_state import LeaderState
    from ottla.replication.replica import Replica

_VERSION: Final = 3
_ANY_EPOCH: Final = -1
#: The pause after a request that failed.
_RETRY_MS: Final = 200
#: The pause after a change that the controller refused, and before the image is checked for one that it
#: granted.
_REFUSED_MS: Final = 1000
#: Partitions in one request.
_CHANGES_MAX: Final = 1000
#: Errors after which neither this request nor an earlier one changed anything. After any other error the
#: controller's partition has another epoch: an earlier request may have been granted, and the image will show
#: it.
_REFUSALS: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)

#: Rows of a request, by topic id.
Changes: TypeAlias = dict[bytes, list[dict[str, Any]]]


def _send(host: ReplicationHost, changes: Changes, answered: Callable[[Any, str | None], None]) -> None:
    request = {
        "broker_id": host.lifecycle.node_id,
        "broker_epoch": host.lifecycle.broker_epoch,
        "topics": [{"topic_id": topic, "partitions": rows} for topic, rows in changes.items()],
    }
    host.controller_channel.ask(ApiKey.ALTER_PARTITION, _VERSION, request, answered)


def _row(
    number: int, leader_epoch: int, partition_epoch: int, isr: Iterable[tuple[int, int]]
) -> dict[str, Any]:
    """`isr`: node ids with the broker epochs that the controller compares with the registered ones."""
    return {
        "partition_index": number,
        "leader_epoch": leader_epoch,
        "partition_epoch": partition_epoch,
        "new_isr_with_epochs": [{"broker_id": node, "broker_epoch": epoch} for node, epoch in isr],
        "leader_recovery_state": 0,
    }


class IsrUpdates:
    """The ISR changes of the leaders on this broker."""

    def __init__(self, host: ReplicationHost) -> None:
        self._host = host
        #: Leaders whose ISR change the controller has not answered.
        self._wanted: dict[Replica, None] = {}
        self._in_flight = False
        #: Whether a timer is set for the next request.
        self._is_scheduled = False
        self._lag_walk = PartitionWalk(host.timers, self._shrink_or_expand)

    def start(self, now_ms: int) -> None:
        timers = self._host.timers

        def interval_ms() -> int:
            return max(50, self._host.config.replica_lag_time_max_ms // 2)

        timers.add(Periodic(timers, interval_ms, self._check_lags), now_ms + interval_ms())

    # --- which changes are due ------------------------------------------------------------------------------

    def _check_lags(self, now_ms: int) -> None:
        if self._host.lifecycle.is_serving:
            self._lag_walk.begin(
                # Also leaders that are alone in their ISR: a follower that was refused once must not stay
                # outside.
                [
                    each
                    for each in self._host.partitions.replicas()
                    if each.leading and each.leading.followers
                ],
                now_ms,
            )

    def _shrink_or_expand(self, replica: Replica, now_ms: int) -> int:
        leading = replica.leading
        if leading is None or leading.pending is not None or not replica.opened:
            return 1
        lag_max_ms = self._host.config.replica_lag_time_max_ms
        laggards = leading.laggards(replica.log.next_offset, lag_max_ms, now_ms)
        if laggards:
            self.request(replica, tuple(each for each in leading.isr if each not in laggards))
        else:
            self.expand(replica)
        return 2

    def expand(self, replica: Replica) -> None:
        """Request an ISR with all followers that have caught up.

        A follower may have caught up while another change was pending, or it was refused. It reports no
        position until there are new records.
        """
        leading, image = replica.leading, self._host.image
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
            self.request(replica, (*leading.isr, *ready))

    # --- the request ----------------------------------------------------------------------------------------

    def request(self, replica: Replica, isr: tuple[int, ...]) -> None:
        """R4: until the image has the decision, the high watermark waits for the members of both ISRs."""
        assert replica.leading is not None
        replica.leading.ask_for(isr)
        self._wanted[replica] = None
        self._schedule(0)

    def cancel(self, replica: Replica) -> None:
        """The replica does not lead any more, or leads in another epoch."""
        self._wanted.pop(replica, None)

    def retry(self) -> None:
        """The metadata store can be reached again."""
        if self._wanted:
            self._schedule(0)

    def _schedule(self, delay_ms: int) -> None:
        if not self._is_scheduled and not self._in_flight:
            self._is_scheduled = True
            self._host.timers.add(Later(self._due), self._host.now_ms + delay_ms)

    def _due(self) -> None:
        self._is_scheduled = False
        self._send_wanted()

    def _send_wanted(self) -> None:
        host = self._host
        if self._in_flight or self._is_scheduled or host.lifecycle.suspended:
            return
        sent: dict[tuple[bytes, int], tuple[Replica, LeaderState, int]] = {}
        changes: Changes = {}
        for replica in list(self._wanted):
            if len(sent) >= _CHANGES_MAX:
                break
            leading = replica.leading
            if leading is None or leading.pending is None:
                del self._wanted[replica]
                continue
            topic_id = host.partitions.by_name[replica.topic].topic_id
            sent[topic_id, replica.number] = replica, leading, leading.partition_epoch
            isr = [(each, self._epoch_of(leading, each)) for each in leading.pending]
            row = _row(replica.number, replica.leader_epoch, leading.partition_epoch, isr)
            changes.setdefault(topic_id, []).append(row)
        if not sent:
            return
        self._in_flight = True

        def answered(response: Any, error: str | None) -> None:
            self._in_flight = False
            if error is not None or response.error_code:
                # It may have been granted: both ISRs stay in force, and the same change is requested again.
                return self._schedule(_RETRY_MS)
            for topic in response.topics:
                for row in topic.partitions:
                    known = sent.get((topic.topic_id.bytes, row.partition_index))
                    if known is not None:
                        host.isolation.run("an ISR change", self._decided, *known, row)
            if self._wanted:
                # A change that was sent and is still wanted reached a broker that is not the controller any
                # more.
                again = any(known[0] in self._wanted for known in sent.values())
                self._schedule(_RETRY_MS if again else 0)
            return None

        try:
            _send(host, changes, answered)
        except Exception:
            self._in_flight = False
            self._schedule(_REFUSED_MS)
            raise

    def _epoch_of(self, leading: LeaderState, node_id: int) -> int:
        """R5: the broker epoch from which a member has fetched. The controller compares it with the
        registered one."""
        follower = leading.followers.get(node_id)
        if follower is None:
            return self._host.lifecycle.broker_epoch
        # Unknown for a member of the ISR that has not fetched yet: the controller has put it there.
        return follower.epoch

    # --- the answer -----------------------------------------------------------------------------------------

    def _decided(self, replica: Replica, leading: LeaderState, partition_epoch: int, row: Any) -> None:
        if replica.leading is not leading or leading.partition_epoch != partition_epoch:
            return
        if row.error_code == ErrorCode.NOT_CONTROLLER:
            # The broker that answered knows less than this one: the same change is requested again.
            return
        self._wanted.pop(replica, None)
        host = self._host
        if row.error_code not in _REFUSALS:
            # Granted, or overtaken by another change. The high watermark waits for both ISRs until the image
            # shows which. With the old ISR alone, records could be acknowledged that no member of the new one
            # has.
            host.timers.add(
                Later(lambda: self._request_again(replica, leading, partition_epoch)),
                host.now_ms + _REFUSED_MS,
            )
            return
        leading.refused()
        host.advance(replica)
        host.timers.add(Later(lambda: self.expand(replica)), host.now_ms + _REFUSED_MS)

    def _request_again(self, replica: Replica, leading: LeaderState, partition_epoch: int) -> None:
        """A controller answers before the commit. If it was replaced in between, no image ever has the
        change."""
        if (
            replica.leading is leading
            and leading.pending is not None
            and leading.partition_epoch == partition_epoch
        ):
            self._wanted[replica] = None
            self._schedule(0)


class IsrRemoval:
    """Replicas on this broker that lost records and leave their ISRs (R12).

    A failed log directory takes its replicas offline, and a damaged log lacks records that it had reported.
    Such a replica gives up its role at once, before the metadata shows it. Another member of the ISR becomes
    leader. Once out of the ISR, a damaged replica follows; one whose log directory failed follows after the
    next start.

    The controller refuses if no other member is in sync. Then an offline partition stays offline, and a
    damaged replica leads with the records it has left.
    """

    def __init__(self, host: ReplicationHost) -> None:
        self._host = host
        #: Replicas that should leave an ISR and are still in it, according to the image.
        self._leaving: dict[Replica, None] = {}
        self._in_flight = False
        self._timer = Later(self._send_leaving)

    def leave(self, replica: Replica) -> None:
        self._leaving[replica] = None
        self._schedule(0)

    def holds(self, replica: Replica, partition: Partition) -> bool:
        """Whether a replica may not have a role yet. Called whenever the partition has changed."""
        if replica not in self._leaving:
            return False
        if self._is_member(partition):
            return True
        del self._leaving[replica]
        return False

    def _is_member(self, partition: Partition) -> bool:
        me = self._host.config.node_id
        return me in partition.isr or me in partition.eligible

    def _schedule(self, delay_ms: int) -> None:
        timers = self._host.timers
        timers.cancel(self._timer)
        timers.add(self._timer, self._host.now_ms + delay_ms)

    def _send_leaving(self) -> None:
        host = self._host
        if self._in_flight:
            return None
        sent: dict[tuple[bytes, int], Replica] = {}
        changes: Changes = {}
        me = host.config.node_id
        for replica in list(self._leaving):
            hosted = host.partitions.by_name.get(replica.topic)
            partition = host.image.partition(hosted.topic_id, replica.number) if hosted else None
            if replica.gone or partition is None or not self._is_member(partition):
                del self._leaving[replica]
            elif len(sent) < _CHANGES_MAX:
                sent[partition.topic_id, replica.number] = replica
                isr = [(node, _ANY_EPOCH) for node in partition.isr if node != me]
                row = _row(partition.partition, partition.leader_epoch, partition.partition_epoch, isr)
                changes.setdefault(partition.topic_id, []).append(row)
        if not sent:
            return None
        if host.lifecycle.suspended or not host.lifecycle.is_serving:
            return self._schedule(_RETRY_MS)
        self._in_flight = True

        def answered(response: Any, error: str | None) -> None:
            self._in_flight = False
            # The image shows which replicas are out; the request is repeated for the others.
            self._schedule(_RETRY_MS)
            if error is None and not response.error_code:
                self._stay_where_alone(sent)
            if not self._leaving:
                host.timers.cancel(self._timer)

        try:
            _send(host, changes, answered)
        except Exception:
            self._in_flight = False
            self._schedule(_RETRY_MS)
            raise
        return None

    def _stay_where_alone(self, sent: dict[tuple[bytes, int], Replica]) -> None:
        """A damaged replica that is the only member of its ISR takes its role again: no other replica has
        more."""
        host = self._host
        me = (host.config.node_id,)
        for (topic_id, number), replica in sent.items():
            partition = host.image.partition(topic_id, number)
            if (
                replica.offline is None
                and replica in self._leaving
                and partition is not None
                and partition.isr == me
                and not partition.eligible
            ):
                del self._leaving[replica]
                host.replica_roles.assign(replica, topic_id, partition)
        host.replica_roles.settle()
