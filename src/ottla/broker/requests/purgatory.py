"""Produces and fetches that wait for a partition, as in Kafka's purgatory: woken when the partition moves.

- A produce waits in the line of its replica until the high watermark (acks=all) or the synced offset (acks=1, durable policy)
  reaches its last record (`Replica.waiting`, `Replica.waiting_here`).
- A fetch watches its partitions: consumers watch the high watermark (`Replica.watchers`), followers the log end
  (`Replica.tail`).

Followers are notified at once. Consumers are notified at the end of the turn (`notify_moved`), so that many appends wake a
fetch once. `Broker` binds `advance`, `moved`, `role_changed` and others under its own name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.isolation import Isolation
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.replication.replica import Replica


class Purgatory:
    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        #: Replicas whose watchers are notified at the end of this turn; each has `Replica.moved` set.
        self.moved_replicas: deque[Replica] = deque()

    def advance(self, replica: Replica) -> None:
        """Let the high watermark move, and answer the produces that waited for it."""
        if replica.advance():
            self.answer_reached(replica)
            self.moved(replica)

    def answer_reached(self, replica: Replica) -> None:
        """Answer the produces that the high watermark has reached."""
        self.answer_line(replica.waiting, replica.high_watermark)

    def answer_line(self, line: deque[tuple[int, Any, dict[str, Any]]], reached: int) -> None:
        """Answer the produces of a line that wait for this offset or a lower one."""
        while line and line[0][0] <= reached:
            _offset, produce, row = line.popleft()
            try:
                produce.reached(row)
            except Exception as error:
                self._isolation.contain("the answer to a produce", error)

    def fail_waiting(self, replica: Replica, code: ErrorCode) -> None:
        """Fail the produces that wait: their records will not be committed, or this broker will not know of it."""
        for line in (replica.waiting, replica.waiting_here):
            if not line:
                continue
            entries = list(line)
            line.clear()
            # Entries that go on waiting stay in front of the records that were appended because others failed.
            line.extendleft(reversed([entry for entry in entries if self._waits_on(replica, entry, code)]))

    def _waits_on(self, replica: Replica, entry: tuple[int, Any, dict[str, Any]], code: ErrorCode) -> bool:
        try:
            return bool(entry[1].failed(replica, entry[2], code))
        except Exception as error:
            self._isolation.contain("the answer to a produce", error)
            return False

    def moved(self, replica: Replica) -> None:
        """Notify the consumers' fetches of a partition at the end of this turn."""
        if replica.watchers and not replica.moved:
            replica.moved = True
            self.moved_replicas.append(replica)

    def notify_moved(self) -> None:
        """Notify the consumers' fetches of all partitions that moved in this turn."""
        replicas = self.moved_replicas
        while replicas:
            replica = replicas.popleft()
            replica.moved = False
            # Not through `notify`: one call less for each produce that wakes a consumer.
            for watcher in replica.watchers:
                try:
                    watcher.moved()
                except Exception as error:
                    self._contain(replica, error)

    def role_changed(self, replica: Replica) -> None:
        """Let every fetch that waits for this replica look at it again."""
        if replica.watchers:
            self.moved(replica)
        if replica.tail:
            self.notify(replica, replica.tail)

    def notify(self, replica: Replica, watchers: Iterable[Any]) -> None:
        for watcher in watchers:
            try:
                watcher.moved()
            except Exception as error:
                self._contain(replica, error)

    def _contain(self, replica: Replica, error: Exception) -> None:
        self._isolation.contain(f"waking the fetches of {replica.topic}-{replica.number}", error)
