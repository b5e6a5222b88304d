"""The errors of the SDK: every error names what failed, where it failed, and what to do next.

`refused` turns the error code of a response into an exception of the right class (`CLASSES`), with advice
(`ADVICE`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.model.errors import ErrorCode

#: How many errors the text of a `SeveralFailed` lists. All of them are in `errors`.
LISTED_MAX = 10


class KafkaError(Exception):
    """A request or a record failed.

    Args:
        message: What failed.
        code: The error code of the protocol. Default: None, the error is the client's own.
        broker: `host:port` of the broker. Default: None.
        topic: Name of the topic. Default: None.
        partition: Number of the partition. Default: None.
        advice: What to do next. Default: None.

    All arguments are attributes. `retriable` is True if the same call may succeed later.

    Example:
        >>> try:
        ...     admin.describe_topics(["ordres"])
        ... except ottla.KafkaError as error:
        ...     print(error.topic, error.code.name, error.retriable)
        ordres UNKNOWN_TOPIC_OR_PARTITION True
    """

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        broker: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.broker = broker
        self.topic = topic
        self.partition = partition
        self.advice = advice

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.code is not None and self.code.retriable

    def __str__(self) -> str:
        where = [
            f"{name} {value}"
            for name, value in (("topic", self.topic), ("partition", self.partition), ("broker", self.broker))
            if value is not None and str(value) not in self.message
        ]
        if self.code is not None:
            where.append(f"{self.code.name} ({int(self.code)})")
        text = self.message + (f" [{', '.join(where)}]" if where else "")
        return f"{text}. {self.advice}" if self.advice else text


class BrokerUnreachable(KafkaError):
    """No broker could be reached. Retriable."""

    @property
    def retriable(self) -> bool:
        return True


class ConnectionLost(KafkaError):
    """The connection broke while requests were in flight. The broker may have executed them. Retriable."""

    @property
    def retriable(self) -> bool:
        return True


class RequestTimedOut(KafkaError):
    """A broker did not answer in time. The broker may have executed the request. Retriable."""

    @property
    def retriable(self) -> bool:
        return True


class NotKafka(KafkaError):
    """The peer does not speak the Kafka protocol."""


class UnsupportedVersion(KafkaError):
    """The broker and this client have no common version of an API."""


class TopicNotFound(KafkaError):
    """The topic or the partition does not exist."""


class BrokerNotFound(KafkaError):
    """The cluster has no broker of that id."""


class TransactionalIdNotFound(KafkaError):
    """The transactional id does not exist, or has expired."""


class TopicExists(KafkaError):
    """A topic of that name exists."""


class InvalidRequest(KafkaError):
    """The broker refuses a value of the request: a name, a config or a number."""


class NotAuthorized(KafkaError):
    """An ACL does not allow the request."""


class AuthenticationFailed(KafkaError):
    """The broker or the client could not prove its identity. A retry with the same settings fails too."""


class TlsFailed(AuthenticationFailed):
    """The TLS handshake failed: a certificate is not accepted, or the port does not speak TLS."""


class MessageTooLarge(KafkaError):
    """A record or a batch exceeds a limit of the client or of the topic."""


class OffsetOutOfRange(KafkaError):
    """The position is not in the log, and `auto_offset_reset` is `none`."""


class LogTruncated(KafkaError):
    """Records that were read are no longer in the log: a replica without them was elected leader (KIP-320).

    `offset` is the first offset that differs.
    """

    def __init__(self, message: str, *, offset: int, topic: str, partition: int, advice: str) -> None:
        super().__init__(message, topic=topic, partition=partition, advice=advice)
        self.offset = offset


class CorruptBatch(KafkaError):
    """A fetched record batch is damaged."""


class DeliveryTimedOut(KafkaError):
    """A record was not acknowledged within `delivery_timeout_ms`. `__cause__` is the last error."""


class BufferFull(KafkaError):
    """`buffer_memory` stayed full for `max_block_ms`."""


class CommitFailed(KafkaError):
    """Offsets were not committed: this consumer has left the group, or the group is rebalancing."""


class WakeupError(KafkaError):
    """`wakeup()` was called during or before a poll."""


class SerializationError(KafkaError):
    """A serializer or a deserializer failed. `__cause__` is its error."""


class ProducerFenced(KafkaError):
    """A newer producer uses the transactional id, or the transaction timed out. Create a new producer."""


class TransactionAbortable(KafkaError):
    """The transaction must be aborted. The producer can be used afterwards. `__cause__` is the reason."""


class TransactionMisused(KafkaError):
    """The call does not fit the state of the transaction: `send` outside of one, `begin` inside one."""


class ClientClosed(KafkaError):
    """The client was used after `close()`."""


class SeveralFailed(KafkaError):
    """Several parts of one request failed. The other parts succeeded.

    `errors` has the error of each failed part by name.
    """

    def __init__(self, errors: Mapping[str, KafkaError], asked: int, what: str) -> None:
        each = list(errors.values())
        codes = {error.code for error in each}
        listed = "; ".join(error.message for error in each[:LISTED_MAX])
        more = f"; and {len(each) - LISTED_MAX} more" if len(each) > LISTED_MAX else ""
        super().__init__(
            f"{what}: {len(errors)} of {asked} failed: {listed}{more}",
            code=codes.pop() if len(codes) == 1 else None,
            broker=each[0].broker,
            advice=next((error.advice for error in each if error.advice), None),
        )
        self.errors = dict(errors)

    @property
    def retriable(self) -> bool:
        return all(error.retriable for error in self.errors.values())


class SettingError(ValueError):
    """A client setting has an unknown name or an invalid value."""


CLASSES: dict[ErrorCode, type[KafkaError]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: TopicNotFound,
    ErrorCode.UNKNOWN_TOPIC_ID: TopicNotFound,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExists,
    ErrorCode.BROKER_ID_NOT_REGISTERED: BrokerNotFound,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: TransactionalIdNotFound,
    ErrorCode.INVALID_REGULAR_EXPRESSION: InvalidRequest,
    ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidRequest,
    ErrorCode.INVALID_PARTITIONS: InvalidRequest,
    ErrorCode.INVALID_REPLICATION_FACTOR: InvalidRequest,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: InvalidRequest,
    ErrorCode.INVALID_CONFIG: InvalidRequest,
    ErrorCode.INVALID_REQUEST: InvalidRequest,
    ErrorCode.INVALID_RECORD: InvalidRequest,
    ErrorCode.INVALID_TIMESTAMP: InvalidRequest,
    ErrorCode.INVALID_REQUIRED_ACKS: InvalidRequest,
    ErrorCode.POLICY_VIOLATION: InvalidRequest,
    ErrorCode.UNSUPPORTED_VERSION: UnsupportedVersion,
    ErrorCode.MESSAGE_TOO_LARGE: MessageTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: MessageTooLarge,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.PRODUCER_FENCED: ProducerFenced,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFenced,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionAbortable,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.SASL_AUTHENTICATION_FAILED: AuthenticationFailed,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: AuthenticationFailed,
    ErrorCode.ILLEGAL_SASL_STATE: AuthenticationFailed,
}

ADVICE: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "Create it with `ottla topic create`, or check the name with `ottla topic list`"
    ),
    ErrorCode.TOPIC_ALREADY_EXISTS: "Choose another name, or check the topic with `ottla topic describe`",
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "A name has 1 to 249 of the characters a-z A-Z 0-9 . _ - and is not . or .."
    ),
    ErrorCode.INVALID_REPLICATION_FACTOR: (
        "The replication factor must be between 1 and the number of live brokers"
    ),
    ErrorCode.MESSAGE_TOO_LARGE: "Send smaller records or raise the topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Send smaller batches (batch_size) or raise the topic's segment.bytes",
    ErrorCode.NOT_ENOUGH_REPLICAS: (
        "Fewer replicas are in sync than min.insync.replicas requires: restart the stopped brokers"
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: (
        "The partition has no leader: try again, or check the brokers that hold it"
    ),
    ErrorCode.INVALID_RECORD: (
        "The broker refuses the record: for example, a compacted topic needs a key in every record"
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for an ACL on the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Ask for an ACL on the cluster",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask for an ACL on the group",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "The members of the group have no assignor in common: compare partition_assignment_strategy and "
        "group_protocol with `ottla group describe`"
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "Set session_timeout_ms between the broker's group.min.session.timeout.ms and "
        "group.max.session.timeout.ms"
    ),
    ErrorCode.FENCED_INSTANCE_ID: (
        "Another consumer with this group_instance_id has joined: give each consumer its own"
    ),
    ErrorCode.UNRELEASED_INSTANCE_ID: (
        "Another consumer with this group_instance_id is in the group: give each consumer its own"
    ),
    ErrorCode.UNSUPPORTED_ASSIGNOR: (
        "Set group_remote_assignor to an assignor of the brokers: uniform or range"
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        "The group has group.max.size members: stop one, or raise the limit on the broker"
    ),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        "Commit shorter metadata: the broker's offset.metadata.max.bytes is the limit"
    ),
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "Seek to the beginning or the end, or set auto_offset_reset to earliest or latest"
    ),
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: (
        "There is nothing to cancel: list the reassignments with `ottla partition reassign --status`"
    ),
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "List the ids with `ottla txn list`",
    ErrorCode.INVALID_REGULAR_EXPRESSION: (
        "Write an RE2 expression that matches the whole id, such as orders-.*"
    ),
    ErrorCode.PRODUCER_FENCED: (
        "Another producer uses its transactional id, or a transaction took longer than "
        "transaction_timeout_ms: create a new producer"
    ),
    ErrorCode.INVALID_PRODUCER_EPOCH: (
        "Another producer uses its transactional id, or a transaction took longer than "
        "transaction_timeout_ms: create a new producer"
    ),
    ErrorCode.TRANSACTION_ABORTABLE: "abort() the transaction and try again",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "Set transaction_timeout_ms to at most the broker's transaction.max.timeout.ms"
    ),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        "The broker has lost records of this producer: check the broker's log"
    ),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Ask for an ACL on the transactional id",
    ErrorCode.SASL_AUTHENTICATION_FAILED: (
        "Check sasl_username and sasl_password, and that the user exists for this mechanism"
    ),
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "Choose another sasl_mechanism, or enable it on the broker",
    ErrorCode.ILLEGAL_SASL_STATE: "Check security_protocol: the listener may have no SASL",
    ErrorCode.UNKNOWN_TOPIC_ID: "The topic was deleted or re-created: check it with `ottla topic list`",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "The leader has changed: try again in a moment",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "Fewer replicas are in sync than min.insync.replicas requires; the records may be written"
    ),
    ErrorCode.REQUEST_TIMED_OUT: (
        "The cluster was too slow and may have executed the request: check before you try again"
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "There is no coordinator: try again, or check the brokers",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "The coordinator is loading: try again in a moment",
    ErrorCode.NOT_COORDINATOR: "The coordinator has changed: try again in a moment",
    ErrorCode.GROUP_ID_NOT_FOUND: "List the groups with `ottla group list`",
    ErrorCode.NON_EMPTY_GROUP: "Stop its members first, or remove them with remove_members",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "The group reads the topic: stop its members first",
    ErrorCode.UNKNOWN_MEMBER_ID: (
        "The member has left, or its session timed out: check with `ottla group describe`"
    ),
    ErrorCode.REBALANCE_IN_PROGRESS: "The group is rebalancing: poll, and try again",
    ErrorCode.INVALID_PARTITIONS: "A topic has at least one partition, and the number can only grow",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: (
        "Name live brokers, none twice in a partition, and the same number for each partition"
    ),
    ErrorCode.INVALID_CONFIG: "Check names and values with `ottla config describe`",
    ErrorCode.POLICY_VIOLATION: "A policy of the brokers forbids it: ask the operator of the cluster",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "A quota is used up: try again later, or ask for a larger one",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: (
        "Wait for the end of the reassignment, or cancel it: `ottla partition reassign --status`"
    ),
    ErrorCode.LOG_DIR_NOT_FOUND: "Name one of the broker's log.dirs: `describe_log_dirs` lists them",
    ErrorCode.CORRUPT_MESSAGE: "Bytes were damaged on the network or on a disk: check the broker's log",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "List the brokers with `ottla partition` or describe_cluster",
    ErrorCode.INVALID_REQUEST: "The broker's message says which value it refuses",
    ErrorCode.INVALID_TIMESTAMP: (
        "Send a timestamp closer to the present, or raise message.timestamp.before.max.ms or "
        "message.timestamp.after.max.ms"
    ),
    ErrorCode.INVALID_REQUIRED_ACKS: "Set acks to 'all', 1 or 0",
    ErrorCode.NOT_CONTROLLER: "The cluster has no controller: try again in a moment",
    ErrorCode.TOPIC_DELETION_DISABLED: "Set delete.topic.enable=true on the brokers",
    ErrorCode.UNSUPPORTED_VERSION: "Upgrade the older of client and broker",
    ErrorCode.KAFKA_STORAGE_ERROR: "The broker cannot use its disk: check its log and its free disk space",
}


def refused(
    code: int,
    what: str,
    *,
    message: str | None = None,
    broker: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> KafkaError:
    """The exception for an error code in a response.

    `what` names the attempt, such as "creating topic 'orders'". `message` is the broker's own text.
    """
    try:
        known = ErrorCode(code)
    except ValueError:
        known = ErrorCode.UNKNOWN_SERVER_ERROR
        message = message or f"the broker answered error {code}, which this client does not know"
    kind = CLASSES.get(known, KafkaError)
    text = f"{what}: {message.rstrip('. ')}" if message else f"{what}: {known.name.lower().replace('_', ' ')}"
    return kind(text, code=known, broker=broker, topic=topic, partition=partition, advice=ADVICE.get(known))
