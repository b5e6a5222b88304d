"""Followers at work: what this broker follows is fetched from the leaders, over the same API that consumers use (R1, R11).

There is one `ReplicaFetcher` for each other broker and each of `num.replica.fetchers`; it has one incremental fetch session there and
one request under way, which the leader holds until it has something, or until another one follows because there are new
partitions to be fetched. A fetch says for each partition how far this
replica has come; that is what the leader counts, so under the durable policy the next one waits until what the last one brought
is synced. Where the histories of the two have parted, the answer says so and this replica cuts its own back (R1).

A `FollowerState` is one partition in one leader epoch. When the role changes it is dropped, and whatever still arrives for it is ignored.
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

#: The newest version without a field of its own for each partition's directory.
_VERSION: Final = 16
#: Logs that are opened for one request: opening thousands at once would hold up everybody.
_OPEN_MAX: Final = 64
#: The pause after the first refusal by the leader of a partition; it doubles with each.
_REFUSED_MS: Final = 10
_REFUSALS_MAX: Final = 16

_encode: Any = None


class ReplicaFetcher:
    def __init__(self, host: ReplicationHost, leader: int, number: int) -> None:
        self._host = host
        self._leader = leader
        self._lane = 1 + number
        self._followed: dict[tuple[bytes, int], FollowerState] = {}
        #: Those whose position the leader's session does not know, or knows no more.
        self._changed: dict[FollowerState, None] = {}
        #: What the session knows, by key, and the keys that it should forget.
        self._told: dict[tuple[bytes, int], FollowerState] = {}
        self._unwanted: dict[tuple[bytes, int], None] = {}
        self._session = 0
        self._epoch = 0
        self._in_flight = 0
        #: Counts the sessions: what was asked in an earlier one is answered in vain.
        self._generation = 0
        self._resting = False
        #: Replicas whose last records are not durable yet: the next request waits for them.
        self._unsynced: dict[Replica, None] = {}

    def add(self, following: FollowerState) -> None:
        self._followed[following.key] = following
        self._changed[following] = None
        replica = following.replica
        if replica.opened and replica.durable and replica.log.flushed_offset < replica.log.next_offset:
            # What came from the leader before counts for this one too, once it is durable.
            self.wait_for(replica)
            self._host.sync(replica, replica.log)

    def remove(self, following: FollowerState) -> None:
        if self._followed.get(following.key) is following:
            del self._followed[following.key]
            self._unwanted[following.key] = None
        self._changed.pop(following, None)
        if self._unsynced.pop(following.replica, self) is None and not self._unsynced:
            # The others have waited for this one, whose sync nobody will tell of any more.
            self._host.timers.add(Later(self.ask), self._host.now_ms)

    # --- asking -----------------------------------------------------------------------------------------------

    def ask(self, *, at_once: bool = False) -> None:
        """Send the next request, unless one is under way or something must come first.

        With `at_once` it does not wait for the one that is under way: the leader answers that one when it gets this.
        """
        if self._resting or self._unsynced:
            return None
        if self._in_flight and not (at_once and self._in_flight == 1 and self._epoch and self._changed):
            return None
        if not self._followed:
            # The leader forgets a session that nobody uses.
            return self._forget_session()
        host = self._host
        if host.replication_throttle.limits_followers:
            self._hold_slow()
        node = host.image.brokers.get(self._leader)
        if node is None:
            return self._rest()
        topics = self._positions()
        if not topics and all(key in self._unwanted for key in self._told):
            # Those that there are must wait, and come back by themselves. A session of none would be answered at once.
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
        """Where those stand that the session must hear of."""
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
                # Offline, or there is no room for a new log.
                self._hold(following)
                continue
            if log.should_begin_at >= 0:
                self._begin_anew(following)
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
        # Its number is told with the first request of the next one, so that the leader gives it up: the connection may stay, and
        # with it everything that the session watches.
        self._epoch = 0
        self._generation += 1
        self._told.clear()
        self._unwanted.clear()
        self._changed = dict.fromkeys(self._followed.values())

    def _rest(self) -> None:
        """Something failed: try again in a moment."""
        if not self._resting:
            self._resting = True
            host = self._host
            host.timers.add(Later(self._rested), host.now_ms + host.config.replica_fetch_backoff_ms)

    def _rested(self) -> None:
        self._resting = False
        try:
            self.ask()
        except Exception:
            # What it left of the session is not known. Without another try nothing would be followed any more.
            self._forget_session()
            self._rest()
            raise

    def _hold_slow(self) -> None:
        """KIP-73: leave out what would be copied faster than it may."""
        throttling = self._host.replication_throttle
        wait_ms = throttling.follower_wait_ms()
        if wait_ms:
            for key, following in self._followed.items():
                if not following.is_busy and throttling.is_slow_follower(following.replica, key[0]):
                    self._hold(following, wait_ms)

    def _hold(self, following: FollowerState, delay_ms: int = -1) -> None:
        """Leave one partition out for a moment."""
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
        """The session must not send more of it meanwhile; when it is asked for again it is told anew."""
        if self._followed.get(following.key) is following:
            self._changed[following] = None
            self._unwanted[following.key] = None

    # --- answers ----------------------------------------------------------------------------------------------

    def _answered(self, generation: int, answer: memoryview | None, error: str | None) -> None:
        self._in_flight -= 1
        if generation != self._generation:
            return self.ask()
        if answer is None:
            self._host.lifecycle.doubt(self._leader)
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
            self._host.say_once(f"broker {self._leader} answered a fetch with what cannot be read: {error}")
        except Exception:
            # A mistake with one partition must not stop the others for good.
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
            # A new one. One that the leader has no room for is none: everything is told with each request.
            self._session, self._epoch = response.session_id, 1 if response.session_id else 0
        for topic in response.responses:
            topic_id = topic.topic_id.bytes
            for row in topic.partitions:
                # Not one that has followed another, in a newer epoch, since this was asked for.
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
        """What the leader says of one partition."""
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
            host.say_once(f"{replica.topic}-{replica.number} cannot be followed: {error}")
            self._hold(following)
        except Exception as error:
            # Of this partition alone: the leader sends the same again, and the other partitions of the answer are taken.
            host.isolation.contain(f"following {replica.topic}-{replica.number}", error)
            self._hold(following)
        return None

    def wait_for(self, replica: Replica) -> None:
        """The next request waits until what this replica has is durable."""
        self._unsynced[replica] = None

    def synced(self, replica: Replica) -> None:
        if self._unsynced.pop(replica, self) is None and not self._unsynced:
            self.ask()

    def _refused(self, following: FollowerState, row: Any) -> None:
        replica, host = following.replica, self._host
        if row.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
            # One of the two has not heard of the newest metadata, which is a matter of milliseconds; or the leader is ill.
            delay_ms = min(_REFUSED_MS << following.refusals, host.config.replica_fetch_backoff_ms)
            following.refusals = min(following.refusals + 1, _REFUSALS_MAX)
            return self._hold(following, delay_ms)
        log, start = replica.log, row.log_start_offset
        if start < 0 or (log.next_offset >= start and log.next_offset > log.log_start_offset):
            # Where the two histories part the leader tells in another way (R1): nothing is cut by guess.
            return self._hold(following)
        host.say(
            f"{replica.topic}-{replica.number}: this replica ends at {log.next_offset}, the leader begins at {start}: "
            "it begins there anew"
        )
        return self._cut(following, replica.restart_at(start, host.wall_ms))

    def _diverged(self, following: FollowerState, epoch: int, end_offset: int) -> None:
        """R1: after this end the leader's history is another one. Ours is cut to where both agree, and asked again."""
        replica, host = following.replica, self._host
        log = replica.log
        own_epoch, own_end = log.epochs.end_of(epoch, log.next_offset)
        target = end_offset if own_epoch < 0 else min(end_offset, own_end)
        if target < replica.high_watermark:
            host.say(
                f"{replica.topic}-{replica.number}: cut to {target}, below its high watermark {replica.high_watermark}, "
                f"because leader epoch {following.epoch} has another history: an unclean leader was elected"
            )
        self._cut(following, replica.truncate(target, host.wall_ms))

    def _begin_anew(self, following: FollowerState) -> None:
        """R12: a crash took the beginning of this log. What is left would look whole to who asks for its end alone."""
        replica, host = following.replica, self._host
        log = replica.log
        host.say(
            f"{replica.topic}-{replica.number}: a crash left nothing before {log.log_start_offset}: "
            "all of it is fetched anew"
        )
        start, log.should_begin_at = log.should_begin_at, -1
        self._cut(following, replica.restart_at(start, host.wall_ms))

    def _cut(self, following: FollowerState, dropped: list[Any]) -> None:
        """The log was cut: the recovery point is written down before anything new is written, in this role or another."""
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

        self._host.log_maintenance.was_cut(replica, dropped, done)
