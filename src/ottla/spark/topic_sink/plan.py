"""The plan of a write: options and columns, checked before any row is written.

A `Plan` is plain data that Spark sends to the tasks and the committer. Options and columns are those of
Spark's Kafka connector; `guarantee`, `sinkId`, `adoptCheckpoint`, `microBatch` and `maxMessageBytes` are
additional.
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
#: The size of record batches: below the broker's default of max.message.bytes.
BATCH_BYTES: Final = 1_000_000
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


def _sink_id(value: str) -> str:
    if not _NAME.fullmatch(value.strip()):
        raise OptionError(f"must be 1 to 200 of the characters a-z A-Z 0-9 . _ -, not {value!r}")
    return value.strip()


def _micro_batch(value: str) -> tuple[str, int]:
    query_id, slash, number = value.strip().rpartition("/")
    if not slash or not query_id or not number.isdecimal():
        raise OptionError(f"must be QUERY_ID/BATCH_NUMBER of the micro-batch, not {value!r}")
    return query_id, int(number)


OPTIONS: Final = (
    Option("topic", text, None, "The topic of all rows. Overrides the column `topic`."),
    Option("includeHeaders", boolean, True, "Whether the column `headers` is written as record headers."),
    Option(
        "guarantee",
        one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
        EXACTLY_ONCE,
        "`exactly-once`: one transaction per micro-batch; `at-least-once`: tasks write directly.",
    ),
    Option(
        "sinkId",
        _sink_id,
        None,
        "The identity of the sink: the transactional id is `ottla-sink-<sinkId>`. The default is the query "
        "id. "
        "With it, a `df.write` in foreachBatch is exactly once.",
    ),
    Option(
        "adoptCheckpoint",
        boolean,
        False,
        "Whether a `sinkId` may continue a checkpoint whose batches it has not written.",
    ),
    Option(
        "microBatch",
        _micro_batch,
        None,
        "Only for `df.write` with `sinkId` in foreachBatch over Spark Connect, where tasks do not know their "
        "micro-batch: QUERY_ID/BATCH_NUMBER.",
    ),
    Option(
        "maxMessageBytes",
        whole_number(0),
        1 << 20,
        "Bytes that a task sends to the committer through the driver. The rest is staged in a topic of the "
        "sink.",
    ),
)
COLUMNS: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
#: Producer settings that the sink controls, and what to do instead.
_OURS: Final = {
    "transactional.id": "the sink sets it: use the option sinkId",
    "key.serializer": "keys are written as they are: convert them with Spark functions",
    "value.serializer": "values are written as they are: convert them with Spark functions",
    "interceptors": "the sink calls no interceptors",
    "interceptor.classes": "the sink calls no interceptors",
    "partitioner": "keys are partitioned by Kafka's default partitioner; to choose partitions, add a column `partition`",
    "partitioner.class": "keys are partitioned by Kafka's default partitioner; to choose partitions, add a column `partition`",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    kafka: Mapping[str, str]
    topic: str | None
    guarantee: str
    sink_id: str | None
    adopts: bool
    message_bytes: int
    #: The columns to write.
    columns: frozenset[str]
    codec: int
    batch_bytes: int
    record_bytes: int
    transaction_ms: int
    #: Query id and micro-batch number, if given: Spark does not provide them to all tasks.
    micro_batch: tuple[str, int] | None = None

    @property
    def shared(self) -> dict[str, str]:
        """The settings that all kinds of clients accept."""
        return settings_for(self.kafka, ClientConfig)


def read_plan(given: Mapping[str, str], schema: StructType) -> Plan:
    """Read and check the options and columns. Raises `OptionError`."""
    what = "the ottla sink"
    values, given_kafka = read_options(given, OPTIONS, what)
    # Names of the SDK have underscores.
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
                f"option {KAFKA}{name} cannot be {value} with guarantee {EXACTLY_ONCE}: leave it out, or "
                f"use {AT_LEAST_ONCE}"
            )
    if values["sinkId"] is not None and values["guarantee"] != EXACTLY_ONCE:
        raise OptionError(f"option sinkId needs guarantee {EXACTLY_ONCE}: set that, or leave sinkId out")
    if values["microBatch"] is not None and values["sinkId"] is None:
        raise OptionError("option microBatch needs sinkId: set both, or leave microBatch out")
    check_settings(kafka, ProducerConfig)
    settings = ProducerConfig(**settings_from(kafka, ProducerConfig))
    columns = _read_columns(schema, what)
    if not values["includeHeaders"]:
        columns -= {"headers"}
    if values["topic"] is not None:
        columns -= {"topic"}
    elif "topic" not in columns:
        raise OptionError(f"{what} has no topic for the rows: set the option topic, or add a column `topic`")
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
                f"{what} cannot write the column `{field.name}`: it takes {', '.join(COLUMNS)}; "
                "put other columns into `value`, as in to_json(struct(*))"
            )
        kind = field.dataType.simpleString()
        if kind not in types:
            raise OptionError(f"column `{field.name}` is {kind}, not {' or '.join(types)}: cast it")
        found.add(field.name)
    if "value" not in found:
        raise OptionError(
            f"{what} needs a column `value`, but the columns are {', '.join(sorted(found)) or 'none'}: add it"
        )
    return frozenset(found)
