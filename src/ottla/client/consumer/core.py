"""The consumer on asyncio: what callers ask of it. The fetcher keeps its buffer filled; `poll` takes records out of it.

A consumer reads either what it is told to (`assign`) or, as a member of a group, what the group gives it (`subscribe`): then `group.py`
keeps the membership alive in the background, and `poll` takes the steps of rebalances (`_take_step`). How far the caller is, and
commits, belong to `progress.py`. What the blocking face needs too is written as plans (`plans.py`) and performed by both.
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
from ottla.client.consumer.seek import Seeking, now_ms
from ottla.client.consumer.settings import ConsumerSettings, Consuming
from ottla.client.consumer.subscription import Callback as OnPartitions
from ottla.client.consumer.subscription import Subscription, subscription_of
from ottla.client.coordinators import Coordinator
from ottla.client.errors import ClientClosed, CommitFailed, KafkaError, WakeupError
from ottla.client.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition
from ottla.client.offsets import METADATA_TIMEOUT_MS
from ottla.client.settings import bootstrap_addresses, settings_of

#: The group of consumers that subscribe without naming one (A6).
DEFAULT_GROUP = "ottla"
#: How long iteration waits in one poll; it goes on for ever.
ITERATION_POLL_MS = 1_000

Taken = TypeVar("Taken")


class AsyncConsumer(Seeking):
    """Use `await start()` first and `await close()` last, or `async with`."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **given: Unpack[ConsumerSettings]) -> None:
        settings = settings_of(Consuming, given)
        self.settings = settings
        self.cluster = Cluster(bootstrap_addresses(bootstrap_servers), settings)
        self.buffer = fetch_buffer(settings)
        self.fetcher = Fetcher(self.cluster, settings, self.buffer)
        self.group: Group | None = None
        self._group_id = settings.group_id or DEFAULT_GROUP
        self._coordinator = Coordinator(self.cluster, "group", self._group_id)
        self._offsets = GroupOffsets(
            self.cluster, self._coordinator, self._group_id, self._committer, self._is_joining
        )
        self._interceptors = Interceptors(settings.interceptors)
        self.progress = Progress(self.buffer, settings, self._group_id, self._interceptors.on_commit)
        self.progress.notify = self.notify
        self._is_woken = False
        self._is_unsubscribing = False
        #: From the call of close on nobody polls; callbacks of its last rebalance still commit.
        self._is_closing = False
        self._is_closed = False

    async def __aenter__(self) -> AsyncConsumer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await perform_async(self.closing(commits=kind is None))

    async def start(self) -> None:
        """Reach the cluster, or raise `BrokerUnreachable`."""
        await self.cluster.start()
        self.fetcher.start()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the blocking one has it too
        """Commit (if that is automatic), give partitions up, leave the group, and end; `timeout` in seconds bounds the farewell."""
        await perform_async(self.closing(timeout))

    def closing(self, timeout: float | None = None, *, commits: bool = True) -> Plan[None]:
        """The plan of `close`. After an exception nothing is committed: what was handed out last may not have been worked on."""
        if self._is_closing:
            return
        self._is_closing = True
        self.notify()
        if not commits:
            self.progress.stop()
            yield self.progress.finish(0)
        try:
            yield from self._unsubscribing(timeout)
        finally:
            self._is_closed = True
            yield self._shut()
            yield from self.progress.tell()
            self._interceptors.close()
            if self.settings.offset_store is not None:
                yield StoreCall(self.settings.offset_store.close)

    async def _shut(self) -> None:
        await self._coordinator.close()
        await self.fetcher.close()
        await self.cluster.close()
        self.notify()

    # What to read

    async def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions from now on. They start at what the group has committed (if there is a group_id) or the store has,
        else by `auto_offset_reset`, unless a seek follows."""
        await perform_async(self.assigning(TopicPartition(*tp) for tp in partitions))

    def assigning(self, partitions: Iterable[TopicPartition]) -> Plan[None]:
        if self.group is not None:
            raise KafkaError(
                "this consumer has subscribed, so its group assigns", advice="Call unsubscribe() first"
            )
        wanted = list(dict.fromkeys(TopicPartition(*tp) for tp in partitions))
        yield self.cluster.check_partitions(wanted, METADATA_TIMEOUT_MS)
        new = [tp for tp in wanted if tp not in self.buffer.partitions]
        starts: Mapping[TopicPartition, int] = {}
        if self.settings.offset_store is not None:
            starts = yield self.progress.load(new)
        elif self.settings.group_id is not None:
            starts = yield self._committed_offsets(new)
        self._begin_partitions(wanted, starts)
        if self.settings.group_id is not None or self.settings.offset_store is not None:
            self.progress.begin(now_ms())

    def _begin_partitions(
        self, wanted: Iterable[TopicPartition], starts: Mapping[TopicPartition, int]
    ) -> None:
        before = set(self.buffer.partitions)
        self.buffer.assign(wanted, self.fetcher.reset)
        self.progress.ended(before - set(self.buffer.partitions))
        for tp, offset in starts.items():
            self.buffer.place(tp, offset=offset)
        self.progress.started(starts)
        self.fetcher.pump_soon()

    async def subscribe(
        self,
        topics: str | Iterable[str] = (),
        pattern: str | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Read these topics, or those whose whole name matches the pattern, together with the others of the group.

        Without a `group_id` the group is called "ottla". The callbacks get a list of partitions and run inside `poll`, while the
        rebalance waits for them: in `on_assigned` one may seek, in `on_revoked` commit; what `on_lost` names is others'
        already (without it `on_revoked` is called). They may be coroutine functions. A second call replaces the first.
        """
        await self.subscribing(subscription_of(topics, pattern, on_assigned, on_revoked, on_lost))

    async def subscribing(self, subscription: Subscription) -> None:
        if self.group is None:
            if self.buffer.partitions:
                raise KafkaError(
                    "this consumer has partitions by assign()",
                    advice="Call unsubscribe() first, which gives them up",
                )
            self.group = Group(
                self.cluster, self.settings, self._coordinator, self._offsets, self._group_id, self.notify
            )
            self.progress.begin(now_ms())
        await self.group.subscribe(subscription)

    async def unsubscribe(self) -> None:
        """Give up all partitions, and leave the group if there is one: commits what is automatic, calls `on_revoked`."""
        await perform_async(self.unsubscribing())

    def unsubscribing(self) -> Plan[None]:
        return self._unsubscribing(None)

    def _unsubscribing(self, timeout: float | None) -> Plan[None]:
        # The callback that is called here may itself unsubscribe or close: then it is not called again, and all is done after it.
        is_nested, self._is_unsubscribing = self._is_unsubscribing, True
        group = self.group
        deadline_ms = now_ms() + (self.settings.request_timeout_ms if timeout is None else timeout * 1000)
        try:
            if self.buffer.partitions:
                yield from self.progress.commit_last(self._offsets, deadline_ms - now_ms())
                callback = None if group is None or is_nested else group.subscription.callback("revoke")
                owned = sorted(self.buffer.partitions)
                if callback is not None:
                    yield Callback(lambda: callback(owned))
        finally:
            self._is_unsubscribing = is_nested
            if self.group is group and not self._is_closed:
                yield from self._leaving(deadline_ms)

    def _leaving(self, deadline_ms: float) -> Plan[None]:
        self.progress.end_iteration()
        self._begin_partitions((), {})
        self.progress.stop()
        yield self.progress.finish(max(deadline_ms - now_ms(), 0))
        if self.group is not None:
            yield self.group.leave(max(deadline_ms - now_ms(), 0))
            self.group = None

    def subscription(self) -> frozenset[str]:
        """The topics that were subscribed to by name, and those that the pattern matches."""
        if self.group is None:
            return frozenset()
        return self.group.subscription.matching(self.cluster.metadata)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return list(self.buffer.partitions)

    def group_metadata(self) -> GroupMetadata:
        """This consumer's place in its group, for `producer.send_offsets`."""
        if self.group is None:
            return GroupMetadata(self._group_id, -1, "", None)
        return self.group.identity()

    def _committer(self) -> GroupMetadata:
        """Who commits. A member that is out cannot, and need not ask."""
        if self.group is not None and not self.group.is_member:
            raise CommitFailed(
                f"this consumer is not in group {self._group_id!r} now, so it cannot commit",
                advice=OUT_ADVICE,
            )
        return self.group_metadata()

    def _is_joining(self) -> bool:
        return self.group is not None and self.group.member.is_joining

    # Commits

    async def commit(self, offsets: Given | None = None) -> None:
        """Keep how far the caller is, or these offsets (of the next records to read), with the group or in the own store.

        Raises `CommitFailed` if the group went on without this consumer.
        """
        await perform_async(self.committing(offsets))

    def committing(self, offsets: Given | None) -> Plan[None]:
        self._check_open()
        return self.progress.commit(offsets, self._offsets)

    async def commit_async(self, offsets: Given | None = None, on_commit: OnCommit | None = None) -> None:
        """As `commit`, without waiting for it. `on_commit(offsets, error)` is called within a later poll."""
        await perform_async(self.committing_async(offsets, on_commit))

    def committing_async(self, offsets: Given | None, on_commit: OnCommit | None) -> Plan[None]:
        self._check_open()
        return self.progress.commit_async(offsets, self._offsets, on_commit)

    async def committed(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> Committed:
        """What the group (or the own store) has kept of these partitions; those of which it has nothing are left out."""
        return await perform_async(self.reading_committed(TopicPartition(*tp) for tp in partitions))

    def reading_committed(self, partitions: Iterable[TopicPartition]) -> Plan[Committed]:
        self._check_open()
        wanted = [TopicPartition(*tp) for tp in partitions]
        if self.settings.offset_store is not None:
            kept: Mapping[TopicPartition, int] = yield self.progress.load(wanted)
            return {tp: OffsetAndMetadata(offset) for tp, offset in kept.items()}
        found: Committed = yield self._fetch_committed(wanted)
        return found

    async def _fetch_committed(self, partitions: Iterable[TopicPartition]) -> Committed:
        return await self._offsets.fetch(
            partitions,
            stable=self.settings.isolation_level == "read_committed",
            timeout_ms=self.settings.default_api_timeout_ms,
        )

    async def _committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: place.offset for tp, place in (await self._fetch_committed(partitions)).items()}

    # Polling

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within the time; an empty dictionary when none do."""
        return await self._poll(self.take, timeout_ms, max_records)

    async def _poll(
        self, take: Callable[[int | None], Taken], timeout_ms: float, max_records: int | None
    ) -> Taken:
        deadline_ms = now_ms() + timeout_ms
        self.poll_begins()
        try:
            while True:
                if self.has_work():
                    await perform_async(self.work())
                records = take(max_records)
                left_ms = deadline_ms - now_ms()
                if records or left_ms <= 0:
                    return records
                await self._wait(min(left_ms, self.progress.wait_ms(now_ms())))
        finally:
            self.poll_ends()

    def poll_begins(self) -> None:
        if self.progress.end_iteration():
            self.fetcher.pump_soon()
        if self.group is not None:
            self.group.is_polling = True
            self.group.polled()

    def poll_ends(self) -> None:
        if self.group is not None:
            self.group.polled()
            self.group.is_polling = False

    def has_work(self) -> bool:
        """Whether a poll has something to do before it takes records; from any thread."""
        group = self.group
        return (
            self._is_woken
            or self._is_closing
            or (group is not None and group.due)
            or self.progress.due(now_ms())
        )

    def work(self) -> Plan[None]:
        """What a poll does before it takes records: the steps of a rebalance, commits whose time has come, bad news."""
        self._check_open(self._is_closing)
        if self._is_woken:
            self._is_woken = False
            raise WakeupError("wakeup() was called")
        group = self.group
        while group is not None and group.due:
            if group.failure is not None:
                raise group.failure
            if group.member.overslept:
                yield group.come_back()
            else:
                yield from self._take_step(group)
        yield from self.progress.keep_up(now_ms(), self._offsets)

    def _take_step(self, group: Group) -> Plan[None]:
        """One step of a rebalance. It is completed whatever the callback raises, and that reaches the caller of poll."""
        step = group.ready_step()
        if step is None:
            return
        if step.kind == "revoke":
            yield from self.progress.commit_last(self._offsets, self.settings.request_timeout_ms)
        kept: Mapping[TopicPartition, int] = {}
        if step.kind == "assign" and step.partitions and self.settings.offset_store is not None:
            kept = yield self.progress.load(step.partitions)
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
            if self.group is group:
                if step.kind != "assign":
                    self._begin_partitions(sorted(step.after), {})
                yield group.end_step()

    def _check_open(self, is_closing: bool = False) -> None:
        if self._is_closed or is_closing:
            raise ClientClosed("this consumer is closed", advice="Make a new one")

    def take(self, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """What `poll` would give at once, from any thread."""
        try:
            records = self.buffer.take(max_records or self.settings.max_poll_records)
        finally:
            self._pump_if_room()
        return self._interceptors.on_consume(records) if records and self._interceptors else records

    async def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, Columns]:
        """As `poll`, with the records of each partition as columns; without `max_records`, all that are there."""
        return await self._poll(self.take_columns, timeout_ms, max_records)

    def take_columns(self, max_records: int | None = None) -> dict[TopicPartition, Columns]:
        """What `poll_columns` would give at once, from any thread."""
        try:
            return self.buffer.take_columns(max_records)
        finally:
            self._pump_if_room()

    def metrics(self) -> ConsumerMetrics:
        """What was read so far, and how fast."""
        return consumer_metrics(self.fetcher)

    def _pump_if_room(self) -> None:
        # To wake the loop costs a system call and the interpreter's lock: only when there is something to fetch.
        if self.buffer.has_room:
            self.buffer.has_room = False
            self.fetcher.pump_soon()

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Every record as it comes, for ever. A second loop goes on where the first was left."""
        for record in self.progress.iteration or ():
            yield record
        async for polled in self.batches():
            iteration = self.progress.iteration = Iteration(polled)
            for record in iteration:
                yield record

    async def batches(
        self, timeout_ms: float = ITERATION_POLL_MS
    ) -> AsyncIterator[dict[TopicPartition, list[ConsumerRecord]]]:
        """What each poll gives, for ever; polls that give nothing are left out."""
        while True:
            polled = await self.poll(timeout_ms)
            if polled:
                yield polled

    def wakeup(self) -> None:
        """Make the poll that is under way, or the next one, raise `WakeupError`; from any thread."""
        self._is_woken = True
        # By way of the loop: a signal's handler runs in a thread that may hold the buffer's lock.
        self.fetcher.call_soon(self.notify)

    def notify(self) -> None:
        """Wake whoever waits in a poll, from any thread."""
        with self.buffer.lock:
            self.buffer.condition.notify_all()
        self.fetcher.arrived_soon()

    async def _wait(self, timeout_ms: float) -> None:
        """Wait until a poll has something to take or to do."""
        self.fetcher.arrived.clear()
        if not self.buffer.ready and not self.has_work():
            await self._hear_arrival(timeout_ms)
