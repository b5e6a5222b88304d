import json

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import ottla
from ottla.spark.dead_letters import DeadLetters, letters, split, with_dead_letters
from ottla.spark.options import OptionError
from tests.sdk.reading import contents

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, headers array<struct<key:string,value:binary>>, error string"


@pytest.fixture(scope="module")
def decoded(spark: SparkSession) -> DataFrame:
    rows = [
        (b"k1", b"good", "orders", 0, 5, [("trace", b"1")], None),
        (b"k2", b"\xff", "orders", 1, 6, [("trace", b"2")], "no JSON: \xff"),
        (None, None, "orders", 1, 7, None, "nothing there"),
    ]
    return spark.createDataFrame(rows, SCHEMA)


def test_good_and_bad_rows_are_told_apart(decoded: DataFrame) -> None:
    good, bad = split(decoded)
    assert [row["offset"] for row in good.collect()] == [5] and "error" not in good.columns
    assert [row["offset"] for row in bad.collect()] == [6, 7]
    with pytest.raises(OptionError, match="no string column 'error'"):
        split(good)


def test_bad_rows_are_sent_with_their_reason(decoded: DataFrame, ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1)
    DeadLetters(ottla_address, topic_name)(split(decoded)[1], 0)
    found = sorted(
        contents(ottla_address, topic_name)[0], key=lambda record: dict(record.headers)["error.offset"]
    )
    assert [(record.key, record.value) for record in found] == [(b"k2", b"\xff"), (None, None)]
    assert list(found[0].headers) == [
        ("trace", b"2"),
        ("error.reason", "no JSON: \xff".encode()),
        ("error.topic", b"orders"),
        ("error.partition", b"1"),
        ("error.offset", b"6"),
    ]
    assert dict(found[1].headers)["error.reason"] == b"nothing there"


def test_both_are_records_of_one_sink(decoded: DataFrame) -> None:
    records = with_dead_letters(
        decoded, topic=f.concat(f.col("topic"), f.lit("-out")), dead_letter_topic="dead"
    )
    rows = {row["topic"]: row for row in records.orderBy(f.col("value").isNull()).collect() if row["value"]}
    assert records.columns == ["key", "value", "headers", "topic"]
    assert rows["orders-out"]["value"] == b"good" and [
        tuple(each) for each in rows["orders-out"]["headers"]
    ] == [("trace", b"1")]
    assert [header["key"] for header in rows["dead"]["headers"]][:2] == ["trace", "error.reason"]


def test_a_row_without_a_value_is_its_own_value(spark: SparkSession) -> None:
    [row] = letters(
        spark.createDataFrame([(7, "Aino", "too old")], "id int, name string, error string")
    ).collect()
    assert row["key"] is None and json.loads(row["value"]) == {"id": 7, "name": "Aino"}
    assert [tuple(each) for each in row["headers"]] == [("error.reason", b"too old")]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"topic": ""}, "name of a topic"),
        ({"servers": "nowhere"}, "nowhere"),
        ({"options": {"acks": "all"}}, "lacks the prefix kafka."),
        ({"options": {"kafka.ackss": "all"}}, "ackss"),
    ],
)
def test_settings_of_no_sense(settings: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        DeadLetters(**{"servers": "127.0.0.1:9092", "topic": "dead", **settings})  # type: ignore[arg-type]
