"""Every fixed limit of the broker, in one table.

A limit comes from the protocol, from a file format, or from what one client may cost others. Settings can
only be stricter. Code uses the constants. `LIMITS` has the same values with a description, a reason and the
effect on a client. `config/limits_page.py` renders `docs/limits.md` from it, with the settings that are
limits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

REQUESTS: Final = "Requests and responses"
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
    #: The limited quantity, as a noun.
    what: str
    value: int
    #: Why the limit exists, and why it has this value.
    reason: str
    #: What a client above the limit gets.
    outcome: str


LIMITS: Final[list[Limit]] = []


def _limit(section: str, what: str, value: int, reason: str, outcome: str) -> int:
    LIMITS.append(Limit(section, what, value, reason, outcome))
    return value


OFFSET_MAX: Final = 2**63 - 1

# --- requests and responses ---------------------------------------------------------------------------------------

COMMIT_WAIT_MS: Final = _limit(
    REQUESTS,
    "milliseconds that a metadata change waits for its commit, if the request has no timeout",
    25_000,
    "The cluster store can be unavailable for long. Clients wait 30 s for a response by default.",
    "REQUEST_TIMED_OUT, or NOT_CONTROLLER if nothing was proposed",
)
CONFIG_VALUE_BYTES_MAX: Final = _limit(
    REQUESTS,
    "bytes of the value of a setting that is not a list",
    32_767,
    "DescribeConfigs before version 4 returns it as a string with a 16-bit length.",
    "INVALID_CONFIG",
)
CONFIG_LIST_BYTES_MAX: Final = _limit(
    REQUESTS,
    "bytes of the value of a setting that is a list",
    262_144,
    "Enough for the throttled replicas of 10,000 partitions. It must fit into one append of the metadata "
    "log.",
    "INVALID_CONFIG",
)
ROWS_PER_REQUEST_MAX: Final = _limit(
    REQUESTS,
    "rows of one request: the items of all its arrays together",
    50_000,
    "A row takes up to 1 µs to decode, so a request is decoded within 50 ms. APIs with another limit follow.",
    "the connection is closed, and the reason is logged",
)
ROWS_PER_PRODUCE_MAX: Final = _limit(
    REQUESTS,
    "rows of one Produce request",
    20_000,
    "Each partition is one append. Producers send only partitions with a batch that is ready.",
    "the connection is closed, and the reason is logged",
)
ROWS_PER_WRITE_MAX: Final = _limit(
    REQUESTS,
    "rows of one Fetch, OffsetCommit, TxnOffsetCommit, OffsetDelete, AddPartitionsToTxn, WriteTxnMarkers, LeaveGroup,"
    " DeleteTopics, CreatePartitions or AlterReplicaLogDirs",
    25_000,
    "Most run in one turn of the event loop: a few microseconds per row.",
    "the connection is closed, and the reason is logged",
)
FEATURES_PER_UPDATE_MAX: Final = _limit(
    REQUESTS,
    "features in one UpdateFeatures request",
    5_000,
    "Kafka has seven features.",
    "the connection is closed, and the reason is logged",
)
ROWS_PER_REASSIGNMENT_MAX: Final = _limit(
    REQUESTS,
    "rows of one AlterPartitionReassignments request",
    100_000,
    "Each replica of each partition is a row: enough for 25,000 partitions with three replicas.",
    "the connection is closed, and the reason is logged",
)
FETCH_PARTITIONS_MAX: Final = _limit(
    REQUESTS,
    "partitions in consumers' fetch sessions and delayed fetches, on one broker",
    500_000,
    "Each takes about 400 bytes of memory. A connection with 16 waiting requests cannot delay further "
    "fetches of more than 100 partitions.",
    "a fetch of more than 10 partitions gets no session and is answered at once",
)
ROWS_WITH_UNKNOWN_TAGS_MAX: Final = _limit(
    REQUESTS,
    "rows and tagged fields of a request with unknown tagged fields",
    5_000,
    "Such a request needs the tolerant decoder, which takes about 10 µs per row.",
    "the connection is closed, and the reason is logged",
)

ANSWER_BYTES_MAX: Final = _limit(
    REQUESTS,
    "bytes of one response of a Describe or List API",
    100_000_000,
    "librdkafka refuses more by default (receive.message.max.bytes). The response is in memory until it is "
    "sent.",
    "the connection is closed, and the reason is logged",
)

# --- records and batches ----------------------------------------------------------------------------------------

RELATIVE_OFFSET_MAX: Final = _limit(
    RECORDS,
    "offsets in one segment",
    2**31 - 1,
    "Indexes store offsets relative to the base offset of the segment, in 31 bits (B4).",
    "nothing: the segment rolls",
)
PRODUCER_BATCHES_REMEMBERED: Final = _limit(
    RECORDS,
    "batches per producer and partition whose sequence numbers are remembered",
    5,
    "Kafka's window for idempotence (R14). Clients have at most five requests in flight.",
    "OUT_OF_ORDER_SEQUENCE_NUMBER or DUPLICATE_SEQUENCE_NUMBER, as in Kafka",
)
DECOMPRESSED_BYTES_MAX: Final = _limit(
    RECORDS,
    "bytes of a batch after decompression",
    100 * 1024 * 1024,
    "A few kilobytes can expand to gigabytes. The limit is the default maximum size of a request.",
    "CORRUPT_MESSAGE",
)
RECORDS_LOOKED_AT_MAX: Final = _limit(
    RECORDS,
    "records in one batch",
    1_000_000,
    "Records of seven bytes compress to almost nothing. Most batches have a lower limit: their size times "
    "the codec's best ratio, divided by seven.",
    "INVALID_RECORD",
)
HEADERS_LOOKED_AT_MAX: Final = _limit(
    RECORDS,
    "headers of one record in a topic that is compacted or has a compression.type of its own",
    10_000,
    "Such a record is decoded in one step, and a header can have two bytes.",
    "CORRUPT_MESSAGE",
)
RECORD_ERRORS_MAX: Final = _limit(
    RECORDS,
    "rejected records that a Produce response lists for one batch",
    100,
    "Each has its own message, and a batch can have a million records.",
    "nothing: the whole batch is rejected, and its message has the number of rejected records",
)
RECORD_ERRORS_PER_ANSWER_MAX: Final = _limit(
    RECORDS,
    "rejected records that one Produce response lists for all batches",
    10_000,
    "A request can have many batches. A response should not be larger than its request.",
    "nothing: further batches are rejected without a list of records",
)
PRODUCE_QUEUE_BYTES_MAX: Final = _limit(
    RECORDS,
    "bytes of Produce requests that wait while a batch is decoded or recompressed",
    64 * 1024 * 1024,
    "Their records are copied. Later requests for the same partition wait too, and requests with many rows.",
    "NOT_ENOUGH_REPLICAS: the client retries",
)

# --- names and strings ------------------------------------------------------------------------------------------

ERROR_MESSAGE_LENGTH_MAX: Final = _limit(
    NAMES,
    "characters of an error message",
    1000,
    "A message quotes the client's input. Older versions of responses have strings of at most 32,767 bytes.",
    "the message is truncated",
)
TOPIC_NAME_LENGTH_MAX: Final = _limit(
    NAMES,
    "characters of a topic name",
    249,
    "Kafka's limit: topic name and partition number form the name of a directory.",
    "INVALID_TOPIC_EXCEPTION",
)

STRING_BYTES_MAX: Final = _limit(
    NAMES,
    "bytes of a stored string: the value of a setting, the metadata of a committed offset",
    2**15 - 1,
    "Older protocol versions have strings with a 16-bit length and could not return a longer one.",
    "INVALID_CONFIG, OFFSET_METADATA_TOO_LARGE",
)
NAME_LENGTH_MAX: Final = _limit(
    NAMES,
    "characters of a group id or a transactional id",
    STRING_BYTES_MAX // 4,
    "As UTF-8 it has at most 32,767 bytes, whatever the characters. So it fits into every version and every "
    "record.",
    "INVALID_GROUP_ID, or INVALID_REQUEST for a transactional id",
)
MEMBER_STRING_BYTES_MAX: Final = _limit(
    NAMES,
    "bytes of a group.instance.id, protocol type, protocol name or rack of a group member",
    1024,
    "The record of the group has each of them once per member. Older response versions have 16-bit lengths.",
    "INVALID_REQUEST",
)
MEMBER_PROTOCOLS_MAX: Final = _limit(
    GROUPS,
    "protocols of one group member in JoinGroup",
    100,
    "All of them are in memory. Clients send one to five.",
    "INVALID_REQUEST",
)
MEMBER_ID_BYTES_MAX: Final = _limit(
    NAMES,
    "bytes of a member id that a client chooses",
    2048,
    "The keys of three records contain it. Member ids from the broker have at most 1,061 bytes.",
    "INVALID_REQUEST",
)
CLIENT_ID_BYTES_MAX: Final = _limit(
    NAMES,
    "bytes of a client.id that are stored with a group member",
    1024,
    "DescribeGroups returns it. A client.id with invalid UTF-8 triples its size when it is decoded.",
    "nothing: the string is truncated",
)

# --- groups and transactions ------------------------------------------------------------------------------------

PRODUCER_ID_BLOCK: Final = 1000

HANGING_CHECKS_MAX: Final = _limit(
    GROUPS,
    "WriteTxnMarkers requests of clients that are checked at the same time",
    8,
    "For each of them the broker asks every coordinator whether the transaction hangs.",
    "COORDINATOR_NOT_AVAILABLE",
)
COORDINATOR_RECORD_BYTES: Final = _limit(
    GROUPS,
    "bytes of a coordinator record that are allowed whatever max.message.bytes its topic has",
    128 * 1024,
    "A record of one offset, of an empty group or of a new transactional id can always be written.",
    "nothing: larger records are limited by max.message.bytes",
)
GROUPS_MAX: Final = _limit(
    GROUPS,
    "groups on one broker",
    250_000,
    "A group takes 1 to 2 KB of memory, and ListGroups returns all groups.",
    "GROUP_MAX_SIZE_REACHED for a join, INVALID_COMMIT_OFFSET_SIZE for a commit; existing groups are not "
    "affected",
)
MEMBERS_MAX: Final = _limit(
    GROUPS,
    "members of all groups on one broker, including those with a member id that have not joined yet "
    "(KIP-394)",
    500_000,
    "A member takes 2 KB of memory and a timer.",
    "GROUP_MAX_SIZE_REACHED: consumers treat it as fatal; after a retriable error they would retry without "
    "end",
)
GROUP_MEMBERS_MAX: Final = _limit(
    GROUPS,
    "members of one group, including those with a member id that have not joined yet (KIP-394)",
    20_000,
    "A rebalance visits all members in one turn of the event loop. group.max.size and "
    "group.consumer.max.size can be lower.",
    "GROUP_MAX_SIZE_REACHED",
)
GROUP_BYTES_MAX: Final = _limit(
    GROUPS,
    "bytes that the members of one group sent: ids and the metadata of all protocols",
    16 * 1024 * 1024,
    "The JoinGroup response of the leader has the metadata of all members. The metadata of one protocol "
    "must also fit into max.message.bytes of __consumer_offsets.",
    "GROUP_MAX_SIZE_REACHED for the member that exceeds it",
)
GROUP_TOPICS_MAX: Final = _limit(
    GROUPS,
    "topic names in the subscriptions of one classic group that the broker reads",
    100_000,
    "A subscription of 1 MB can have 350,000 topics, and the broker reads it after each rebalance.",
    "nothing: the group is treated as subscribed to every topic. A member with more names cannot join a "
    "KIP-848 group (INCONSISTENT_GROUP_PROTOCOL)",
)
GROUP_STATE_BYTES_MAX: Final = _limit(
    GROUPS,
    "bytes of group state on one broker: ids, metadata, assignments, offset metadata",
    512 * 1024 * 1024,
    "All of it is in memory.",
    "GROUP_MAX_SIZE_REACHED for a join, INVALID_COMMIT_OFFSET_SIZE for a commit",
)
OFFSETS_MAX: Final = _limit(
    GROUPS,
    "committed offsets on one broker",
    5_000_000,
    "A committed offset takes 400 bytes of memory.",
    "INVALID_COMMIT_OFFSET_SIZE for a commit of new partitions",
)
TRANSACTIONAL_IDS_MAX: Final = _limit(
    GROUPS,
    "transactional ids on one broker",
    250_000,
    "A transactional id takes 1 KB of memory until it expires (transactional.id.expiration.ms, 7 days).",
    "POLICY_VIOLATION for a new id: producers treat it as fatal",
)
TRANSACTION_PARTITIONS_MAX: Final = _limit(
    GROUPS,
    "partitions of one transaction",
    10_000,
    "Each state change of a transaction writes the whole list.",
    "POLICY_VIOLATION; the transaction can be aborted",
)
TRANSACTION_STATE_BYTES_MAX: Final = _limit(
    GROUPS,
    "bytes of transactional ids and of the partitions of open transactions, on one broker",
    256 * 1024 * 1024,
    "All of it is in memory.",
    "POLICY_VIOLATION",
)
PARTITION_PRODUCERS_MAX: Final = _limit(
    GROUPS,
    "producers whose sequence numbers one partition remembers",
    20_000,
    "A client can invent producer ids. Each takes 400 bytes until it expires (producer.id.expiration.ms, 1 "
    "day).",
    "nothing: the oldest producers with a single batch are forgotten first, never one with an open "
    "transaction",
)
BROKER_PRODUCERS_MAX: Final = _limit(
    GROUPS,
    "producers whose sequence numbers all partitions of one broker remember together",
    2_500_000,
    "They would take 1 GB of memory. The broker counts them every ten seconds.",
    "nothing: the partitions with the most producers forget some, as above",
)

# --- topics and partitions --------------------------------------------------------------------------------------

PARTITIONS_PER_REQUEST_MAX: Final = _limit(
    TOPICS,
    "partitions that one CreateTopics or CreatePartitions request adds",
    10_000,
    "Each is a record of the metadata log and a directory. Kafka has the same limit for CreateTopics.",
    "INVALID_PARTITIONS, or POLICY_VIOLATION for several topics together",
)

PARTITIONS_PER_TOPIC_MAX: Final = _limit(
    TOPICS,
    "partitions of one topic",
    100_000,
    "The directory name of a partition has at most 249 characters, '-' and 5 digits: 255, the limit of file "
    "systems. Existing topics with more partitions keep them.",
    "INVALID_PARTITIONS",
)
REPLICAS_PER_BROKER_MAX: Final = _limit(
    TOPICS,
    "replicas per broker: the average over registered brokers, or each broker of a manual assignment",
    200_000,
    "Each takes about 3 KB of memory and a directory with files.",
    "POLICY_VIOLATION",
)
TOPICS_MAX: Final = _limit(
    TOPICS,
    "topics of a cluster",
    50_000,
    "Every metadata change copies the tables of topics, which takes some milliseconds at this number.",
    "POLICY_VIOLATION",
)
CONFIGURED_RESOURCES_MAX: Final = _limit(
    TOPICS,
    "topics, brokers and groups with their own settings",
    100_000,
    "A group can have settings before it exists, and every metadata change copies the table.",
    "POLICY_VIOLATION",
)
FILE_NAME_BYTES_MAX: Final = 255
AUTO_CREATED_PER_REQUEST_MAX: Final = _limit(
    TOPICS,
    "topics that one Metadata request creates (auto.create.topics.enable)",
    500,
    "Each topic takes about 30 µs, and the request must not delay others.",
    "LEADER_NOT_AVAILABLE for the rest: clients retry, and the next topics are created",
)

# --- connections ------------------------------------------------------------------------------------------------

BROKER_CONNECTIONS_RESERVED: Final = _limit(
    CONNECTIONS,
    "connections that are reserved for other brokers of the cluster",
    256,
    "Too many clients must not disconnect a broker from its followers. At most an eighth of "
    "`max.connections`.",
    "connections of clients are closed; brokers use the reserve",
)
ADDRESSES_REMEMBERED_MAX: Final = _limit(
    CONNECTIONS,
    "IP addresses whose connection rate is remembered",
    10_000,
    "There is one rate per IPv4 address or IPv6 /64 network.",
    "nothing: the least recently seen addresses are forgotten",
)
AUTHENTICATION_FAILURES_PER_SECOND: Final = _limit(
    CONNECTIONS,
    "failed authentications of one IP address per second",
    5,
    "It slows down attempts to guess a secret.",
    "new connections of this address are not read for up to 10 s, then closed",
)
REQUEST_BYTES_PER_SECOND_MIN: Final = _limit(
    CONNECTIONS,
    "bytes per second at which an incomplete request must arrive",
    32 * 1024,
    "An incomplete request holds memory. The limit is half of a 512 kbit/s line, measured over "
    "`socket.request.timeout.ms`.",
    "the connection is closed",
)
QUEUED_ANSWER_BYTES_PER_CONNECTION: Final = _limit(
    CONNECTIONS,
    "bytes of responses that wait behind an unanswered request of the same connection",
    4 * 1024 * 1024,
    "Responses are sent in the order of the requests, and are in memory until then.",
    "nothing: the broker stops reading from this connection until the first request is answered",
)

REQUESTS_WAITING_PER_CONNECTION_MAX: Final = _limit(
    CONNECTIONS,
    "unanswered requests of one connection",
    256,
    "Each takes memory until it is answered.",
    "nothing: the broker stops reading from this connection until half of them are answered",
)
SASL_MESSAGE_BYTES_MAX: Final = _limit(
    CONNECTIONS,
    "bytes of a SaslAuthenticate request",
    512 * 1024,
    "The sender is not authenticated yet. Kafka has the same limit (sasl.server.max.receive.size).",
    "the connection is closed",
)
FAILED_AUTHENTICATION_DELAY_MS: Final = _limit(
    CONNECTIONS,
    "milliseconds until a failed authentication is answered",
    100,
    "It slows down guesses. Kafka's default (connection.failed.authentication.delay.ms).",
    "SASL_AUTHENTICATION_FAILED after that time, then the connection is closed",
)
