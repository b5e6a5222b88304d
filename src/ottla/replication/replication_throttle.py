"""How fast replicas are copied that are not in sync yet, where somebody has set a limit (KIP-73).

A limit is a broker's: one for what it hands out as leader, one for what it fetches as follower. It holds for the replicas that their
topic's settings name, and only while they are not in the ISR: whoever is in sync is never held up. A bucket that is empty
leaves its partitions out of answers, or of requests; everything else goes on. What a single answer takes may leave it
in debt, which later ones wait for. Nothing sleeps: leaders look again when they are asked again, followers by a timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.config.definition import LONG_MAX

if TYPE_CHECKING:
    from ottla.replication.host import ReplicationHost
    from ottla.replication.replica import Replica

ALL: Final = "*"
#: A bucket holds what may flow in this time.
_WINDOW_MS: Final = 1000
#: How long at most before an empty bucket is looked at again: the limit may be another one by then.
_WAIT_MAX_MS: Final = 1000


class Bucket:
    """Bytes that may flow now. It fills with the time that it is handed."""

    __slots__ = ("_at_ms", "_bytes")

    def __init__(self) -> None:
        self._at_ms = 0
        self._bytes = 0.0

    def wait_ms(self, bytes_per_second: int, now_ms: int) -> int:
        """How long until something may flow; 0 if it may now."""
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
        #: Between this broker's own directories.
        self.moved = Bucket()
        #: The lists of settings as sets, by identity: a reassignment may name thousands, and they are looked at often.
        self._sets: dict[int, tuple[tuple[str, ...], frozenset[str]]] = {}

    def is_slow_leader(self, replica: Replica, follower: int) -> bool:
        """Whether what this follower gets of a partition led here is limited."""
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
        """Whether what this broker fetches of a partition is limited."""
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
        """How long a move between directories waits before its next piece."""
        rate = self._host.config.replica_alter_log_dirs_io_max_bytes_per_second
        return self.moved.wait_ms(rate, self._host.now_ms)

    def _names(self, listed: tuple[str, ...], number: int) -> bool:
        known = self._sets.get(id(listed))
        if known is None or known[0] is not listed:
            if len(self._sets) > 1000:
                self._sets.clear()
            known = self._sets[id(listed)] = (listed, frozenset(listed))
        return ALL in known[1] or f"{number}:{self._host.config.node_id}" in known[1]
