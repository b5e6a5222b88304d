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
    100 * 1024 * 1024,
    "A few kilobytes can claim gigabytes. As much as an uncompressed request may have by default.",
    "CORRUPT_MESSAGE",
)
RECORDS_LOOKED_AT_MAX: Final = _limit(
    RECORDS,
    "records in one batch, decoded or not",
    1_000_000,
    "Records of seven bytes each compress to nothing. A smaller number holds for most batches: no more records than their bytes "
    "can hold, at seven bytes a record and the best ratio that the codec can reach.",
    "INVALID_RECORD",
)
HEADERS_LOOKED_AT_MAX: Final = _limit(
    RECORDS,
    "headers of one record in a compacted topic, or in one whose compression.type is not the producer's",
    10_000,
    "Such a record is decoded in one go, and headers take two bytes each.",
    "CORRUPT_MESSAGE",
)
RECORD_ERRORS_MAX: Final = _limit(
    RECORDS,
    "rejected records that a Produce answer names for one batch",
    100,
    "Each has a message of its own; a batch can hold a million.",
    "nothing: the batch is rejected as a whole, and its message tells how many records there are",
)
RECORD_ERRORS_PER_ANSWER_MAX: Final = _limit(
    RECORDS,
    "rejected records that one Produce answer names for all its batches",
    10_000,
    "A request has many batches, and an answer should not be larger than its request.",
    "nothing: further batches are rejected without the names of their records",
)
PRODUCE_QUEUE_BYTES_MAX: Final = _limit(
    RECORDS,
    "bytes of Produce requests that wait until a batch is decoded or recompressed",
    64 * 1024 * 1024,
    "Their records are copied. Only such batches wait, what comes behind them for the same partition, and requests with many rows.",
    "NOT_ENOUGH_REPLICAS: the client sends it again",
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

# --- connections ------------------------------------------------------------------------------------------------

REQUESTS_WAITING_PER_CONNECTION_MAX: Final = _limit(
    CONNECTIONS,
    "requests of one connection that wait for their answer",
    256,
    "Each holds memory until it is answered.",
    "nothing: the broker stops reading from this connection until half of them are answered",
)
