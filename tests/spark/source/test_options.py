"""Invalid options are rejected with a reason; the table in the docs is that of the code."""

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from ottla.client.metadata import TopicPartition
from ottla.client.offsets import EARLIEST
from ottla.spark.options import OptionError
from ottla.spark.source.offsets import AtEnd, AtOffsets, AtTimes
from ottla.spark.source.options import BATCH, BOTH, CHOICES, STREAM, Kind, source_options
from ottla.spark.source.schema import check_schema, columns, source_schema

ADDRESS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
DOCS = Path(__file__).parents[3] / "docs" / "spark-source.md"


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (None, {}, "exactly one of subscribe, subscribePattern and assign, not none"),
        (None, {"subscribe": "a", "assign": '{"a":[0]}'}, "not subscribe and assign"),
        (None, {"subscribe": " , "}, "must name a topic"),
        (None, {"subscribe": "a", "startingOffset": "latest"}, "did you mean startingOffsets"),
        (None, {"subscribePattern": "("}, "is not a regular expression"),
        (None, {"assign": '{"a":0}'}, "JSON like"),
        (None, {"assign": '{"a":["0"]}'}, "partition '0' of topic a"),
        (None, {"assign": "{}"}, "must name a partition"),
        (None, {"subscribe": "a", "failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
        (None, {"subscribe": "a", "minPartitions": "0"}, "must be 1 or more"),
        (None, {"subscribe": "a", "startingTimestamp": "today"}, "must be a whole number"),
        (None, {"subscribe": "a", "maxTriggerDelay": "soon"}, "500ms, 10s, 15m or 1h"),
        (None, {"subscribe": "a", "startingOffsetsByTimestampStrategy": "x"}, "one of error, latest"),
        (None, {"subscribe": "a", "kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        (None, {"subscribe": "a", "kafka.enable.auto.commit": "true"}, "committed after each micro-batch"),
        (None, {"subscribe": "a", "kafka.key.deserializer": "x"}, "keys are bytes"),
        (None, {"subscribe": "a", "kafka.value_deserializer": "x"}, "values are bytes"),
        (None, {"subscribe": "a", "kafka.interceptor.classes": "x"}, "could change what is read"),
        (None, {"subscribe": "a", "kafka.fetch.max.byte": "1"}, "did you mean fetch_max_bytes"),
        (None, {"subscribe": "a", "kafka.isolation.level": "x"}, "isolation_level must be one of"),
        (None, {"subscribe": "a", "groupId": "one", "kafka.group.id": "two"}, "name different groups"),
        (None, {"subscribe": "a", "kafka.group_id": "one", "kafka.group.id": "two"}, "name different groups"),
        ("stream", {"subscribe": "a", "endingOffsets": "latest"}, "endingOffsets is for batches"),
        ("stream", {"subscribe": "a", "filterPushdown": "true"}, "filterPushdown is for batches"),
        ("stream", {"subscribe": "a", "endingTimestamp": "5"}, "endingTimestamp is for batches"),
        (
            "stream",
            {"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "is above maxOffsetsPerTrigger",
        ),
        ("batch", {"subscribe": "a", "startingOffsets": "latest"}, "is for streams"),
        ("batch", {"subscribe": "a", "endingOffsets": "earliest"}, "nothing to read"),
        ("batch", {"subscribe": "a", "startingOffsets": '{"a":{"0":-1}}'}, r"-1 \(latest\) for a-0"),
        ("batch", {"subscribe": "a", "endingOffsets": '{"a":{"0":-2}}'}, r"-2 \(earliest\) for a-0"),
        (
            "batch",
            {
                "subscribe": "a",
                "startingOffsets": '{"a":{"0":1,"1":7}}',
                "endingOffsets": '{"a":{"0":1,"1":6}}',
            },
            r"endingOffsets \(6\) is before startingOffsets \(7\) for a-1",
        ),
        (
            "batch",
            {"subscribe": "a", "startingTimestamp": "9", "endingTimestamp": "8"},
            r"endingTimestamp \(8\) is before startingTimestamp \(9\)",
        ),
        (
            "batch",
            {"subscribe": "a", "startingTimestamp": "9", "endingOffsetsByTimestamp": '{"a":{"0":8}}'},
            r"endingOffsetsByTimestamp \(8\) is before startingTimestamp \(9\) for a-0",
        ),
    ],
)
def test_mistakes_are_told(kind: Kind | None, given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        source_options(ADDRESS | given, kind)


def test_defaults_are_the_connectors_but_for_isolation() -> None:
    for kind in ("batch", "stream"):
        options = source_options(ADDRESS | {"subscribe": "a, b,a"}, kind)  # type: ignore[arg-type]
        assert options.topics == ("a", "b")
        assert (options.starting, options.ending) == (None, None)
        assert options.fail_on_data_loss and not options.include_headers
        assert (options.poll_timeout_ms, options.retries, options.trigger_delay_ms_max) == (
            120_000,
            3,
            900_000,
        )
        assert options.isolation_level == "read_committed"
        assert options.group_id is None


def test_values_are_read() -> None:
    options = source_options(
        ADDRESS
        | {
            "ASSIGN": '{"b":[1,0],"a":[2]}',
            "kafka.group.id": "lag",
            "group.id": "lag",
            "kafka.isolation.level": "read_uncommitted",
            "maxtriggerdelay": "2h",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "10",
        }
    )
    assert options.partitions == (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))
    assert options.group_id == "lag" and "group.id" not in options.kafka
    assert options.isolation_level == "read_uncommitted"
    assert options.trigger_delay_ms_max == 7_200_000
    assert options.starting == AtEnd(EARLIEST)


def test_a_group_may_be_written_as_the_sdk_does() -> None:
    options = source_options(ADDRESS | {"subscribe": "a", "kafka.group_id": "lag"})
    assert options.group_id == "lag" and "group_id" not in options.kafka


def test_passwords_are_not_shown() -> None:
    given = ADDRESS | {"subscribe": "a", "kafka.sasl.password": "hush", "kafka.sasl.username": "me"}
    options = source_options(
        given | {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}
    )
    assert options.kafka["sasl.password"] == "hush" and "hush" not in repr(options)


def test_times_go_before_offsets() -> None:
    given = ADDRESS | {"subscribe": "a", "startingOffsets": "earliest", "endingOffsets": '{"a":{"0":5}}'}
    assert source_options(given).ending == AtOffsets({TopicPartition("a", 0): 5})
    given |= {"startingOffsetsByTimestamp": '{"a":{"0":7}}', "startingOffsetsByTimestampStrategy": "LATEST"}
    assert source_options(given).starting == AtTimes({TopicPartition("a", 0): 7}, or_latest=True)
    given |= {"startingTimestamp": "9", "endingTimestamp": "8"}
    options = source_options(given)
    assert (options.starting, options.starting_option) == (AtTimes(9, or_latest=True), "startingTimestamp")
    assert options.ending == AtTimes(8, or_latest=True)


def test_a_schema_of_ones_own_must_be_the_sources() -> None:
    check_schema(source_schema(ADDRESS | {"subscribe": "a"}), include_headers=False)
    assert source_schema(ADDRESS | {"subscribe": "a", "includeHeaders": "true"}).names[-1] == "headers"
    with pytest.raises(
        OptionError, match=r"struct<value:string> is not the schema of this source: leave \.schema"
    ):
        check_schema(StructType().add("value", "string"), include_headers=False)
    with pytest.raises(OptionError, match="set the option includeHeaders=true for headers"):
        check_schema(columns(include_headers=True), include_headers=False)


def test_the_docs_have_every_option() -> None:
    text = DOCS.read_text()
    for title, table in (("Both", (*CHOICES, *BOTH)), ("Batches", BATCH), ("Streams", STREAM)):
        section = text.partition(f"### {title}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("| `")]
        assert rows == [
            f"| `{option.name}` | {'' if option.default is None else f'`{str(option.default).lower()}`'} | {option.meaning} |"
            for option in table
        ]
