"""The cluster store as a broker sees it: live brokers, the controller, and one ordered log of metadata
records.

`runtime/zookeeper_store.py` implements it on ZooKeeper, and the simulator on its own clock. Every request has
a `done` that is called exactly once, later, never within the call. Events arrive through `StoreEvents`.
Everything arrives in order on one thread.

Guarantees of the store:

- The log is one sequence of records, the same for all. A proposal is in it completely or not at all, and
  once.
- Only the controller with the newest epoch can append; check and write are one step (R6).
- `done(None)` of an append comes after `committed` with its records. A write whose outcome is unknown,
  because the connection broke, is answered when the log shows it.
- When a proposal fails, all later ones fail too, because they depend on it: first `rejected`, then each
  `done`. Each gets its own error. A proposal must fit into one append: the core checks that before it
  proposes.
- While suspended, nothing is known to be lost: the session may continue. After `lost` it is over: its
  registration and controllership are gone, and none of its events arrive any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

#: Maximum encoded size of the records of one append; a larger change is split by the core. ZooKeeper accepts
#: 1 MiB per request, and closes the connection for a larger one.
APPEND_BYTES_MAX: Final = 512 * 1024

#: The error of a proposal that was not written because an earlier one failed.
SUPERSEDED: Final = "an earlier change could not be written, so this one was not tried: try again"

#: A metadata record (metadata/records.py). Opaque to the store.
Record: TypeAlias = Any

#: `done(error)`
Done: TypeAlias = Callable[[str | None], None]
#: `done(epoch, error)`: the new epoch, or 0 and the error.
EpochDone: TypeAlias = Callable[[int, str | None], None]


class Registration(NamedTuple):
    """A live broker. One process is one incarnation; `directories` are the ids of its log directories."""

    node_id: int
    host: str
    port: int
    rack: str | None
    directories: tuple[str, ...]
    incarnation: str
    #: Whether the previous incarnation ended with a clean shutdown (R7).
    clean: bool
    #: Requested by the broker, and raised by the store if necessary: it increases with each registration of a
    #: broker (R5), and cannot be guessed (`controller/broker_epoch.py`).
    epoch: int = 0
    #: Whether flushed data is missing: a directory, a log, or the end of a log (R12).
    damaged: bool = False
    #: The broker's default flush policy: whether it flushes before it reports.
    durable: bool = True


class StoreEvents(Protocol):
    """Events of the store. `now_ms` is the time of the call."""

    def restored(self, records: Sequence[Record], now_ms: int) -> None:
        """The whole state: replaces everything known. At the first connection, or if the log was compacted
        before this broker had read it.
        """

    def committed(self, records: list[Record], now_ms: int) -> None:
        """The next records of the log, of this broker and of other controllers, each exactly once."""

    def rejected(self, now_ms: int) -> None:
        """Proposals failed; the calls of their `done` follow."""

    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None: ...
    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None:
        """The controller, or -1 and the epoch of the last one."""

    def store_suspended(self, now_ms: int) -> None:
        """The connection is lost, but possibly not the session: decide nothing, continue to serve."""

    def store_back(self, now_ms: int) -> None:
        """Connected and up to date: all missed events came before this. After `lost`: register again."""

    def store_lost(self, now_ms: int) -> None: ...


class Store(Protocol):
    def register(self, registration: Registration, done: EpochDone) -> None:
        """Register this broker. A registration with the same directories is its own previous incarnation, and
        is replaced at once. One with other directories is a second broker with the same id: refused.
        """

    def claim(self, done: EpochDone) -> None:
        """Become controller if there is none. When `done` has the epoch, every earlier record was committed
        here.
        """

    def usurp(self, node_id: int, epoch: int, done: EpochDone) -> None:
        """Replace this controller if it still is one: its port refuses connections, or it is our own previous
        incarnation.
        """

    def append(self, records: Sequence[Record], done: Done) -> None: ...
    def snapshot(self, records: Sequence[Record], done: Done) -> None:
        """Replace the log by a snapshot. Called by the controller, with its image as of the last `committed`."""
