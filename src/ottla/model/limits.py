"""Every fixed limit of the broker, in one table, so that no input can ask for more than this.

A limit is a ceiling of the protocol, of a file format, or of what one client may cost the others. Settings may only be
tighter. Code uses the constants; `LIMITS` has the same values with what they bound, why, and what a client gets beyond
them. `docs/limits.md` is rendered from it (`config/limits_page.py`), together with the settings that are limits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

REQUESTS: Final = "Requests and answers"
RECORDS: Final = "Records and batches"
NAMES: Final = "Names and strings"
TOPICS: Final = "Topics and partitions"
GROUPS: Final = "Groups and transactions"
CONNECTIONS: Final = "Connections"
FILES: Final = "Files"
#: The sections of the page, in order.
SECTIONS: Final = (REQUESTS, RECORDS, NAMES, TOPICS, GROUPS, CONNECTIONS, FILES)


class Limit(NamedTuple):
    section: str
    #: What is bounded, as a noun.
    what: str
    value: int
    #: Why there is a limit, and why this one.
    reason: str
    #: What a client gets that goes beyond it.
    outcome: str


LIMITS: Final[list[Limit]] = []


def _limit(section: str, what: str, value: int, reason: str, outcome: str) -> int:
    LIMITS.append(Limit(section, what, value, reason, outcome))
    return value


OFFSET_MAX: Final = 2**63 - 1

# --- requests and answers -----------------------------------------------------------------------------------------

ROWS_PER_REQUEST_MAX: Final = _limit(
    REQUESTS,
    "rows of one request: the items of all its arrays together",
    50_000,
    "Decoding a row takes up to 1 µs, so that a request is decoded within 50 ms. APIs with a lower limit are listed below.",
    "the connection is closed, and the reason is logged",
)
ROWS_PER_PRODUCE_MAX: Final = _limit(
    REQUESTS,
    "rows of one Produce",
    20_000,
    "Each partition is an append; producers send to at most as many partitions as they have batches that are full.",
    "the connection is closed, and the reason is logged",
)
ROWS_PER_WRITE_MAX: Final = _limit(
    REQUESTS,
    "rows of one Fetch, OffsetCommit, TxnOffsetCommit, OffsetDelete, AddPartitionsToTxn, WriteTxnMarkers, LeaveGroup,"
    " DeleteTopics, CreatePartitions, UpdateFeatures or AlterReplicaLogDirs",
    25_000,
    "They are done in one go, not in slices: some microseconds for each row.",
    "the connection is closed, and the reason is logged",
)
ROWS_PER_REASSIGNMENT_MAX: Final = _limit(
    REQUESTS,
    "rows of one AlterPartitionReassignments",
    100_000,
    "Each replica of each partition is a row: this is room for 25,000 partitions of three replicas.",
    "the connection is closed, and the reason is logged",
)
ROWS_WITH_UNKNOWN_TAGS_MAX: Final = _limit(
    REQUESTS,
    "rows and tagged fields of a request that has tagged fields which this broker does not know",
    5_000,
    "Such a request takes another decoder, which needs about 10 µs a row.",
    "the connection is closed, and the reason is logged",
)

ANSWER_BYTES_MAX: Final = _limit(
    REQUESTS,
    "bytes of one answer that describes or lists something",
    100_000_000,
    "librdkafka refuses more by default (receive.message.max.bytes), and the answer is in memory until it is sent.",
    "the connection is closed, and the reason is logged",
)

# --- records and batches ----------------------------------------------------------------------------------------

RELATIVE_OFFSET_MAX: Final = _limit(
    RECORDS,
    "offsets in one segment",
    2**31 - 1,
    "A segment's records are addressed by a 31-bit offset relative to its base (B4).",
    "nothing: the segment is rolled",
)
PRODUCER_BATCHES_REMEMBERED: Final = _limit(
    RECORDS,
    "batches of one producer and partition whose sequence numbers are remembered",
    5,
    "Kafka's window for idempotence (R14); clients have at most five requests in flight.",
    "OUT_OF_ORDER_SEQUENCE_NUMBER or DUPLICATE_SEQUENCE_NUMBER, as in Kafka",
)
DECOMPRESSED_BYTES_MAX: Final = _limit(
    RECORDS,
    "bytes that a compressed batch is unpacked to",
    256 * 1024 * 1024,
    "A few kilobytes can claim gigabytes.",
    "INVALID_RECORD",
)
RECORDS_LOOKED_AT_MAX: Final = _limit(
    RECORDS,
    "records in a batch that is decoded",
    1_000_000,
    "Records of seven bytes each compress to nothing.",
    "INVALID_RECORD",
)

# --- names and strings ------------------------------------------------------------------------------------------

TOPIC_NAME_LENGTH_MAX: Final = _limit(
    NAMES,
    "characters of a topic's name",
    249,
    "Kafka's own limit: the name and the partition's number are a directory's name.",
    "INVALID_TOPIC_EXCEPTION",
)

# --- groups and transactions ------------------------------------------------------------------------------------

PRODUCER_ID_BLOCK: Final = 1000

# --- topics and partitions --------------------------------------------------------------------------------------

PARTITIONS_PER_REQUEST_MAX: Final = _limit(
    TOPICS,
    "partitions that one CreateTopics or CreatePartitions may add",
    10_000,
    "Each is a record of the metadata log and a directory; Kafka has the same limit for one CreateTopics.",
    "INVALID_PARTITIONS, or POLICY_VIOLATION for several topics together",
)

PARTITIONS_PER_TOPIC_MAX: Final = _limit(
    TOPICS,
    "partitions of one topic",
    100_000,
    "A partition's directory is the topic's name, '-' and the number: with 249 characters and 5 digits that is 255, the most"
    " that file systems allow. A topic that has more already keeps them.",
    "INVALID_PARTITIONS",
)
REPLICAS_PER_BROKER_MAX: Final = _limit(
    TOPICS,
    "replicas per broker (of the brokers that are registered, on average; with a manual assignment on each)",
    200_000,
    "Each takes some 3 KB of memory and a directory with files.",
    "POLICY_VIOLATION",
)
TOPICS_MAX: Final = _limit(
    TOPICS,
    "topics of a cluster",
    50_000,
    "Every change of the metadata copies the tables of topics: some milliseconds with so many.",
    "POLICY_VIOLATION",
)
CONFIGURED_RESOURCES_MAX: Final = _limit(
    TOPICS,
    "topics, brokers and groups that have settings of their own",
    100_000,
    "Groups need not exist to have settings, and each change of the metadata copies the table.",
    "POLICY_VIOLATION",
)
FILE_NAME_BYTES_MAX: Final = 255
AUTO_CREATED_PER_REQUEST_MAX: Final = _limit(
    TOPICS,
    "topics that one Metadata request creates (auto.create.topics.enable)",
    500,
    "Deciding about a topic takes some 30 µs, and the request must hold up nobody.",
    "LEADER_NOT_AVAILABLE for the others: clients ask again, and the next ones are created",
)

# --- connections ------------------------------------------------------------------------------------------------

REQUESTS_WAITING_PER_CONNECTION_MAX: Final = _limit(
    CONNECTIONS,
    "requests of one connection that wait for their answer",
    256,
    "Each holds memory until it is answered.",
    "nothing: the broker stops reading from this connection until half of them are answered",
)
