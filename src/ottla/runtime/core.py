"""The core as the shell drives it: what `broker.core.Broker` offers, and nothing of what it is.

The runtime performs effects for whatever fits this; the broker's room and this one do not know each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, Protocol

from ottla.config.broker import BrokerConfig
from ottla.controller.records import Record
from ottla.ports.disk import DiskError


class Session(Protocol):
    """A connection as the core sees it. `transport` is the shell's to set."""

    peer: str
    closed: bool
    transport: Any

    @property
    def waiting(self) -> Sized: ...


class Alarm(Protocol):
    sooner: bool


class Core(Protocol):
    config: BrokerConfig
    outbox: list[Any]
    now_ms: int

    @property
    def timers(self) -> Alarm: ...
    @property
    def next_deadline_ms(self) -> int | None: ...
    def connected(self, peer: str) -> Any: ...
    def disconnected(self, connection: Any) -> None: ...
    def receive(self, connection: Any, frame: memoryview, now_ms: int) -> None: ...
    def settle(self, now_ms: int) -> bool: ...
    def tick(self, now_ms: int) -> None: ...
    def wall_clock_set(self, ahead_ms: int, now_ms: int) -> None: ...
    def synced(self, targets: Iterable[Any], now_ms: int) -> None: ...
    def sync_failed(self, path: str, error: str) -> None: ...
    def disk_failed(self, path: str, error: DiskError) -> None: ...
    def committed(self, records: list[Record], now_ms: int) -> None: ...
    def rejected(self) -> None: ...
