"""Replication throttle: a limit for the copying of replicas that are not in sync (KIP-73).

Each broker has two limits: one for what it sends as leader, one for what it fetches as follower. They apply
to the replicas named in the topic's settings, and only while those are not in the ISR. While a bucket is
empty, its partitions are left out of answers or requests. One large answer may leave a bucket in debt, and
later ones wait for that. Nothing sleeps: a leader checks again at the next fetch, a follower by a timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.config.definition import LONG_MAX

if TYPE_CHECKING:
    from ottla.replication.host import ReplicationHost
    from ottla.replication.replica import Replica

ALL: Final = "*"
#: A full bucket holds the bytes of this time.
_WINDOW_MS: Final = 1000
#: How long to wait at most before an empty bucket is checked again: the limit may have changed.
_WAIT_MAX_MS: Final = 1000


class Bucket:
    """Bytes that may be copied. It fills with the time passed in."""

    __slots__ = ("_at_ms", "_bytes")

    def __init__(self) -> None:
        self._at_ms = 0
        self._bytes = 0.0

    def wait_ms(self, bytes_per_second: int, now_ms: int) -> int:
        """How long to wait until bytes may be copied; 0 if not at all."""
        if bytes_per_second == LONG_MAX:
            return 0
        if bytes_per_second == 0:
            return _WAIT_MAX_MS
        passed_ms, self._at_ms = now_ms - self._at_ms, now_ms
        self._bytes = min(
            bytes_per_second * _WINDOW_MS / 1000, self._bytes + passed_ms * bytes_per_second / 1000
        )
        if self._bytes > 0:
            return 0
        return min(_WAIT_MAX_MS, 1 + int(-self._bytes * 1000 / bytes_per_second))

    def take(self, size: int) -> None:
        self._bytes -= size


class ReplicationThrottle:
    def __init__(self, host: ReplicationHost) -> None:
        self._host = host
        self.handed_out = Bucket()
        self.fetched = Bucket()
        #: Between the log directories of this broker.
        self.moved = Bucket()
        #: The settings' lists as sets, by identity: a reassignment may name thousands of replicas.
        self._sets: dict[int, tuple[tuple[str, ...], frozenset[str]]] = {}

    def is_slow_leader(self, replica: Replica, follower: int) -> bool:
        """Whether sending this partition to this follower is throttled."""
        leading = replica.leading
        return (
            leading is not None
            and follower not in leading.isr
            and self._host.config.leader_replication_throttled_rate != LONG_MAX
            and self._names(replica.config.leader_replication_throttled_replicas, replica.number)
        )

    def leader_wait_ms(self) -> int:
        rate = self._host.config.leader_replication_throttled_rate
        return self.handed_out.wait_ms(rate, self._host.now_ms)

    @property
    def limits_followers(self) -> bool:
        return self._host.config.follower_replication_throttled_rate != LONG_MAX

    def is_slow_follower(self, replica: Replica, topic_id: bytes) -> bool:
        """Whether fetching this partition is throttled."""
        host = self._host
        listed = replica.config.follower_replication_throttled_replicas
        if not listed or not self.limits_followers or not self._names(listed, replica.number):
            return False
        partition = host.image.partition(topic_id, replica.number)
        return partition is not None and host.config.node_id not in partition.isr

    def follower_wait_ms(self) -> int:
        rate = self._host.config.follower_replication_throttled_rate
        return self.fetched.wait_ms(rate, self._host.now_ms)

    def move_wait_ms(self) -> int:
        """How long a move between log directories waits before its next chunk."""
        rate = self._host.config.replica_alter_log_dirs_io_max_bytes_per_second
        return self.moved.wait_ms(rate, self._host.now_ms)

    def _names(self, listed: tuple[str, ...], number: int) -> bool:
        known = self._sets.get(id(listed))
        if known is None or known[0] is not listed:
            if len(self._sets) > 1000:
                self._sets.clear()
            known = self._sets[id(listed)] = (listed, frozenset(listed))
        return ALL in known[1] or f"{number}:{self._host.config.node_id}" in known[1]
