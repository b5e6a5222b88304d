"""The state of a replica as follower, in one leader epoch.

`ReplicaRoles` creates it when the role begins and drops it when the role ends. Answers for a dropped one are
ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.replication.replica import Replica
    from ottla.replication.replica_fetcher import ReplicaFetcher


class FollowerState:
    __slots__ = ("epoch", "fetcher", "is_busy", "key", "refusals", "replica")

    def __init__(self, fetcher: ReplicaFetcher, replica: Replica, key: tuple[bytes, int], epoch: int) -> None:
        self.fetcher = fetcher
        self.replica = replica
        #: Topic id and partition number.
        self.key = key
        #: The leader epoch.
        self.epoch = epoch
        #: Left out of fetch requests: the log is being truncated, or the last answer was an error.
        self.is_busy = False
        #: Errors from the leader in a row.
        self.refusals = 0
