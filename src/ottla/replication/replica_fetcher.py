"""Replica fetchers: they fetch what this broker follows from the leaders, with the Fetch API (R1, R11).

There is one `ReplicaFetcher` for each leader and each of `num.replica.fetchers`. It has one incremental fetch
session at the leader and one request in flight. The leader holds the request until there are records, or
until the fetcher sends the next one because it has new partitions.

A fetch reports the log end offset of each replica to the leader. Under the durable policy the next fetch
therefore waits until the records of the last one are synced. If the two logs have diverged, the answer says
where, and this replica truncates its own (R1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.log.fetched import append_fetched
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.timer_wheel import Later
from ottla.ports.disk import DiskError
from ottla.ports.effects import ASK
from ottla.replication.follower_state import FollowerState
from ottla.wire.decode import MalformedMessage, decode_response, response_reader
from ottla.wire.encode import request_encoder

if TYPE_CHECKING:
    from ottla.replication.host import ReplicationHost
    from ottla.replication.replica import Replica

#: The newest version that does not have a log directory for each partition.
_VERSION: Final = 16
#: Logs that are opened for one request: opening thousands at once would block all other requests.
_OPEN_MAX: Final = 64
#: The pause after the first error from the leader of a partition; it doubles with each further one.
_REFUSED_MS: Final = 10
_REFUSALS_MAX: Final = 16

_encode: Any = None


class ReplicaFetcher:
    def __init__(self, host: ReplicationHost, leader: int, number: int) -> None:
        self._host = host
        self._leader = leader
        self._lane = 1 + number
        self._followed: dict[tuple[bytes, int], FollowerState] = {}
        #: Partitions whose position is not up to date in the leader's session.
        self._changed: dict[FollowerState, None] = {}
        #: The partitions of the session, by key, and the keys to remove from it.
        self._told: dict[tuple[bytes, int], FollowerState] = {}
        self._unwanted: dict[tuple[bytes, int], None] = {}
        self._session = 0
        self._epoch = 0
        self._in_flight = 0
        #: The number of the session: answers to requests of an earlier one are ignored.
        self._generation = 0
        self._resting = False
        #: Replicas whose last records are not synced yet: the next request waits for them.
        self._unsynced: dict[Replica, None] = {}

    def add(self, following: FollowerState) -> None:
        self._followed[following.key] = following
        self._changed[following] = None
        replica = following.replica
        if replica.opened and replica.durable and replica.log.flushed_offset < replica.log.next_offset:
            # Records of the previous leader are reported to this one too, once they are synced.
            self.wait_for(replica)
            self._host.sync(replica, replica.log)

    def remove(self, following: FollowerState) -> None:
        if self._followed.get(following.key) is following:
            del self._followed[following.key]
            self._unwanted[following.key] = None
        self._changed.pop(following, None)
        if self._unsynced.pop(following.replica, self) is None and not self._unsynced:
            # The others have waited for this sync, which is not reported any more.
            self._host.timers.add(Later(self.ask), self._host.now_ms)

    # --- requests -------------------------------------------------------------------------------------------

    def ask(self, *, at_once: bool = False) -> None:
        """Send the next request, unless one is in flight, or a sync or a backoff is.

        With `at_once` it does not wait for the request in flight: the leader answers that one when this one
        arrives.
        """
        if self._resting or self._unsynced:
            return None
        if self._in_flight and not (at_once and self._in_flight == 1 and self._epoch and self._changed):
            return None
        if not self._followed:
            # The leader evicts an unused session.
            return self._forget_session()
        host = self._host
        if host.replication_throttle.limits_followers:
            self._hold_slow()
        node = host.image.brokers.get(self._leader)
        if node is None:
            return self._rest()
        topics = self._positions()
        if not topics and all(key in self._unwanted for key in self._told):
            # All partitions are held, each by a timer. The leader would answer a session without partitions
            # at once.
            return None
        forgotten: dict[bytes, list[int]] = {}
        for key in self._unwanted:
            if self._told.pop(key, None) is not None:
                forgotten.setdefault(key[0], []).append(key[1])
        self._unwanted.clear()
        config = host.config
        global _encode
        if _encode is None:
            _encode = request_encoder(ApiKey.FETCH, _VERSION)
        body = _encode({
            "replica_state": {
                "replica_id": host.lifecycle.node_id, "replica_epoch": host.lifecycle.broker_epoch,
            },
            "max_wait": config.replica_fetch_wait_max_ms,
            "min_bytes": config.replica_fetch_min_bytes,
            "max_bytes": config.replica_fetch_response_max_bytes,
            "session_id": self._session,
            "session_epoch": self._epoch,
            "topics": [{"topic_id": topic, "partitions": rows} for topic, rows in topics.items()],
            "forgotten_topics_data": [
                {"topic_id": topic, "partitions": numbers} for topic, numbers in forgotten.items()
            ],
        })  # fmt: skip
        if self._epoch:
            self._epoch = self._epoch % 0x7FFFFFFF + 1
        self._in_flight += 1
        generation = self._generation
        peer = (node.node_id, node.host, node.port)

        def done(answer: memoryview | None, error: str | None) -> None:
            self._answered(generation, answer, error)

        host.outbox.append((ASK, peer, self._lane, ApiKey.FETCH, _VERSION, body, done))
        return None

    def _positions(self) -> dict[bytes, list[dict[str, Any]]]:
        """The positions of all partitions that are not up to date in the session."""
        topics: dict[bytes, list[dict[str, Any]]] = {}
        bytes_max = self._host.config.replica_fetch_max_bytes
        left = _OPEN_MAX
        for following in list(self._changed):
            replica = following.replica
            if following.is_busy:
                continue
            if not replica.opened:
                if not left:
                    continue
                left -= 1
            try:
                log = replica.log
            except DiskError:
                # Offline, or there is no disk space for a new log.
                self._hold(following)
                continue
            if log.should_begin_at >= 0:
                self._restart(following)
                continue
            del self._changed[following]
            self._told[following.key] = following
            self._unwanted.pop(following.key, None)
            topics.setdefault(following.key[0], []).append({
                "partition": replica.number,
                "current_leader_epoch": following.epoch,
                "fetch_offset": log.next_offset,
                "last_fetched_epoch": log.epochs.epoch_of(log.next_offset - 1),
                "log_start_offset": log.log_start_offset,
                "partition_max_bytes": bytes_max,
            })  # fmt: skip
        return topics

    def _forget_session(self) -> None:
        # The first request of the next session carries this id, so that the leader removes it: the connection
        # stays open, and with it all partitions that the session watches.
        self._epoch = 0
        self._generation += 1
        self._told.clear()
        self._unwanted.clear()
        self._changed = dict.fromkeys(self._followed.values())

    def _rest(self) -> None:
        """Something failed: send the next request after `replica.fetch.backoff.ms`."""
        if not self._resting:
            self._resting = True
            host = self._host
            host.timers.add(Later(self._rested), host.now_ms + host.config.replica_fetch_backoff_ms)

    def _rested(self) -> None:
        self._resting = False
        try:
            self.ask()
        except Exception:
            # The state of the session is unknown. Without a retry nothing would be fetched any more.
            self._forget_session()
            self._rest()
            raise

    def _hold_slow(self) -> None:
        """KIP-73: leave throttled partitions out of the request."""
        throttle = self._host.replication_throttle
        wait_ms = throttle.follower_wait_ms()
        if wait_ms:
            for key, following in self._followed.items():
                if not following.is_busy and throttle.is_slow_follower(following.replica, key[0]):
                    self._hold(following, wait_ms)

    def _hold(self, following: FollowerState, delay_ms: int = -1) -> None:
        """Leave one partition out of requests for some time."""
        if following.is_busy:
            return
        following.is_busy = True
        self._leave_out(following)
        host = self._host

        def again() -> None:
            following.is_busy = False
            self.ask_at_once()

        if delay_ms < 0:
            delay_ms = host.config.replica_fetch_backoff_ms
        host.timers.add(Later(again), host.now_ms + delay_ms)

    def ask_at_once(self) -> None:
        try:
            self.ask(at_once=True)
        except Exception:
            self._forget_session()
            self._rest()
            raise

    def _leave_out(self, following: FollowerState) -> None:
        """Remove a partition from the session. Its position is sent again when it returns."""
        if self._followed.get(following.key) is following:
            self._changed[following] = None
            self._unwanted[following.key] = None

    # --- answers --------------------------------------------------------------------------------------------

    def _answered(self, generation: int, answer: memoryview | None, error: str | None) -> None:
        self._in_flight -= 1
        if generation != self._generation:
            return self.ask()
        if answer is None:
            self._host.lifecycle.mark_unreachable(self._leader)
            self._forget_session()
            return self._rest()
        try:
            try:
                response = response_reader(ApiKey.FETCH, _VERSION)(answer, 0)[0]
            except (
                Exception
            ):  # kio raises many kinds; the tolerant reader says what is wrong, or that nothing is
                response = decode_response(ApiKey.FETCH, _VERSION, answer, 0)
            return self._take_all(response)
        except MalformedMessage as error:
            self._host.say_once(
                f"broker {self._leader} sent a fetch response that cannot be decoded: {error}"
            )
        except Exception:
            # An error in one partition must not block the others.
            self._forget_session()
            self._rest()
            raise
        self._forget_session()
        return self._rest()

    def _take_all(self, response: Any) -> None:
        if response.error_code:
            self._forget_session()
            if response.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                return self._rest()
            return self.ask()
        if response.session_id != self._session:
            # A new session. Id 0 means that the leader has no slot: each request lists all partitions.
            self._session, self._epoch = response.session_id, 1 if response.session_id else 0
        for topic in response.responses:
            topic_id = topic.topic_id.bytes
            for row in topic.partitions:
                # Skip a partition that follows another leader or epoch since the request.
                following = self._told.get((topic_id, row.partition_index))
                if (
                    following is not None
                    and following.replica.following is following
                    and not following.is_busy
                ):
                    self._take(following, row)
        if not self._session:
            self._forget_session()
        self.ask()
        return None

    def _take(self, following: FollowerState, row: Any) -> None:
        """Handle the leader's answer for one partition."""
        host, replica = self._host, following.replica
        try:
            if row.error_code:
                return self._refused(following, row)
            following.refusals = 0
            if row.diverging_epoch.end_offset >= 0:
                return self._diverged(following, row.diverging_epoch.epoch, row.diverging_epoch.end_offset)
            log = replica.log
            if row.records:
                if host.replication_throttle.is_slow_follower(replica, following.key[0]):
                    host.replication_throttle.fetched.take(len(row.records))
                end = log.next_offset
                try:
                    append_fetched(log, row.records, host.wall_ms)
                finally:
                    if log.next_offset > end:
                        if replica.durable:
                            # R11: the next fetch, which reports them to the leader, waits for their sync.
                            self.wait_for(replica)
                        host.replicated(replica, log)
                        self._changed[following] = None
            if row.log_start_offset > log.log_start_offset and row.log_start_offset <= log.next_offset:
                host.log_maintenance.delete_records(replica, row.log_start_offset)
            if replica.learn(row.high_watermark):
                replica.settle()
                host.moved(replica)
        except (Refusal, DiskError) as error:
            host.say_once(
                f"{replica.topic}-{replica.number}: records of the leader cannot be appended: {error}"
            )
            self._hold(following)
        except Exception as error:
            # The leader sends the same again; the other partitions of the answer are handled.
            host.isolation.contain(f"following {replica.topic}-{replica.number}", error)
            self._hold(following)
        return None

    def wait_for(self, replica: Replica) -> None:
        """The next request waits until the log of this replica is synced."""
        self._unsynced[replica] = None

    def synced(self, replica: Replica) -> None:
        if self._unsynced.pop(replica, self) is None and not self._unsynced:
            self.ask()

    def _refused(self, following: FollowerState, row: Any) -> None:
        replica, host = following.replica, self._host
        if row.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
            # One of the two brokers lacks the newest metadata, for some milliseconds, or the leader has a
            # problem.
            delay_ms = min(_REFUSED_MS << following.refusals, host.config.replica_fetch_backoff_ms)
            following.refusals = min(following.refusals + 1, _REFUSALS_MAX)
            return self._hold(following, delay_ms)
        log, start = replica.log, row.log_start_offset
        if start < 0 or (log.next_offset >= start and log.next_offset > log.log_start_offset):
            # If the logs diverged, the leader reports the epoch (R1): do not truncate by guess.
            return self._hold(following)
        host.say(
            f"{replica.topic}-{replica.number}: this replica ends at offset {log.next_offset}, the leader's log "
            f"starts at {start}: this replica restarts at {start}"
        )
        return self._cut(following, replica.restart_at(start, host.wall_ms))

    def _diverged(self, following: FollowerState, epoch: int, end_offset: int) -> None:
        """R1: the logs diverge after this offset. Truncate to the last common offset and fetch again."""
        replica, host = following.replica, self._host
        log = replica.log
        own_epoch, own_end = log.epochs.end_of(epoch, log.next_offset)
        target = end_offset if own_epoch < 0 else min(end_offset, own_end)
        if target < replica.high_watermark:
            host.say(
                f"{replica.topic}-{replica.number}: truncated to offset {target}, below its high watermark "
                f"{replica.high_watermark}: the leader of epoch {following.epoch} was elected uncleanly "
                "and lacks records"
            )
        self._cut(following, replica.truncate(target, host.wall_ms))

    def _restart(self, following: FollowerState) -> None:
        """R12: a crash removed the beginning of this log. Its log end offset alone would make it look
        complete."""
        replica, host = following.replica, self._host
        log = replica.log
        host.say(
            f"{replica.topic}-{replica.number}: a crash removed all records before offset "
            f"{log.log_start_offset}: the whole log is fetched again"
        )
        start, log.should_begin_at = log.should_begin_at, -1
        self._cut(following, replica.restart_at(start, host.wall_ms))

    def _cut(self, following: FollowerState, dropped: list[Any]) -> None:
        """The log was truncated: its recovery point is written before any append, in this role or another."""
        following.is_busy = True
        self._leave_out(following)
        replica = following.replica
        replica.is_being_cut = True

        def done() -> None:
            replica.is_being_cut = following.is_busy = False
            if replica.following is following:
                self.ask_at_once()
            else:
                self._host.replica_roles.may_have_role(replica)

        self._host.log_maintenance.truncated(replica, dropped, done)
