"""The work of a task, without Spark."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

import ottla
from ottla.client.errors import MessageTooLarge, TopicNotFound
from ottla.spark.options import OptionError
from ottla.spark.topic_sink import task
from ottla.spark.topic_sink.plan import read_plan
from ottla.spark.topic_sink.task import write_micro_batch, write_rows
from tests.spark.topic_sink.committed_records import read_topic
from tests.spark.topic_sink.test_commit import _no_kept_clients
from tests.spark.topic_sink.test_plan import VALUE

__all__ = ["_no_kept_clients"]


@pytest.fixture(autouse=True)
def _in_a_task() -> Iterator[None]:
    context = TaskContext._getOrCreate()
    context._partitionId, context._localProperties = (
        3,
        {
            "sql.streaming.queryId": "the query",
            "streaming.sql.batchId": "7",
        },
    )
    yield
    TaskContext._setTaskContext(None)


def rows(*values: bytes) -> Iterator[Any]:
    yield pa.record_batch([pa.array(values, pa.binary())], ["value"])


def test_a_staging_task_says_whose_it_is_and_leaves_nothing_to_see(
    ottla_address: str, topic_name: str
) -> None:
    plan = read_plan({"kafka.bootstrap.servers": ottla_address, "topic": topic_name}, VALUE)
    message = write_micro_batch(plan, rows(b"a", b"b"))
    assert (message.owner, message.batch_id) == ("the query", 7)
    assert (message.rows, len(message.here), message.staged) == (2, 1, [])
    assert write_rows(plan, iter(()), "a write").owner == "a write"
    assert read_topic(ottla_address, topic_name) == []


def test_a_writing_task_has_written_when_it_returns_or_says_why_not(
    ottla_address: str, topic_name: str
) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1, configs={"max.message.bytes": "2000"})
    given = {"kafka.bootstrap.servers": ottla_address, "topic": topic_name, "guarantee": "at-least-once"}
    plan = read_plan({**given, "kafka.batch.size": "1100"}, VALUE)
    values = [b"%d" % number * 100 for number in range(50)]
    message = write_rows(plan, rows(*values), "a write")
    assert (message.rows, message.here, message.staged) == (50, [], [])
    assert [row.value for row in read_topic(ottla_address, topic_name)] == values
    with pytest.raises(MessageTooLarge):
        write_rows(plan, rows(*values, b"x" * 3000, *values), "a write")


def test_a_topic_that_nobody_makes_is_told(
    start_broker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "TOPIC_S", 3.0)
    address = start_broker(0, "auto.create.topics.enable=false").address
    plan = read_plan({"kafka.bootstrap.servers": address, "topic": "nowhere"}, VALUE)
    with pytest.raises(TopicNotFound, match="topic 'nowhere' does not exist"):
        write_rows(plan, rows(b"a"), "a write")


def test_a_micro_batch_may_be_named_where_spark_does_not_tell_it(ottla_address: str, topic_name: str) -> None:
    """As over Spark Connect."""
    given = {"kafka.bootstrap.servers": ottla_address, "topic": topic_name, "sinkId": "s"}
    plan = read_plan({**given, "microBatch": "a/query/41"}, VALUE)
    TaskContext._getOrCreate()._localProperties = {}
    message = write_micro_batch(plan, rows(b"a"))
    assert (message.owner, message.batch_id) == ("a/query", 41)
    for wrong in ("41", "q/", "q/x", "/1"):
        with pytest.raises(OptionError, match="option microBatch must be QUERY_ID/BATCH_NUMBER"):
            read_plan({**given, "microBatch": wrong}, VALUE)
    with pytest.raises(OptionError, match="needs sinkId"):
        read_plan({"kafka.bootstrap.servers": ottla_address, "topic": "t", "microBatch": "q/1"}, VALUE)


def test_a_sink_id_needs_a_micro_batch(ottla_address: str, topic_name: str) -> None:
    plan = read_plan({"kafka.bootstrap.servers": ottla_address, "topic": topic_name, "sinkId": "s"}, VALUE)
    TaskContext._getOrCreate()._localProperties = {}
    with pytest.raises(OptionError, match="in foreachBatch"):
        write_micro_batch(plan, rows(b"a"))
