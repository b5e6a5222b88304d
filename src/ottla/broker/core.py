"""The broker: requests come in through `receive`, effects go out through `outbox`.

The runtime (or the simulator) makes these calls, one at a time:

    start(records, now)                 once, with the metadata log: opens the partition logs
    connected / receive / disconnected  for the frames of a client
    settle(now)                         at the end of a turn: wakes waiting requests; True if more work is due at once
    tick(now)                           at `next_deadline_ms`
    synced / sync_failed / committed    when an effect is done

After each call the runtime performs the effects in `outbox`. Time is always an argument. Only the disk port's own calls
block. An exception in a handler, a timer, a callback or a response closes the connection of its request and no other
(`requests/isolation.py`).

`Broker` creates the parts of the broker, dispatches requests to the handlers in `api/`, and passes the metadata log on.
Its parts hold the rest: responses (`requests/answers.py`), waiting produces and fetches (`requests/purgatory.py`), appends
and syncs (`storage/log_syncs.py`), disk errors (`storage/disk_failures.py`).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from ottla.broker import api as _api
from ottla.broker.api.shared.api_table import APIS, Entry, NoResponse, entry_for
from ottla.broker.cluster.broker_lifecycle import BrokerLifecycle
from ottla.broker.cluster.controller_driver import ControllerDriver
from ottla.broker.coordinators.coordinator_partition import CoordinatorPartition
from ottla.broker.coordinators.group_coordinator import GroupCoordinator
from ottla.broker.coordinators.hanging_transactions import HangingTransactions
from ottla.broker.coordinators.producer_ids import ProducerIds
from ottla.broker.coordinators.transaction_coordinator import TransactionCoordinator
from ottla.broker.coordinators.txn_markers import TxnMarkers
from ottla.broker.coordinators.txn_verification import TxnVerification
from ottla.broker.requests.answers import Answers
from ottla.broker.requests.connection import Call, Connection
from ottla.broker.requests.controller_channel import ControllerChannel
from ottla.broker.requests.fetch_session import FetchSessionCache
from ottla.broker.requests.headers import REQUEST_HEADER
from ottla.broker.requests.isolation import Isolation
from ottla.broker.requests.produce_queue import ProduceQueue
from ottla.broker.requests.purgatory import Purgatory
from ottla.broker.requests.slices import Slices
from ottla.broker.storage.disk_failures import DiskFailures
from ottla.broker.storage.disk_space import DiskSpace
from ottla.broker.storage.log_cleaner import LogCleaner
from ottla.broker.storage.log_dir_moves import LogDirMoves
from ottla.broker.storage.log_directories import LogDirectories
from ottla.broker.storage.log_directory import ForeignDirectory, LogDirectory
from ottla.broker.storage.log_maintenance import LogMaintenance
from ottla.broker.storage.log_syncs import LogSyncs
from ottla.broker.storage.partitions import LocalPartitions
from ottla.broker.storage.wall_clock import WallClock
from ottla.config.broker import BrokerConfig
from ottla.config.definition import InvalidConfig
from ottla.log.names import id_text
from ottla.log.partition_log import PartitionLog
from ottla.metadata import records as r
from ottla.metadata.image import BROKER_RESOURCE, Image
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.timer_wheel import TimerWheel
from ottla.ports.disk import Disk, DiskError
from ottla.ports.effects import PROPOSE, RUN, Effect
from ottla.ports.entropy import Entropy
from ottla.ports.store import Registration
from ottla.replication.replica_roles import ReplicaRoles
from ottla.replication.replication_throttle import ReplicationThrottle
from ottla.security.broker_handshake import NONCE_BYTES, Credentials, HandshakeInitiator
from ottla.security.cluster_secret import ClusterSecret
from ottla.wire.decode import MalformedMessage, TooManyRows, decode_request
from ottla.wire.frames import after_tags

# Members of the enum as globals: on the produce and fetch paths an enum look-up would be one more.
_LATER: Final = NoResponse.LATER
_DONE: Final = NoResponse.DONE
#: Upper bound on the set of messages already logged once: some name offsets, so their number has no end.
_LOGGED_ONCE_MAX: Final = 1000
#: Waiting fetches that one call of `settle` answers, so that a fan-out does not delay the next produce.
_WAKE_MAX: Final = 128


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
        """`unusable`: log directories that are offline from the start, with the reason.

        `clustered`: the metadata log is in a store that other brokers share; `join` follows `start`.
        """
        self.config = config
        self.clustered = clustered
        self.disk = disk
        self.entropy = entropy
        self.say = say
        self.outbox: list[Effect] = []
        self.isolation = Isolation(self)
        self.timers = TimerWheel(self.isolation.contain)
        #: The committed metadata, and the same with all proposals on top: decisions look at the latter.
        self.image = Image()
        self.proposed = Image()
        self.answers = Answers(self)
        self.purgatory = Purgatory(self.isolation)
        self.lifecycle = BrokerLifecycle(self)
        self.controller_driver = ControllerDriver(self)
        self.controller_channel = ControllerChannel(self)
        self.partitions: LocalPartitions = LocalPartitions(self)
        self.replication_throttle: ReplicationThrottle = ReplicationThrottle(self)
        self.replica_roles: ReplicaRoles = ReplicaRoles(self)
        #: Coordinator partitions with decisions of this turn that are not written yet.
        self.decided: dict[CoordinatorPartition, None] = {}
        self.groups = GroupCoordinator(self)
        self.transactions = TransactionCoordinator(self)
        self.txn_markers = TxnMarkers(self)
        self.hanging_transactions = HangingTransactions(self)
        self.txn_verification = TxnVerification(self)
        self.slices = Slices(self)
        self.produce_queue = ProduceQueue(self)
        self.directories: LogDirectories = LogDirectories(disk, config.log_dirs, say, unusable or {})
        self.fetch_sessions = FetchSessionCache(self, _api.fetch.reply)
        self.delayed_fetches = self.fetch_sessions.delayed
        self.log_maintenance: LogMaintenance = LogMaintenance(self)
        self.log_dir_moves = LogDirMoves(self)
        self.disk_space = DiskSpace(self)
        self.disk_failures = DiskFailures(self)
        self.log_syncs = LogSyncs(self)
        self.wall_clock = WallClock()
        self.log_cleaner = LogCleaner(self)
        self.producer_ids = ProducerIds(self)
        self._entries: dict[int, Entry] = {}
        self._put_off: deque[Callable[[], None]] = deque()
        self._long_tasks = self.slices.tasks
        self._logged_once: set[str] = set()
        #: How many proposals are not answered yet.
        self.proposals = 0
        self.now_ms: int = 0
        #: The cluster that the log directories belong to.
        self.cluster_id = ""
        #: This broker's credentials for other brokers; None for a broker on its own.
        self.credentials: Credentials | None = None
        #: Records that the store keeps in addition to its snapshot, as the store reports them.
        self.records_in_log = 0

        # Methods of the parts under the broker's own name, bound once. A call through a bound method costs no more than one
        # to a method of Broker: produce and fetch go through `appended`, `sync`, `reply` and `moved`.
        self.answer = self.answers.answer
        self.reply = self.answers.reply
        self.close = self.answers.close
        self._queue = self.answers.queue
        self.appended = self.log_syncs.appended
        self.replicated = self.log_syncs.replicated
        self.sync = self.log_syncs.sync
        self.synced = self.log_syncs.synced
        self.let_others_sync_first = self.log_syncs.let_others_sync_first
        self.advance = self.purgatory.advance
        self.answer_reached = self.purgatory.answer_reached
        self.fail_waiting = self.purgatory.fail_waiting
        self.moved = self.purgatory.moved
        self.role_changed = self.purgatory.role_changed
        self.disk_failed = self.disk_failures.disk_failed
        self.write_failed = self.disk_failures.write_failed
        self.sync_failed = self.disk_failures.sync_failed
        self.sync_refused = self.disk_failures.sync_refused
        self.go_offline = self.disk_failures.go_offline
        self.lose_one = self.disk_failures.lose_one

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
        self.answers.disconnected(connection)
        for session in list(connection.fetch_sessions):
            self.isolation.run("the end of a fetch session", self.fetch_sessions.remove, session)

    def receive(self, connection: Connection, frame: memoryview, now_ms: int) -> None:
        """One request without its length prefix. The frame is valid during this call only."""
        self.now_ms = now_ms
        try:
            key, version, correlation_id, client_id_length = REQUEST_HEADER.unpack_from(frame)
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
            if response is _LATER:
                self._queue(call)
            elif response is not _DONE:
                self.answer(call, response)
        except Exception as error:
            what = f"API {key} version {version} from {connection.peer}"
            self.isolation.contain(what, error, call=call, reloads=False)
        return None

    @property
    def held_bytes(self) -> int:
        """Bytes of requests that wait."""
        return self.txn_verification.held_bytes + self.produce_queue.held_bytes

    @property
    def held_answer_bytes(self) -> int:
        """Bytes of responses that wait behind others of their connections."""
        return self.answers.held_bytes

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

    # --- turns and time ---------------------------------------------------------------------------------------

    def settle(self, now_ms: int, *, is_last: bool = True) -> bool:
        """Wake the requests that waited for this turn's appends and syncs; True if some are left for the next turn.

        `is_last` False: other turns come first, and the decisions of coordinators share a batch with theirs.
        """
        moved = self.purgatory.moved_replicas
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
        if not (moved or self.delayed_fetches.woken or self.partitions.to_create or self.partitions.new):
            return bool(unwritten or put_off or tasks)
        if moved:
            self.purgatory.notify_moved()
        more = self.delayed_fetches.wake(_WAKE_MAX, now_ms) if self.delayed_fetches.woken else False
        if self.partitions.new:
            self.now_ms = now_ms
            self.isolation.run("new partitions", self.partitions.create_replicas)
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
        """Run an action at the end of this turn. Commit callbacks must not append: they can run inside a fetch."""
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

    def say_once(self, text: str) -> None:
        if text not in self._logged_once:
            if len(self._logged_once) >= _LOGGED_ONCE_MAX:
                self._logged_once.clear()
            self._logged_once.add(text)
            self.say(text)

    # --- metadata ---------------------------------------------------------------------------------------------

    def propose(self, records: list[r.Record], done: Callable[[str | None], None]) -> None:
        """Append to the metadata log; `done(None)` once the image has it, `done(error)` if it could not be written."""
        self.proposed = self.proposed.apply(records)
        self.proposals += 1

        def answered(error: str | None) -> None:
            self.proposals -= 1
            self.partitions.when_replicas_created(partial(done, error))

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
        run("this broker's registration", self.lifecycle.check_registration)
        run("the partitions of this broker", self.partitions.apply_records, self.image, records)
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
        run("this broker's registration", self.lifecycle.check_registration)
        run(
            "the partitions of this broker",
            self.partitions.apply_records,
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

    def prove_to(self, node_id: int) -> HandshakeInitiator | None:
        """The handshake for a new connection to another broker; None if this one has no cluster secret."""
        if self.credentials is None:
            return None
        return HandshakeInitiator(self.credentials, node_id, self.entropy.token(NONCE_BYTES))

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
