"""A consumer in its group: sends the requests of a membership, and keeps its next step ready for the caller.

The membership decides (`membership/`); this module has the connection to the coordinator, the timers and the
tasks. Everything runs on the event loop except `polled` and `due`, which the polling thread calls. An
`assign` step is ready when the start offsets of its partitions are known.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.consumer.assignors.names import assignors_of
from ottla.client.consumer.commits import GroupOffsets
from ottla.client.consumer.membership.classic import ClassicMember
from ottla.client.consumer.membership.consumer import ConsumerMember
from ottla.client.consumer.membership.member import Ask, LookUp, Member, MemberSettings, Step
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.consumer.subscription import Subscription
from ottla.client.coordinators import MOVED, Coordinator
from ottla.client.errors import KafkaError, UnsupportedVersion
from ottla.client.metadata import GroupMetadata, Metadata, OffsetAndMetadata, TopicPartition
from ottla.model.api_key import ApiKey

log = logging.getLogger("ottla.client")

#: JoinGroup and SyncGroup are held by the coordinator: other requests use another connection.
MEMBER_LANE = "group"
#: A dead coordinator is usually replaced within this time; a leaving member does not wait longer.
LEAVE_MS_MAX = 5_000
#: How often to look for a subscribed topic that does not exist.
MISSING_MS = 2_000

Starts = Mapping[TopicPartition, OffsetAndMetadata]


def now_ms() -> float:
    return time.monotonic() * 1000


class Group:
    """Drives the membership. `notify` wakes the poll. Start offsets are fetched here, unless there is an
    offset store.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerConfig,
        coordinator: Coordinator,
        offsets: GroupOffsets,
        group_id: str,
        notify: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._coordinator = coordinator
        self._offsets = offsets
        self._notify = notify
        self._loads_offsets = settings.offset_store is None
        self._group_id = group_id
        self.member = self._new_member()
        self.subscription = Subscription(frozenset())
        self.is_polling = False
        self._polled_ms = now_ms()
        self._loop = asyncio.get_running_loop()
        self._awake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        #: The step whose start offsets are known or being fetched.
        self._step: Step | None = None
        self._is_ready = False
        self._starts: Starts = {}
        self._loading: asyncio.Task[None] | None = None
        self._failure: KafkaError | None = None

    def _new_member(self) -> Member:
        settings = self._settings
        member = MemberSettings(
            self._group_id, settings.group_instance_id, settings.client_rack or None,
            settings.session_timeout_ms, settings.heartbeat_interval_ms, settings.max_poll_interval_ms,
            settings.request_timeout_ms, settings.retry_backoff_ms, settings.retry_backoff_max_ms,
        )  # fmt: skip
        if settings.group_protocol == "consumer":
            return ConsumerMember(member, settings.group_remote_assignor, str(uuid.uuid4()), now_ms())
        return ClassicMember(member, assignors_of(settings.partition_assignment_strategy), now_ms())

    def identity(self) -> GroupMetadata:
        member = self.member
        return GroupMetadata(
            self._group_id, member.generation_id, member.member_id, self._settings.group_instance_id
        )

    @property
    def is_member(self) -> bool:
        return self.member.is_in

    # The caller

    @property
    def due(self) -> bool:
        """Whether there is a step or an error for the caller."""
        member = self.member
        return self._is_ready or member.overslept or self._failure is not None or member.failure is not None

    @property
    def failure(self) -> KafkaError | None:
        return self.member.failure or self._failure

    def polled(self) -> None:
        """The caller is alive; from any thread."""
        self._polled_ms = now_ms()

    async def come_back(self) -> None:
        """The caller polls again after `max_poll_interval_ms`. It learns that its partitions are lost before
        it gets records.
        """
        self.member.polled(now_ms())
        self._prepare_step()
        self._awake.set()

    def ready_step(self) -> Step | None:
        return self._step if self._is_ready else None

    async def begin_step(self, step: Step) -> Starts | None:
        """Start the step. Return the start offsets, or None if the step is obsolete."""
        if step is not self.member.step or not self._is_ready:
            return None
        self.member.step_begins()
        self._is_ready = False
        return self._starts

    async def end_step(self) -> None:
        self.member.step_ends(now_ms())
        self._prepare_step()
        self._awake.set()

    # Being a member

    async def subscribe(self, subscription: Subscription) -> None:
        """Change the subscription."""
        self.subscription = subscription
        self._cluster.watch(subscription.topics)
        if not self._tasks:
            self._run(self._watch_metadata())
            self._run(self._be_member())
        else:
            self._metadata_changed()

    async def leave(self, timeout_ms: float) -> None:
        """Leave the group, and notify the coordinator if it can be reached in time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._is_ready, self._step = False, None
        request = self.member.leave()
        if request is None:
            return
        try:
            async with asyncio.timeout(min(timeout_ms, LEAVE_MS_MAX) / 1000):
                await self._send_leave(request)
        except (KafkaError, TimeoutError) as error:
            log.info("group %s: LeaveGroup did not reach the coordinator: %s", self._group_id, error)

    async def _send_leave(self, request: Ask) -> None:
        """Retry LeaveGroup: otherwise the other members wait for the session timeout."""
        for attempt in itertools.count(1):
            try:
                answer, _ = await self._coordinator.request(request.api_key, request.body)
                if int(answer.error_code) not in MOVED:
                    return
                self._coordinator.forget()
            except KafkaError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(backoff_ms(self._settings, attempt) / 1000)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug of this client must not look like an empty assignment.
            self._failure = KafkaError(f"the membership in group {self._group_id!r} failed: {error!r}")
            self._failure.__cause__ = error
            self._notify()

    async def _be_member(self) -> None:
        member = self.member
        while True:
            now = now_ms()
            member.polled(now if self.is_polling else self._polled_ms)
            asked = member.next(now)
            self._prepare_step()
            for notice in member.notices:
                log.warning("group %s, member %s: %s", self._group_id, member.member_id or "?", notice)
            member.notices.clear()
            if asked is not None:
                self._run(self._ask(asked))
                continue
            wait_ms = member.wake_ms() - now
            try:
                async with asyncio.timeout(None if wait_ms > 1e9 else max(wait_ms, 1) / 1000):
                    await self._awake.wait()
            except TimeoutError:
                pass
            self._awake.clear()

    async def _ask(self, asked: Ask | LookUp) -> None:
        member = self.member
        try:
            answer: Any
            if isinstance(asked, LookUp):
                answer = await self._look_up(asked)
            else:
                answer = await self._request(asked)
        except KafkaError as error:
            member.failed(asked, error, now_ms())
        else:
            member.answered(asked, answer, now_ms())
        self._prepare_step()
        self._awake.set()

    async def _request(self, asked: Ask) -> Any:
        lane = MEMBER_LANE if asked.held else ""
        connection = await self._coordinator_connection(lane)
        if (
            asked.body.get("subscribed_topic_regex")
            and connection.version_for(ApiKey.CONSUMER_GROUP_HEARTBEAT) < 1
        ):
            raise UnsupportedVersion(
                f"{connection.address} does not support topic patterns",
                broker=connection.address,
                advice='Subscribe by names, use group_protocol="classic", or upgrade the broker',
            )
        answer, _ = await self._coordinator.request(
            asked.api_key, asked.body, lane=lane, timeout_ms=asked.timeout_ms
        )
        if int(answer.error_code) in MOVED:
            self._coordinator.forget()
        return answer

    async def _coordinator_connection(self, lane: str) -> Any:
        try:
            return await self._coordinator.connection(lane)
        except KafkaError as error:
            if error.retriable:
                self._coordinator.forget()
            raise

    async def _look_up(self, asked: LookUp) -> Metadata:
        if asked.topic_ids:
            metadata = await self._cluster.refresh_ids(asked.topic_ids)
            self._cluster.watch(
                name for topic_id, name in metadata.names.items() if topic_id in asked.topic_ids
            )
            return metadata
        self._cluster.watch(asked.topics)
        return await self._cluster.refresh(asked.topics)

    # Metadata

    @property
    def _matches_here(self) -> bool:
        """Whether this client matches the pattern; in the consumer protocol the coordinator does."""
        return self.subscription.pattern is not None and self._settings.group_protocol == "classic"

    async def _watch_metadata(self) -> None:
        """Look for missing topics and pattern matches. Pass every metadata refresh to the member."""
        logged: set[str] = set()
        while True:
            wait_ms: float = self._settings.metadata_max_age_ms
            try:
                if self._matches_here:
                    await self._cluster.refresh(None)
                else:
                    missing = self.subscription.topics - self._cluster.metadata.topics.keys()
                    if missing:
                        await self._cluster.refresh(self.subscription.topics)
                        missing = missing - self._cluster.metadata.topics.keys()
                    if missing:
                        wait_ms = min(wait_ms, MISSING_MS)
                        self._log_missing(missing - logged)
                        logged |= missing
            except KafkaError:
                wait_ms = min(wait_ms, backoff_ms(self._settings, 4))
            self._metadata_changed()
            await self._hear_changes(wait_ms)

    async def _hear_changes(self, wait_ms: float) -> None:
        try:
            async with asyncio.timeout(max(wait_ms, 1) / 1000):
                while True:
                    await self._cluster.changed()
                    self._metadata_changed()
        except TimeoutError:
            pass

    def _log_missing(self, topics: frozenset[str] | set[str]) -> None:
        for topic in sorted(topics):
            log.warning(
                "group %s: topic %r does not exist yet; it will be read once it is created",
                self._group_id, topic,
            )  # fmt: skip

    def _metadata_changed(self) -> None:
        metadata, subscription = self._cluster.metadata, self.subscription
        if subscription.pattern is not None and not self._matches_here:
            self.member.subscribe(frozenset(), subscription.pattern, now_ms())
        else:
            topics = subscription.matching(metadata)
            self._cluster.watch(topics)
            self.member.subscribe(topics, None, now_ms())
        counts = {name: len(info.partitions) for name, info in metadata.topics.items()}
        self.member.partition_counts(counts, now_ms())
        self._awake.set()

    # Steps

    def _prepare_step(self) -> None:
        """Prepare the membership's next step for the caller."""
        step = self.member.step
        if step is not self._step:
            self._step, self._is_ready, self._starts = step, False, {}
            if self._loading is not None:
                self._loading.cancel()
                self._loading = None
            if step is not None and step.kind == "assign" and step.partitions and self._loads_offsets:
                self._loading = self._run(self._load(step))
            elif step is not None:
                self._is_ready = True
        if self.due:
            self._notify()

    async def _load(self, step: Step) -> None:
        """Fetch the start offsets of the partitions, with retries."""
        attempt = 0
        while True:
            try:
                self._starts = await self._offsets.fetch(
                    step.partitions,
                    stable=self._settings.isolation_level == "read_committed",
                    timeout_ms=self._settings.default_api_timeout_ms,
                )
            except KafkaError as error:
                if not error.retriable:
                    self._failure = error
                    self._notify()
                    return
                attempt += 1
                await asyncio.sleep(backoff_ms(self._settings, attempt) / 1000)
            else:
                self._is_ready = True
                self._notify()
                return
