"""Micro-batches as Spark requests them, on a real broker, without Spark."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

import ottla
from ottla.client.metadata import TopicPartition
from ottla.spark.source.read_plan import DataLost, Log
from ottla.spark.source.stream import OttlaStreamReader
from tests.spark.source.conftest import stream_reader, values_of

Send = Callable[..., None]
ALL = ReadAllAvailable()


def batch_after(
    reader: OttlaStreamReader, start: dict[str, Any], limit: ReadLimit = ALL
) -> tuple[dict[str, Any], list[bytes]]:
    end = reader.latestOffset(start, limit)
    return end, values_of(reader, reader.partitions(start, end))


def test_a_stream_begins_at_the_latest_and_goes_on(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, b"before")
    reader = stream_reader(ottla_address, subscribe=topic_name)
    assert reader.reportLatestOffset() is None
    start = reader.initialOffset()
    assert start == {topic_name: {"0": 1}}
    assert reader.latestOffset(start, ALL) == start and reader.partitions(start, start) == []
    send(topic_name, b"a", b"b")
    end, values = batch_after(reader, start)
    assert (end, values) == ({topic_name: {"0": 3}}, [b"a", b"b"])
    assert reader.reportLatestOffset() == end
    earliest = stream_reader(ottla_address, subscribe=topic_name, startingOffsets="earliest")
    assert earliest.initialOffset() == {topic_name: {"0": 0}}
    by_time = stream_reader(ottla_address, subscribe=topic_name, startingTimestamp=1_001)
    assert by_time.initialOffset() == {topic_name: {"0": 2}}


def test_limits(ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send) -> None:
    admin.create_topic(topic_name, 2)
    send(topic_name, *[b"x"] * 90)
    send(topic_name, *[b"x"] * 10, partition=1)
    options = {"subscribe": topic_name, "startingOffsets": "earliest"}
    reader = stream_reader(ottla_address, maxOffsetsPerTrigger=20, **options)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    start = reader.initialOffset()
    assert reader.latestOffset(start, limit) == {topic_name: {"0": 18, "1": 2}}
    assert reader.latestOffset(start, ALL) == {topic_name: {"0": 90, "1": 10}}

    waiting = stream_reader(ottla_address, minOffsetsPerTrigger=101, maxTriggerDelay="10m", **options)
    assert waiting.getDefaultReadLimit() == ReadMinRows(101)
    # The first batch waits for nothing, as the connector's does not.
    end = waiting.latestOffset(start, ReadMinRows(101))
    assert end == {topic_name: {"0": 90, "1": 10}}
    send(topic_name, *[b"x"] * 100)
    assert waiting.latestOffset(end, ReadMinRows(101)) == end
    send(topic_name, b"x")
    assert waiting.latestOffset(end, ReadMinRows(101)) == {topic_name: {"0": 191, "1": 10}}

    both = stream_reader(ottla_address, minOffsetsPerTrigger=150, maxOffsetsPerTrigger=180, **options)
    assert both.getDefaultReadLimit() == ReadMaxRows(180)
    second = both.latestOffset(start, ReadMaxRows(180))
    assert sum(second[topic_name].values()) == 180
    assert both.latestOffset(second, ReadMaxRows(180)) == second
    assert stream_reader(ottla_address, **options).getDefaultReadLimit() == ALL


def test_available_now_ends_where_the_logs_ended(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, *[b"x"] * 5)
    reader = stream_reader(
        ottla_address, subscribe=topic_name, startingOffsets="earliest", minOffsetsPerTrigger=100
    )
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    send(topic_name, b"late")
    admin.create_partitions(topic_name, 2)
    middle = reader.latestOffset(start, ReadMaxRows(3))
    end = reader.latestOffset(middle, ReadMaxRows(3))
    assert (middle, end) == ({topic_name: {"0": 3}}, {topic_name: {"0": 5}})
    assert reader.latestOffset(end, ReadMaxRows(3)) == end


@pytest.mark.parametrize("place", ["latest", "earliest"])
def test_available_now_begins_on_a_topic_that_is_written_to(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send, place: str
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, b"x")
    reader = stream_reader(ottla_address, subscribe=topic_name, startingOffsets=place)
    reader.prepareForTriggerAvailableNow()
    send(topic_name, b"in between")
    admin.create_partitions(topic_name, 2)
    start = reader.initialOffset()
    end, values = batch_after(reader, start)
    assert values == ([b"x"] if place == "earliest" else [])
    assert reader.latestOffset(end, ALL) == end


class NewLeader:
    """Topic admin of one partition whose leader says too little at first."""

    def __init__(self, *ends: int) -> None:
        self.ends = list(ends)

    def partitions_left(self) -> list[TopicPartition]:
        return [TopicPartition("t", 0)]

    def latest(self, partitions: Any) -> Any:
        return dict.fromkeys(partitions, self.ends.pop(0) if len(self.ends) > 1 else self.ends[0])

    def logs(self, partitions: Any, latest: Any) -> Any:
        return {tp: Log(0, latest[tp]) for tp in partitions}


def test_a_leader_that_is_new_is_asked_again() -> None:
    def reader(*ends: int) -> OttlaStreamReader:
        made = stream_reader("127.0.0.1:1", subscribe="t", fetchOffset__retryIntervalMs=0)
        made._made_admin = NewLeader(*ends)  # type: ignore[assignment]
        return made

    start, end = {"t": {"0": 5}}, {"t": {"0": 8}}
    assert reader(3, 4, 8).latestOffset(start, ALL) == end
    now = reader(3, 4, 8)
    now.prepareForTriggerAvailableNow()
    assert now.latestOffset(start, ALL) == end
    # The micro-batch that was under way when the query ended.
    [part] = reader(3, 4, 8).partitions(start, end)
    assert (part.start, part.end) == (5, 8)
    with pytest.raises(DataLost, match="the log ends at 7"):
        reader(3, 4, 5, 7).partitions(start, end)


def test_partitions_and_topics_that_are_new_are_read_from_their_beginning(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send
) -> None:
    admin.create_topic(f"{topic_name}.a", 1)
    reader = stream_reader(ottla_address, subscribePattern=rf"{topic_name}\..*")
    start = reader.initialOffset()
    admin.create_partitions(f"{topic_name}.a", 2)
    send(f"{topic_name}.a", b"new partition", partition=1)
    admin.create_topic(f"{topic_name}.b", 1)
    send(f"{topic_name}.b", b"new", b"topic")
    end, values = batch_after(reader, start)
    assert end == {f"{topic_name}.a": {"0": 0, "1": 1}, f"{topic_name}.b": {"0": 2}}
    assert values == [b"new partition", b"new", b"topic"]
    # A new one whose beginning is gone already is a loss.
    admin.create_topic(f"{topic_name}.c", 1)
    send(f"{topic_name}.c", *[b"x"] * 5)
    admin.delete_records({TopicPartition(f"{topic_name}.c", 0): 2})
    later = reader.latestOffset(end, ReadMaxRows(2))
    assert later[f"{topic_name}.c"] == {"0": 4}
    with pytest.raises(
        DataLost, match=r"\.c partition 0: offsets 0 to 1 are lost .* \(the partition is new\)"
    ):
        reader.partitions(end, later)


def test_a_checkpoint_that_is_too_old(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, *[b"%d" % number for number in range(10)])
    admin.delete_records({TopicPartition(topic_name, 0): 6})
    start, end = {topic_name: {"0": 2}}, {topic_name: {"0": 8}}
    words = (
        rf"topic {topic_name} partition 0: offsets 2 to 5 are lost \(at most 4 records\): the log starts at 6"
    )
    # The query goes on with a new batch, or with one that was planned before it ended.
    with pytest.raises(DataLost, match=words):
        stream_reader(ottla_address, subscribe=topic_name).latestOffset(start, ALL)
    with pytest.raises(DataLost, match=words):
        stream_reader(ottla_address, subscribe=topic_name).partitions(start, end)
    lax = stream_reader(ottla_address, subscribe=topic_name, failOnDataLoss="false")
    assert values_of(lax, lax.partitions(start, end)) == [b"6", b"7"]
    with pytest.raises(DataLost, match="offsets 2 to 5 are lost"):
        stream_reader(
            ottla_address, subscribe=topic_name, startingOffsets=f'{{"{topic_name}":{{"0":2}}}}'
        ).initialOffset()
    clamped = stream_reader(
        ottla_address,
        subscribe=topic_name,
        startingOffsets=f'{{"{topic_name}":{{"0":99}}}}',
        failOnDataLoss="false",
    )
    assert clamped.initialOffset() == {topic_name: {"0": 10}}


def test_topics_that_are_deleted_or_made_anew(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send
) -> None:
    options = {"subscribe": f"{topic_name}-a,{topic_name}-b", "fetchOffset__retryIntervalMs": 1}
    for end in ("a", "b"):
        admin.create_topic(f"{topic_name}-{end}", 1)
        send(f"{topic_name}-{end}", b"1", b"2", b"3")
    strict, lax = (
        stream_reader(ottla_address, failOnDataLoss=fail, startingOffsets="latest", **options)
        for fail in ("true", "false")
    )
    start = strict.initialOffset()
    assert lax.initialOffset() == start
    admin.delete_topics([f"{topic_name}-a", f"{topic_name}-b"])
    admin.create_topic(f"{topic_name}-b", 1)
    send(f"{topic_name}-b", b"anew")
    with pytest.raises(
        DataLost,
        match=rf"topic {topic_name}-a partition 0: the records from offset 3 are lost: the partition was deleted; "
        rf"topic {topic_name}-b partition 0: offsets 1 to 2 are lost .* re-created or truncated",
    ):
        strict.latestOffset(start, ALL)
    end, values = batch_after(lax, start)
    assert (end, values) == ({f"{topic_name}-b": {"0": 1}}, [])
    send(f"{topic_name}-b", b"next")
    assert batch_after(lax, end)[1] == [b"next"]


def test_what_is_finished_is_committed_to_the_group(
    ottla_address: str, topic_name: str, admin: ottla.Admin, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic_name, 1)
    send(topic_name, *[b"x"] * 9)
    reader = stream_reader(ottla_address, subscribe=topic_name, kafka__group__id=topic_name)
    reader.commit({topic_name: {"0": 4}})
    assert admin.group_lag([topic_name]) == {topic_name: {TopicPartition(topic_name, 0): 5}}
    # Who asks for what follows has finished what was before.
    reader.latestOffset({topic_name: {"0": 7}}, ALL)
    assert admin.group_lag([topic_name]) == {topic_name: {TopicPartition(topic_name, 0): 2}}
    # What the group refuses is told, and the query goes on.
    stream_reader(ottla_address, subscribe=topic_name, groupId=topic_name).commit({"no-such-topic": {"0": 5}})
    assert f"were not committed to group {topic_name}" in caplog.text
