"""The committed offsets of a group: OffsetCommit and OffsetFetch to its coordinator, with retries.

Temporary errors are retried until the deadline: a coordinator that moves or loads, a broken connection, an
open transaction. A commit of a former member raises `CommitFailed`. Used by `group.py` when partitions are
assigned, and by the consumer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import Body
from ottla.client.coordinators import Coordinator
from ottla.client.errors import CommitFailed, KafkaError, refused
from ottla.client.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition, known_code
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

#: The last versions that name topics instead of their ids.
COMMIT_VERSION, FETCH_VERSION = 9, 9

Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]

OUT_ADVICE = (
    "The new owners of the partitions read the records again. Call poll() to rejoin. "
    "If processing takes long, lower max_poll_records or raise max_poll_interval_ms"
)
_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_PASSING = frozenset(
    (
        *_MOVED,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        # The next heartbeat brings the new epoch (KIP-848).
        ErrorCode.STALE_MEMBER_EPOCH,
        # The members have joined and wait for their assignments: it takes a moment and needs nothing from the
        # caller.
        ErrorCode.REBALANCE_IN_PROGRESS,
    )
)
_OUT = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    )
)


class GroupOffsets:
    """Commits and fetches offsets.

    `identity` returns the member that commits; it can change between attempts, and raises if there is none.
    While `is_joining`, the coordinator may have a generation that this member does not know yet.
    """

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        group_id: str,
        identity: Callable[[], GroupMetadata],
        is_joining: Callable[[], bool],
    ) -> None:
        self._is_joining = is_joining
        self._group_id = group_id
        self._cluster = cluster
        self._coordinator = coordinator
        self._identity = identity

    async def commit(self, offsets: Offsets, timeout_ms: float) -> None:
        if not offsets:
            return
        await self._until(timeout_ms, lambda: self._commit_once(offsets))

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, stable: bool, timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of partitions; without a commit they are left out. `stable`: wait for open
        transactions.
        """
        wanted = list(partitions)
        if not wanted:
            return {}
        found: dict[TopicPartition, OffsetAndMetadata] = await self._until(
            timeout_ms, lambda: self._fetch_once(wanted, stable)
        )
        return found

    async def _until(self, timeout_ms: float, attempt: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + timeout_ms / 1000
        attempts = 0
        while True:
            attempts += 1
            left_s = deadline - time.monotonic()
            try:
                async with asyncio.timeout(max(left_s, 0.001)):
                    return await attempt()
            except TimeoutError:
                raise refused(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"the offsets of group {self._group_id!r}",
                    message=f"no answer within {timeout_ms:g} ms",
                ) from None
            except KafkaError as error:
                if error.code in _MOVED:
                    self._coordinator.forget()
                wait_s = backoff_ms(self._cluster.settings, attempts) / 1000
                may_pass = error.code in _PASSING or (error.code is None and error.retriable)
                if not may_pass or time.monotonic() + wait_s >= deadline:
                    raise
            await asyncio.sleep(wait_s)

    async def _commit_once(self, offsets: Offsets) -> None:
        who = self._identity()
        topics: dict[str, list[dict[str, Any]]] = {}
        for tp, place in offsets.items():
            topics.setdefault(tp.topic, []).append(
                {
                    "partition_index": tp.partition, "committed_offset": place.offset,
                    "committed_leader_epoch": place.leader_epoch, "committed_metadata": place.metadata,
                }
            )  # fmt: skip
        body: Body = {
            "group_id": who.group_id, "generation_id_or_member_epoch": who.generation_id,
            "member_id": who.member_id, "group_instance_id": who.group_instance_id, "retention_time": -1,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }  # fmt: skip
        answer, broker = await self._coordinator.request(
            ApiKey.OFFSET_COMMIT, body, version_max=COMMIT_VERSION
        )
        failures = [
            (TopicPartition(str(topic.name), int(row.partition_index)), int(row.error_code))
            for topic in answer.topics
            for row in topic.partitions
            if row.error_code
        ]
        if failures:
            # Report an error that a retry cannot resolve before a temporary one.
            tp, code = min(failures, key=lambda failure: failure[1] in _PASSING)
            if code == ErrorCode.ILLEGAL_GENERATION and (self._is_joining() or self._identity() != who):
                # A rebalance has started, and this consumer takes part in it.
                code = ErrorCode.REBALANCE_IN_PROGRESS
            raise _commit_refused(code, who, tp, broker)

    async def _fetch_once(
        self, partitions: list[TopicPartition], stable: bool
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        group_id = self._group_id
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        rows = [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()]
        body: Body = {
            "group_id": group_id, "topics": rows, "require_stable": stable,
            "groups": [{"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": rows}],
        }  # fmt: skip
        answer, broker = await self._coordinator.request(ApiKey.OFFSET_FETCH, body, version_max=FETCH_VERSION)
        group = answer.groups[0] if getattr(answer, "groups", None) else answer
        what = f"the offsets of group {group_id!r}"
        if group.error_code:
            raise refused(int(group.error_code), what, broker=broker)
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in group.topics:
            for row in topic.partitions:
                tp = TopicPartition(str(topic.name), int(row.partition_index))
                if row.error_code:
                    raise refused(
                        int(row.error_code), what, broker=broker, topic=tp.topic, partition=tp.partition
                    )
                if row.committed_offset >= 0:
                    found[tp] = OffsetAndMetadata(
                        int(row.committed_offset), row.metadata or "", int(row.committed_leader_epoch)
                    )
        return found


def _commit_refused(code: int, who: GroupMetadata, tp: TopicPartition, broker: str) -> KafkaError:
    what = f"committing {tp} for group {who.group_id!r}"
    if code in _OUT:
        if who.generation_id < 0:
            return CommitFailed(
                f"{what}: the group has members, and this consumer is not one of them",
                code=known_code(code), broker=broker,
                advice="Use subscribe() to be a member, or a group_id of its own for assign()",
            )  # fmt: skip
        return CommitFailed(
            f"{what}: this consumer was removed from the group, and other members have its partitions",
            code=known_code(code), broker=broker,
            advice=OUT_ADVICE,
        )  # fmt: skip
    if code == ErrorCode.REBALANCE_IN_PROGRESS:
        return CommitFailed(
            f"{what}: the group is rebalancing", code=known_code(code), broker=broker,
            advice="Call poll() to join the rebalance, then commit the partitions that are still assigned",
        )  # fmt: skip
    return refused(code, what, broker=broker, topic=tp.topic, partition=tp.partition)
