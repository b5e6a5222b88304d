"""Appends and fsyncs: what follows when records were written to a log, and when they are durable.

- Under the page-cache policy, a leader without followers in sync moves its high watermark at once.
- Under the durable policy a SYNC effect leaves for each file that was written. When the runtime has done it, `synced` moves
  the high watermark of a leader, and lets a follower fetch on (R11).

`appended` and `sync` are on the produce path: `Broker` binds them under its own name, and what they need of the broker is
bound here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.log.partition_log import PartitionLog
from ottla.log.segment import Segment
from ottla.model.errors import ErrorCode
from ottla.ports.effects import SYNC
from ottla.replication.replica import Replica

if TYPE_CHECKING:
    from ottla.broker.core import Broker

#: Unsynced segments of one log whose syncs are requested with each append.
_SYNCS_AT_ONCE_MAX: Final = 8


class LogSyncs:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._isolation = broker.isolation
        self._log_maintenance = broker.log_maintenance
        self._purgatory = broker.purgatory
        self._notify = broker.purgatory.notify
        self._moved_replicas = broker.purgatory.moved_replicas
        # A read-only setting: it does not change while the broker runs.
        self._flush_after_bytes = broker.config.log_recovery_point_interval_bytes
        #: Logs with many unsynced files: their syncs are requested once a turn.
        self._due: dict[Replica, PartitionLog] = {}

    def appended(self, replica: Replica, log: PartitionLog, now_ms: int) -> None:
        """The leader wrote records: its high watermark moves now, after a sync, or when followers have them."""
        if replica.since_flush_ms < 0:
            self._log_maintenance.written(replica, now_ms)
        if log.unflushed_bytes > self._flush_after_bytes:
            self._log_maintenance.flush(replica)
        if replica.tail:
            self._notify(replica, replica.tail)
        leading = replica.leading
        if leading is not None and leading.behind_ms < 0 and leading.counted:
            leading.behind_ms = now_ms
        if replica.durable:
            self.sync(replica, log)
            return
        if leading is not None and not leading.counted and len(leading.isr) >= leading.isr_min:
            # The ISR has no other member.
            replica.advance_alone(log.next_offset)
            if replica.watchers and not replica.moved:
                replica.moved = True
                self._moved_replicas.append(replica)
        if log.next_offset - log.flushed_offset >= replica.config.flush_messages:
            self.sync(replica, log)

    def replicated(self, replica: Replica, log: PartitionLog) -> None:
        """A follower wrote records of its leader."""
        if replica.since_flush_ms < 0:
            self._log_maintenance.written(replica, self._broker.now_ms)
        if log.unflushed_bytes > self._flush_after_bytes:
            self._log_maintenance.flush(replica)
        if replica.durable or log.next_offset - log.flushed_offset >= replica.config.flush_messages:
            self.sync(replica, log)

    def sync(self, replica: Replica, log: PartitionLog, *, is_due: bool = False) -> None:
        """Request a sync of every file that was written; `synced` follows."""
        outbox = self._broker.outbox
        if len(log.unsynced) > _SYNCS_AT_ONCE_MAX and not is_due:
            # Once a turn: each of a hundred appends that roll a segment would request all segments before it.
            if not self._due:
                self._broker.put_off(self._sync_due)
            self._due[replica] = log
            return
        # Requested again until they are done: a flush that overtakes this round must not be complete without them.
        for file in log.loose:
            outbox.append((SYNC, file, None, (replica, None, file), False))
        if log.fresh:
            outbox.append((SYNC, None, log.parent, (replica, None, None), False))
        for segment in log.unsynced:
            directory = None if segment.names_synced else log.directory
            target = (replica, segment, segment.next_offset)
            outbox.append((SYNC, segment.file, directory, target, False))

    def let_others_sync_first(self, since: int) -> None:
        """Mark the syncs in the outbox from `since` on as low priority: one request wrote to very many files."""
        outbox = self._broker.outbox
        for at in range(since, len(outbox)):
            if outbox[at][0] == SYNC:
                outbox[at] = (*outbox[at][:4], True)

    def _sync_due(self) -> None:
        due, self._due = self._due, {}
        for replica, log in due.items():
            self.sync(replica, log, is_due=True)

    def synced(self, targets: Iterable[tuple[Replica, Segment | None, Any]], now_ms: int) -> None:
        """The runtime has synced these targets."""
        self._broker.now_ms = now_ms
        moved: dict[Replica, None] = {}
        for replica, segment, what in targets:
            try:
                if not replica.opened:
                    # Its directory went offline meanwhile, perhaps before the produce was in the line.
                    self._purgatory.fail_waiting(replica, ErrorCode.KAFKA_STORAGE_ERROR)
                    continue
                if segment is None:
                    if what is None:
                        replica.log.fresh = False
                    else:
                        replica.log.settle_loose((what,))
                    continue
                replica.log.synced(segment, what)
            except Exception as error:
                self._isolation.contain(f"a sync of {replica.topic}-{replica.number}", error)
                continue
            moved[replica] = None
        for replica in moved:
            try:
                log = replica.log
                if replica.following is not None:
                    if log.flushed_offset >= log.next_offset:
                        replica.following.fetcher.synced(replica)
                    continue
                self._purgatory.answer_line(replica.waiting_here, log.flushed_offset)
                self._purgatory.advance(replica)
            except Exception as error:
                self._isolation.contain(f"a sync of {replica.topic}-{replica.number}", error)
