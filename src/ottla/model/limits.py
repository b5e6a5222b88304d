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

# --- requests and answers ---------------------------------------------------------------------------------------

COMMIT_WAIT_MS: Final = _limit(
    REQUESTS,
    "milliseconds that a change of metadata waits to be committed, if its request has no time-out of its own",
    25_000,
    "The cluster store may be away for long; clients wait 30 s for an answer by default, and should get one.",
    "REQUEST_TIMED_OUT, or NOT_CONTROLLER if nothing was proposed",
)
CONFIG_VALUE_BYTES_MAX: Final = _limit(
    REQUESTS,
    "bytes of one setting's value, unless it is a list",
    32_767,
    "A string in the answers of DescribeConfigs before version 4, which must be able to carry it.",
    "INVALID_CONFIG",
)
CONFIG_LIST_BYTES_MAX: Final = _limit(
    REQUESTS,
    "bytes of one setting's value that is a list",
    262_144,
    "The throttled replicas of a topic with 10,000 partitions; it must fit into one append of the metadata log.",
    "INVALID_CONFIG",
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

HANGING_CHECKS_MAX: Final = _limit(
    GROUPS,
    "WriteTxnMarkers requests of clients that are checked at the same time",
    8,
    "Each asks every coordinator whether the transaction hangs.",
    "COORDINATOR_NOT_AVAILABLE",
)

# --- topics and partitions --------------------------------------------------------------------------------------

PARTITIONS_PER_REQUEST_MAX: Final = _limit(
    TOPICS,
    "partitions that one CreateTopics or CreatePartitions may add",
    10_000,
    "Each is a record of the metadata log and a directory; Kafka has the same limit for one CreateTopics.",
    "INVALID_PARTITIONS, or POLICY_VIOLATION for several topics together",
)

# --- connections ------------------------------------------------------------------------------------------------

BROKER_CONNECTIONS_RESERVED: Final = _limit(
    CONNECTIONS,
    "connections that are kept for other brokers of the cluster",
    256,
    "A flood of clients must not cut a broker off from its followers. At most an eighth of `max.connections`.",
    "clients: the connection is closed; brokers use the reserve",
)
ADDRESSES_REMEMBERED_MAX: Final = _limit(
    CONNECTIONS,
    "addresses whose rate of new connections is remembered",
    10_000,
    "A rate is remembered for each IPv4 address or IPv6 /64 network, and there are many.",
    "nothing: addresses not seen for longest are forgotten",
)
AUTHENTICATION_FAILURES_PER_SECOND: Final = _limit(
    CONNECTIONS,
    "failed authentications of one address in a second",
    5,
    "Guessing a secret must be slow.",
    "new connections of this address are not read for up to 10 s, then closed",
)
REQUEST_BYTES_PER_SECOND_MIN: Final = _limit(
    CONNECTIONS,
    "bytes a second at which an unfinished request must arrive",
    32 * 1024,
    "Its memory is held meanwhile. Half of what a 512 kbit/s line carries; measured over `socket.request.timeout.ms`.",
    "the connection is closed",
)
QUEUED_ANSWER_BYTES_PER_CONNECTION: Final = _limit(
    CONNECTIONS,
    "bytes of answers that wait behind an unanswered request of the same connection",
    4 * 1024 * 1024,
    "Answers leave in the order of the requests, and are held until then.",
    "nothing: the broker stops reading from this connection until the first request is answered",
)

REQUESTS_WAITING_PER_CONNECTION_MAX: Final = _limit(
    CONNECTIONS,
    "requests of one connection that wait for their answer",
    256,
    "Each holds memory until it is answered.",
    "nothing: the broker stops reading from this connection until half of them are answered",
)
SASL_MESSAGE_BYTES_MAX: Final = _limit(
    CONNECTIONS,
    "bytes of a SaslAuthenticate request",
    512 * 1024,
    "It comes before the sender has proven anything; Kafka has the same limit (sasl.server.max.receive.size).",
    "the connection is closed",
)
FAILED_AUTHENTICATION_DELAY_MS: Final = _limit(
    CONNECTIONS,
    "milliseconds until a failed authentication is answered",
    100,
    "Guesses cost time; Kafka's default (connection.failed.authentication.delay.ms).",
    "SASL_AUTHENTICATION_FAILED after that time, then the connection is closed",
)
