"""Options and columns of the sink: errors are raised while Spark plans."""

import pytest
from pyspark.sql.types import StructType

from ottla.spark.options import OptionError
from ottla.spark.topic_sink.batch import OttlaWriter
from ottla.spark.topic_sink.plan import read_plan

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
TO = {**SERVERS, "topic": "t"}


def schema(text: str) -> StructType:
    """`name type; name type` without a session, which `StructType.fromDDL` would need."""
    kinds = {"headers": {"type": "array", "containsNull": True, "elementType": {"type": "struct", "fields": [
        {"name": "key", "type": "string", "nullable": True, "metadata": {}},
        {"name": "value", "type": "binary", "nullable": True, "metadata": {}}]}}}  # fmt: skip
    fields = [each.split() for each in text.split(";")]
    return StructType.fromJson(
        {"type": "struct", "fields": [
            {"name": name, "type": kinds.get(kind, kind), "nullable": True, "metadata": {}} for name, kind in fields
        ]}
    )  # fmt: skip


VALUE = schema("value binary")


def test_a_plan_has_what_tasks_and_commit_need() -> None:
    given = {
        **TO, "kafka.compression.type": "zstd", "kafka.batch.size": "100000", "kafka.client.id": "me",
        "sinkid": "s", "checkpointLocation": "/x",
    }  # fmt: skip
    columns = schema("key string; value binary; topic string; partition integer; headers headers")
    plan = read_plan(given, columns)
    assert (plan.topic, plan.sink_id, plan.codec, plan.batch_bytes) == ("t", "s", 4, 100_000)
    # The option goes before the column.
    assert plan.columns == {"key", "value", "partition", "headers"}
    assert plan.shared == {"bootstrap.servers": "127.0.0.1:9092", "client.id": "me"}
    assert read_plan({**TO, "kafka.batch_size": "100000"}, columns).batch_bytes == 100_000
    bare = read_plan({**SERVERS, "includeHeaders": "false"}, columns)
    assert bare.columns == {"key", "value", "partition", "topic"}


@pytest.mark.parametrize(
    ("given", "columns", "message"),
    [
        (SERVERS, "value binary", "set the option topic, or add a column `topic`"),
        (TO, "key binary", "needs a column `value`, but the columns are key"),
        (TO, "value integer", "column `value` is int, not binary or string: cast it"),
        (TO, "value binary; partition long", "column `partition` is bigint, not int"),
        (TO, "value binary; headers string", "column `headers` is string, not array<struct<key"),
        (TO, "value binary; ts timestamp", "cannot write the column `ts`: it takes key, value, topic"),
        ({**TO, "topics": "t"}, "value binary", "the ottla sink has no option 'topics': did you mean topic"),
        ({**TO, "kafka.transactional.id": "x"}, "value binary", "use the option sinkId"),
        ({**TO, "kafka.key.serializer": "x"}, "value binary", "convert them with Spark functions"),
        ({**TO, "kafka.acks": "1"}, "value binary", "cannot be 1 with guarantee exactly-once"),
        ({**TO, "kafka.enable.idempotence": "false"}, "value binary", "or use at-least-once"),
        ({**TO, "kafka.enable_idempotence": "false"}, "value binary", "or use at-least-once"),
        ({**TO, "kafka.compression.type": "rar"}, "value binary", "compression_type must be one of none"),
        ({**TO, "kafka.group.id": "g"}, "value binary", "unknown setting 'group_id'"),
        (
            {**TO, "guarantee": "maybe"},
            "value binary",
            "guarantee must be one of exactly-once, at-least-once",
        ),
        ({**TO, "sinkId": "a b"}, "value binary", "option sinkId must be 1 to 200 of the characters"),
        ({**TO, "sinkId": "a", "guarantee": "at-least-once"}, "value binary", "or leave sinkId out"),
    ],
)
def test_mistakes_are_told(given: dict[str, str], columns: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_plan(given, schema(columns))


def test_a_topic_is_not_overwritten() -> None:
    with pytest.raises(OptionError, match=r"use mode\('append'\)"):
        OttlaWriter(TO, VALUE, overwrite=True)
