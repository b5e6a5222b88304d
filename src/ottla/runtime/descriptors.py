"""Shares of the file descriptors of this process, so that sockets and log files do not starve each other.

log files a quarter, at least 64 and at most 16,384 (`SystemDisk` closes and reopens files to stay within it)
other brokers in a cluster a sixteenth, at most 1,024: outgoing connections of this broker own use descriptors
open at the start, and 48: syncs, jobs, ZooKeeper, the compaction process connections the rest: an upper bound
on `max.connections`
"""

from __future__ import annotations

import os
import resource
from typing import Final, NamedTuple

_OWN: Final = 48
_FILES_MIN, _FILES_MAX = 64, 16_384
_PEERS_MAX: Final = 1024
#: Below this the bound is logged even if max.connections is not set.
_FEW: Final = 2000


class Shares(NamedTuple):
    limit: int
    files: int
    connections: int

    def news(self, wanted: int, *, is_set: bool) -> str | None:
        """The log line for a bound below max.connections; None if no line is needed."""
        if wanted <= self.connections or not (is_set or self.connections < _FEW):
            return None
        return (
            f"max.connections is {wanted}, but only {self.connections} are possible: this process may open "
            f"{self.limit} "
            f"descriptors, and {self.limit - self.connections} of them are reserved for log files and other "
            "brokers. "
            "Raise the limit (`ulimit -n`, or LimitNOFILE= of systemd) and restart"
        )


def share_out(*, clustered: bool) -> Shares:
    """Raise the soft limit to the hard limit, and divide it."""
    return shares_of(_raise_limit(), in_use=_in_use(), clustered=clustered)


def shares_of(limit: int, *, in_use: int, clustered: bool) -> Shares:
    files = max(_FILES_MIN, min(_FILES_MAX, limit // 4))
    peers = min(_PEERS_MAX, limit // 16) if clustered else 0
    return Shares(limit, files, max(1, limit - files - peers - in_use - _OWN))


def _raise_limit() -> int:
    """H2: raise the limit as far as allowed; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1 << 20
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass
    return soft


def _in_use() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 16
