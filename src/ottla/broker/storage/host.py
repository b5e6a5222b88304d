"""What the classes of this room use of the broker, as Protocols. `broker/core.py` is the host.

Each class asks for the smallest Protocol that has what it uses. The classes of this room reach each other
through the host (`host.partitions`, `host.log_maintenance`), since each of them needs most of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ottla.broker.storage.disk_space import DiskSpace
    from ottla.broker.storage.log_cleaner import LogCleaner
    from ottla.broker.storage.log_dir_moves import LogDirMoves
    from ottla.broker.storage.log_directories import LogDirectories
    from ottla.broker.storage.log_directory import LogDirectory
    from ottla.broker.storage.log_maintenance import LogMaintenance
    from ottla.broker.storage.partitions import LocalPartitions
    from ottla.broker.storage.wall_clock import WallClock
    from ottla.config.broker import BrokerConfig
    from ottla.log.partition_log import PartitionLog
    from ottla.metadata.image import Image
    from ottla.metadata.records import Partition
    from ottla.model.errors import ErrorCode
    from ottla.model.steps import Steps
    from ottla.model.timer_wheel import TimerWheel
    from ottla.ports.disk import Disk, DiskError
    from ottla.ports.effects import Effect
    from ottla.ports.entropy import Entropy
    from ottla.replication.replica import Replica


class Isolation(Protocol):
    """Keeps an internal error with the work that raised it."""

    def run(self, what: str, action: Callable[..., object], *arguments: Any) -> None:
        """Call the action. An exception is logged and goes no further."""

    def contain(self, what: str, error: Exception) -> None:
        """Log an exception that the caller has caught."""


class Slices(Protocol):
    """Long work on the event loop, one slice per turn."""

    def charge(self, cost: int) -> None: ...

    def begin(self, steps: Steps[Any], done: Callable[[Any, Exception | None], None]) -> None: ...


class ReplicaRoles(Protocol):
    """Leader and follower roles of the replicas on this broker."""

    def assign(self, replica: Replica, topic_id: bytes, partition: Partition) -> None: ...

    def damaged(self, replica: Replica) -> None: ...

    def rest(self, replica: Replica, leader_epoch: int) -> None: ...


class ByteBudget(Protocol):
    def take(self, size: int) -> None: ...


class MoveThrottle(Protocol):
    """The limit on copying between log directories (`replica.alter.log.dirs.io.max.bytes.per.second`)."""

    @property
    def moved(self) -> ByteBudget: ...

    def move_wait_ms(self) -> int: ...


class DiskSpaceHost(Protocol):
    @property
    def now_ms(self) -> int: ...

    @property
    def timers(self) -> TimerWheel: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def say(self) -> Callable[[str], None]:
        """Write a line to the broker's log."""

    def go_offline(self, directory: LogDirectory, reason: str) -> None:
        """A log directory failed: its partitions are offline until the next start."""


class CheckpointHost(DiskSpaceHost, Protocol):
    @property
    def isolation(self) -> Isolation: ...

    @property
    def disk_space(self) -> DiskSpace: ...

    @property
    def log_dir_moves(self) -> LogDirMoves: ...

    def say_once(self, text: str) -> None:
        """Write a line to the broker's log, unless the same line was written before."""

    def run(self, job: Callable[[Disk], Any], done: Callable[[Any, str | None], None]) -> None:
        """Run a job off the event loop, then call `done(result, error)` on it."""


class StorageHost(CheckpointHost, Protocol):
    """What the log cleaner and log maintenance use."""

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def entropy(self) -> Entropy: ...

    @property
    def outbox(self) -> list[Effect]: ...

    @property
    def wall_ms(self) -> int:
        """The wall clock: dates of records and segments. Timers use `now_ms`."""

    @property
    def wall_clock(self) -> WallClock: ...

    @property
    def slices(self) -> Slices: ...

    @property
    def directories(self) -> LogDirectories: ...

    @property
    def partitions(self) -> LocalPartitions: ...

    @property
    def log_maintenance(self) -> LogMaintenance: ...

    @property
    def log_cleaner(self) -> LogCleaner: ...

    def write_failed(
        self, directory: LogDirectory, error: DiskError, replica: Replica | None = None
    ) -> None: ...

    def disk_failed(self, path: str, error: DiskError) -> None: ...

    def sync_failed(self, path: str, error: str) -> None: ...

    def advance(self, replica: Replica) -> None:
        """Advance the high watermark, and answer the produce requests that waited for that."""

    def moved(self, replica: Replica) -> None:
        """Wake the fetches that wait for this partition, at the end of the turn."""


class MoveHost(StorageHost, Protocol):
    """What moves between log directories use in addition."""

    @property
    def replication_throttle(self) -> MoveThrottle: ...

    def lose_one(self, replica: Replica, directory: LogDirectory, reason: str) -> None:
        """One partition is offline until the next start; the rest of its directory is served."""


class PartitionsHost(StorageHost, Protocol):
    """What the partitions on this broker use in addition."""

    #: Assigned when a broker setting changes at run time.
    config: BrokerConfig

    @property
    def clustered(self) -> bool: ...

    @property
    def image(self) -> Image: ...

    @property
    def replica_roles(self) -> ReplicaRoles: ...

    def resolve_config(self) -> BrokerConfig:
        """The broker's own settings, overridden by those set at run time."""

    def open_logs(self, directory: LogDirectory) -> Sequence[tuple[str, int, PartitionLog, int]]:
        """(topic, partition, log, high watermark) of each open log in a directory."""

    def sync(self, replica: Replica, log: PartitionLog) -> None: ...

    def fail_waiting(self, replica: Replica, code: ErrorCode) -> None:
        """Answer the produce requests that wait for this replica with an error."""

    def role_changed(self, replica: Replica) -> None:
        """Wake the fetches that wait for this replica, of consumers and of followers."""

    def lose_one(self, replica: Replica, directory: LogDirectory, reason: str) -> None:
        """One partition is offline until the next start; the rest of its directory is served."""
