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
    " DeleteTopics, CreatePartitions or AlterReplicaLogDirs",
    25_000,
    "Most are done in one go, not in slices: some microseconds for each row.",
    "the connection is closed, and the reason is logged",
)
FEATURES_PER_UPDATE_MAX: Final = _limit(
    REQUESTS,
    "features in one UpdateFeatures",
    5_000,
    "Kafka has seven features.",
    "the connection is closed, and the reason is logged",
)
ROWS_PER_REASSIGNMENT_MAX: Final = _limit(
    REQUESTS,
    "rows of one AlterPartitionReassignments",
    100_000,
    "Each replica of each partition is a row: this is room for 25,000 partitions of three replicas.",
    "the connection is closed, and the reason is logged",
)
FETCH_PARTITIONS_MAX: Final = _limit(
    REQUESTS,
    "partitions in the fetch sessions of consumers and in their fetches that wait for data, on one broker",
    500_000,
    "Each takes some 400 bytes of memory. A connection with 16 requests that wait cannot have more fetches of over 100 partitions wait.",
    "a fetch of more than 10 partitions gets no session, and is answered at once with the data that is there",
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

ERROR_MESSAGE_LENGTH_MAX: Final = _limit(
    NAMES,
    "characters of an error message",
    1000,
    "A message quotes what the client sent. A string of 32,767 bytes and a sentence around it do not fit into the older versions "
    "of an answer.",
    "the message is cut",
)
TOPIC_NAME_LENGTH_MAX: Final = _limit(
    NAMES,
    "characters of a topic's name",
    249,
    "Kafka's own limit: the name and the partition's number are a directory's name.",
    "INVALID_TOPIC_EXCEPTION",
)

STRING_BYTES_MAX: Final = _limit(
    NAMES,
    "bytes of a stored string: a setting's value, the text of a committed offset",
    2**15 - 1,
    "Older versions of the protocol give strings a 16-bit length: a longer one could not be returned in them.",
    "INVALID_CONFIG, OFFSET_METADATA_TOO_LARGE",
)
NAME_LENGTH_MAX: Final = _limit(
    NAMES,
    "characters of a group id or a transactional id",
    STRING_BYTES_MAX // 4,
    "The largest number that has at most 32,767 bytes in UTF-8, whatever the characters: it fits every version and every record.",
    "INVALID_GROUP_ID, or INVALID_REQUEST for a transactional id",
)
MEMBER_STRING_BYTES_MAX: Final = _limit(
    NAMES,
    "bytes of a group.instance.id, protocol type, protocol name or rack of a group member",
    1024,
    "Each is in the group's record once per member, and in answers of versions with 16-bit lengths.",
    "INVALID_REQUEST",
)
MEMBER_PROTOCOLS_MAX: Final = _limit(
    GROUPS,
    "protocols that one group member may name in JoinGroup",
    100,
    "Each is held in memory; clients name one to five.",
    "INVALID_REQUEST",
)
MEMBER_ID_BYTES_MAX: Final = _limit(
    NAMES,
    "bytes of a member id that a client chooses",
    2048,
    "It is in the keys of three records. The broker's own member ids have at most 1,061 bytes.",
    "INVALID_REQUEST",
)
CLIENT_ID_BYTES_MAX: Final = _limit(
    NAMES,
    "bytes of a client.id that are stored with a group member",
    1024,
    "DescribeGroups returns it. A client.id with invalid UTF-8 becomes three times as long when it is decoded.",
    "nothing: the rest is cut off",
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
COORDINATOR_RECORD_BYTES: Final = _limit(
    GROUPS,
    "bytes that a coordinator's record may have whatever max.message.bytes of its topic says",
    128 * 1024,
    "The record of one offset, of a group without members or of a new transactional id can always be written.",
    "nothing: larger records must fit max.message.bytes",
)
GROUPS_MAX: Final = _limit(
    GROUPS,
    "groups on one broker",
    250_000,
    "A group costs 1 to 2 KB of memory, and ListGroups returns all of them.",
    "GROUP_MAX_SIZE_REACHED for a join, INVALID_COMMIT_OFFSET_SIZE for a commit; groups that exist go on",
)
MEMBERS_MAX: Final = _limit(
    GROUPS,
    "members of all groups on one broker, with those that have a member id and have not joined yet (KIP-394)",
    500_000,
    "A member costs 2 KB of memory and a timer.",
    "GROUP_MAX_SIZE_REACHED: consumers treat it as fatal, where a retriable error would bring them back for ever",
)
GROUP_MEMBERS_MAX: Final = _limit(
    GROUPS,
    "members of one group, with those that have a member id and have not joined yet (KIP-394)",
    20_000,
    "A rebalance looks at all members in one turn of the event loop. group.max.size and group.consumer.max.size may be lower.",
    "GROUP_MAX_SIZE_REACHED",
)
GROUP_BYTES_MAX: Final = _limit(
    GROUPS,
    "bytes that the members of one group have sent: ids, and the metadata of all protocols",
    16 * 1024 * 1024,
    "The leader's JoinGroup answer has the metadata of all members. The metadata of one protocol must also fit max.message.bytes "
    "of __consumer_offsets, or the group could not be stored.",
    "GROUP_MAX_SIZE_REACHED for the member that is too much",
)
GROUP_TOPICS_MAX: Final = _limit(
    GROUPS,
    "topic names in the subscriptions of one classic group that the broker looks at",
    100_000,
    "A subscription of 1 MB can name 350,000 topics, and is read after each rebalance.",
    "nothing: the group counts as one that may read any topic. A member that names more cannot join a KIP-848 group "
    "(INCONSISTENT_GROUP_PROTOCOL)",
)
GROUP_STATE_BYTES_MAX: Final = _limit(
    GROUPS,
    "bytes that group members and commits have sent and one broker holds: ids, metadata, assignments, texts of offsets",
    512 * 1024 * 1024,
    "All of it is in memory.",
    "GROUP_MAX_SIZE_REACHED for a join, INVALID_COMMIT_OFFSET_SIZE for a commit",
)
OFFSETS_MAX: Final = _limit(
    GROUPS,
    "committed offsets on one broker",
    5_000_000,
    "A committed offset costs 400 bytes of memory.",
    "INVALID_COMMIT_OFFSET_SIZE for a commit of partitions that the group has not committed before",
)
TRANSACTIONAL_IDS_MAX: Final = _limit(
    GROUPS,
    "transactional ids on one broker",
    250_000,
    "A transactional id costs 1 KB of memory until transactional.id.expiration.ms have passed (7 days).",
    "POLICY_VIOLATION for a new one: producers treat it as fatal",
)
TRANSACTION_PARTITIONS_MAX: Final = _limit(
    GROUPS,
    "partitions of one transaction",
    10_000,
    "Each change of a transaction writes the whole list.",
    "POLICY_VIOLATION; the transaction can be aborted",
)
TRANSACTION_STATE_BYTES_MAX: Final = _limit(
    GROUPS,
    "bytes of the transactional ids, and of the partitions of open transactions, on one broker",
    256 * 1024 * 1024,
    "All of it is in memory.",
    "POLICY_VIOLATION",
)
PARTITION_PRODUCERS_MAX: Final = _limit(
    GROUPS,
    "producers whose sequence numbers one partition remembers",
    20_000,
    "A client can make up producer ids; each costs 400 bytes until producer.id.expiration.ms have passed (1 day).",
    "nothing: the oldest producers that sent only one batch are forgotten first, never one with an open transaction",
)
BROKER_PRODUCERS_MAX: Final = _limit(
    GROUPS,
    "producers whose sequence numbers all partitions of one broker remember together",
    2_500_000,
    "They would take 1 GB of memory. Counted every ten seconds.",
    "nothing: partitions with the most producers forget some, as above",
)

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
