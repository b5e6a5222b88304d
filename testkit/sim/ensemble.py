"""The servers of the simulated cluster store: sessions, ephemerals, the controller and the metadata log.

Each write checks and acts in one step, as a multi of ZooKeeper does. Clients (`store.py`) are notified of a
change and then read it; `on_append` sees each change of the log before them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.controller.broker_epoch import registered_epoch
from ottla.log.names import id_text
from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.ports.store import Record, Registration
from ottla.security.broker_handshake import NONCE_BYTES, Credentials, HandshakeInitiator
from ottla.security.cluster_secret import SECRET_BYTES, ClusterSecret
from testkit.sim.world import World

if TYPE_CHECKING:
    from testkit.sim.store import SimStore

FENCED: Final = "another controller has taken over"


class Entry(NamedTuple):
    """One append: its start, and the tag that identifies its writer."""

    first: int
    tag: str
    epoch: int
    records: list[Record]


class Session:
    """The session of one client. `number` is its identity, as owner of ephemerals."""

    __slots__ = ("alive", "number", "silence")

    def __init__(self, number: int) -> None:
        self.number = number
        self.alive = True
        #: Counts the contacts of the client: an expiry that was scheduled before the latest one is cancelled.
        self.silence = 0


class Ensemble:
    """The servers. `on_append` and `on_image` are called for each change of the log before clients see it."""

    def __init__(self, world: World, *, session_timeout_ms: int) -> None:
        self.world = world
        self.session_timeout_ms = session_timeout_ms
        self.cluster_id = id_text(world.random.randbytes(16))
        self.secret = ClusterSecret(world.tokens.randbytes(SECRET_BYTES))
        #: The log: its snapshot, if any, and the entries after it.
        self.snapshot: tuple[int, list[Record]] | None = None
        self.entries: list[Entry] = []
        self.end = 0
        #: Changes with the end of the log and with the snapshot.
        self.version = 0
        self.image = Image()
        self.live: dict[int, Registration] = {}
        self._owners: dict[int, Session] = {}
        #: The controller, -1 for none, and the epoch of the last one.
        self.holder = -1
        self.controller_epoch = 0
        self._holder_session: Session | None = None
        self._changes = 0
        self._sessions = 0
        self.clients: list[SimStore] = []
        #: Added to every delay, while the store is slow.
        self.slow_ms = 0
        #: Whether the store is unreachable: sessions do not expire meanwhile.
        self.is_down = False
        self.on_append: Callable[[Image, Image, list[Record]], None] = lambda _before, _after, _records: None

    def prove_as(self, node_id: int) -> Callable[[int], HandshakeInitiator]:
        """The handshakes of this broker, for a test that sends requests in its name."""
        me = Credentials(self.secret, self.cluster_id, node_id)
        return lambda accepting_id: HandshakeInitiator(
            me, accepting_id, self.world.tokens.randbytes(NONCE_BYTES)
        )

    # --- sessions ---------------------------------------------------------------------------------------------

    def open_session(self) -> Session:
        self._sessions += 1
        return Session(self._sessions)

    def silent(self, session: Session) -> None:
        """No contact from now on: the session expires, unless `heard` comes first."""
        session.silence += 1
        silence = session.silence
        timeout = self.session_timeout_ms
        # The last contact was up to a third of the timeout ago.
        wait_ms = timeout - self.world.below(timeout // 3)

        def expire() -> None:
            if session.silence != silence or not session.alive:
                return
            if self.is_down:
                self.silent(session)
                return
            self.end_session(session)

        self.world.later(wait_ms, expire)

    def heard(self, session: Session) -> None:
        session.silence += 1

    def end_session(self, session: Session) -> None:
        if not session.alive:
            return
        session.alive = False
        self.world.log(f"store: session {session.number} ends")
        gone = [node_id for node_id, owner in self._owners.items() if owner is session]
        for node_id in gone:
            del self.live[node_id], self._owners[node_id]
        if gone:
            self._brokers_moved()
        if self._holder_session is session:
            self._holder_session = None
            self.holder = -1
            self._controller_moved()

    # --- writes: each checks and acts in one step -----------------------------------------------------------------

    def register(self, session: Session, registration: Registration) -> tuple[int, str | None]:
        node_id = registration.node_id
        present = self.live.get(node_id)
        if present is not None:
            ours = self._owners[node_id] is session
            if ours and present._replace(epoch=0) == registration._replace(epoch=0):
                return present.epoch, None
            if not ours and set(present.directories).isdisjoint(registration.directories):
                return 0, f"node id {node_id} is taken by the broker at {present.host}:{present.port}"
        self._changes += 1
        epoch = registered_epoch(registration.epoch, self._changes, present.epoch if present else 0)
        self.live[node_id] = registration._replace(epoch=epoch)
        self._owners[node_id] = session
        self.world.log(f"store: broker {node_id} registers with epoch {epoch}")
        self._brokers_moved()
        return epoch, None

    def claim(self, session: Session, node_id: int, rival: tuple[int, int] | None) -> tuple[int, str | None]:
        if self._holder_session is not None:
            if self._holder_session is session and self.holder == node_id:
                return self.controller_epoch, None
            if (self.holder, self.controller_epoch) != rival:
                return 0, f"held by {self.holder}"
        self._changes += 1
        self.controller_epoch += 1
        self.holder, self._holder_session = node_id, session
        self.world.log(f"store: broker {node_id} is controller of epoch {self.controller_epoch}")
        self._controller_moved()
        return self.controller_epoch, None

    def append(self, epoch: int, tag: str, version: int, records: list[Record]) -> str:
        """ "ok", or the reason of a failure: "fenced", "moved"."""
        if not self.is_controller_epoch(epoch):
            return "fenced"
        if version != self.version:
            return "moved"
        self._changes += 1
        self.version += 1
        # Encoded and decoded, so that a record that cannot be stored is detected here.
        records = [r.decode(r.encode(record)) for record in records]
        entry = Entry(self.end, tag, epoch, records)
        self.entries.append(entry)
        self.end += len(records)
        before, self.image = self.image, self.image.apply(records)
        if self.world.traced:
            for record in records:
                self.world.log(f"store: {self.end} {_told(record)}")
        self.on_append(before, self.image, records)
        self._log_moved()
        return "ok"

    def take_snapshot(self, epoch: int, offset: int, records: list[Record]) -> str | None:
        if not self.is_controller_epoch(epoch):
            return FENCED
        if self.snapshot is None or offset > self.snapshot[0]:
            self.world.log(f"store: a snapshot of {len(records)} records replaces the log up to {offset}")
            self.version += 1
            self.snapshot = offset, [r.decode(r.encode(record)) for record in records]
            self.entries = [entry for entry in self.entries if entry.first >= offset]
        return None

    def is_controller_epoch(self, epoch: int) -> bool:
        """The fence of every write (R6)."""
        return epoch == self.controller_epoch

    # --- what clients watch ---------------------------------------------------------------------------------------

    def _log_moved(self) -> None:
        for client in self.clients:
            client.log_moved()

    def _brokers_moved(self) -> None:
        for client in self.clients:
            client.brokers_moved()

    def _controller_moved(self) -> None:
        for client in self.clients:
            client.controller_moved()


def _told(record: Record) -> str:
    if isinstance(record, r.Partition):
        more = "".join(
            f" {name} {value}"
            for name, value in (
                ("adding", record.adding),
                ("removing", record.removing),
                ("eligible", record.eligible),
            )
            if value
        )
        return (
            f"{record.topic_id.hex()[:4]}-{record.partition}: leader {record.leader} epoch {record.leader_epoch} "
            f"isr {record.isr} of {record.replicas} version {record.partition_epoch} last {record.last_leader}{more}"
        )
    return repr(record)
