"""The cluster store as a broker sees it: who is alive, who controls, and one ordered log of metadata records.

`runtime/zookeeper_store.py` serves it on ZooKeeper, and the simulator on its own clock. What a broker wants
is asked with a `done` that is called exactly once, later, never within the call; what happens by itself
arrives through `StoreEvents`. Everything arrives in order on one thread.

What the store promises:

- The log is one sequence of records, the same for all. A proposal is in it whole or not at all, and once.
- Only the controller with the newest epoch can append; the check and the write are one step (R6).
- `done(None)` of an append comes after `committed` brought its records. A write whose outcome is unknown,
  because the connection broke, is answered once the log itself has told.
- When a proposal fails, those behind it fail too, since they were decided on top of it: first `rejected`,
  then each `done`. Each gets an error that holds for itself. A proposal must fit into one append: the core
  checks that before it proposes.
- While suspended nothing is known to be lost: the session may come back. After `lost` it is over: the
  registration and the control that it held are gone, and nothing that belonged to it arrives any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

#: The most that the records of one append may take, encoded; a larger change is split by whoever decides it.
#: ZooKeeper takes 1 MiB a request and answers a larger one by closing the connection, which looks like any
#: other loss.
APPEND_BYTES_MAX: Final = 512 * 1024

#: The error of a proposal that was not written because one before it failed.
SUPERSEDED: Final = "a change before this one could not be written, so this one was not tried: try again"

#: A metadata record (metadata/records.py). The store carries them and looks at none.
Record: TypeAlias = Any

#: `done(error)`
Done: TypeAlias = Callable[[str | None], None]
#: `done(epoch, error)`: the new epoch, or 0 and why not.
EpochDone: TypeAlias = Callable[[int, str | None], None]


class Registration(NamedTuple):
    """A broker that is alive. One process is one incarnation; `directories` are the ids of its log
    directories.
    """

    node_id: int
    host: str
    port: int
    rack: str | None
    directories: tuple[str, ...]
    incarnation: str
    #: Whether the life before this one ended with everything flushed (R7).
    clean: bool
    #: Asked for by the broker, and raised by the store if need be: higher with each registration of a broker
    #: (R5), and not to be guessed (`controller/broker_epoch.py`).
    epoch: int = 0
    #: Whether something is missing that was flushed: a directory, a log, or the end of one (R12).
    damaged: bool = False
    #: Whether it flushes before it reports, where a topic does not say: each broker has a file of its own.
    durable: bool = True


class StoreEvents(Protocol):
    """What the store tells the broker. `now_ms` is the time of the call."""

    def restored(self, records: Sequence[Record], now_ms: int) -> None:
        """The whole state anew: forget what was known. At the first connection, or when this broker was away
        for so long that the log it had not read is gone.
        """

    def committed(self, records: list[Record], now_ms: int) -> None:
        """The next records of the log: its own as well as other controllers', each exactly once."""

    def rejected(self, now_ms: int) -> None:
        """Proposals failed; the calls of their `done` follow."""

    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None: ...
    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None:
        """Who controls, or -1 and the epoch of who did last."""

    def store_suspended(self, now_ms: int) -> None:
        """The connection is lost, the session perhaps not: decide nothing, keep serving."""

    def store_back(self, now_ms: int) -> None:
        """Connected again and up to date: everything missed was told before this. After `lost`: register
        anew.
        """

    def store_lost(self, now_ms: int) -> None: ...


class Store(Protocol):
    def register(self, registration: Registration, done: EpochDone) -> None:
        """Say that this broker is alive. A registration left by one of the same directories is its own
        earlier life, and is replaced at once; one of another directory is a second broker of the same number:
        refused.
        """

    def claim(self, done: EpochDone) -> None:
        """Become controller if nobody is. When `done` brings the epoch, every record before it was committed
        here.
        """

    def usurp(self, node_id: int, epoch: int, done: EpochDone) -> None:
        """Take control from this controller if it still has it: its port refuses, or it is our own earlier
        life.
        """

    def append(self, records: Sequence[Record], done: Done) -> None: ...
    def snapshot(self, records: Sequence[Record], done: Done) -> None:
        """Replace the log so far by what it amounts to. By the controller, with its image as of the last
        `committed`.
        """
