"""The core as the shell drives it: what `broker.core.Broker` offers, and nothing of what it is.

The runtime performs effects for whatever fits this; the broker's room and this one do not know each other.
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
    """A connection as the core sees it. `transport` is the shell's to set."""

    peer: str
    closed: bool
    #: The core does not want more of its requests for now.
    paused: bool
    #: One of its answers was large: its next request waits until that has left. The shell resets it.
    has_large_answer: bool
    #: What the core keeps of its answers.
    held_bytes: int
    transport: Any

    @property
    def waiting(self) -> Sized: ...


class Alarm(Protocol):
    sooner: bool

    def sweep(self) -> None:
        """Free what cancelled deadlines have left behind."""


@runtime_checkable
class Interruptible(Protocol):
    """Something with callbacks on the event loop. One of them raised: it ends what it was doing and tells those that wait."""

    def interrupted(self, error: Exception) -> None: ...


class Isolation(Protocol):
    """What keeps an internal error with the work that raised it."""

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
        """What is kept of requests that wait."""

    @property
    def held_answer_bytes(self) -> int:
        """What is kept of answers behind others of their connections."""

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
    """What a core in a cluster offers beside that."""

    #: How many records of the metadata log a new broker reads beside the snapshot.
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
