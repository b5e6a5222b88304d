"""Every topic setting: those of Kafka 4.x, and ottla's `flush.policy`.

Each row names the broker settings that are its default, in order of precedence. Synonyms and broker settings
follow from that. Settings of tiered storage, which ottla does not have, are here because clients ask for
them.
"""

from __future__ import annotations

from ottla.config.definition import CLUSTER_WIDE, LONG_MAX, Definition, Value, table

DAY_MS = 24 * 60 * 60 * 1000
MIB = 1024 * 1024

CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
FLUSH_POLICIES = ("durable", "page-cache")
NOT_TIERED = "Stored without effect: ottla has no tiered storage."


def is_throttled_replicas(value: Value) -> bool:
    """`*`, empty, or PARTITION:BROKER pairs."""
    if not isinstance(value, tuple):
        return False
    if value in ((), ("*",)):
        return True
    for pair in value:
        partition, colon, broker = pair.partition(":")
        if not (colon and pair.isascii() and partition.isdigit() and broker.isdigit()):
            return False
    return True


def is_false(value: Value) -> bool:
    return value is False


def _row(
    name: str,
    kind: str,
    default: str | int | float,
    doc: str,
    *,
    broker: tuple[str, ...] = (),
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    allowed: tuple[str, ...] = (),
) -> Definition:
    return Definition(
        name,
        kind,
        str(default),
        doc,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        allowed=allowed,
        dynamic=CLUSTER_WIDE,
        broker_names=broker,
    )


def _throttled(name: str, role: str) -> Definition:
    return Definition(
        name,
        "list",
        "",
        f"Replicas that `{role}.replication.throttled.rate` of the broker applies to: PARTITION:BROKER pairs, or * for all.",
        check=is_throttled_replicas,
        form="PARTITION:BROKER pairs separated by commas, * for all replicas, or nothing",
        dynamic=CLUSTER_WIDE,
    )


