"""The core as the runtime sees it: the protocol that `broker.core.Broker` fulfils.

`runtime/` does not import `broker/`, and `broker/` does not import `runtime/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, Protocol, runtime_checkable

from ottla.config.broker import BrokerConfig
from ottla.metadata.records import Record
from ottla.ports.disk import DiskError
from ottla.ports.store import Registration
from ottla.security.broker_handshake import HandshakeInitiator


class Session(Protocol):
    """A connection as the core sees it. The runtime sets `transport`."""

    peer: str
    closed: bool
    #: The core asked to stop reading requests.
    paused: bool
    #: One of its responses was large: the next request waits until it has left. The runtime resets it.
    has_large_answer: bool
    #: Bytes of its responses in the core.
    held_bytes: int
    transport: Any

    @property
    def waiting(self) -> Sized: ...


class Alarm(Protocol):
    sooner: bool

    def sweep(self) -> None:
        """Free the memory of cancelled deadlines."""


@runtime_checkable
class Interruptible(Protocol):
    """An object with callbacks on the event loop. When one raises, it ends its work and notifies callers."""

    def interrupted(self, error: Exception) -> None: ...


class Isolation(Protocol):
    """Contains an internal error: only the work that raised it fails."""

    def run(self, what: str, action: Callable[..., object], *arguments: Any) -> None: ...
    def contain(self, what: str, error: Exception) -> None: ...


class Core(Protocol):
    config: BrokerConfig
    outbox: list[Any]
    now_ms: int

    @property
    def isolation(self) -> Isolation: ...
    @property
    def timers(self) -> Alarm: ...
    @property
    def held_bytes(self) -> int:
        """Bytes of waiting requests."""

    @property
    def held_answer_bytes(self) -> int:
        """Bytes of responses that wait behind others of their connection."""

    @property
    def next_deadline_ms(self) -> int | None: ...
    def connected(self, peer: str) -> Any: ...
    def disconnected(self, connection: Any) -> None: ...
    def receive(self, connection: Any, frame: memoryview, now_ms: int) -> None: ...
    def settle(self, now_ms: int, *, is_last: bool = True) -> bool: ...
    def tick(self, now_ms: int) -> None: ...
    def wall_clock_set(self, ahead_ms: int, now_ms: int) -> None: ...
    def synced(self, targets: Iterable[Any], now_ms: int) -> None: ...
    def sync_failed(self, path: str, error: str) -> None: ...
    def sync_refused(self, target: Any, error: str) -> None: ...
    def disk_failed(self, path: str, error: DiskError) -> None: ...
    def committed(self, records: list[Record], now_ms: int) -> None: ...
    def rejected(self) -> None: ...
    def withdrawn(self) -> None: ...


class ClusterCore(Core, Protocol):
    """Additional methods of a core in a cluster."""

    #: Records of the metadata log that a new broker reads after the snapshot.
    records_in_log: int

    def prove_to(self, node_id: int) -> HandshakeInitiator | None: ...
    def restored(self, records: Sequence[Record], now_ms: int) -> None: ...
    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None: ...
    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None: ...
    def store_suspended(self, now_ms: int) -> None: ...
    def store_back(self, now_ms: int) -> None: ...
    def store_lost(self, now_ms: int) -> None: ...
    def refused(self, node_id: int, now_ms: int) -> None: ...
    def join(self, now_ms: int, done: Callable[[str | None], None]) -> None: ...
    def leave(self, now_ms: int, done: Callable[[], None]) -> None: ...
