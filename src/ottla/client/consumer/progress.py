"""Positions and commits, to the group's coordinator or to an offset store.

A record is processed when the caller polls again: a poll commits the records of earlier polls. Commits are
sent one after the other, so an older one never overtakes a newer one. The blocking and the asyncio consumer
execute the plans.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from ottla.client.consumer.commits import GroupOffsets
from ottla.client.consumer.fetched import ConsumerRecord, FetchBuffer
from ottla.client.consumer.plans import Callback, Plan, StoreCall
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.errors import KafkaError, RequestTimedOut
from ottla.client.metadata import OffsetAndMetadata, TopicPartition

log = logging.getLogger("ottla.client")

Given: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]
Committed: TypeAlias = dict[TopicPartition, OffsetAndMetadata]
#: Called with the offsets and the error; the error is None after a success.
OnCommit: TypeAlias = Callable[[Committed, KafkaError | None], object]


class Iteration:
    """Records that were taken out of the buffer for a `for` loop. The caller has not seen the ones after the
    current one.
    """

    def __init__(self, polled: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        self._waiting = {tp: records for tp, records in polled.items() if records}
        self._current: ConsumerRecord | None = None
        #: The remaining records of the current partition, and its last record.
        self._rest: Iterator[ConsumerRecord] = iter(())
        self._last: ConsumerRecord | None = None

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """The unseen records: a second loop continues where the first one stopped."""
        while True:
            # Read it each time: a seek or a poll of the caller may have removed the rest.
            record = next(self._rest, None)
            if record is not None:
                self._current = record
                yield record
            elif self._waiting:
                records = self._waiting.pop(next(iter(self._waiting)))
                self._rest, self._last = iter(records), records[-1]
            else:
                return

    def positions(self) -> dict[TopicPartition, int]:
        found = {tp: records[0].offset for tp, records in self._waiting.items()}
        if self._current is not None:
            found[TopicPartition(self._current.topic, self._current.partition)] = self._current.offset + 1
        return found

    def forget(self, tp: TopicPartition) -> None:
        self._waiting.pop(tp, None)
        if self._current is not None and (self._current.topic, self._current.partition) == tp:
            self._rest, self._current = iter(()), None

    def end(self) -> dict[TopicPartition, int]:
        """The loop was left. Return the offsets of the first unseen records."""
        if self._current is self._last:
            self._current = None
        unseen = self.positions()
        self._waiting, self._rest, self._current = {}, iter(()), None
        return unseen


class Progress:
    def __init__(
        self,
        buffer: FetchBuffer,
        settings: ConsumerConfig,
        group_id: str,
        on_commit: Callable[[Committed], None] = lambda _: None,
    ) -> None:
        self._on_commit = on_commit
        self._buffer = buffer
        self._settings = settings
        self._group_id = group_id
        self._store = settings.offset_store
        self._kept: dict[TopicPartition, int] = {}
        self._due_ms = math.inf
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._callbacks: deque[Callable[[], object]] = deque()
        self.iteration: Iteration | None = None
        #: Wakes the poll, to run callbacks of commits.
        self.notify: Callable[[], None] = lambda: None

    # Positions

    def positions(self) -> dict[TopicPartition, int]:
        with self._buffer.lock:
            found = {
                tp: partition.position
                for tp, partition in self._buffer.partitions.items()
                if partition.position is not None
            }
        if self.iteration is not None:
            found.update({tp: offset for tp, offset in self.iteration.positions().items() if tp in found})
        return found

    def end_iteration(self) -> bool:
        """Seek back to the first records that a loop did not yield. Return whether there were any."""
        iteration, self.iteration = self.iteration, None
        unseen = {} if iteration is None else iteration.end()
        for tp in unseen.keys() & self._buffer.partitions.keys():
            self._buffer.place(tp, offset=unseen[tp])
        return bool(unseen)

    def started(self, starts: Mapping[TopicPartition, int]) -> None:
        """These partitions start at their committed offsets."""
        self._kept.update(starts)

    def ended(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._kept.pop(tp, None)

    def _unkept(self) -> Committed:
        return {
            tp: OffsetAndMetadata(offset)
            for tp, offset in self.positions().items()
            if self._kept.get(tp) != offset
        }

    # Automatic commits

    def begin(self, now_ms: float) -> None:
        """Start automatic commits, if they are enabled."""
        if self._settings.enable_auto_commit:
            self._due_ms = now_ms + self._settings.auto_commit_interval_ms

    def stop(self) -> None:
        self._due_ms = math.inf

    @property
    def is_automatic(self) -> bool:
        return self._due_ms < math.inf

    def due(self, now_ms: float) -> bool:
        return now_ms >= self._due_ms or bool(self._callbacks)

    def wait_ms(self, now_ms: float) -> float:
        """The milliseconds until the next automatic commit."""
        return self._due_ms - now_ms

    def keep_up(self, now_ms: float, offsets: GroupOffsets | None) -> Plan[None]:
        """Run callbacks of finished commits, and the automatic commit if it is due."""
        yield from self.run_callbacks()
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + self._settings.auto_commit_interval_ms
            wanted = self._unkept()
            if wanted and self._store is not None:
                yield self._save(wanted)
                self._note(wanted)
            elif wanted and offsets is not None:
                yield self._commit_soon(offsets, wanted, self._log_auto_commit)

    def run_callbacks(self) -> Plan[None]:
        """Run callbacks of finished commits."""
        while self._callbacks:
            yield Callback(self._callbacks.popleft())

    def commit_last(self, offsets: GroupOffsets | None, timeout_ms: float) -> Plan[None]:
        """The automatic commit before partitions are revoked. A failure is only logged: they are revoked
        anyway.
        """
        if not self.is_automatic:
            return
        try:
            yield from self.commit(self._unkept(), offsets, timeout_ms)
        except KafkaError as error:
            log.warning("group %s: the last commit failed: %s", self._group_id, error)

    def _log_auto_commit(self, _: Committed, error: KafkaError | None) -> None:
        if error is not None:
            log.warning("group %s: the automatic commit failed: %s", self._group_id, error)

    # Commits by the caller

    def commit(
        self, given: Given | None, offsets: GroupOffsets | None, timeout_ms: float | None = None
    ) -> Plan[None]:
        """Commit these offsets, or the positions."""
        wanted = self.wanted(given)
        if not wanted:
            return
        if self._store is not None:
            yield self._save(wanted)
            self._note(wanted)
        elif offsets is not None:
            yield self._commit_in_turn(offsets, wanted, timeout_ms)

    def commit_async(
        self, given: Given | None, offsets: GroupOffsets | None, on_commit: OnCommit | None
    ) -> Plan[None]:
        """Like `commit`, without waiting; `on_commit` is called inside a later poll."""
        wanted = self.wanted(given)

        def report(done: Committed, error: KafkaError | None) -> None:
            if on_commit is not None:
                self._callbacks.append(partial(on_commit, done, error))
                self.notify()

        if self._store is not None:
            try:
                yield self._save(wanted)
            except KafkaError as error:
                report(wanted, error)
            else:
                self._note(wanted)
                report(wanted, None)
        elif offsets is not None:
            yield self._commit_soon(offsets, wanted, report)

    def wanted(self, given: Given | None) -> Committed:
        if given is None:
            return {tp: OffsetAndMetadata(offset) for tp, offset in self.positions().items()}
        return {
            TopicPartition(*tp): place if isinstance(place, OffsetAndMetadata) else OffsetAndMetadata(place)
            for tp, place in given.items()
        }

    def _save(self, wanted: Committed) -> StoreCall:
        assert self._store is not None
        plain = {tp: place.offset for tp, place in wanted.items()}
        return StoreCall(
            partial(self._store.save, self._group_id, plain),
            bool(getattr(self._store, "in_transaction", False)),
        )

    def load(self, partitions: Iterable[TopicPartition]) -> StoreCall:
        assert self._store is not None
        return StoreCall(partial(self._store.load, self._group_id, list(partitions)))

    async def _commit_in_turn(
        self, offsets: GroupOffsets, wanted: Committed, timeout_ms: float | None = None
    ) -> None:
        longest_ms = self._settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            # The time-out includes the wait for earlier commits.
            async with asyncio.timeout(longest_ms / 1000), self._lock:
                await offsets.commit(wanted, longest_ms)
        except TimeoutError:
            raise RequestTimedOut(
                f"group {self._group_id}: no answer to the commit within {longest_ms / 1000:g} s",
                advice="The coordinator may be down or cut off",
            ) from None
        self._note(wanted)

    async def _commit_soon(self, offsets: GroupOffsets, wanted: Committed, report: OnCommit) -> None:
        async def work() -> None:
            try:
                await self._commit_in_turn(offsets, wanted)
            except KafkaError as error:
                report(wanted, error)
            else:
                report(wanted, None)

        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _note(self, wanted: Committed) -> None:
        for tp, place in wanted.items():
            if tp in self._buffer.partitions:
                self._kept[tp] = place.offset
        self._on_commit(wanted)

    async def finish(self, timeout_ms: float) -> None:
        """Wait for commits in flight, up to the timeout."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_ms / 1000)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
