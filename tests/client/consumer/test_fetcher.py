"""The consumer with responses that only a cluster in trouble sends."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.client.consumer.core import AsyncConsumer
from ottla.client.errors import CorruptBatch, LogTruncated, NotAuthorized, OffsetOutOfRange
from ottla.client.metadata import TopicPartition
from ottla.model.errors import ErrorCode
from ottla.records.record import Record, encode_batch
from tests.client.consumer.scripted_broker import TOPIC, ScriptedCluster, nothing

TP = TopicPartition(TOPIC, 0)
PATIENCE_S = 20


def batch(offset: int, count: int = 1, epoch: int = 1) -> bytes:
    return encode_batch([Record(0, 0, None, b"v")] * count, base_offset=offset, partition_leader_epoch=epoch)


def run(test: Callable[[ScriptedCluster], Awaitable[None]]) -> None:
    async def body() -> None:
        cluster = ScriptedCluster()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await test(cluster)
        finally:
            await cluster.close()

    asyncio.run(body())


@asynccontextmanager
async def consuming(address: str, **settings: Any) -> AsyncIterator[AsyncConsumer]:
    given: dict[str, Any] = {"auto_offset_reset": "earliest", "retry_backoff_ms": 20, **settings}
    async with AsyncConsumer(address, **given) as consumer:
        await consumer.assign([TP])
        yield consumer


async def offsets(consumer: AsyncConsumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        for records in (await consumer.poll(10_000)).values():
            found += [record.offset for record in records]
    return found


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - it looks at what a socket brings
        await asyncio.sleep(0.01)


def offset_of(fetch: Any) -> int:
    return int(fetch.topics[0].partitions[0].fetch_offset)


def test_a_broker_that_throttles_is_left_alone_for_that_long() -> None:
    times: list[float] = []

    def script(request: Any, before: int) -> Any:
        times.append(time.monotonic())
        return (
            {"throttle_time": 400, "partition": {"records": batch(before)}}
            if before < 2
            else nothing(request, before)
        )

    async def test(cluster: ScriptedCluster) -> None:
        async with consuming(await cluster.start(1, script)) as consumer:
            assert await offsets(consumer, 2) == [0, 1]
            await until(lambda: len(times) > 2)

    run(test)
    assert times[1] - times[0] >= 0.39 and times[2] - times[1] >= 0.39


def test_the_replica_nearby_is_read_while_it_holds() -> None:
    """KIP-392: the leader names it, a failure ends it, and the leader is asked again."""

    def leader(_request: Any, _before: int) -> Any:
        return {"partition": {"preferred_read_replica": 2}}

    def follower(request: Any, _before: int) -> Any:
        offset = offset_of(request)
        if offset == 2:
            return {"partition": {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}}
        return {"partition": {"records": batch(offset)}}

    async def test(cluster: ScriptedCluster) -> None:
        address = await cluster.start(1, leader)
        await cluster.start(2, follower)
        async with consuming(address, client_rack="r") as consumer:
            assert await offsets(consumer, 2) == [0, 1]
            await until(lambda: [node for node, _ in cluster.fetches[:5]] == [1, 2, 2, 2, 1])
            assert {request.rack_id for _, request in cluster.fetches} == {"r"}
            # It goes on so, at the pace of retries: no faster.
            before = len(cluster.fetches)
            await asyncio.sleep(0.5)
            assert len(cluster.fetches) - before < 2 * 500 / 20

    run(test)


def test_an_offset_that_the_replica_nearby_lacks_is_for_the_leader_to_judge() -> None:
    def leader(_request: Any, before: int) -> Any:
        return {"partition": {"preferred_read_replica": 2} if before == 0 else {"records": batch(0)}}

    def follower(_request: Any, _before: int) -> Any:
        return {"partition": {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}}

    async def test(cluster: ScriptedCluster) -> None:
        address = await cluster.start(1, leader)
        await cluster.start(2, follower)
        async with consuming(address, auto_offset_reset="none") as consumer:
            consumer.seek(TP, 0)
            assert await offsets(consumer, 1) == [0]

    run(test)


def test_the_leader_is_asked_again_after_the_age_of_metadata() -> None:
    def leader(_request: Any, _before: int) -> Any:
        return {"partition": {"preferred_read_replica": 2}}

    async def test(cluster: ScriptedCluster) -> None:
        address = await cluster.start(1, leader)
        await cluster.start(2, nothing)
        async with consuming(address, metadata_max_age_ms=300):
            await until(lambda: [node for node, _ in cluster.fetches].count(1) == 2)
            assert [node for node, _ in cluster.fetches][:2] == [1, 2]

    run(test)


def test_a_refusal_that_names_the_leader_spares_the_refresh() -> None:
    """KIP-951."""

    async def test(cluster: ScriptedCluster) -> None:
        def old(_request: Any, _before: int) -> Any:
            leader = {"leader_id": 2, "leader_epoch": 5}
            node = {"node_id": 2, "host": "127.0.0.1", "port": cluster.ports[2], "rack": None}
            return {
                "partition": {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "current_leader": leader},
                "node_endpoints": [node],
            }

        def new(request: Any, before: int) -> Any:
            return {"partition": {"records": batch(0)}} if before == 1 else nothing(request, before)

        cluster.hidden = {2}
        address = await cluster.start(1, old)
        await cluster.start(2, new)
        async with consuming(address) as consumer:
            asked = cluster.metadata_requests
            assert await offsets(consumer, 1) == [0]
            assert cluster.metadata_requests == asked
            assert cluster.fetches[1][1].topics[0].partitions[0].current_leader_epoch == 5

    run(test)


def test_a_leader_that_moved_is_found_by_metadata() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        def old(_request: Any, _before: int) -> Any:
            cluster.leader, cluster.leader_epoch = 2, 2
            return {"partition": {"error_code": ErrorCode.FENCED_LEADER_EPOCH}}

        def new(request: Any, before: int) -> Any:
            return {"partition": {"records": batch(0)}} if before == 1 else nothing(request, before)

        address = await cluster.start(1, old)
        await cluster.start(2, new)
        async with consuming(address) as consumer:
            assert await offsets(consumer, 1) == [0]
            assert [node for node, _ in cluster.fetches][:2] == [1, 2]

    run(test)


def test_a_topic_that_was_made_anew_is_read_by_its_new_id() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        def script(request: Any, before: int) -> Any:
            if before == 0:
                old, cluster.topic_id = cluster.topic_id, bytes(range(1, 17))
                row = {
                    "partition_index": 0, "error_code": ErrorCode.UNKNOWN_TOPIC_ID, "high_watermark": -1,
                    "last_stable_offset": -1, "log_start_offset": -1, "aborted_transactions": None,
                    "preferred_read_replica": -1, "records": None,
                }  # fmt: skip
                return {"error_code": 0, "responses": [{"topic_id": old, "partitions": [row]}]}
            return {"partition": {"records": batch(0)}} if before == 1 else nothing(request, before)

        async with consuming(await cluster.start(1, script)) as consumer:
            assert await offsets(consumer, 1) == [0]
            assert cluster.fetches[1][1].topics[0].topic_id.bytes == cluster.topic_id

    run(test)


def cut_at_three(request: Any, before: int) -> Any:
    """Five records of epoch 1; then the log says that epoch 1 ended at offset 3."""
    if before == 0:
        return {"partition": {"records": batch(0, 5)}}
    row = request.topics[0].partitions[0]
    if row.last_fetched_epoch == 1:
        return {"partition": {"diverging_epoch": {"epoch": 1, "end_offset": 3}}}
    return (
        {"partition": {"records": batch(3, epoch=2)}} if row.fetch_offset == 3 else nothing(request, before)
    )


def test_a_log_that_was_cut_off_below_what_was_read_is_told() -> None:
    """KIP-320."""

    async def test(cluster: ScriptedCluster) -> None:
        async with consuming(await cluster.start(1, cut_at_three), auto_offset_reset="none") as consumer:
            consumer.seek(TP, 0)
            assert await offsets(consumer, 5) == [0, 1, 2, 3, 4]
            with pytest.raises(
                LogTruncated, match=r"t-0 was truncated at offset 3.*had read up to 5"
            ) as told:
                await offsets(consumer, 1)
            assert told.value.offset == 3
            consumer.seek(TP, 3)
            assert await offsets(consumer, 1) == [3]

    run(test)


def test_a_log_that_was_cut_off_is_gone_on_from_where_it_differs(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: ScriptedCluster) -> None:
        async with consuming(await cluster.start(1, cut_at_three)) as consumer:
            assert await offsets(consumer, 6) == [0, 1, 2, 3, 4, 3]

    run(test)
    assert "was truncated at offset 3" in caplog.text


def test_an_epoch_that_nobody_can_place_is_no_offset_out_of_range() -> None:
    def script(request: Any, before: int) -> Any:
        if before == 0:
            return {"partition": {"records": batch(0)}}
        if request.topics and request.topics[0].partitions[0].last_fetched_epoch == 1 and before == 1:
            return {"partition": {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}}
        return {"partition": {"records": batch(1)}} if before == 2 else nothing(request, before)

    async def test(cluster: ScriptedCluster) -> None:
        async with consuming(await cluster.start(1, script), auto_offset_reset="none") as consumer:
            consumer.seek(TP, 0)
            assert await offsets(consumer, 2) == [0, 1]

    run(test)


def test_a_session_asks_for_what_changed_and_begins_anew_when_it_is_lost() -> None:
    def script(request: Any, before: int) -> Any:
        if before == 3:
            return {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND}
        offset = (0, 1, 1, None, 1)[before] if before < 5 else None
        if before in (0, 1, 4):
            return {"session_id": 7, "partition": {"records": batch(offset or 0)}}
        if before == 2:
            return {"session_id": 7, "error_code": 0, "responses": []}
        return nothing(request, before)

    async def test(cluster: ScriptedCluster) -> None:
        async with consuming(await cluster.start(1, script)) as consumer:
            await offsets(consumer, 2)
            await until(lambda: len(cluster.fetches) >= 5)
            asked = [(r.session_id, r.session_epoch, len(r.topics)) for _, r in cluster.fetches[:5]]
            # The fourth has nothing new to say of the partition; the fifth says all again.
            assert asked == [(0, 0, 1), (7, 1, 1), (7, 2, 1), (7, 3, 0), (7, 0, 1)]

    run(test)


def test_errors_that_do_not_pass_are_told_with_their_place() -> None:
    codes = {
        ErrorCode.CORRUPT_MESSAGE: CorruptBatch,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: NotAuthorized,
        ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    }

    async def test(cluster: ScriptedCluster) -> None:
        for code, kind in codes.items():
            said = {"partition": {"error_code": code}}
            address = await cluster.start(1, lambda _request, _before, said=said: said)
            async with consuming(address, auto_offset_reset="none") as consumer:
                consumer.seek(TP, 42)
                with pytest.raises(kind, match=f"fetching t-0 at offset 42.*{code.name}"):
                    await consumer.poll(10_000)
            await cluster.close()

    run(test)


def test_a_broker_that_refuses_everything_is_asked_at_the_pace_of_retries() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        def script(_request: Any, _before: int) -> Any:
            return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}

        async with consuming(
            await cluster.start(1, script), retry_backoff_ms=50, retry_backoff_max_ms=200
        ) as consumer:
            assert await consumer.poll(1000) == {}
            # 50, 100, 200, 200 … ms apart.
            assert 2 <= len(cluster.fetches) <= 12

    run(test)


def test_metrics_tell_what_was_read() -> None:
    def script(request: Any, before: int) -> Any:
        said = {"records": batch(0, 4), "high_watermark": 9}
        return {"partition": said} if before == 0 else nothing(request, before)

    async def test(cluster: ScriptedCluster) -> None:
        async with consuming(await cluster.start(1, script)) as consumer:
            assert len(await offsets(consumer, 4)) == 4
            found = consumer.metrics()
            assert (found.records, found.lag_max, found.poison_records) == (4, 5, 0)
            assert found.bytes == len(batch(0, 4)) and found.fetches >= 1
            assert 0 < found.fetch_latency_ms_avg <= found.fetch_latency_ms_max

    run(test)
