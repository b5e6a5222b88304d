"""The positions of the followers of this broker's leaders, as their fetches report them (R3, R5).

A fetch from an offset says that the follower has everything before it. Called by
`broker/requests/fetch_session.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.replication.host import ReplicationHost
    from ottla.replication.isr_updates import IsrUpdates
    from ottla.replication.leader_state import Follower
    from ottla.replication.replica import Replica


class FollowerPositions:
    def __init__(self, host: ReplicationHost, isr_updates: IsrUpdates) -> None:
        self._host = host
        self._isr_updates = isr_updates

    def fetched(self, replica: Replica, node_id: int, broker_epoch: int, offset: int) -> bool:
        """A follower fetches from this offset. False if it does not follow this partition in this broker
        epoch."""
        leading = replica.leading
        follower = leading.followers.get(node_id) if leading is not None else None
        if leading is None or follower is None or not self._is_alive(follower, broker_epoch):
            return False
        host, end = self._host, replica.log.next_offset
        follower.fetched(offset, end, broker_epoch, host.now_ms)
        if follower in leading.counted:
            host.advance(replica)
            if leading.behind_ms >= 0 and leading.all_have(end):
                leading.behind_ms = -1
        elif leading.may_join(follower, replica.high_watermark):
            self._isr_updates.request(replica, (*leading.isr, node_id))
        return True

    def _is_alive(self, follower: Follower, epoch: int) -> bool:
        """R5: whether a fetch is from a broker's current epoch.

        In a new epoch a broker may have lost records of an earlier one. A client that claims to be a broker
        has no records at all. Kafka accepts a fetch without a broker epoch from older brokers; ottla has
        none.
        """
        node = self._host.image.brokers.get(follower.node_id)
        known = node.epoch if node is not None else -1
        if epoch < max(known, follower.epoch, 0):
            return False
        # A registration may be known here before the image has it. An unknown epoch is refused, also while
        # the metadata store is out of reach: the follower fetches again when the store is back.
        live = self._host.lifecycle.live.get(follower.node_id)
        return epoch == known or (live is not None and live.epoch == epoch)

    def nearer(self, replica: Replica, rack: str, offset: int) -> int:
        """KIP-392: the preferred read replica, or -1.

        It is the in-sync follower in this rack with the highest position, at least `offset`. There is none if
        this broker is in that rack itself, or does not lead.
        """
        leading = replica.leading
        image = self._host.image
        if leading is None or self._host.config.broker_rack == rack:
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
