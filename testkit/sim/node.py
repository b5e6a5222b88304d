"""A broker in the simulation: performs the effects of the core as `runtime/effect_runner.py` does, one event
at a time.

The work of a thread is an event of its own, and so is its result: a cut can fall between a sync and its
acknowledgement, in the middle of a round, or inside a job. A node runs until it is stopped, killed or loses
power; what is in flight then is dropped. It shares only the disk with the next node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ottla.broker.core import Broker
from ottla.broker.requests.connection import Connection
from ottla.config.broker import BrokerConfig
from ottla.log.compaction import Task, clean
from ottla.metadata.records import Record
from ottla.ports.disk import DiskError
from ottla.ports.effects import (
    CLOSE,
    PAUSE,
    PROPOSE,
    RESUME,
    RETRIED,
    RETRY_MS,
    RUN,
    SEND,
    SYNC,
    WORK,
    refusal,
)
from ottla.ports.store import SUPERSEDED
from ottla.records.errors import CorruptRecords
from ottla.runtime.embedded_store import EmbeddedStore
from testkit.injected import is_injected
from testkit.sim.disk import SimDisk
from testkit.sim.world import SeededEntropy, World

DATA_DIR: Final = "/var/data"
#: The second log directory, if there is one.
OTHER_DIR: Final = "/var/more"
#: Overwrites a frame once the core has read it, as the shared buffer of the runtime would be.
_POISON: Final = 0xEE


class Delays:
    """Maximum delays on this node, in milliseconds."""

    __slots__ = ("job_ms", "network_ms", "sync_ms")

    def __init__(self, *, network_ms: int = 3, sync_ms: int = 8, job_ms: int = 30) -> None:
        self.network_ms = network_ms
        self.sync_ms = sync_ms
        self.job_ms = job_ms


class Link:
    """A client connection: bytes arrive later and in order, or the link breaks."""

    def __init__(self, node: SimNode, receive: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self.node = node
        self.connection = node.broker.connected("client")
        self.connection.transport = self
        self.open = True
        self.paused = False
        self.held: list[bytes] = []
        self._receive = receive
        self._lost = lost
        self._there_ms = 0
        self._here_ms = 0
        self._undelivered: deque[bytes] = deque()

    def send(self, frame: bytes) -> None:
        """From the client to the broker; the frame has its size prefix."""
        self._there_ms = self.node.arrival(self._there_ms)
        self.node.schedule(self._there_ms - self.node.world.now_ms, lambda: self._arrived(frame))

    def _arrived(self, frame: bytes) -> None:
        if self.paused:
            self.held.append(frame)
        elif self.open:
            self.node.receive(self.connection, frame)

    def resume(self) -> None:
        self.paused = False
        held, self.held = self.held, []
        for frame in held:
            self._arrived(frame)

    def deliver(self, data: bytes) -> None:
        """From the broker to the client."""
        world = self.node.world
        self._here_ms = self.node.arrival(self._here_ms)
        self._undelivered.append(data)
        world.later(self._here_ms - world.now_ms, self._deliver_one)

    def _deliver_one(self) -> None:
        if self._undelivered:
            data = self._undelivered.popleft()
            if self.open:
                self._receive(data)

    def die(self) -> None:
        """The broker is gone. What it had sent still arrives, all at once or not at all."""
        if self.node.world.chance(0.5):
            self._undelivered.clear()
        while self._undelivered:
            self._deliver_one()
        self.broken()

    def close(self) -> None:
        """By the client: nothing more arrives on either side."""
        if self.open:
            self.open = False
            if self.node.alive:
                self.node.broker.disconnected(self.connection)

    def broken(self) -> None:
        """By the broker, or by its death: the client is notified after everything that was delivered."""
        world = self.node.world
        self._here_ms = self.node.arrival(self._here_ms)

        def lost() -> None:
            if self.open:
                self.open = False
                self._lost()

        world.later(self._here_ms - world.now_ms, lost)


class SimNode:
    def __init__(
        self,
        world: World,
        disk: SimDisk,
        config: BrokerConfig,
        delays: Delays,
    ) -> None:
        self.world = world
        self.disk = disk
        self.delays = delays
        self.alive = True
        self._links: list[Any] = []
        self._files: dict[Any, Any] = {}
        self._directories: dict[str, str] = {}
        self._loose: list[Any] = []
        self._kinds: dict[Any, str] = {}
        self._syncing = False
        #: Failed syncs by path, with the error; whether or not the core knows them yet.
        self.sync_failures: list[tuple[str, str]] = []
        self._proposals: list[tuple[list[Record], Callable[[str | None], None]]] = []
        self._proposing = False
        #: As in the runtime: whether a proposal of this turn could not be handed on.
        self.is_withdrawn = False
        self._timer_ms: int | None = None
        self._settling = False
        self._assemble(config)
        self.isolation = self.broker.isolation
        self.isolation.tolerates = is_injected

    def _assemble(self, config: BrokerConfig) -> None:
        self.store = EmbeddedStore(self.disk, DATA_DIR)
        self.broker = Broker(config, self.disk, SeededEntropy(self.world.random), say=self._say)

    def start(self, *, rewrites_journal: bool = False) -> None:
        """As `server/node.py` opens a node, which rewrites a journal that has grown long."""
        broker, store, now_ms = self.broker, self.store, self.world.now_ms
        records = store.load()
        first = broker.start(records, now_ms)
        if first:
            store.append(first)
            broker.committed(first, now_ms)
            broker.proposed = broker.image
        if rewrites_journal:
            store.rewrite(broker.image.records())
        self._turn()

    def stop(self) -> None:
        """A clean shutdown: work in progress ends, then the core closes its logs."""
        self._die()
        for link in self._links:
            self.broker.disconnected(link.connection)
        for path, error in self.sync_failures:
            # It may have been on its way to the core.
            self.broker.sync_failed(path, error)
        self.broker.stop()
        self.store.close()

    def kill(self) -> None:
        """The process is gone at once."""
        self._die()

    def _die(self) -> None:
        if not self.alive:
            return
        self.alive = False
        for link in self._links:
            link.die()

    def _say(self, text: str) -> None:
        self.world.log(f"broker: {text}")

    # --- clients ----------------------------------------------------------------------------------------------

    def connect(self, receive: Callable[[bytes], None], lost: Callable[[], None]) -> Link:
        link = Link(self, receive, lost)
        self._links.append(link)
        return link

    def arrival(self, not_before_ms: int) -> int:
        world = self.world
        return max(not_before_ms, world.now_ms + world.below(self.delays.network_ms + 1))

    def receive(self, connection: Connection, frame: bytes) -> None:
        buffer = bytearray(frame[4:])
        self.broker.receive(connection, memoryview(buffer).toreadonly(), self.world.now_ms)
        buffer[:] = bytes((_POISON,)) * len(buffer)
        self._turn()

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> None:
        """An event that does not happen if the node is gone by then."""

        def happen() -> None:
            if self.alive:
                action()

        self.world.later(delay_ms, happen)

    # --- effects ----------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        broker, now_ms = self.broker, self.world.now_ms
        if broker.settle(now_ms) and not self._settling:
            self._settling = True
            self.schedule(0, self._settle_more)
        while broker.outbox:
            outbox, broker.outbox = broker.outbox, []
            self.is_withdrawn = False
            for effect in outbox:
                self._try_perform(effect)
        deadline = broker.next_deadline_ms
        if deadline is not None and (self._timer_ms is None or deadline < self._timer_ms):
            self._timer_ms = deadline
            self.schedule(max(0, deadline - now_ms), lambda: self._tick(deadline))

    def _try_perform(self, effect: Any) -> None:
        try:
            self._perform(effect)
        except Exception as error:
            self._unperformed(effect, error)

    def _unperformed(self, effect: Any, error: Exception) -> None:
        self.isolation.contain(f"effect {effect[0]}", error)
        if effect[0] in (SEND, CLOSE, PAUSE, RESUME):
            self.broker.disconnected(effect[1])
            effect[1].transport.broken()
            return
        if effect[0] in RETRIED:
            self.schedule(RETRY_MS, lambda: self._try_perform(effect))
            return
        if effect[0] == PROPOSE:
            self.is_withdrawn = True
            self.broker.withdrawn()
        report = refusal(effect, f"internal error: {error!r}")
        if report is not None:
            self.schedule(0, lambda: self._finished(report))

    def _finished(self, done: Callable[..., None], *arguments: Any) -> None:
        self.broker.now_ms = self.world.now_ms
        self.isolation.run("a finished job", done, *arguments)
        self._turn()

    def _settle_more(self) -> None:
        self._settling = False
        self._turn()

    def _tick(self, deadline_ms: int) -> None:
        if self._timer_ms != deadline_ms:
            return  # an earlier one took its place
        self._timer_ms = None
        self.broker.tick(self.world.now_ms)
        self._turn()

    def _perform(self, effect: Any) -> None:
        kind = effect[0]
        if kind == SEND:
            self._send(effect[1].transport, effect[2])
        elif kind == SYNC:
            self._sync(effect[1], effect[2], effect[3])
        elif kind == RUN:
            self._run(effect[1], effect[2])
        elif kind == WORK:
            self._work(effect[1], effect[2])
        elif kind == PROPOSE:
            self._proposals.append((effect[1], effect[2]))
            if not self._proposing:
                self._proposing = True
                self.schedule(0, self._propose)
        elif kind == PAUSE:
            effect[1].transport.paused = True
        elif kind == RESUME:
            self.schedule(0, effect[1].transport.resume)
        elif kind == CLOSE:
            self._say(f"closes a connection: {effect[2]}")
            self.broker.disconnected(effect[1])
            effect[1].transport.broken()

    def _send(self, link: Any, parts: list[Any]) -> None:
        data = bytearray()
        for part in parts:
            if isinstance(part, tuple):
                file, position, size = part
                piece = self.disk.read(file, position, size)
                assert len(piece) == size, f"{file.path} has {len(piece)} of {size} bytes at {position}"
                data += piece
            else:
                data += part
        link.deliver(bytes(data))

    # Rounds, as in `runtime/background.py`: syncs requested during one wait for the next.

    def _sync(self, file: Any, directory: str | None, target: Any) -> None:
        if file is not None:
            self._files[file] = target
            self._kinds[file] = "file" if target[1] is not None else "loose file"
        else:
            self._loose.append(target)
        if directory is not None:
            self._directories[directory] = "directory" if file is not None else "parent"
        if not self._syncing:
            self._syncing = True
            self.schedule(0, self._start_round)

    def _start_round(self) -> None:
        files, self._files = self._files, {}
        directories, self._directories = self._directories, {}
        kinds, self._kinds = self._kinds, {}
        targets: list[Any] = [*files.values(), *self._loose]
        self._loose = []
        # Files that could not be opened: retried if descriptors were short, else refused.
        again: dict[Any, tuple[Any, str]] = {}
        refused: list[tuple[Any, str]] = []

        def perform() -> None:
            # A pool of threads: in any order.
            order = list(files)
            self.world.random.shuffle(order)
            failures: list[tuple[str, str]] = []
            for file in order:
                try:
                    with self.disk.at(f"SYNC {kinds[file]}"):
                        self.disk.sync(file)
                except DiskError as failed:
                    if failed.broken:
                        failures.append((file.path, str(failed)))
                        continue
                    targets.remove(files[file])
                    if failed.short:
                        again[file] = files[file], kinds[file]
                    else:
                        refused.append((files[file], str(failed)))
            for directory, kind in directories.items():
                try:
                    with self.disk.at(f"SYNC {kind}"):
                        self.disk.sync_dir(directory)
                except DiskError as failed:
                    failures.append((directory, str(failed)))
            self.sync_failures += failures
            self.schedule(self.world.below(3), lambda: finished(failures))

        def finished(failures: list[tuple[str, str]]) -> None:
            for file, (target, kind) in again.items():
                self._files.setdefault(file, target)
                self._kinds.setdefault(file, kind)
            if self._files or self._directories:
                self.schedule(0, self._start_round)
            else:
                self._syncing = False
            for path, error in failures:
                self.isolation.run("a failed sync", self.broker.sync_failed, path, error)
            for target, error in refused:
                self.isolation.run("a refused sync", self.broker.sync_refused, target, error)
            self.isolation.run("a sync", self.broker.synced, targets, self.world.now_ms)
            self._turn()

        self.schedule(self.world.below(self.delays.sync_ms + 1), perform)

    def _run(self, job: Callable[[Any], Any], done: Callable[[Any, str | None], None]) -> None:
        def perform() -> None:
            result, error = None, None
            try:
                result = job(self.disk)
            except DiskError as failed:
                error = str(failed)
            self.schedule(
                self.world.below(self.delays.job_ms + 1), lambda: self._finished(done, result, error)
            )

        self.schedule(self.world.below(self.delays.job_ms + 1), perform)

    def _work(self, task: Task, done: Callable[[Any, str | None], None]) -> None:
        """The work of the worker process: later than other jobs, because it takes long."""

        def perform() -> None:
            outcome, error = None, None
            try:
                outcome = clean(self.disk, task)
            except (DiskError, CorruptRecords) as failed:
                error = str(failed)
            self.schedule(
                self.world.below(10 * self.delays.job_ms + 1), lambda: self._finished(done, outcome, error)
            )

        self.schedule(self.world.below(10 * self.delays.job_ms + 1), perform)

    def _propose(self) -> None:
        proposals, self._proposals = self._proposals, []
        records = [record for each, _done in proposals for record in each]

        def perform() -> None:
            error: str | None = None
            try:
                if records:
                    self.store.append(records)
            except DiskError as failed:
                error = str(failed)
            self.schedule(self.world.below(5), lambda: finished(error))

        def finished(error: str | None) -> None:
            now_ms = self.world.now_ms
            if error is None:
                self.isolation.run("new metadata", self.broker.committed, records, now_ms)
            else:
                self.broker.rejected()
            dropped: list[Any] = []
            if error is not None:
                # It depends on a proposal that was not written.
                dropped, self._proposals = self._proposals, []
            for _records, done in proposals:
                self.isolation.run("the answer to a change of metadata", done, error)
            for _records, done in dropped:
                self.isolation.run("the answer to a change of metadata", done, SUPERSEDED)
            if self._proposals:
                self._propose()
            else:
                self._proposing = False
            self._turn()

        self.schedule(self.world.below(5), perform)
