"""The broker: every request comes in through `receive`, everything it wants done goes out through `outbox`.

The shell (or the simulator) calls, in any order but one at a time:

    start(records, now)                 once: the metadata log as it stands; opens the logs
    connected / receive / disconnected  a client's frames
    settle(now)                         after a turn's calls: wakes who waited; True if there is more to do at once
    tick(now)                           when `next_deadline_ms` has come
    synced / sync_failed / committed    when an effect is done

and after each of them performs what is in `outbox`. Time is always an argument. Nothing here blocks except the disk
port's own calls, and nothing is left behind by a request that fails: an exception in a handler, a timer, a callback or an
answer closes the connection it was for and no other (`isolation.py`).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from ottla.broker import api as _api
from ottla.broker.api.shared.api_table import APIS, SILENT, WAIT, Entry, Response, entry_for
from ottla.broker.cluster.broker_lifecycle import BrokerLifecycle
from ottla.broker.cluster.controller_driver import ControllerDriver
from ottla.broker.coordinators.coordinator_partition import CoordinatorPartition
from ottla.broker.coordinators.group_coordinator import GroupCoordinator
from ottla.broker.coordinators.hanging_transactions import HangingTransactions
from ottla.broker.coordinators.producer_ids import ProducerIds
from ottla.broker.coordinators.transaction_coordinator import TransactionCoordinator
from ottla.broker.coordinators.txn_markers import TxnMarkers
from ottla.broker.coordinators.txn_verification import TxnVerification
from ottla.broker.requests.connection import Call, Connection, Enclosed
from ottla.broker.requests.controller_channel import ControllerChannel
from ottla.broker.requests.fetch_session import FetchSessionCache
from ottla.broker.requests.isolation import Isolation
from ottla.broker.requests.produce_queue import ProduceQueue
from ottla.broker.requests.slices import Slices
from ottla.broker.storage.disk_space import DiskSpace
from ottla.broker.storage.log_cleaner import LogCleaner
from ottla.broker.storage.log_dir_moves import LogDirMoves
from ottla.broker.storage.log_directories import LogDirectories
from ottla.broker.storage.log_directory import ForeignDirectory, LogDirectory
from ottla.broker.storage.log_maintenance import LogMaintenance
from ottla.broker.storage.partitions import LocalPartitions
from ottla.broker.storage.wall_clock import WallClock
from ottla.config.broker import BrokerConfig
from ottla.config.definition import InvalidConfig
from ottla.log.names import id_text
from ottla.log.partition_log import PartitionLog
from ottla.log.segment import Segment
from ottla.metadata import records as r
from ottla.metadata.image import BROKER_RESOURCE, Image
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import QUEUED_ANSWER_BYTES_PER_CONNECTION, REQUESTS_WAITING_PER_CONNECTION_MAX
from ottla.model.timer_wheel import TimerWheel
from ottla.ports.disk import DamagedFile, Disk, DiskError
from ottla.ports.effects import CLOSE, PAUSE, PROPOSE, RESUME, RUN, SEND, SYNC, Effect
from ottla.ports.entropy import Entropy
from ottla.ports.store import Registration
from ottla.replication.replica import Replica
from ottla.replication.replica_roles import ReplicaRoles
from ottla.replication.replication_throttle import ReplicationThrottle
from ottla.security.broker_handshake import NONCE_BYTES, Credentials, Dialing
from ottla.security.cluster_secret import ClusterSecret
from ottla.wire.decode import MalformedMessage, TooManyRows, decode_request
from ottla.wire.frames import after_tags

_REQUEST_HEAD: Final = struct.Struct(">hhih")
_RESPONSE_HEAD: Final = struct.Struct(">ii")
_FLEXIBLE_RESPONSE_HEAD: Final = struct.Struct(">iib")
#: Of what was said once so much is remembered: some of it names offsets, and never ends.
_TOLD_MAX: Final = 1000
#: How many waiting fetches one call of `settle` answers, so that a fan-out does not hold up the produce behind it.
_WAKE_MAX: Final = 128
#: After an answer of this size the client's next request waits until it has left, or is known not to be read.
_LARGE_ANSWER_BYTES: Final = 64 * 1024
#: Unsynced segments of one log that are asked for with each append.
_SYNCS_AT_ONCE_MAX: Final = 8


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        entropy: Entropy,
        *,
        say: Callable[[str], None] = lambda _text: None,
        unusable: Mapping[str, str] | None = None,
        clustered: bool = False,
    ) -> None:
        """`unusable` says of log directories that are out of reach from the start why.

        With `clustered` the metadata log is in a store that other brokers share; `join` follows `start`.
        """
        self.config = config
        self.clustered = clustered
        self.disk = disk
        self.entropy = entropy
        self.say = say
        self.outbox: list[Effect] = []
        self.isolation = Isolation(self)
        self.timers = TimerWheel(self.isolation.contain)
        #: The committed metadata, and the same with what has been proposed on top: decisions look at the latter.
        self.image = Image()
        self.proposed = Image()
        self.lifecycle = BrokerLifecycle(self)
        self.controller_driver = ControllerDriver(self)
        self.controller_channel = ControllerChannel(self)
        self.partitions = LocalPartitions(self)
        self.replication_throttle: ReplicationThrottle = ReplicationThrottle(self)
        self.replica_roles: ReplicaRoles = ReplicaRoles(self)
        #: Tenures of coordinators that have decided something in this turn.
        self.decided: dict[CoordinatorPartition, None] = {}
        self.groups = GroupCoordinator(self)
        self.transactions = TransactionCoordinator(self)
        self.txn_markers = TxnMarkers(self)
        self.hanging_transactions = HangingTransactions(self)
        self.txn_verification = TxnVerification(self)
        self.slices = Slices(self)
        self.produce_queue = ProduceQueue(self)
        self.directories: LogDirectories = LogDirectories(disk, config.log_dirs, say, unusable or {})
        self.fetch_sessions = FetchSessionCache(self)
        self.log_maintenance = LogMaintenance(self)
        self.log_dir_moves = LogDirMoves(self)
        self.disk_space = DiskSpace(self)
        self.wall_clock = WallClock()
        self.log_cleaner = LogCleaner(self)
        self.producer_ids = ProducerIds(self)
        self._entries: dict[int, Entry] = {}
        self._moved: deque[Replica] = deque()
        self._put_off: deque[Callable[[], None]] = deque()
        self._long_tasks = self.slices.tasks
        #: Logs with many unsynced files, which ask for their syncs once a turn.
        self._to_sync: dict[Replica, PartitionLog] = {}
        self._told: set[str] = set()
        #: Bytes of answers that wait behind others of their connections.
        self.held_answer_bytes = 0
        #: How many proposals are not answered yet.
        self.proposals = 0
        self.now_ms: int = 0
        #: The cluster that the directories here belong to.
        self.cluster_id = ""
        #: What this broker proves itself to others with; None on its own.
        self.credentials: Credentials | None = None
        #: How many records the store keeps beside its snapshot, as it says itself.
        self.records_in_log = 0

    # --- start and stop ---------------------------------------------------------------------------------------

    def start(
        self,
        records: Iterable[r.Record | None],
        now_ms: int,
        cluster_id: str = "",
        secret: ClusterSecret | None = None,
    ) -> list[r.Record]:
        """Take the metadata log as it stands and open the logs; returns what must be proposed before serving.

        In a cluster the store has the `cluster_id` and the `secret`, and nothing is proposed before `join`.
        """
        self.now_ms = now_ms
        records = list(records)
        self.image = self.proposed = Image().apply(records)
        bootstrap: list[r.Record] = []
        self.cluster_id = cluster_id or self.image.cluster_id
        if not self.cluster_id:
            # A first start that died before its journal had the id has left it in a directory.
            chosen = self.directories.unused_cluster_id() or id_text(self.entropy.id_bytes())
            bootstrap.append(r.Cluster(chosen))
            self.image = self.proposed = self.image.apply(bootstrap)
            self.cluster_id = chosen
        self.config = self.resolve_config()
        if secret is not None:
            self.credentials = Credentials(secret, self.cluster_id, self.config.node_id)
        known = self.image.brokers
        if known and self.config.node_id not in known and not self.clustered:
            # Every partition is another's: nothing would be served, and nobody told why.
            raise ForeignDirectory(
                f"{self.config.metadata_log_dir} belongs to node.id {min(known)}, this broker has {self.config.node_id}: "
                "start it with its own --data-dir, or with the id the directory was made with"
            )
        self.directories.open(
            cluster_id=self.cluster_id, node_id=self.config.node_id, new_id=self.entropy.id_bytes
        )
        removed = {record.topic_id for record in records if isinstance(record, r.TopicRemoved)}
        self.partitions.load(self.image, removed, now_ms)
        self.replica_roles.loaded()
        self.log_maintenance.start(now_ms)
        self.groups.start(now_ms)
        if self.clustered:
            self.replica_roles.start(now_ms)
            return []
        advertised = self.config.advertised_listeners[0]
        me = r.BrokerRegistration(
            self.config.node_id, 1, advertised.host, advertised.port, self.config.broker_rack
        )
        if self.image.brokers.get(self.config.node_id) != me:
            bootstrap.append(me)
        return bootstrap

    def stop(self) -> list[str]:
        """Close all logs cleanly; returns of the directories where that cannot be why. No other call may follow."""
        problems = []
        self.isolation.run("the deletion of logs", self.log_maintenance.finish_deletions)
        for directory in self.directories.all:
            problem = directory.offline or directory.sync_error
            if problem is None:
                try:
                    directory.close_cleanly(self.open_logs(directory))
                except (DiskError, Refusal) as error:
                    # The others get their mark nevertheless.
                    problem = str(error)
            if problem is not None:
                problems.append(f"{directory.path} was not closed cleanly: {problem}")
        return problems

    def open_logs(self, directory: LogDirectory) -> list[tuple[str, int, PartitionLog, int]]:
        """The logs in a directory, with what its checkpoints tell of them."""
        path = directory.path
        return [
            (replica.topic, replica.number, log, replica.high_watermark)
            for replica in self.partitions.replicas()
            if replica.opened and (log := replica.log).parent == path
        ]

    # --- requests ---------------------------------------------------------------------------------------------

    def connected(self, peer: str) -> Connection:
        return Connection(peer)

    def disconnected(self, connection: Connection) -> None:
        connection.closed = True
        for call in connection.waiting:
            abandon, call.abandon = call.abandon, None
            if abandon is not None:
                self.isolation.run("the end of a connection", abandon)
        connection.waiting.clear()
        self.held_answer_bytes -= connection.held_bytes
        connection.held_bytes = 0
        for fetching in list(connection.fetch_sessions):
            self.isolation.run("the end of a fetch session", self.fetch_sessions.remove, fetching)

    def receive(self, connection: Connection, frame: memoryview, now_ms: int) -> None:
        """One request without its length prefix. The frame is valid during this call only."""
        self.now_ms = now_ms
        try:
            key, version, correlation_id, client_id_length = _REQUEST_HEAD.unpack_from(frame)
            entry = self._entries.get(key << 16 | version)
            if entry is None:
                entry = self._entry(key, version)
                if entry is None:
                    return self._unsupported(connection, key, version, correlation_id)
            at = 10 + client_id_length if client_id_length > 0 else 10
            if entry.flexible_header:
                at = at + 1 if frame[at] == 0 else after_tags(frame, at)
            read = entry.read
            if len(frame) > entry.bytes_unchecked:
                limit = entry.request_bytes_max
                if limit is not None and len(frame) > limit:
                    return self.close(
                        connection,
                        f"a request of API {key} has {len(frame)} bytes, at most {limit} are allowed",
                    )
                read = entry.read_counted
            try:
                request = read(frame, at)[0]
            except (
                Exception
            ):  # kio raises many kinds; the tolerant reader says what is wrong, or that nothing is
                request = decode_request(key, version, frame, at, entry.rows_max)
        except TooManyRows as error:
            return self.close(connection, f"a request of API {key} is too large: {error}")
        except (struct.error, IndexError, MalformedMessage) as error:
            return self.close(connection, f"malformed request: {error}")
        call = Call(connection, entry, correlation_id)
        try:
            response = entry.handler(self, call, request, now_ms)
            if response is WAIT:
                self._queue(call)
            elif response is not SILENT:
                self.answer(call, response)
        except Exception as error:
            what = f"API {key} version {version} from {connection.peer}"
            self.isolation.contain(what, error, call=call, reloads=False)
        return None

    def answer(self, call: Call, response: Response) -> None:
        """Send the answer to a call, now or as soon as those before it are answered.

        Raises nothing: an answer that cannot be encoded closes its connection, and whoever gave it goes on with its other work.
        """
        try:
            body = call.entry.encode(response)
            if call.entry.flexible_response:
                head = _FLEXIBLE_RESPONSE_HEAD.pack(len(body) + 5, call.correlation_id, 0)
            else:
                head = _RESPONSE_HEAD.pack(len(body) + 4, call.correlation_id)
        except Exception as error:
            what = (
                f"the answer of API {call.entry.key} version {call.entry.version} to {call.connection.peer}"
            )
            self.isolation.contain(what, error, call=call, reloads=False)
            return
        if len(body) > _LARGE_ANSWER_BYTES:
            call.connection.has_large_answer = True
        self.reply(call, [head + body])

    def answer_encoded(self, call: Call, parts: list[bytes]) -> None:
        """The same for a body that is encoded already, in parts."""
        size = sum(map(len, parts))
        if size > _LARGE_ANSWER_BYTES:
            call.connection.has_large_answer = True
        if call.entry.flexible_response:
            head = _FLEXIBLE_RESPONSE_HEAD.pack(size + 5, call.correlation_id, 0)
        else:
            head = _RESPONSE_HEAD.pack(size + 4, call.correlation_id)
        self.reply(call, [head, *parts])

    def reply(self, call: Call, parts: list[Any]) -> None:
        """The same for an answer that is already encoded, with its header; parts may be slices of files."""
        connection = call.connection
        waiting = connection.waiting
        if not waiting:
            if not connection.closed:
                self.outbox.append((SEND, connection, parts))
            return
        if isinstance(connection, Enclosed):
            self.isolation.run("a forwarded answer", connection.answered, parts)
            return
        call.parts = parts
        call.abandon = None
        if connection.closed:
            # To be closed in this very turn: nothing leaves it any more.
            return
        if waiting[0] is call:
            while waiting and waiting[0].parts is not None:
                self.outbox.append((SEND, connection, waiting.pop(0).parts))
            if connection.held_bytes:
                self._hold(connection, -connection.held_bytes)
                for held in waiting:
                    if held.parts is not None:
                        self._hold(connection, _bytes_of(held.parts))
            if (
                connection.paused
                and connection.held_bytes <= QUEUED_ANSWER_BYTES_PER_CONNECTION
                and len(waiting) < REQUESTS_WAITING_PER_CONNECTION_MAX // 2
            ):
                connection.paused = False
                self.outbox.append((RESUME, connection))
        else:
            if not call.queued:
                self._queue(call)
            self._hold(connection, _bytes_of(parts))

    def _hold(self, connection: Connection, size: int) -> None:
        """Answers wait behind another of the same connection; too many bytes of them stop the reading."""
        connection.held_bytes += size
        self.held_answer_bytes += size
        if connection.held_bytes > QUEUED_ANSWER_BYTES_PER_CONNECTION and not connection.paused:
            connection.paused = True
            self.outbox.append((PAUSE, connection))

    @property
    def held_bytes(self) -> int:
        """What is kept of requests that wait."""
        return self.txn_verification.held_bytes + self.produce_queue.held_bytes

    def _queue(self, call: Call) -> None:
        """Put a call in its connection's line; a line that grows too long stops the reading."""
        connection = call.connection
        call.queued = True
        connection.waiting.append(call)
        if len(connection.waiting) >= REQUESTS_WAITING_PER_CONNECTION_MAX and not connection.paused:
            connection.paused = True
            self.outbox.append((PAUSE, connection))

    def close(self, connection: Connection, reason: str) -> None:
        if isinstance(connection, Enclosed):
            self.isolation.run("a forwarded answer", connection.failed, reason)
            return
        if connection.closed:
            # It went while something of it was waited for.
            return
        connection.closed = True
        self.outbox.append((CLOSE, connection, reason))

    def _entry(self, key: int, version: int) -> Entry | None:
        entry = entry_for(key, version)
        if entry is not None:
            self._entries[key << 16 | version] = entry
        return entry

    def _unsupported(self, connection: Connection, key: int, version: int, correlation_id: int) -> None:
        if key != ApiKey.API_VERSIONS:
            known = APIS.get(key)
            served = f"versions {known.oldest} to {known.newest} are" if known else "this API is not"
            return self.close(connection, f"API {key} version {version}: {served} served here")
        # The one request that is answered in any version: the client learns from version 0 what to speak.
        entry = self._entries.get(key << 16) or self._entry(key, 0)
        assert entry is not None
        call = Call(connection, entry, correlation_id)
        self.answer(call, _api.api_versions.unsupported())
        return None

    # --- appends ----------------------------------------------------------------------------------------------

    def appended(self, replica: Replica, log: PartitionLog, now_ms: int) -> None:
        """Records were written by this partition's leader: let its watermark move, now, after a sync, or when others have them."""
        if replica.since_flush_ms < 0:
            self.log_maintenance.written(replica, now_ms)
        if log.unflushed_bytes > self.config.log_recovery_point_interval_bytes:
            self.log_maintenance.flush(replica)
        if replica.tail:
            self._tell(replica, replica.tail)
        leading = replica.leading
        if leading is not None and leading.behind_ms < 0 and leading.counted:
            leading.behind_ms = now_ms
        if replica.durable:
            self.sync(replica, log)
            return
        if leading is not None and not leading.counted and len(leading.isr) >= leading.isr_min:
            # Nobody else is waited for.
            replica.advance_alone(log.next_offset)
            if replica.watchers and not replica.moved:
                replica.moved = True
                self._moved.append(replica)
        if log.next_offset - log.flushed_offset >= replica.config.flush_messages:
            self.sync(replica, log)

    def replicated(self, replica: Replica, log: PartitionLog) -> None:
        """Records of another leader were written here."""
        if replica.since_flush_ms < 0:
            self.log_maintenance.written(replica, self.now_ms)
        if log.unflushed_bytes > self.config.log_recovery_point_interval_bytes:
            self.log_maintenance.flush(replica)
        if replica.durable or log.next_offset - log.flushed_offset >= replica.config.flush_messages:
            self.sync(replica, log)

    def sync(self, replica: Replica, log: PartitionLog, *, is_due: bool = False) -> None:
        """Ask for everything written to be made durable; `synced` follows."""
        outbox = self.outbox
        if len(log.unsynced) > _SYNCS_AT_ONCE_MAX and not is_due:
            # Once a turn: each of a hundred appends that roll a segment would ask for all segments before it.
            if not self._to_sync:
                self._put_off.append(self._sync_put_off)
            self._to_sync[replica] = log
            return
        # Asked for again until it is done: a flush that overtakes this round must not count without them.
        for file in log.loose:
            outbox.append((SYNC, file, None, (replica, None, file), False))
        if log.fresh:
            outbox.append((SYNC, None, log.parent, (replica, None, None), False))
        for segment in log.unsynced:
            directory = None if segment.names_synced else log.directory
            target = (replica, segment, segment.next_offset)
            outbox.append((SYNC, segment.file, directory, target, False))

    def let_others_sync_first(self, since: int) -> None:
        """The syncs in the outbox from there on are of a request for very many files: others do not wait for all of them."""
        outbox = self.outbox
        for at in range(since, len(outbox)):
            if outbox[at][0] == SYNC:
                outbox[at] = (*outbox[at][:4], True)

    def _sync_put_off(self) -> None:
        wanted, self._to_sync = self._to_sync, {}
        for replica, log in wanted.items():
            self.sync(replica, log, is_due=True)

    def synced(self, targets: Iterable[tuple[Replica, Segment | None, Any]], now_ms: int) -> None:
        """A round of syncs is done."""
        self.now_ms = now_ms
        moved: dict[Replica, None] = {}
        for replica, segment, what in targets:
            try:
                if not replica.opened:
                    # Its directory went offline meanwhile, perhaps before the produce that waits stood in line.
                    self.fail_waiting(replica, ErrorCode.KAFKA_STORAGE_ERROR)
                    continue
                if segment is None:
                    if what is None:
                        replica.log.fresh = False
                    else:
                        replica.log.settle_loose((what,))
                    continue
                replica.log.synced(segment, what)
            except Exception as error:
                self.isolation.contain(f"a sync of {replica.topic}-{replica.number}", error)
                continue
            moved[replica] = None
        for replica in moved:
            try:
                log = replica.log
                if replica.following is not None:
                    if log.flushed_offset >= log.next_offset:
                        replica.following.fetcher.synced(replica)
                    continue
                self._answer(replica.waiting_here, log.flushed_offset)
                self.advance(replica)
            except Exception as error:
                self.isolation.contain(f"a sync of {replica.topic}-{replica.number}", error)

    def advance(self, replica: Replica) -> None:
        """Let the watermark move and answer the produces that waited for it."""
        if replica.advance():
            self.answer_reached(replica)
            self.moved(replica)

    def answer_reached(self, replica: Replica) -> None:
        self._answer(replica.waiting, replica.high_watermark)

    def _answer(self, line: deque[tuple[int, Any, dict[str, Any]]], reached: int) -> None:
        """Answer the produces in a line that waited for no more than this offset."""
        while line and line[0][0] <= reached:
            _offset, produce, row = line.popleft()
            try:
                produce.reached(row)
            except Exception as error:
                self.isolation.contain("the answer to a produce", error)

    def moved(self, replica: Replica) -> None:
        if replica.watchers and not replica.moved:
            replica.moved = True
            self._moved.append(replica)

    def not_here(self, topic_id: bytes | None, name: str | None, number: int) -> ErrorCode | None:
        """The error for a partition that this broker does not have: it is elsewhere; None if it is nowhere."""
        topic = (
            self.image.topics_by_id.get(topic_id)
            if topic_id is not None
            else self.image.topics.get(name or "")
        )
        if topic is not None and 0 <= number < len(topic.partitions):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return None

    # --- failures of a disk ------------------------------------------------------------------------------------

    def sync_failed(self, path: str, error: str) -> None:
        """R11: a failed fsync is final. What it covered may be gone whatever a second try says."""
        directory = self.directories.containing(path)
        if directory is not None:
            self.go_offline(directory, f"a sync failed: {error}")

    def sync_refused(self, target: tuple[Replica, Segment | None, Any], error: str) -> None:
        """A file or directory could not be opened for its sync, for a reason of its own: this partition alone is offline."""
        replica = target[0]
        if replica.opened and not replica.gone:
            self.lose_one(replica, self.directories.of(replica.log), error)

    def lose_one(self, replica: Replica, directory: LogDirectory, reason: str) -> None:
        """One partition is offline until the next start; the others in its directory go on."""
        self.say_once(
            f"{replica.topic}-{replica.number} is offline until the next start: {reason}. "
            f"The other partitions in {directory.path} are not concerned"
        )
        # No clean mark: the next start must read this log again.
        directory.sync_error = directory.sync_error or reason
        self.lose(replica, reason)

    def disk_failed(self, path: str, error: DiskError) -> None:
        """Something could not be read. If that is the device's fault, all of its directory is not to be trusted."""
        directory = self.directories.containing(path)
        if error.broken and directory is not None:
            self.go_offline(directory, str(error))
        elif isinstance(error, DamagedFile):
            # A consumer asks for the same again and again.
            self.say_once(str(error))

    def say_once(self, text: str) -> None:
        if text not in self._told:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told.add(text)
            self.say(text)

    def write_failed(self, directory: LogDirectory, error: DiskError, replica: Replica | None = None) -> None:
        """R13: what was missing may be there later; a device error is final; any other error is this partition's alone."""
        if error.broken:
            self.go_offline(directory, str(error))
        elif error.passing:
            self.disk_space.missing(directory, error)
        elif error.torn and replica is not None:
            self.lose_one(replica, directory, str(error))
        else:
            self.say_once(f"{error}. Other partitions in {directory.path} are not concerned")

    def go_offline(self, directory: LogDirectory, reason: str) -> None:
        """A directory failed: its partitions have no log until the next start; those elsewhere do not notice."""
        if directory.offline is not None:
            return
        self.directories.give_up(directory, reason)
        self.log_dir_moves.directory_failed(directory)
        nothing_left = not self.directories.online
        for replica in self.partitions.replicas():
            if (
                nothing_left
                or self.partitions.asleep.get(replica) is directory
                or (replica.opened and replica.log.parent == directory.path)
            ):
                self.partitions.asleep.pop(replica, None)
                self.lose(replica, f"{directory.path} is offline: {reason}")

    def lose(self, replica: Replica, reason: str) -> None:
        """A partition has no log any more: whoever waits for it hears so at once."""
        replica.lose(reason)
        self.partitions.has_lost_some = True
        self.fail_waiting(replica, ErrorCode.KAFKA_STORAGE_ERROR)
        self.replica_roles.damaged(replica)
        self.role_changed(replica)

    def fail_waiting(self, replica: Replica, code: ErrorCode) -> None:
        """Those who wait for their records to count hear that they will not, or that this broker will not know."""
        for line in (replica.waiting, replica.waiting_here):
            if not line:
                continue
            entries = list(line)
            line.clear()
            # Those who go on waiting stay in front of whatever was appended because of what others heard.
            line.extendleft(reversed([entry for entry in entries if self._waits_on(replica, entry, code)]))

    def _waits_on(self, replica: Replica, entry: tuple[int, Any, dict[str, Any]], code: ErrorCode) -> bool:
        try:
            return bool(entry[1].failed(replica, entry[2], code))
        except Exception as error:
            self.isolation.contain("the answer to a produce", error)
            return False

    def role_changed(self, replica: Replica) -> None:
        """Whoever waits for something of this replica must look again."""
        if replica.watchers:
            self.moved(replica)
        if replica.tail:
            self._tell(replica, replica.tail)

    def _tell(self, replica: Replica, watchers: Iterable[Any]) -> None:
        """There is something new for these."""
        for watcher in watchers:
            try:
                watcher.moved()
            except Exception as error:
                self.isolation.contain(f"the news of {replica.topic}-{replica.number}", error)

    # --- turns and time ---------------------------------------------------------------------------------------

    def settle(self, now_ms: int, *, is_last: bool = True) -> bool:
        """Wake what this turn's appends and syncs were waited for; True if some is left for the next turn.

        A caller for whom others have their turns before that says so (`is_last`): what coordinators write then shares a batch.
        """
        moved = self._moved
        unwritten = self.decided
        put_off = self._put_off
        while put_off:
            self.isolation.run("the end of a turn", put_off.popleft())
        tasks = self._long_tasks
        if is_last:
            if tasks:
                self.now_ms = now_ms
                self.slices.run_slice()
                while put_off:
                    self.isolation.run("the end of a turn", put_off.popleft())
            while unwritten:
                self.isolation.run("writing what a coordinator decided", unwritten.popitem()[0].write)
        if not (moved or self.fetch_sessions.woken or self.partitions.to_create or self.partitions.new):
            return bool(unwritten or put_off or tasks)
        while moved:
            replica = moved.popleft()
            replica.moved = False
            self._tell(replica, replica.watchers)
        more = self.fetch_sessions.wake(_WAKE_MAX, now_ms) if self.fetch_sessions.woken else False
        if self.partitions.new:
            self.now_ms = now_ms
            self.isolation.run("new partitions", self.partitions.take_on)
            self.isolation.run("replication", self.replica_roles.settle)
            more = more or bool(self.partitions.new)
        if self.partitions.to_create:
            try:
                more = self.partitions.create_logs() or more
            except Exception as error:
                self.isolation.contain("the creation of logs", error)
                more = bool(self.partitions.to_create) or more
        return more or bool(unwritten or put_off or tasks)

    def put_off(self, action: Callable[[], None]) -> None:
        """Do something at the end of this turn. Who hears that records count may not append others then and there: that is told in
        the midst of a fetch that made them count."""
        self._put_off.append(action)

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.timers.expire(now_ms)

    def wall_clock_set(self, ahead_ms: int, now_ms: int) -> None:
        """The wall clock is now so far ahead of the time that is handed in here."""
        news = self.wall_clock.set(ahead_ms, now_ms)
        if news is not None:
            self.say(news)

    @property
    def wall_ms(self) -> int:
        """The date of what happens now."""
        return self.now_ms + self.wall_clock.ahead_ms

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is wanted. May only have become sooner than it was if `timers.sooner` is set."""
        return self.timers.next_ms

    def run(self, job: Callable[[Disk], Any], done: Callable[[Any, str | None], None]) -> None:
        self.outbox.append((RUN, job, done))

    # --- metadata ---------------------------------------------------------------------------------------------

    def propose(self, records: list[r.Record], done: Callable[[str | None], None]) -> None:
        """Append to the metadata log; `done(None)` once the image has it, `done(error)` if it could not be written."""
        self.proposed = self.proposed.apply(records)
        self.proposals += 1

        def answered(error: str | None) -> None:
            self.proposals -= 1
            self.partitions.when_taken_on(partial(done, error))

        self.outbox.append((PROPOSE, records, answered))

    def committed(self, records: list[r.Record], now_ms: int) -> None:
        """These records are in the metadata log: the image moves, and what this broker hosts follows it."""
        self.now_ms = now_ms
        before = self.image
        self.image = before.apply(records)
        if not self.controller_driver.is_active:
            self.proposed = self.image
        # Each by itself: the image has moved, and what one of them makes of it is not the others' business.
        run = self.isolation.run
        run("this broker's registration", self.lifecycle.look)
        run("the partitions of this broker", self.partitions.follow, self.image, records)
        run("replication", self.replica_roles.settle)
        run("the controller", self.controller_driver.follow, records, now_ms)
        run("the group coordinator", self.groups.follow, before, records)
        if self.controller_channel.held:
            run("requests that wait for metadata", self.controller_channel.committed)

    def restored(self, records: Iterable[r.Record], now_ms: int) -> None:
        """The metadata log was not followed for so long that its beginning is gone: this is what it amounts to."""
        before = self.image
        self.now_ms = now_ms
        self.image = self.proposed = Image().apply(records)
        gone: list[r.Record] = [
            r.TopicRemoved(topic_id)
            for topic_id in before.topics_by_id
            if topic_id not in self.image.topics_by_id
        ]
        self.config = self.resolve_config()
        run = self.isolation.run
        run("this broker's registration", self.lifecycle.look)
        run(
            "the partitions of this broker",
            self.partitions.follow,
            self.image,
            [*gone, *self.image.records()],
        )
        run("replication", self.replica_roles.settle)
        run("the group coordinator", self.groups.follow, before, [*gone, *self.image.records()])
        run("requests that wait for metadata", self.controller_channel.committed)

    def rejected(self) -> None:
        """A proposal could not be written: forget what was built on top of it."""
        self.proposed = self.image

    def withdrawn(self) -> None:
        """A proposal did not even reach the store, while others may be on their way to it. A controller steps down until they are
        answered, and then begins again from what was written: nothing may be decided on top of what is not."""
        self.rejected()
        if self.clustered and self.controller_driver.is_active:
            self.controller_driver.resign()
            self.lifecycle.claim_later()

    # --- the cluster ------------------------------------------------------------------------------------------

    def join(self, now_ms: int, done: Callable[[str | None], None]) -> None:
        """Become part of the cluster: `done(None)` when this broker serves, `done(error)` if it may not."""
        self.now_ms = now_ms
        self.lifecycle.join(now_ms, done)

    def leave(self, now_ms: int, done: Callable[[], None]) -> None:
        """Let others take over; `done` when this broker may stop."""
        self.now_ms = now_ms
        self.lifecycle.leave(now_ms, done)

    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None:
        self.now_ms = now_ms
        self.lifecycle.live_brokers(live, now_ms)

    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None:
        self.now_ms = now_ms
        self.lifecycle.controller_is(node_id, epoch, now_ms)
        self.controller_channel.controller_changed()

    def store_suspended(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.lifecycle.store_suspended(now_ms)

    def store_back(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.lifecycle.store_back(now_ms)
        self.controller_channel.ask_again()

    def store_lost(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.lifecycle.store_lost(now_ms)

    def refused(self, node_id: int, now_ms: int) -> None:
        """A peer that is watched is not there any more: its port refuses."""
        self.now_ms = now_ms
        self.lifecycle.refused(node_id, now_ms)

    def prove_to(self, node_id: int) -> Dialing | None:
        """The handshake for a new connection to another broker; None if this one has no cluster secret."""
        if self.credentials is None:
            return None
        return Dialing(self.credentials, node_id, self.entropy.token(NONCE_BYTES))

    def serve(self) -> None:
        """This broker's life has begun: its replicas take their roles."""
        self.partitions.assign_roles(self.image)
        self.replica_roles.settle()

    def cease(self) -> None:
        """It is over: nothing is led or followed until the next one."""
        self.partitions.assign_roles(self.image)

    def resolve_config(self) -> BrokerConfig:
        """The broker's settings: its own file, under those set at run time."""
        own = self.image.configs.get((BROKER_RESOURCE, str(self.config.node_id)), {})
        everyone = self.image.configs.get((BROKER_RESOURCE, ""), {})
        try:
            return self.config.with_dynamic(own, everyone)
        except InvalidConfig as error:
            # Another broker took them, which does not know what this one's file says: it must not stop this one.
            self.say(
                f"the settings made at run time do not go with this broker's own, and are not used: {error}"
            )
            return self.config


def _bytes_of(parts: list[Any]) -> int:
    """What an answer holds in memory; slices of files are not."""
    return sum(len(part) for part in parts if not isinstance(part, tuple))
