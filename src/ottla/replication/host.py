"""What replication uses of the broker. `broker/core.py` is the host; nothing here imports `ottla.broker`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.log.partition_log import PartitionLog
    from ottla.log.segment import Segment
    from ottla.metadata.image import Image
    from ottla.model.errors import ErrorCode
    from ottla.model.timer_wheel import TimerWheel
    from ottla.ports.effects import Effect
    from ottla.ports.store import Registration
    from ottla.replication.replica import Replica
    from ottla.replication.replica_roles import ReplicaRoles
    from ottla.replication.replication_throttle import ReplicationThrottle


class Lifecycle(Protocol):
    """This broker's registration, and the live brokers."""

    node_id: int
    broker_epoch: int
    #: Whether this broker is registered and unfenced.
    is_serving: bool
    #: Whether the metadata store is out of reach.
    suspended: bool

    @property
    def live(self) -> Mapping[int, Registration]: ...

    def mark_unreachable(self, node_id: int) -> None:
        """A request to this broker failed: check whether it is alive."""


class LocalTopic(Protocol):
    topic_id: bytes
    #: The replicas on this broker, by partition number.
    replicas: dict[int, Replica]


class LocalPartitions(Protocol):
    """The partitions on this broker."""

    @property
    def by_name(self) -> Mapping[str, LocalTopic]: ...

    def replicas(self) -> Iterable[Replica]: ...


class ControllerChannel(Protocol):
    def ask(
        self, key: int, version: int, request: Mapping[str, Any], done: Callable[[Any, str | None], None]
    ) -> bool:
        """Send a request to the controller; `done` gets the response or an error. Whether anything was
        sent."""


class Isolation(Protocol):
    """Internal errors stay with the work that raised them."""

    def run(self, what: str, action: Callable[..., object], *arguments: Any) -> None: ...

    def contain(self, what: str, error: Exception) -> None: ...


class LogMaintenance(Protocol):
    def delete_records(self, replica: Replica, offset: int) -> None:
        """Move the log start offset up."""

    def truncated(self, replica: Replica, segments: list[Segment], done: Callable[[], None]) -> None:
        """Delete the segments of a truncated log and write its recovery point; then call `done`."""


class ReplicationHost(Protocol):
    outbox: list[Effect]

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def clustered(self) -> bool: ...

    @property
    def now_ms(self) -> int: ...

    @property
    def wall_ms(self) -> int: ...

    @property
    def timers(self) -> TimerWheel: ...

    @property
    def image(self) -> Image:
        """The committed metadata."""

    @property
    def lifecycle(self) -> Lifecycle: ...

    @property
    def partitions(self) -> LocalPartitions: ...

    @property
    def controller_channel(self) -> ControllerChannel: ...

    @property
    def isolation(self) -> Isolation: ...

    @property
    def log_maintenance(self) -> LogMaintenance: ...

    @property
    def replication_throttle(self) -> ReplicationThrottle: ...

    @property
    def replica_roles(self) -> ReplicaRoles: ...

    @property
    def say(self) -> Callable[[str], None]:
        """Log a line."""

    def say_once(self, text: str) -> None:
        """Log a line, unless it was logged already."""

    # --- what follows from a change of a replica ------------------------------------------------------------

    def advance(self, replica: Replica) -> None:
        """Advance the high watermark and answer the produce requests that waited for it."""

    def answer_reached(self, replica: Replica) -> None:
        """Answer the produce requests whose records are below the high watermark."""

    def fail_waiting(self, replica: Replica, code: ErrorCode) -> None:
        """Answer all waiting produce requests with an error."""

    def moved(self, replica: Replica) -> None:
        """The high watermark moved: wake the consumers' fetches."""

    def role_changed(self, replica: Replica) -> None:
        """Wake all fetches of this replica: their answers may be different in its new role."""

    def replicated(self, replica: Replica, log: PartitionLog) -> None:
        """Records fetched from the leader were appended: flush and sync them as the topic's settings
        require."""

    def sync(self, replica: Replica, log: PartitionLog) -> None:
        """Request a sync of everything written."""
