"""The blocking face of the consumer, `ottla.Consumer`.

What is hot stays in the caller's thread: `poll` takes from the fetch buffer without visiting the event loop. So do the callbacks of
rebalances and the calls into an offset store. One consumer serves one caller at a time; only `wakeup` may come from another thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar, Unpack

from ottla.client.consumer.columns import Columns
from ottla.client.consumer.core import ITERATION_POLL_MS, AsyncConsumer
from ottla.client.consumer.fetched import ConsumerRecord
from ottla.client.consumer.metrics import ConsumerMetrics
from ottla.client.consumer.plans import Plan, perform
from ottla.client.consumer.progress import Committed, Given, Iteration, OnCommit
from ottla.client.consumer.seek import now_ms
from ottla.client.consumer.settings import ConsumerSettings
from ottla.client.consumer.subscription import Callback as OnPartitions
from ottla.client.consumer.subscription import subscription_of
from ottla.client.errors import ClientClosed
from ottla.client.loop_thread import BlockingClient
from ottla.client.metadata import GroupMetadata, TopicPartition

Taken = TypeVar("Taken")
Result = TypeVar("Result")


class Consumer(BlockingClient):
    """Reads records, of assigned partitions or as a member of a group. Settings are Kafka's, with underscores."""

    _core: AsyncConsumer

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ConsumerSettings]) -> None:
        self._core = self._open("ottla-consumer", lambda: AsyncConsumer(bootstrap_servers, **settings))

    # What to read

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        pattern: str | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Read these topics, or those whose whole name matches the pattern, together with the others of the group.

        Without a `group_id` the group is called "ottla". The callbacks get a list of partitions and run inside `poll`, in its thread,
        while the rebalance waits for them: in `on_assigned` one may seek, in `on_revoked` commit; what `on_lost` names is
        others' already (without it `on_revoked` is called). A second call replaces the first.
        """
        subscription = subscription_of(topics, pattern, on_assigned, on_revoked, on_lost)
        self._thread.run(self._core._subscribe(subscription))

    def unsubscribe(self) -> None:
        """Give up all partitions, and leave the group if there is one: commits what is automatic, calls `on_revoked`."""
        self._perform(self._core._unsubscribe_plan())

    def subscription(self) -> frozenset[str]:
        """The topics that were subscribed to by name, and those that the pattern matches."""
        return self._core.subscription()

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions. They start at what the group has committed (if there is a group_id) or the store has, else by
        `auto_offset_reset`, unless a seek follows."""
        self._perform(self._core._assign_plan(TopicPartition(*tp) for tp in partitions))

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._core.assignment()

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        return self._thread.run(self._core.partitions_for(topic))

    # Positions

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Go on at that offset of the partition."""
        self._core.seek(TopicPartition(*partition), offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on at the beginning of these partitions, or of all that are assigned."""
        self._thread.run(self._core.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on at the end of these partitions, or of all that are assigned."""
        self._thread.run(self._core.seek_to_end(partitions))

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on at the first record of each partition at or after that time; at the end where there is none."""
        self._thread.run(self._core.seek_to_time(timestamp_ms, partitions))

    def pause(self, *partitions: TopicPartition) -> None:
        """Give no records of these partitions until `resume`; the consumer keeps them."""
        self._core.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Give records of these partitions again."""
        self._core.resume(*partitions)

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._core.paused()

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record, waiting until the start is known."""
        return self._thread.run(self._core.position(TopicPartition(*partition)))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each partition begins."""
        return self._thread.run(self._core.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each partition ends for this consumer: with read_committed, before its first open transaction."""
        return self._thread.run(self._core.end_offsets(partitions))

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """For each partition the offset of its first record at or after that time, or None."""
        return self._thread.run(self._core.offsets_for_times(times))

    def lag(self, partitions: Iterable[TopicPartition | tuple[str, int]] = ()) -> dict[TopicPartition, int]:
        """How many offsets the caller is behind the end of each partition (of all that are assigned)."""
        return self._thread.run(self._core.lag(TopicPartition(*tp) for tp in partitions))

    # Commits

    def commit(self, offsets: Given | None = None) -> None:
        """Keep how far the caller is, or these offsets (of the next records to read), with the group or in the own store.

        Raises `CommitFailed` if the group went on without this consumer.
        """
        self._perform(self._core._commit_plan(offsets))

    def commit_async(self, offsets: Given | None = None, on_commit: OnCommit | None = None) -> None:
        """As `commit`, without waiting for it. `on_commit(offsets, error)` is called within a later poll, in its thread."""
        self._perform(self._core._commit_async_plan(offsets, on_commit))

    def committed(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> Committed:
        """What the group (or the own store) has kept of these partitions; those of which it has nothing are left out."""
        return self._perform(self._core._committed_plan(TopicPartition(*tp) for tp in partitions))

    def group_metadata(self) -> GroupMetadata:
        """This consumer's place in its group, for `producer.send_offsets`."""
        return self._core.group_metadata()

    # Polling

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within the time; an empty dictionary when none do."""
        return self._poll(self._core._take, timeout_ms, max_records)

    def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, Columns]:
        """As `poll`, with the records of each partition as columns: arrays of offsets and timestamps, keys and values as bytes.

        Without `max_records` it gives all that are there. Deserializers are not applied.
        """
        return self._poll(self._core._take_columns, timeout_ms, max_records)

    def _poll(self, take: Callable[[int | None], Taken], timeout_ms: float, max_records: int | None) -> Taken:
        core = self._core
        buffer = core._buffer
        deadline = time.monotonic() + timeout_ms / 1000
        core._begin_poll()
        try:
            while True:
                if self._closed:
                    raise ClientClosed("this consumer is closed", advice="Make a new one")
                if core._has_work():
                    self._perform(core._work())
                records = take(max_records)
                left_s = deadline - time.monotonic()
                if records or left_s <= 0:
                    return records
                left_s = min(left_s, core._progress.wait_ms(now_ms()) / 1000)
                with buffer.lock:
                    buffer.condition.wait_for(lambda: buffer.ready or core._has_work(), max(left_s, 0.001))
        finally:
            core._end_poll()

    def metrics(self) -> ConsumerMetrics:
        """What was read so far, and how fast."""
        return self._core.metrics()

    def batches(
        self, timeout_ms: float = ITERATION_POLL_MS
    ) -> Iterator[dict[TopicPartition, list[ConsumerRecord]]]:
        """What each poll gives, for ever; polls that give nothing are left out."""
        while True:
            taken = self.poll(timeout_ms)
            if taken:
                yield taken

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Every record as it comes, for ever. A second loop goes on where the first was left."""
        yield from self._core._progress.iteration or ()
        for polled in self.batches():
            iteration = self._core._progress.iteration = Iteration(polled)
            yield from iteration

    def wakeup(self) -> None:
        """Make the poll that is under way, or the next one, raise `WakeupError`; from any thread."""
        self._core.wakeup()

    # The end

    def close(self, timeout: float | None = None) -> None:
        """Commit (if that is automatic), give partitions up, leave the group, and end; `timeout` in seconds bounds the farewell."""
        self._close(timeout, commits=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None, commits=kind is None)

    def _close(self, timeout: float | None, *, commits: bool) -> None:
        if not self._closes():
            return
        try:
            self._perform(self._core._close_plan(timeout, commits=commits))
        finally:
            self._thread.stop()

    def _perform(self, plan: Plan[Result]) -> Result:
        return perform(plan, self._thread)