TOPIC: dict[str, Definition] = table(
    [
        _row(
            "cleanup.policy",
            "list",
            "delete",
            "`delete` removes old segments by age and size. `compact` keeps the newest record of each key "
            "and refuses records without a key. Both can be combined; an empty list keeps everything.",
            broker=("log.cleanup.policy",),
            allowed=("compact", "delete"),
        ),
        _row(
            "compression.gzip.level",
            "int",
            -1,
            "Level if compression.type is gzip; -1: the codec's default.",
            broker=("compression.gzip.level",),
            minimum=-1,
            maximum=9,
        ),
        _row(
            "compression.lz4.level",
            "int",
            9,
            "Level if compression.type is lz4.",
            broker=("compression.lz4.level",),
            minimum=1,
            maximum=17,
        ),
        _row(
            "compression.type",
            "string",
            "producer",
            "Codec of the stored batches. `producer` keeps the codec of the producer.",
            broker=("compression.type",),
            allowed=CODECS,
        ),
        _row(
            "compression.zstd.level",
            "int",
            3,
            "Level if compression.type is zstd.",
            broker=("compression.zstd.level",),
            minimum=-131072,
            maximum=22,
        ),
        _row(
            "delete.retention.ms",
            "long",
            DAY_MS,
            "How long compaction keeps the tombstone of a deleted key, so that slow consumers see the "
            "deletion.",
            broker=("log.cleaner.delete.retention.ms",),
            unit="ms",
            minimum=0,
        ),
        _row(
            "file.delete.delay.ms",
            "long",
            60_000,
            "How long a deleted segment stays on disk with the suffix .deleted.",
            broker=("log.segment.delete.delay.ms",),
            unit="ms",
            minimum=0,
        ),
        _row(
            "flush.messages",
            "long",
            LONG_MAX,
            "Sync the log after this many records. Only with flush.policy=page-cache.",
            broker=("log.flush.interval.messages",),
            unit="records",
            minimum=1,
        ),
        _row(
            "flush.ms",
            "long",
            LONG_MAX,
            "Sync the log when its oldest unsynced record has this age. Only with flush.policy=page-cache.",
            broker=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
            unit="ms",
            minimum=0,
        ),
        _row(
            "flush.policy",
            "string",
            "durable",
            "When a record is committed on a replica. `durable`: when it is synced to disk (group commit), "
            "so a power failure loses no acknowledged record. `page-cache`: when it is in the page cache of "
            "the operating system, as in Kafka. ottla's own.",
            broker=("log.flush.policy",),
            allowed=FLUSH_POLICIES,
        ),
        _throttled("follower.replication.throttled.replicas", "follower"),
        _row(
            "index.interval.bytes",
            "int",
            4096,
            "Bytes of log between two entries of the offset index and of the time index.",
            broker=("log.index.interval.bytes",),
            unit="bytes",
            minimum=0,
        ),
        _throttled("leader.replication.throttled.replicas", "leader"),
        _row(
            "local.retention.bytes",
            "long",
            -2,
            f"Bytes of a tiered partition kept locally; -2 follows retention.bytes. {NOT_TIERED}",
            broker=("log.local.retention.bytes",),
            unit="bytes",
            minimum=-2,
        ),
        _row(
            "local.retention.ms",
            "long",
            -2,
            f"Age of a tiered partition's local segments; -2 follows retention.ms. {NOT_TIERED}",
            broker=("log.local.retention.ms",),
            unit="ms",
            minimum=-2,
        ),
        _row(
            "max.compaction.lag.ms",
            "long",
            LONG_MAX,
            "The longest time that a record stays uncompacted in a compacted topic.",
            broker=("log.cleaner.max.compaction.lag.ms",),
            unit="ms",
            minimum=1,
        ),
        _row(
            "max.message.bytes",
            "int",
            MIB + 12,
            "The largest batch of records, after compression. A larger one fails with MESSAGE_TOO_LARGE.",
            broker=("message.max.bytes",),
            unit="bytes",
            minimum=0,
        ),
        _row(
            "message.timestamp.after.max.ms",
            "long",
            60 * 60 * 1000,
            "How far a CreateTime timestamp can be ahead of the broker's clock. Beyond it the batch fails "
            "with INVALID_TIMESTAMP.",
            broker=("log.message.timestamp.after.max.ms",),
            unit="ms",
            minimum=0,
        ),
        _row(
            "message.timestamp.before.max.ms",
            "long",
            LONG_MAX,
            "How far a CreateTime timestamp can be behind the broker's clock. Beyond it the batch fails "
            "with INVALID_TIMESTAMP.",
            broker=("log.message.timestamp.before.max.ms",),
            unit="ms",
            minimum=0,
        ),
        _row(
            "message.timestamp.type",
            "string",
            "CreateTime",
            "Timestamp of the records: the producer's (CreateTime) or the broker's at the append "
            "(LogAppendTime).",
            broker=("log.message.timestamp.type",),
            allowed=TIMESTAMP_TYPES,
        ),
        _row(
            "min.cleanable.dirty.ratio",
            "double",
            0.5,
            "Compact a log when at least this share of it is not compacted.",
            broker=("log.cleaner.min.cleanable.ratio",),
            minimum=0,
            maximum=1,
        ),
        _row(
            "min.compaction.lag.ms",
            "long",
            0,
            "The shortest time that a record stays uncompacted in a compacted topic.",
            broker=("log.cleaner.min.compaction.lag.ms",),
            unit="ms",
            minimum=0,
        ),
        _row(
            "min.insync.replicas",
            "int",
            1,
            "With fewer replicas in the ISR, writes with acks=all fail with NOT_ENOUGH_REPLICAS.",
            broker=("min.insync.replicas",),
            unit="replicas",
            minimum=1,
        ),
        _row(
            "preallocate",
            "boolean",
            "false",
            "Accepted without effect: segments grow as they are written.",
            broker=("log.preallocate",),
        ),
        _row(
            "remote.copy.lag.bytes",
            "long",
            0,
            f"Bytes by which copying to remote storage may lag. {NOT_TIERED}",
            unit="bytes",
            minimum=-1,
        ),
        _row(
            "remote.copy.lag.ms",
            "long",
            0,
            f"Time by which copying to remote storage may lag. {NOT_TIERED}",
            unit="ms",
            minimum=-1,
        ),
        _row(
            "remote.log.copy.disable",
            "boolean",
            "false",
            f"Make a topic's remote data read-only. {NOT_TIERED}",
        ),
        _row(
            "remote.log.delete.on.disable",
            "boolean",
            "false",
            f"Delete a topic's remote data when its remote storage is turned off. {NOT_TIERED}",
        ),
        Definition(
            "remote.storage.enable",
            "boolean",
            "false",
            "Store old segments remotely. ottla has no tiered storage, so `true` is refused.",
            check=is_false,
            form="false (tiered storage is not available)",
            dynamic=CLUSTER_WIDE,
        ),
        _row(
            "retention.bytes",
            "long",
            -1,
            "Size of a partition above which the delete policy removes its oldest segments; -1: no limit.",
            broker=("log.retention.bytes",),
            unit="bytes",
            minimum=-1,
        ),
        _row(
            "retention.ms",
            "long",
            7 * DAY_MS,
            "Age above which the delete policy removes segments; -1: no limit.",
            broker=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
            unit="ms",
            minimum=-1,
        ),
        _row(
            "segment.bytes",
            "int",
            1024 * MIB,
            "Size at which a segment rolls. Kafka 4 has a minimum of 1048576; ottla accepts the older "
            "minimum too.",
            broker=("log.segment.bytes",),
            unit="bytes",
            minimum=14,
        ),
        _row(
            "segment.index.bytes",
            "int",
            10 * MIB,
            "Maximum size of a segment's offset index. A full index rolls the segment.",
            broker=("log.index.size.max.bytes",),
            unit="bytes",
            minimum=4,
        ),
        _row(
            "segment.jitter.ms",
            "long",
            0,
            "Maximum jitter that is subtracted from segment.ms. It differs for each segment, so that "
            "segments do not all roll at the same time.",
            broker=("log.roll.jitter.ms", "log.roll.jitter.hours"),
            unit="ms",
            minimum=0,
        ),
        _row(
            "segment.ms",
            "long",
            7 * DAY_MS,
            "Age at which a segment rolls even if it is not full, so that it can be deleted or compacted.",
            broker=("log.roll.ms", "log.roll.hours"),
            unit="ms",
            minimum=1,
        ),
        _row(
            "unclean.leader.election.enable",
            "boolean",
            "false",
            "Elect a leader outside the ISR if no replica of the ISR is available. Records that it has not "
            "copied are lost.",
            broker=("unclean.leader.election.enable",),
        ),
    ]
)
