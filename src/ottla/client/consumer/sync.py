"""The blocking consumer, `ottla.Consumer`.

The hot path stays in the caller's thread: `poll` takes records from the fetch buffer without a switch to the
event loop. Rebalance callbacks and offset store calls also run in the caller's thread. One thread at a time
may use a consumer; only `wakeup` may be called from another one.
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
    """A consumer for threads: it reads assigned partitions, or its share of topics as a member of a group.

    The constructor connects. Only one thread may use a consumer at a time; `wakeup` may be called from any
    thread. Iterating over a consumer yields one record after the other, without end.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, as a string with commas or a sequence.
        settings: Kafka's consumer settings with underscores, for example `group_id="billing"`. The defaults
            are in `ottla.client.consumer.settings.ConsumerConfig`; docs/sdk.md explains the ones worth
            tuning.

    Raises:
        SettingError: A setting has an unknown name or an invalid value.
        BrokerUnreachable: No bootstrap server can be reached.
        AuthenticationFailed: The broker refuses the credentials, or TLS fails.

    Example:
        >>> import ottla
        >>> with ottla.Consumer(broker.address, auto_offset_reset="earliest") as consumer:
        ...     consumer.assign([("orders", 0)])
        ...     for partition, records in consumer.poll(10_000).items():
        ...         print(partition, [record.value for record in records])
        orders-0 [b'one', b'two', b'three']
    """

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
        """Read topics as a member of the group `group_id` (without that setting: group "ottla").

        A second call replaces the first. The callbacks get a list of partitions and run inside `poll`, while
        the rebalance waits for them.

        Args:
            topics: One topic name or several.
            pattern: A regular expression that matches whole topic names, instead of `topics`. New topics are
                included.
            on_assigned: Called with new partitions; it may seek. Default: None.
            on_revoked: Called with partitions that are about to be revoked; it may commit. Default: None.
            on_lost: Called with partitions that other members already have. Default: `on_revoked`.

        Raises:
            SettingError: Neither or both of `topics` and `pattern` are given, or the pattern is invalid.
            KafkaError: The consumer has partitions by `assign()`.

        Example:
            >>> consumer.subscribe(["orders"], on_assigned=lambda partitions: print(*partitions))
            >>> records = consumer.poll(10_000)
            orders-0
        """
        subscription = subscription_of(topics, pattern, on_assigned, on_revoked, on_lost)
        self._thread.run(self._core._subscribe(subscription))

    def unsubscribe(self) -> None:
        """Give up all partitions and leave the group.

        With `enable_auto_commit` the positions are committed first. `on_revoked` is called.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.unsubscribe()
            >>> consumer.assignment()
            []
        """
        self._perform(self._core._unsubscribe_plan())

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics.

        Returns:
            The names of the subscribed topics; of a pattern, the existing topics that it matches.

        Example:
            >>> consumer.subscribe(["orders"])
            >>> consumer.subscription()
            frozenset({'orders'})
        """
        return self._core.subscription()

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions, without a group rebalance.

        They start at the committed offset (with a `group_id` or an `offset_store`), else by
        `auto_offset_reset`. A second call replaces the first. Partitions in both keep their position.

        Args:
            partitions: `TopicPartition`s, or pairs of topic and partition number.

        Raises:
            TopicNotFound: A topic or a partition does not exist.
            KafkaError: The consumer has subscribed. Call `unsubscribe()` first.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.assignment()
            [TopicPartition(topic='orders', partition=0)]
        """
        self._perform(self._core._assign_plan(TopicPartition(*tp) for tp in partitions))

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this consumer reads.

        Returns:
            The partitions, by `assign()` or from the group.

        Example:
            >>> consumer.assignment()
            []
        """
        return self._core.assignment()

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """List the partitions of a topic.

        Args:
            topic: Name of the topic.

        Returns:
            The partitions.

        Raises:
            TopicNotFound: The topic does not exist.

        Example:
            >>> consumer.partitions_for("orders")
            [TopicPartition(topic='orders', partition=0)]
        """
        return self._thread.run(self._core.partitions_for(topic))

    # Positions

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Continue reading a partition at an offset.

        Args:
            partition: An assigned partition.
            offset: The offset of the next record to read, 0 or more.

        Raises:
            ValueError: The offset is negative.
            KafkaError: The partition is not assigned to this consumer.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.seek(("orders", 0), 2)
            >>> [record.value for records in consumer.poll(10_000).values() for record in records]
            [b'three']
        """
        self._core.seek(TopicPartition(*partition), offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue reading partitions at their first offset.

        Args:
            partitions: Assigned partitions. Default: all of them.

        Raises:
            KafkaError: A partition is not assigned, or its offsets cannot be looked up.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.seek_to_beginning()
            >>> consumer.position(("orders", 0))
            0
        """
        self._thread.run(self._core.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue reading partitions at their end offset.

        With `read_committed` that is the last stable offset.

        Args:
            partitions: Assigned partitions. Default: all of them.

        Raises:
            KafkaError: A partition is not assigned, or its offsets cannot be looked up.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.seek_to_end()
            >>> consumer.position(("orders", 0))
            3
        """
        self._thread.run(self._core.seek_to_end(partitions))

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue reading partitions at the first record at or after a time.

        A partition without such a record continues at its end.

        Args:
            timestamp_ms: Milliseconds since 1970 UTC.
            partitions: Assigned partitions. Default: all of them.

        Raises:
            KafkaError: A partition is not assigned, or its offsets cannot be looked up.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.seek_to_time(1_700_000_000_000)
            >>> consumer.position(("orders", 0))
            0
        """
        self._thread.run(self._core.seek_to_time(timestamp_ms, partitions))

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`. They stay assigned.

        Args:
            partitions: Assigned partitions.

        Raises:
            KafkaError: A partition is not assigned to this consumer.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.pause(ottla.TopicPartition("orders", 0))
            >>> consumer.poll(100)
            {}
        """
        self._core.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of paused partitions again.

        Args:
            partitions: Assigned partitions.

        Raises:
            KafkaError: A partition is not assigned to this consumer.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.pause(*consumer.assignment())
            >>> consumer.resume(*consumer.assignment())
            >>> consumer.paused()
            []
        """
        self._core.resume(*partitions)

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions.

        Returns:
            The partitions.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.pause(("orders", 0))
            >>> consumer.paused()
            [TopicPartition(topic='orders', partition=0)]
        """
        return self._core.paused()

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """Return the offset of the next record of a partition.

        The call waits up to `default_api_timeout_ms` until the start offset is known.

        Args:
            partition: An assigned partition.

        Returns:
            The offset.

        Raises:
            RequestTimedOut: The start offset is unknown after `default_api_timeout_ms`.
            OffsetOutOfRange: There is no committed offset, and `auto_offset_reset` is "none".
            KafkaError: The partition is not assigned to this consumer.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.position(("orders", 0))
            0
        """
        return self._thread.run(self._core.position(TopicPartition(*partition)))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition.

        Args:
            partitions: Any partitions; they need not be assigned.

        Returns:
            The offset by partition.

        Raises:
            TopicNotFound: A topic or a partition does not exist.

        Example:
            >>> consumer.beginning_offsets([ottla.TopicPartition("orders", 0)])
            {TopicPartition(topic='orders', partition=0): 0}
        """
        return self._thread.run(self._core.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition: the offset of the next record to be written.

        With `read_committed` that is the last stable offset.

        Args:
            partitions: Any partitions; they need not be assigned.

        Returns:
            The offset by partition.

        Raises:
            TopicNotFound: A topic or a partition does not exist.

        Example:
            >>> consumer.end_offsets([ottla.TopicPartition("orders", 0)])
            {TopicPartition(topic='orders', partition=0): 3}
        """
        return self._thread.run(self._core.end_offsets(partitions))

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return for each partition the offset of the first record at or after a time.

        Args:
            times: Milliseconds since 1970 UTC, by partition.

        Returns:
            The offset by partition; None where there is no such record.

        Raises:
            TopicNotFound: A topic or a partition does not exist.

        Example:
            >>> consumer.offsets_for_times({ottla.TopicPartition("orders", 0): 1_700_000_000_000})
            {TopicPartition(topic='orders', partition=0): 0}
        """
        return self._thread.run(self._core.offsets_for_times(times))

    def lag(self, partitions: Iterable[TopicPartition | tuple[str, int]] = ()) -> dict[TopicPartition, int]:
        """Return the lag of each partition: the end offset minus the position.

        Args:
            partitions: Assigned partitions. Default: all of them.

        Returns:
            The number of offsets by partition.

        Raises:
            RequestTimedOut: A start offset is unknown after `default_api_timeout_ms`.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.lag()
            {TopicPartition(topic='orders', partition=0): 3}
        """
        return self._thread.run(self._core.lag(TopicPartition(*tp) for tp in partitions))

    # Commits

    def commit(self, offsets: Given | None = None) -> None:
        """Commit the positions, or the given offsets, to the group or the `offset_store`.

        Args:
            offsets: For each partition the next offset to read. Default: the positions of all assigned
                partitions.

        Raises:
            CommitFailed: The consumer is no longer a member of the group, or the group is rebalancing.
            RequestTimedOut: The coordinator does not answer within `default_api_timeout_ms`.
            ClientClosed: The consumer is closed.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.commit({ottla.TopicPartition("orders", 0): 2})
            >>> admin.group_offsets("billing")
            {TopicPartition(topic='orders', partition=0): 2}
        """
        self._perform(self._core._commit_plan(offsets))

    def commit_async(self, offsets: Given | None = None, on_commit: OnCommit | None = None) -> None:
        """Commit like `commit`, without waiting for the answer.

        Args:
            offsets: For each partition the next offset to read. Default: the positions of all assigned
                partitions.
            on_commit: Called as `on_commit(offsets, error)` inside a later `poll`. Default: None.

        Raises:
            ClientClosed: The consumer is closed.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.commit_async({ottla.TopicPartition("orders", 0): 2})
        """
        self._perform(self._core._commit_async_plan(offsets, on_commit))

    def committed(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> Committed:
        """Return the committed offsets of partitions, from the group or the `offset_store`.

        Args:
            partitions: `TopicPartition`s, or pairs of topic and partition number.

        Returns:
            The committed offset by partition. Partitions without one are left out.

        Raises:
            RequestTimedOut: The coordinator does not answer within `default_api_timeout_ms`.
            ClientClosed: The consumer is closed.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> consumer.commit({ottla.TopicPartition("orders", 0): 2})
            >>> consumer.committed([("orders", 0)])[("orders", 0)].offset
            2
        """
        return self._perform(self._core._committed_plan(TopicPartition(*tp) for tp in partitions))

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's membership, for `producer.send_offsets`.

        Returns:
            Group id, generation, member id and group instance id.

        Example:
            >>> consumer.group_metadata().group_id
            'billing'
        """
        return self._core.group_metadata()

    # Polling

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return the next records, by partition.

        With `enable_auto_commit` a poll commits the records of earlier polls. Callbacks of rebalances and
        commits run here.

        Args:
            timeout_ms: Milliseconds to wait for a first record. Default: 0, only buffered records.
            max_records: The most records to return. Default: `max_poll_records`.

        Returns:
            Lists of `ConsumerRecord` by partition; empty after `timeout_ms` without a record.

        Raises:
            WakeupError: `wakeup()` was called.
            PoisonRecord: A deserializer refuses a record, and `on_poison` is "raise".
            OffsetOutOfRange: The position is not in the log, and `auto_offset_reset` is "none".
            LogTruncated: The log was truncated below the position, and `auto_offset_reset` is "none".
            CorruptBatch: A fetched batch is damaged.
            ClientClosed: The consumer is closed.

        Example:
            >>> consumer.subscribe(["orders"])
            >>> for partition, records in consumer.poll(10_000).items():
            ...     print(partition, [record.value for record in records])
            orders-0 [b'one', b'two', b'three']
        """
        return self._poll(self._core._take, timeout_ms, max_records)

    def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, Columns]:
        """Return the next records as columns: arrays of offsets and timestamps, keys and values as buffers.

        Deserializers and interceptors are not applied.

        Args:
            timeout_ms: Milliseconds to wait for a first record. Default: 0, only buffered records.
            max_records: The most records to return. Default: all buffered records.

        Returns:
            `Columns` by partition; empty after `timeout_ms` without a record.

        Raises:
            WakeupError: `wakeup()` was called.
            OffsetOutOfRange: The position is not in the log, and `auto_offset_reset` is "none".
            CorruptBatch: A fetched batch is damaged.
            ClientClosed: The consumer is closed.

        Example:
            >>> consumer.assign([("orders", 0)])
            >>> [columns] = consumer.poll_columns(10_000).values()
            >>> len(columns)
            3
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
                    raise ClientClosed("this consumer is closed", advice="Create a new one")
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
        """Return the consumer's counters and averages since it was created.

        Returns:
            The `ConsumerMetrics`.

        Example:
            >>> consumer.metrics().poison_records
            0
        """
        return self._core.metrics()

    def batches(
        self, timeout_ms: float = ITERATION_POLL_MS
    ) -> Iterator[dict[TopicPartition, list[ConsumerRecord]]]:
        """Poll without end and yield each result that has records.

        Args:
            timeout_ms: Milliseconds of each poll. Default: 1,000.

        Returns:
            An iterator over lists of `ConsumerRecord` by partition.

        Raises:
            KafkaError: As `poll`.

        Example:
            >>> consumer.subscribe(["orders"])
            >>> for batch in consumer.batches():
            ...     consumer.commit()
            ...     break
        """
        while True:
            taken = self.poll(timeout_ms)
            if taken:
                yield taken

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield every record, without end. A second loop continues where the first one stopped.

        Raises:
            KafkaError: As `poll`.

        Example:
            >>> consumer.subscribe(["orders"])
            >>> for record in consumer:
            ...     print(record.offset, record.value)
            ...     break
            0 b'one'
        """
        yield from self._core._progress.iteration or ()
        for polled in self.batches():
            iteration = self._core._progress.iteration = Iteration(polled)
            yield from iteration

    def wakeup(self) -> None:
        """Make the current poll, or the next one, raise `WakeupError`. Any thread may call it.

        Example:
            >>> consumer.wakeup()
            >>> consumer.poll(10_000)
            Traceback (most recent call last):
            ottla.client.errors.WakeupError: wakeup() was called
        """
        self._core.wakeup()

    # The end

    def close(self, timeout: float | None = None) -> None:
        """Commit (with `enable_auto_commit`), leave the group and disconnect.

        A second call does nothing.

        Args:
            timeout: Seconds for the commit and for leaving the group. Default: `request_timeout_ms`.

        Example:
            >>> consumer = ottla.Consumer(broker.address)
            >>> consumer.close(timeout=10)
        """
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
