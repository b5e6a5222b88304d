"""The parts of the broker that the coordinators use. `broker/core.py` implements all of these Protocols.

Each class of this package names the smallest Protocol that it needs:

    LeaderHost                  internal_appends.py
    CoordinatorHost             coordinator.py and its loader and partition, group_coordinator.py
    TransactionCoordinatorHost  transaction_coordinator.py
    ProducerIdHost              producer_ids.py
    HangingTransactionsHost     hanging_transactions.py
    TxnMarkersHost              txn_markers.py
    TxnVerificationHost         txn_verification.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ottla.model.errors import ErrorCode
from ottla.model.steps import Steps
from ottla.model.timer_wheel import TimerWheel

if TYPE_CHECKING:
    from ottla.broker.coordinators.coordinator_partition import CoordinatorPartition
    from ottla.broker.coordinators.group_coordinator import GroupCoordinator
    from ottla.broker.coordinators.hanging_transactions import HangingTransactions
    from ottla.broker.coordinators.producer_ids import ProducerIds
    from ottla.broker.coordinators.transaction_coordinator import TransactionCoordinator
    from ottla.broker.coordinators.txn_markers import TxnMarkers
    from ottla.broker.coordinators.txn_verification import TxnVerification
    from ottla.config.broker import BrokerConfig
    from ottla.log.partition_log import PartitionLog
    from ottla.metadata.image import Image
    from ottla.metadata.records import Record as MetadataRecord
    from ottla.ports.disk import Disk, DiskError
    from ottla.ports.effects import Effect
    from ottla.ports.entropy import Entropy
    from ottla.replication.replica import Replica
    from ottla.replication.replica_roles import Owner

#: `done(response, error)`: the decoded response, or None and the reason.
Answered: TypeAlias = Callable[[Any, str | None], None]


# --- parts of the broker ------------------------------------------------------------------------------------


class ErrorIsolation(Protocol):
    """Runs callbacks and contains what they raise."""

    def run(self, what: str, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action`; log what it raises."""

    def contain(self, what: str, error: Exception, *, reloads: bool = True) -> None:
        """Log an error. `reloads`: reload the coordinator partitions that its traceback passes through."""


class SlicedTasks(Protocol):
    """Runs long computations in slices, between the turns of other requests."""

    def begin(self, steps: Steps[Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Run `steps` from the end of this turn on, then call `done(result, error)`."""


class PartitionOwners(Protocol):
    """Who is notified when this broker starts or stops leading a partition of an internal topic."""

    @property
    def owners(self) -> dict[str, Owner]:
        """By topic name."""


class BrokerIdentity(Protocol):
    @property
    def node_id(self) -> int: ...


class ControllerRole(Protocol):
    @property
    def may_decide(self) -> bool:
        """Whether this broker is the active controller."""


class BrokerRequests(Protocol):
    """Requests to the controller and to other brokers."""

    def ask_broker(
        self, node_id: int, lane: int, key: int, version: int, request: Mapping[str, Any], done: Answered
    ) -> None:
        """Send a request to a broker, which may be this one."""

    def insist(
        self,
        key: int,
        version: int,
        request: Mapping[str, Any],
        moved: Callable[[Any], bool],
        done: Answered,
        limit_ms: int,
    ) -> object:
        """Send a request to the controller, and again while `moved(response)` says that the controller is
        elsewhere."""

    def when(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call `then` when the metadata image satisfies `condition`, or after a time limit."""

    def ask_producer_ids(self, done: Callable[[int, int, str | None], None]) -> None:
        """Ask the controller for a block of producer ids: `done(first, count, error)`."""


class TopicReplicas(Protocol):
    """The replicas of one topic on this broker, by partition number."""

    @property
    def replicas(self) -> Mapping[int, Replica]: ...


class LocalReplicas(Protocol):
    """The partitions on this broker."""

    @property
    def by_name(self) -> Mapping[str, TopicReplicas]:
        """By topic name."""


# --- what each class is handed ------------------------------------------------------------------------------


class LeaderHost(Protocol):
    """For appends to a partition that this broker leads."""

    @property
    def now_ms(self) -> int: ...

    @property
    def wall_ms(self) -> int: ...

    def appended(self, replica: Replica, log: PartitionLog, now_ms: int) -> None:
        """Advance the high watermark after an append: now, after a sync, or when followers have fetched
        it."""


class TimerHost(Protocol):
    """Monotonic time and timers."""

    @property
    def now_ms(self) -> int: ...

    @property
    def timers(self) -> TimerWheel: ...


class CoordinatorHost(LeaderHost, TimerHost, Protocol):
    """For the group and transaction coordinators, their partitions and their loader."""

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def clustered(self) -> bool: ...

    @property
    def image(self) -> Image: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def entropy(self) -> Entropy: ...

    @property
    def isolation(self) -> ErrorIsolation: ...

    @property
    def slices(self) -> SlicedTasks: ...

    @property
    def replica_roles(self) -> PartitionOwners: ...

    @property
    def controller_channel(self) -> BrokerRequests: ...

    @property
    def decided(self) -> dict[CoordinatorPartition, None]:
        """Coordinator partitions with unwritten records: `write` is called on each at the end of the turn."""

    def say(self, text: str, /) -> None:
        """Log a line."""

    def say_once(self, text: str) -> None:
        """Log a line unless it was logged before."""

    def disk_failed(self, path: str, error: DiskError) -> None:
        """A read failed; a device error takes the log directory offline."""


class TransactionCoordinatorHost(CoordinatorHost, Protocol):
    """Also for the transaction coordinator."""

    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def producer_ids(self) -> ProducerIds: ...

    @property
    def txn_markers(self) -> TxnMarkers: ...


class ProducerIdHost(TimerHost, Protocol):
    @property
    def isolation(self) -> ErrorIsolation: ...

    @property
    def controller_driver(self) -> ControllerRole: ...

    @property
    def controller_channel(self) -> BrokerRequests: ...

    @property
    def proposed(self) -> Image:
        """The metadata image with the proposals that are not committed yet."""

    def propose(self, records: list[MetadataRecord], done: Callable[[str | None], None]) -> None:
        """Append to the metadata log: `done(None)` when committed, `done(error)` if that failed."""


class HangingTransactionsHost(TimerHost, Protocol):
    @property
    def image(self) -> Image: ...

    @property
    def controller_channel(self) -> BrokerRequests: ...


class PeerHost(Protocol):
    """For requests to other brokers and work at the end of the turn."""

    @property
    def image(self) -> Image: ...

    @property
    def lifecycle(self) -> BrokerIdentity: ...

    @property
    def isolation(self) -> ErrorIsolation: ...

    @property
    def outbox(self) -> list[Effect]: ...

    def put_off(self, action: Callable[[], None]) -> None:
        """Call `action` at the end of this turn."""


class TxnMarkersHost(PeerHost, LeaderHost, Protocol):
    @property
    def slices(self) -> SlicedTasks: ...

    @property
    def partitions(self) -> LocalReplicas: ...

    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def hanging_transactions(self) -> HangingTransactions: ...

    @property
    def txn_verification(self) -> TxnVerification: ...

    def not_here(self, topic_id: bytes | None, name: str | None, number: int) -> ErrorCode | None:
        """The error for a partition without a replica on this broker; None if the partition does not
        exist."""

    def let_others_sync_first(self, since: int) -> None:
        """Mark the syncs from this index of the outbox on as bulk: other syncs need not wait for them."""


class TxnVerificationHost(PeerHost, TimerHost, Protocol):
    @property
    def transactions(self) -> TransactionCoordinator: ...
