"""What a write is to do: its options and columns, read and checked while Spark plans it, before any row moves.

A `Plan` is a value: Spark carries it to tasks and to the committer, each in a process of its own. Names and meanings of options and columns are those
of Spark's own Kafka connector, `guarantee`, `sinkId`, `adoptCheckpoint`, `microBatch` and `maxMessageBytes` are ours.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from ottla.client.producer.settings import COMPRESSIONS, ProducerConfig
from ottla.client.properties import settings_from
from ottla.client.settings import ClientConfig
from ottla.spark.clients import check_settings, settings_for
from ottla.spark.options import KAFKA, Option, OptionError, boolean, one_of, read_options, text, whole_number

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
Guarantee = Literal["exactly-once", "at-least-once"]
#: The size of record batches: below the limit that brokers have by default (max.message.bytes).
BATCH_BYTES: Final = 1_000_000
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


def _sink_id(value: str) -> str:
    if not _NAME.fullmatch(value.strip()):
        raise OptionError(f"must be 1 to 200 of the characters a-z A-Z 0-9 . _ -, not {value!r}")
    return value.strip()


def _micro_batch(value: str) -> tuple[str, int]:
    query_id, slash, number = value.strip().rpartition("/")
    if not slash or not query_id or not number.isdecimal():
        raise OptionError(f"must be the query's id, a slash and the number of the micro-batch, not {value!r}")
    return query_id, int(number)


OPTIONS: Final = (
    Option("topic", text, None, "Where all rows go; a column `topic` is then left out of account."),
    Option("includeHeaders", boolean, True, "Whether a column `headers` becomes headers of the records."),
    Option(
        "guarantee",
        one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
        EXACTLY_ONCE,
        "`exactly-once`: a micro-batch is one transaction; `at-least-once`: tasks write as they go.",
    ),
    Option(
        "sinkId",
        _sink_id,
        None,
        "The name under which a stream writes: its transactional id is `ottla-sink-` and this. By default the query's own id. "
        "A `df.write` in foreachBatch is exactly once with it.",
    ),
    Option(
        "adoptCheckpoint",
        boolean,
        False,
        "Whether a `sinkId` may go on with a checkpoint whose batches it has not written.",
    ),
    Option(
        "microBatch",
        _micro_batch,
        None,
        "For a `df.write` with `sinkId` in foreachBatch over Spark Connect, where tasks are not told which micro-batch they write: "
        "the query's id, a slash and the micro-batch's number.",
    ),
    Option(
        "maxMessageBytes",
        whole_number(0),
        1 << 20,
        "What a task hands to the committer through the driver; more than that waits in a topic of the sink.",
    ),
)
COLUMNS: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
#: Settings that a producer has and the sink decides, with what to do instead.
_OURS: Final = {
    "transactional.id": "the sink has one of its own: name it with the option sinkId",
    "key.serializer": "keys are written as they are: make bytes of them with functions of Spark",
    "value.serializer": "values are written as they are: make bytes of them with functions of Spark",
    "interceptors": "rows pass no interceptors",
    "interceptor.classes": "rows pass no interceptors",
    "partitioner": "rows with a key go where Kafka's own partitioner puts them; for another choice add a column `partition`",
    "partitioner.class": "rows with a key go where Kafka's own partitioner puts them; for another choice add a column `partition`",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    kafka: Mapping[str, str]
    topic: str | None
    guarantee: str
    sink_id: str | None
    adopts: bool
    message_bytes: int
    #: Names of the columns that are used.
    columns: frozenset[str]
    codec: int
    batch_bytes: int
    record_bytes: int
    transaction_ms: int
    #: The query's id and the number, where they are given: Spark does not tell them to all tasks.
    micro_batch: tuple[str, int] | None = None

    @property
    def shared(self) -> dict[str, str]:
        """The settings that every client understands."""
        return settings_for(self.kafka, ClientConfig)


def read_plan(given: Mapping[str, str], schema: StructType) -> Plan:
    """Raises `OptionError` for whatever can be known to go wrong."""
    what = "the ottla sink"
    values, given_kafka = read_options(given, OPTIONS, what)
    # The SDK's own names have underscores.
    kafka = {name.replace("_", "."): value for name, value in given_kafka.items()}
    for name, value in kafka.items():
        reason = _OURS.get(name)
        if reason is not None:
            raise OptionError(f"option {KAFKA}{name} cannot be set: {reason}")
        if values["guarantee"] == EXACTLY_ONCE and (
            (name == "acks" and value not in ("all", "-1"))
            or (name == "enable.idempotence" and value.lower() != "true")
        ):
            raise OptionError(
                f"option {KAFKA}{name} cannot be {value} with guarantee {EXACTLY_ONCE}: leave it out, or choose {AT_LEAST_ONCE}"
            )
    if values["sinkId"] is not None and values["guarantee"] != EXACTLY_ONCE:
        raise OptionError(f"option sinkId is of the guarantee {EXACTLY_ONCE}: leave it out")
    if values["microBatch"] is not None and values["sinkId"] is None:
        raise OptionError("option microBatch goes with sinkId: leave it out")
    check_settings(kafka, ProducerConfig)
    settings = ProducerConfig(**settings_from(kafka, ProducerConfig))
    columns = _read_columns(schema, what)
    if not values["includeHeaders"]:
        columns -= {"headers"}
    if values["topic"] is not None:
        columns -= {"topic"}
    elif "topic" not in columns:
        raise OptionError(
            f"{what} needs to know where rows go: set the option topic, or add a column `topic`"
        )
    return Plan(
        kafka=kafka,
        topic=values["topic"],
        guarantee=values["guarantee"],
        sink_id=values["sinkId"],
        adopts=values["adoptCheckpoint"],
        message_bytes=values["maxMessageBytes"],
        columns=columns,
        codec=COMPRESSIONS.index(settings.compression_type),
        batch_bytes=min(
            max(settings.batch_size, 1024) if "batch.size" in kafka else BATCH_BYTES,
            settings.max_request_size,
        ),
        record_bytes=settings.max_request_size,
        transaction_ms=settings.transaction_timeout_ms,
        micro_batch=values["microBatch"],
    )


def _read_columns(schema: StructType, what: str) -> frozenset[str]:
    found = set()
    for field in schema.fields:
        types = COLUMNS.get(field.name)
        if types is None:
            raise OptionError(
                f"{what} has no use for the column `{field.name}`: it takes {', '.join(COLUMNS)}; "
                "pack others into `value`, as with to_json(struct(*))"
            )
        kind = field.dataType.simpleString()
        if kind not in types:
            raise OptionError(f"column `{field.name}` is {kind}, and must be {' or '.join(types)}: cast it")
        found.add(field.name)
    if "value" not in found:
        raise OptionError(
            f"{what} needs a column `value`; there {'is' if len(found) == 1 else 'are'} {', '.join(sorted(found)) or 'none'}"
        )
    return frozenset(found)
