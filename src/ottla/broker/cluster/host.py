"""What the classes of this room use of the broker, as Protocols. `broker/core.py` is the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ottla.broker.cluster.broker_lifecycle import BrokerLifecycle
    from ottla.broker.cluster.controller_driver import ControllerDriver
    from ottla.config.broker import BrokerConfig
    from ottla.metadata.image import Image
    from ottla.metadata.records import Record
    from ottla.model.timer_wheel import TimerWheel
    from ottla.ports.effects import Effect
    from ottla.ports.entropy import Entropy


class Isolation(Protocol):
    """Keeps an internal error with the work that raised it."""

    def run(self, what: str, action: Callable[..., object], *arguments: Any) -> None:
        """Call the action. An exception is logged and goes no further."""


class LogDirectory(Protocol):
    """What a registration says of a log directory."""

    @property
    def directory_id(self) -> bytes:
        """Empty if the directory was never opened."""

    @property
    def clean(self) -> bool:
        """The last run closed it cleanly."""

    @property
    def was_unused(self) -> bool:
        """It was new at this start."""


class LogDirectories(Protocol):
    @property
    def all(self) -> Sequence[LogDirectory]: ...

    @property
    def online(self) -> Sequence[LogDirectory]: ...


class LocalPartitions(Protocol):
    @property
    def is_damaged(self) -> bool:
        """A log lacks records that were durable (R12)."""


class IsrUpdates(Protocol):
    def retry(self) -> None:
        """The store is back: send the ISR changes that waited for it."""


class ReplicaRoles(Protocol):
    @property
    def isr_updates(self) -> IsrUpdates: ...


class ControllerChannel(Protocol):
    def ask(
        self, key: int, version: int, request: Mapping[str, Any], done: Callable[[Any, str | None], None]
    ) -> bool:
        """Send one request to the controller; `done(response, error)`. Returns whether it was sent."""


class StoreOutageHost(Protocol):
    @property
    def now_ms(self) -> int: ...

    @property
    def timers(self) -> TimerWheel: ...

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def lifecycle(self) -> BrokerLifecycle: ...

    @property
    def say(self) -> Callable[[str], None]:
        """Write a line to the broker's log."""


class RegistrationCheckHost(StoreOutageHost, Protocol):
    @property
    def outbox(self) -> list[Effect]: ...


class ShutdownHost(Protocol):
    @property
    def now_ms(self) -> int: ...

    @property
    def timers(self) -> TimerWheel: ...

    @property
    def lifecycle(self) -> BrokerLifecycle: ...

    @property
    def image(self) -> Image: ...

    @property
    def controller_channel(self) -> ControllerChannel: ...


class ControllerHost(RegistrationCheckHost, Protocol):
    """What the active controller uses."""

    #: The image, with the proposed records that are not committed yet.
    proposed: Image

    @property
    def image(self) -> Image:
        """The committed metadata."""

    @property
    def clustered(self) -> bool: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def records_in_log(self) -> int:
        """The length of the metadata log after its snapshot."""

    def propose(self, records: list[Record], done: Callable[[str | None], None]) -> None:
        """Append to the metadata log; `done(None)` when the image has the records, else `done(error)`."""


class ClusterHost(ControllerHost, ShutdownHost, Protocol):
    """What the broker lifecycle uses in addition."""

    @property
    def entropy(self) -> Entropy: ...

    @property
    def isolation(self) -> Isolation: ...

    @property
    def directories(self) -> LogDirectories: ...

    @property
    def partitions(self) -> LocalPartitions: ...

    @property
    def replica_roles(self) -> ReplicaRoles: ...

    @property
    def controller_driver(self) -> ControllerDriver: ...

    @property
    def proposals(self) -> int:
        """Proposals that are not answered yet."""

    def serve(self) -> None:
        """This broker is registered and unfenced: its replicas take their roles."""

    def cease(self) -> None:
        """This broker's registration ended: its replicas give up their roles."""
