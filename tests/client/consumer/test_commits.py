"""Commits to a simulated coordinator: retries and errors."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client.cluster import Cluster
from ottla.client.consumer.commits import GroupOffsets
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.errors import CommitFailed, ConnectionLost, KafkaError
from ottla.client.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition
from ottla.model.errors import ErrorCode

TP = TopicPartition("t", 0)
PLACE = {TP: OffsetAndMetadata(3)}


class Played:
    """A coordinator that answers with these codes, one after the other, and the offsets behind it."""

    def __init__(self, *codes: ErrorCode | KafkaError) -> None:
        self.codes = list(codes)
        self.asked: list[dict[str, Any]] = []
        self.forgotten = 0
        self.who = GroupMetadata("g", 1, "me", None)
        self.joining = False
        self.then: Callable[[], None] = lambda: None

    def forget(self) -> None:
        self.forgotten += 1

    async def request(self, api_key: int, body: dict[str, Any], *, version_max: int) -> tuple[Any, str]:
        self.asked.append(body)
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        if isinstance(code, KafkaError):
            raise code
        self.then()
        row = SimpleNamespace(
            partition_index=0, error_code=code, committed_offset=3, committed_leader_epoch=-1, metadata=None
        )
        return SimpleNamespace(error_code=0, topics=[SimpleNamespace(name="t", partitions=[row])]), "b:1"

    def offsets(self) -> GroupOffsets:
        settings = ConsumerConfig(retry_backoff_ms=1, retry_backoff_max_ms=2)
        cluster = Cluster([("127.0.0.1", 1)], settings)
        return GroupOffsets(cluster, self, "g", lambda: self.who, lambda: self.joining)  # type: ignore[arg-type]

    def commit(self, timeout_ms: float = 10_000) -> None:
        async def work() -> None:
            await self.offsets().commit(PLACE, timeout_ms)

        asyncio.run(work())


def test_what_passes_is_tried_again_and_a_coordinator_that_moved_looked_for() -> None:
    played = Played(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ConnectionLost("gone"),
        ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.REBALANCE_IN_PROGRESS,
    )  # fmt: skip
    played.commit()
    assert (len(played.asked), played.forgotten) == (6, 1)


def test_the_time_is_kept_and_the_last_error_told() -> None:
    with pytest.raises(CommitFailed, match=r"rebalancing.*poll\(\)"):
        Played(*[ErrorCode.REBALANCE_IN_PROGRESS] * 10_000).commit(50)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID]
)
def test_a_member_that_is_out_is_told_what_to_do(code: ErrorCode) -> None:
    played = Played(code)
    with pytest.raises(CommitFailed, match="max_poll_records"):
        played.commit()
    assert len(played.asked) == 1


def test_a_commit_that_a_rebalance_overtakes_goes_out_again_in_the_new_generation() -> None:
    played = Played(ErrorCode.ILLEGAL_GENERATION)
    played.joining = True

    def settle() -> None:
        played.joining, played.who = False, GroupMetadata("g", 2, "me", None)

    def overtaken() -> None:
        if len(played.asked) == 1:
            settle()

    played.then = overtaken
    played.commit()
    assert [body["generation_id_or_member_epoch"] for body in played.asked] == [1, 2]


def test_offsets_that_are_not_stable_yet_are_asked_for_again() -> None:
    played = Played(ErrorCode.UNSTABLE_OFFSET_COMMIT)

    async def work() -> dict[TopicPartition, OffsetAndMetadata]:
        return await played.offsets().fetch([TP], stable=True, timeout_ms=10_000)

    assert asyncio.run(work()) == PLACE
    assert len(played.asked) == 2 and played.asked[0]["require_stable"]
