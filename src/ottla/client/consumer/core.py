"""The asyncio consumer, `ottla.aio.Consumer`. The fetcher fills the buffer; `poll` takes records out of it.

A consumer reads the partitions of `assign` or, as a member of a group, the ones that the group assigns
(`subscribe`). Then `group.py` keeps the membership alive in the background, and `poll` executes the steps of
rebalances (`_take_step`). Positions and commits are in `progress.py`. Work that the blocking consumer shares
is written as plans (`plans.py`), which both execute.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, Unpack

from ottla.client.cluster import Cluster
from ottla.client.consumer.columns import Columns
from ottla.client.consumer.commits import OUT_ADVICE, GroupOffsets
from ottla.client.consumer.fetched import ConsumerRecord
from ottla.client.consumer.fetcher import Fetcher, fetch_buffer
from ottla.client.consumer.group import Group
from ottla.client.consumer.interceptors import Interceptors
from ottla.client.consumer.metrics import ConsumerMetrics, consumer_metrics
from ottla.client.consumer.plans import Callback, Plan, StoreCall, perform_async
from ottla.client.consumer.progress import Committed, Given, Iteration, OnCommit, Progress
from ottla.client.consumer.seek import SeekOperations, now_ms
from ottla.client.consumer.settings import ConsumerConfig, ConsumerSettings
from ottla.client.consumer.subscription import Callback as OnPartitions
from ottla.client.consumer.subscription import Subscription, subscription_of
from ottla.client.coordinators import Coordinator
from ottla.client.errors import ClientClosed, CommitFailed, KafkaError, WakeupError
from ottla.client.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition
from ottla.client.offsets import METADATA_TIMEOUT_MS
from ottla.client.settings import bootstrap_addresses, settings_of

#: The group of consumers that subscribe without a `group_id` (A6).
DEFAULT_GROUP = "ottla"
#: The time-out of each poll of an iteration, which never ends.
ITERATION_POLL_MS = 1_000

Taken = TypeVar("Taken")


class AsyncConsumer(SeekOperations):
    """A consumer for asyncio: it reads assigned partitions, or its share of topics as a member of a group.

    Use it with `async with`, or call `await start()` first and `await close()` last. Iterating over a
    consumer yields one record after the other, without end.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, as a string with commas or a sequence.
        settings: Kafka's consumer settings with underscores, for example `group_id="billing"`. The defaults
            are in `ottla.client.consumer.settings.ConsumerConfig`; docs/sdk.md explains the ones worth
            tuning.

    Raises:
        SettingError: A setting has an unknown name or an invalid value.

    Example:
        >>> import ottla.aio
        >>> async with ottla.aio.Consumer(broker.address, auto_offset_reset="earliest") as consumer:
        ...     await consumer.assign([("orders", 0)])
        ...     for partition, records in (await consumer.poll(10_000)).items():
        ...         print(partition, [record.value for record in records])
        orders-0 [b'one', b'two', b'three']
    """

    def __init__(self, bootstrap_servers: str | Sequence[str], **given: Unpack[ConsumerSettings]) -> None:
        settings = settings_of(ConsumerConfig, given)
        self._settings = settings
        self._cluster = Cluster(bootstrap_addresses(bootstrap_servers), settings)
        self._buffer = fetch_buffer(settings)
        self._fetcher = Fetcher(self._cluster, settings, self._buffer)
        self._group: Group | None = None
        self._group_id = settings.group_id or DEFAULT_GROUP
        self._coordinator = Coordinator(self._cluster, "group", self._group_id)
        self._offsets = GroupOffsets(
            self._cluster, self._coordinator, self._group_id, self._committer, self._is_joining
        )
        self._interceptors = Interceptors(settings.interceptors)
        self._progress = Progress(self._buffer, settings, self._group_id, self._interceptors.on_commit)
        self._progress.notify = self._notify
        self._is_woken = False
        self._is_unsubscribing = False
        #: Set when close begins: polls are refused, but callbacks of the last rebalance may still commit.
        self._is_closing = False
        self._is_closed = False

    async def __aenter__(self) -> AsyncConsumer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await perform_async(self._close_plan(commits=kind is None))

    async def start(self) -> None:
        """Connect to the cluster.

        Raises:
            BrokerUnreachable: No bootstrap server can be reached.
            AuthenticationFailed: The broker refuses the credentials, or TLS fails.
        """
        await self._cluster.start()
        self._fetcher.start()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # same signature as the blocking client
        """Commit (with `enable_auto_commit`), leave the group and disconnect.

        A second call does nothing.

        Args:
            timeout: Seconds for the commit and for leaving the group. Default: `request_timeout_ms`.
        """
        await perform_async(self._close_plan(timeout))

    def _close_plan(self, timeout: float | None = None, *, commits: bool = True) -> Plan[None]:
        """The plan of `close`. After an exception nothing is committed: the last records may not be
        processed.
        """
        if self._is_closing:
            return
        self._is_closing = True
        self._notify()
        if not commits:
            self._progress.stop()
            yield self._progress.finish(0)
        try:
            yield from self._unsubscribe_plan(timeout)
        finally:
            self._is_closed = True
            yield self._shut()
            yield from self._progress.run_callbacks()
            self._interceptors.close()
            if self._settings.offset_store is not None:
                yield StoreCall(self._settings.offset_store.close)

    async def _shut(self) -> None:
        await self._coordinator.close()
        await self._fetcher.close()
        await self._cluster.close()
        self._notify()

    # What to read

    async def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions, without a group rebalance.

        They start at the committed offset (with a `group_id` or an `offset_store`), else by
        `auto_offset_reset`. A second call replaces the first. Partitions in both keep their position.

        Args:
            partitions: `TopicPartition`s, or pairs of topic and partition number.

        Raises:
            TopicNotFound: A topic or a partition does not exist.
            KafkaError: The consumer has subscribed. Call `unsubscribe()` first.
        """
        await perform_async(self._assign_plan(TopicPartition(*tp) for tp in partitions))

    def _assign_plan(self, partitions: Iterable[TopicPartition]) -> Plan[None]:
        if self._group is not None:
            raise KafkaError(
                "assign() is not possible: this consumer has subscribed to topics",
                advice="Call unsubscribe() first",
            )
        wanted = list(dict.fromkeys(TopicPartition(*tp) for tp in partitions))
        yield self._cluster.check_partitions(wanted, METADATA_TIMEOUT_MS)
        new = [tp for tp in wanted if tp not in self._buffer.partitions]
        starts: Mapping[TopicPartition, int] = {}
        if self._settings.offset_store is not None:
            starts = yield self._progress.load(new)
        elif self._settings.group_id is not None:
            starts = yield self._committed_offsets(new)
        self._begin_partitions(wanted, starts)
        if self._settings.group_id is not None or self._settings.offset_store is not None:
            self._progress.begin(now_ms())

    def _begin_partitions(
        self, wanted: Iterable[TopicPartition], starts: Mapping[TopicPartition, int]
    ) -> None:
        before = set(self._buffer.partitions)
        self._buffer.assign(wanted, self._fetcher.reset)
        self._progress.ended(before - set(self._buffer.partitions))
        for tp, offset in starts.items():
            self._buffer.place(tp, offset=offset)
        self._progress.started(starts)
        self._fetcher.pump_soon()

    async def subscribe(
        self,
        topics: str | Iterable[str] = (),
        pattern: str | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Read topics as a member of the group `group_id` (without that setting: group "ottla").

        A second call replaces the first. The callbacks get a list of partitions and run inside `poll`, while
        the rebalance waits for them. They may be coroutine functions.

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
            >>> await consumer.subscribe(["orders"], on_assigned=lambda partitions: print(*partitions))
            >>> records = await consumer.poll(10_000)
            orders-0
        """
        await self._subscribe(subscription_of(topics, pattern, on_assigned, on_revoked, on_lost))

    async def _subscribe(self, subscription: Subscription) -> None:
        if self._group is None:
            if self._buffer.partitions:
                raise KafkaError(
                    "subscribe() is not possible: this consumer has partitions by assign()",
                    advice="Call unsubscribe() first",
                )
            self._group = Group(
                self._cluster, self._settings, self._coordinator, self._offsets, self._group_id, self._notify
            )
            self._progress.begin(now_ms())
        await self._group.subscribe(subscription)

    async def unsubscribe(self) -> None:
        """Give up all partitions and leave the group.

        With `enable_auto_commit` the positions are committed first. `on_revoked` is called.
        """
        await perform_async(self._unsubscribe_plan())

    def _unsubscribe_plan(self, timeout: float | None = None) -> Plan[None]:
        # The callback may itself unsubscribe or close. Then it is not called again, and the rest is done
        # after it.
        is_nested, self._is_unsubscribing = self._is_unsubscribing, True
        group = self._group
        deadline_ms = now_ms() + (self._settings.request_timeout_ms if timeout is None else timeout * 1000)
        try:
            if self._buffer.partitions:
                yield from self._progress.commit_last(self._offsets, deadline_ms - now_ms())
                callback = None if group is None or is_nested else group.subscription.callback("revoke")
                owned = sorted(self._buffer.partitions)
                if callback is not None:
                    yield Callback(lambda: callback(owned))
        finally:
            self._is_unsubscribing = is_nested
            if self._group is group and not self._is_closed:
                yield from self._leave_plan(deadline_ms)

    def _leave_plan(self, deadline_ms: float) -> Plan[None]:
        self._progress.end_iteration()
        self._begin_partitions((), {})
        self._progress.stop()
        yield self._progress.finish(max(deadline_ms - now_ms(), 0))
        if self._group is not None:
            yield self._group.leave(max(deadline_ms - now_ms(), 0))
            self._group = None

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics.

        Returns:
            The names of the subscribed topics; of a pattern, the existing topics that it matches.
        """
        if self._group is None:
            return frozenset()
        return self._group.subscription.matching(self._cluster.metadata)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this consumer reads.

        Returns:
            The partitions, by `assign()` or from the group.
        """
        return list(self._buffer.partitions)

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's membership, for `producer.send_offsets`.

        Returns:
            Group id, generation, member id and group instance id.
        """
        if self._group is None:
            return GroupMetadata(self._group_id, -1, "", None)
        return self._group.identity()

    def _committer(self) -> GroupMetadata:
        """The member that commits. A former member cannot commit, so no request is sent."""
        if self._group is not None and not self._group.is_member:
            raise CommitFailed(
                f"cannot commit: this consumer is not a member of group {self._group_id!r}",
                advice=OUT_ADVICE,
            )
        return self.group_metadata()

    def _is_joining(self) -> bool:
        return self._group is not None and self._group.member.is_joining

    # Commits

    async def commit(self, offsets: Given | None = None) -> None:
        """Commit the positions, or the given offsets, to the group or the `offset_store`.

        Args:
            offsets: For each partition the next offset to read. Default: the positions of all assigned
                partitions.

        Raises:
            CommitFailed: The consumer is no longer a member of the group, or the group is rebalancing.
            RequestTimedOut: The coordinator does not answer within `default_api_timeout_ms`.
            ClientClosed: The consumer is closed.
        """
        await perform_async(self._commit_plan(offsets))

    def _commit_plan(self, offsets: Given | None) -> Plan[None]:
        self._check_open()
        return self._progress.commit(offsets, self._offsets)

    async def commit_async(self, offsets: Given | None = None, on_commit: OnCommit | None = None) -> None:
        """Commit like `commit`, without waiting for the answer.

        Args:
            offsets: For each partition the next offset to read. Default: the positions of all assigned
                partitions.
            on_commit: Called as `on_commit(offsets, error)` inside a later `poll`. Default: None.

        Raises:
            ClientClosed: The consumer is closed.
        """
        await perform_async(self._commit_async_plan(offsets, on_commit))

    def _commit_async_plan(self, offsets: Given | None, on_commit: OnCommit | None) -> Plan[None]:
        self._check_open()
        return self._progress.commit_async(offsets, self._offsets, on_commit)

    async def committed(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> Committed:
        """Return the committed offsets of partitions, from the group or the `offset_store`.

        Args:
            partitions: `TopicPartition`s, or pairs of topic and partition number.

        Returns:
            The committed offset by partition. Partitions without one are left out.

        Raises:
            RequestTimedOut: The coordinator does not answer within `default_api_timeout_ms`.
            ClientClosed: The consumer is closed.
        """
        return await perform_async(self._committed_plan(TopicPartition(*tp) for tp in partitions))

    def _committed_plan(self, partitions: Iterable[TopicPartition]) -> Plan[Committed]:
        self._check_open()
        wanted = [TopicPartition(*tp) for tp in partitions]
        if self._settings.offset_store is not None:
            kept: Mapping[TopicPartition, int] = yield self._progress.load(wanted)
            return {tp: OffsetAndMetadata(offset) for tp, offset in kept.items()}
        found: Committed = yield self._fetch_committed(wanted)
        return found

    async def _fetch_committed(self, partitions: Iterable[TopicPartition]) -> Committed:
        return await self._offsets.fetch(
            partitions,
            stable=self._settings.isolation_level == "read_committed",
            timeout_ms=self._settings.default_api_timeout_ms,
        )

    async def _committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: place.offset for tp, place in (await self._fetch_committed(partitions)).items()}

    # Polling

    async def poll(
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
            >>> await consumer.subscribe(["orders"])
            >>> for partition, records in (await consumer.poll(10_000)).items():
            ...     print(partition, [record.value for record in records])
            orders-0 [b'one', b'two', b'three']
        """
        return await self._poll(self._take, timeout_ms, max_records)

    async def _poll(
        self, take: Callable[[int | None], Taken], timeout_ms: float, max_records: int | None
    ) -> Taken:
        deadline_ms = now_ms() + timeout_ms
        self._begin_poll()
        try:
            while True:
                if self._has_work():
                    await perform_async(self._work())
                records = take(max_records)
                left_ms = deadline_ms - now_ms()
                if records or left_ms <= 0:
                    return records
                await self._wait(min(left_ms, self._progress.wait_ms(now_ms())))
        finally:
            self._end_poll()

    def _begin_poll(self) -> None:
        if self._progress.end_iteration():
            self._fetcher.pump_soon()
        if self._group is not None:
            self._group.is_polling = True
            self._group.polled()

    def _end_poll(self) -> None:
        if self._group is not None:
            self._group.polled()
            self._group.is_polling = False

    def _has_work(self) -> bool:
        """Whether a poll has work to do before it takes records; from any thread."""
        group = self._group
        return (
            self._is_woken
            or self._is_closing
            or (group is not None and group.due)
            or self._progress.due(now_ms())
        )

    def _work(self) -> Plan[None]:
        """The work of a poll before it takes records: rebalance steps, commits that are due, errors."""
        self._check_open(self._is_closing)
        if self._is_woken:
            self._is_woken = False
            raise WakeupError("wakeup() was called")
        group = self._group
        while group is not None and group.due:
            if group.failure is not None:
                raise group.failure
            if group.member.overslept:
                yield group.come_back()
            else:
                yield from self._take_step(group)
        yield from self._progress.keep_up(now_ms(), self._offsets)

    def _take_step(self, group: Group) -> Plan[None]:
        """One step of a rebalance. It is completed even if the callback raises; the error reaches the caller
        of poll.
        """
        step = group.ready_step()
        if step is None:
            return
        if step.kind == "revoke":
            yield from self._progress.commit_last(self._offsets, self._settings.request_timeout_ms)
        kept: Mapping[TopicPartition, int] = {}
        if step.kind == "assign" and step.partitions and self._settings.offset_store is not None:
            kept = yield self._progress.load(step.partitions)
        starts = yield group.begin_step(step)
        if starts is None:
            return
        try:
            if step.kind == "assign":
                kept = {**kept, **{tp: place.offset for tp, place in starts.items()}}
                self._begin_partitions(sorted(step.after), kept)
            callback = group.subscription.callback(step.kind)
            partitions = sorted(step.partitions)
            if callback is not None:
                yield Callback(lambda: callback(partitions))
        finally:
            # The callback may have left the group.
            if self._group is group:
                if step.kind != "assign":
                    self._begin_partitions(sorted(step.after), {})
                yield group.end_step()

    def _check_open(self, is_closing: bool = False) -> None:
        if self._is_closed or is_closing:
            raise ClientClosed("this consumer is closed", advice="Create a new one")

    def _take(self, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """The records that `poll` would return at once, from any thread."""
        try:
            records = self._buffer.take(max_records or self._settings.max_poll_records)
        finally:
            self._pump_if_room()
        return self._interceptors.on_consume(records) if records and self._interceptors else records

    async def poll_columns(
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
        """
        return await self._poll(self._take_columns, timeout_ms, max_records)

    def _take_columns(self, max_records: int | None = None) -> dict[TopicPartition, Columns]:
        """The columns that `poll_columns` would return at once, from any thread."""
        try:
            return self._buffer.take_columns(max_records)
        finally:
            self._pump_if_room()

    def metrics(self) -> ConsumerMetrics:
        """Return the consumer's counters and averages since it was created.

        Returns:
            The `ConsumerMetrics`.
        """
        return consumer_metrics(self._fetcher)

    def _pump_if_room(self) -> None:
        # Waking the loop costs a system call and the interpreter lock: do it only if there is something to
        # fetch.
        if self._buffer.has_room:
            self._buffer.has_room = False
            self._fetcher.pump_soon()

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield every record, without end. A second loop continues where the first one stopped.

        Raises:
            KafkaError: As `poll`.
        """
        for record in self._progress.iteration or ():
            yield record
        async for polled in self.batches():
            iteration = self._progress.iteration = Iteration(polled)
            for record in iteration:
                yield record

    async def batches(
        self, timeout_ms: float = ITERATION_POLL_MS
    ) -> AsyncIterator[dict[TopicPartition, list[ConsumerRecord]]]:
        """Poll without end and yield each result that has records.

        Args:
            timeout_ms: Milliseconds of each poll. Default: 1,000.

        Returns:
            An iterator over lists of `ConsumerRecord` by partition.

        Raises:
            KafkaError: As `poll`.

        Example:
            >>> await consumer.subscribe(["orders"])
            >>> async for batch in consumer.batches():
            ...     await consumer.commit()
            ...     break
        """
        while True:
            polled = await self.poll(timeout_ms)
            if polled:
                yield polled

    def wakeup(self) -> None:
        """Make the current poll, or the next one, raise `WakeupError`. Any thread may call it."""
        self._is_woken = True
        # Through the loop: a signal handler runs in a thread that may hold the buffer's lock.
        self._fetcher.call_soon(self._notify)

    def _notify(self) -> None:
        """Wake a waiting poll, from any thread."""
        with self._buffer.lock:
            self._buffer.condition.notify_all()
        self._fetcher.arrived_soon()

    async def _wait(self, timeout_ms: float) -> None:
        """Wait until a poll has records to take or work to do."""
        self._fetcher.arrived.clear()
        if not self._buffer.ready and not self._has_work():
            await self._wait_for_arrival(timeout_ms)
