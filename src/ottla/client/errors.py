"""What can go wrong for a client, as typed exceptions that a person can act on.

Every error says what failed, where (broker, topic, partition), the protocol's code if there is one, and what to try.
`refused` turns an error code of a response into the right class; nothing else builds the coded ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.model.errors import ErrorCode

#: How many refusals of a request for many things the text of the error lists; all are in its `errors`.
TOLD_MAX = 10


class KafkaError(Exception):
    """Something the client could not do. `retriable` tells whether trying again may help."""

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
    """No connection could be made. Retriable: brokers come back."""

    @property
    def retriable(self) -> bool:
        return True


class ConnectionLost(KafkaError):
    """The connection broke while requests were on their way; whether they were carried out is unknown."""

    @property
    def retriable(self) -> bool:
        return True


class RequestTimedOut(KafkaError):
    """The broker did not answer within `request_timeout_ms`; whether it acted is unknown."""

    @property
    def retriable(self) -> bool:
        return True


class NotKafka(KafkaError):
    """The peer answered with bytes that are not the Kafka protocol."""


class UnsupportedVersion(KafkaError):
    """The broker and this client share no version of an API."""


class TopicNotFound(KafkaError):
    """The topic or the partition does not exist (any more, or yet)."""


class BrokerNotFound(KafkaError):
    """The cluster has no broker of that id."""


class TransactionalIdNotFound(KafkaError):
    """No producer has come under this transactional id, or not for so long that it is forgotten."""


class TopicExists(KafkaError):
    """A topic of that name is already there."""


class InvalidRequest(KafkaError):
    """The broker refused the values that were asked for: a name, a config, a count."""


class NotAuthorized(KafkaError):
    """The broker's authorizer said no."""


class AuthenticationFailed(KafkaError):
    """The broker does not believe who the client is, or the client the broker. Trying again with the same settings does not help."""


class TlsFailed(AuthenticationFailed):
    """The TLS handshake failed: a certificate that one side does not accept, or a port that does not speak TLS."""


class MessageTooLarge(KafkaError):
    """A record or batch is over a limit, the client's or the topic's."""


class OffsetOutOfRange(KafkaError):
    """The position asked for is not in the log, and `auto_offset_reset` is `none`."""


class LogTruncated(KafkaError):
    """Records that were read are gone: a replica without them was elected leader. `offset` is where the log differs."""

    def __init__(self, message: str, *, offset: int, topic: str, partition: int, advice: str) -> None:
        super().__init__(message, topic=topic, partition=partition, advice=advice)
        self.offset = offset


class CorruptBatch(KafkaError):
    """Fetched bytes are no valid record batch."""


class DeliveryTimedOut(KafkaError):
    """A record was not acknowledged within `delivery_timeout_ms`; its last error is `__cause__`."""


class BufferFull(KafkaError):
    """`buffer_memory` stayed full for `max_block_ms`: records are made faster than they are acknowledged."""


class CommitFailed(KafkaError):
    """Offsets could not be committed, because the group went on without this member or is rebalancing."""


class WakeupError(KafkaError):
    """`wakeup()` was called while, or before, the consumer polled."""


class SerializationError(KafkaError):
    """A serializer could not make bytes of a key or a value, or a deserializer nothing of bytes; `__cause__` says why."""


class ProducerFenced(KafkaError):
    """Another producer has come under the transactional id, or the transaction took too long: this one is of no use any more."""


class TransactionAbortable(KafkaError):
    """The transaction can only be aborted; the producer goes on after that. What went wrong is `__cause__`."""


class TransactionMisused(KafkaError):
    """Called at the wrong moment: a `send` outside a transaction, a `begin` inside one."""


class ClientClosed(KafkaError):
    """The client was used after `close()`."""


class SeveralFailed(KafkaError):
    """Of several things asked for at once some were refused: `errors` tells each by its name. What it does not name was done."""

    def __init__(self, errors: Mapping[str, KafkaError], asked: int, what: str) -> None:
        each = list(errors.values())
        codes = {error.code for error in each}
        told = "; ".join(error.message for error in each[:TOLD_MAX])
        more = f"; and {len(each) - TOLD_MAX} more" if len(each) > TOLD_MAX else ""
        super().__init__(
            f"{what}: {len(errors)} of {asked} failed: {told}{more}",
            code=codes.pop() if len(codes) == 1 else None,
            broker=each[0].broker,
            advice=next((error.advice for error in each if error.advice), None),
        )
        self.errors = dict(errors)

    @property
    def retriable(self) -> bool:
        return all(error.retriable for error in self.errors.values())


class SettingError(ValueError):
    """A client setting has an unknown name or a value that cannot be."""


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
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Create it with `ottla topic create`, or check the name with `ottla topic list`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Choose another name, or look at it with `ottla topic describe`",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "A name has 1 to 249 of the characters a-z A-Z 0-9 . _ - and is not . or ..",
    ErrorCode.INVALID_REPLICATION_FACTOR: "The replication factor must be between 1 and the number of live brokers",
    ErrorCode.MESSAGE_TOO_LARGE: "Send smaller records or raise the topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Send smaller batches (batch_size) or raise the topic's segment.bytes",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Fewer replicas are in sync than min.insync.replicas asks for: bring brokers back",
    ErrorCode.LEADER_NOT_AVAILABLE: "The partition has no leader now: try again, or look at the brokers that hold it",
    ErrorCode.INVALID_RECORD: "The broker looks into the records: a compacted topic, for one, needs a key on each",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for an ACL on the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Ask for an ACL on the cluster",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask for an ACL on the group",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "The group's members share no assignor with this one: see partition_assignment_strategy "
    "and group_protocol, and what the others use with `ottla group describe`",
    ErrorCode.INVALID_SESSION_TIMEOUT: "The broker allows group.min.session.timeout.ms to group.max.session.timeout.ms",
    ErrorCode.FENCED_INSTANCE_ID: "Another consumer with this group_instance_id has joined: each needs its own",
    ErrorCode.UNRELEASED_INSTANCE_ID: "Another consumer with this group_instance_id is in the group: each needs its own",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "The brokers have uniform and range: check group_remote_assignor",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "The broker's group.max.size is reached: stop other members first",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "Commit a shorter note: the broker's offset.metadata.max.bytes is the limit",
    ErrorCode.OFFSET_OUT_OF_RANGE: "Seek to the beginning or the end, or set auto_offset_reset to earliest or latest",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "Nothing of it is on its way: look with `ottla partition reassign --status`",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "Look with `ottla txn list`",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "It is an expression of RE2, and must match the whole of an id: orders-.*",
    ErrorCode.PRODUCER_FENCED: "Another producer has come under its transactional id, or a transaction took longer than transaction_timeout_ms: make a new producer",
    ErrorCode.INVALID_PRODUCER_EPOCH: "Another producer has come under its transactional id, or a transaction took longer than transaction_timeout_ms: make a new producer",
    ErrorCode.TRANSACTION_ABORTABLE: "abort() the transaction and try again",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "Ask for no more than the broker's transaction.max.timeout.ms",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "The broker has lost records of this producer: look at its log",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Ask for an ACL on the transactional id",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "Check sasl_username and sasl_password, and that the user exists for this mechanism",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "Choose another sasl_mechanism, or enable it on the broker",
    ErrorCode.ILLEGAL_SASL_STATE: "Check security_protocol: the listener may be one without SASL",
    ErrorCode.UNKNOWN_TOPIC_ID: "The topic was deleted, or made anew: look with `ottla topic list`",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "The partition has moved: try again in a moment",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "Fewer replicas are in sync than min.insync.replicas asks for; the records may be there",
    ErrorCode.REQUEST_TIMED_OUT: "The cluster was too slow: whether it was done is unknown, so look before trying again",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "Nobody coordinates it now: try again, or look at the brokers",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "The coordinator has just started: try again in a moment",
    ErrorCode.NOT_COORDINATOR: "The coordinator has moved: try again in a moment",
    ErrorCode.GROUP_ID_NOT_FOUND: "Look with `ottla group list`",
    ErrorCode.NON_EMPTY_GROUP: "Stop its members first, or send them away with remove_members",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "The group reads the topic now: stop its members first",
    ErrorCode.UNKNOWN_MEMBER_ID: "The member has left, or was taken for dead: look with `ottla group describe`",
    ErrorCode.REBALANCE_IN_PROGRESS: "The group is being shared out anew: poll, and try again",
    ErrorCode.INVALID_PARTITIONS: "A topic has one partition or more, and only grows",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "Name brokers that live, each once a partition, and as many for each",
    ErrorCode.INVALID_CONFIG: "Look at names and values with `ottla config describe`",
    ErrorCode.POLICY_VIOLATION: "A policy of the brokers forbids it: ask who runs them",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "A quota is used up: try again later, or ask for a larger one",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: "Wait for its end, or end it: `ottla partition reassign --status`",
    ErrorCode.LOG_DIR_NOT_FOUND: "Name one of the broker's log.dirs: `describe_log_dirs` lists them",
    ErrorCode.CORRUPT_MESSAGE: "Bytes were damaged on their way or on a disk: look at the broker's log",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "Look at the brokers with `ottla partition` or describe_cluster",
    ErrorCode.INVALID_REQUEST: "The broker's own words say what it does not take",
    ErrorCode.INVALID_TIMESTAMP: "The topic takes timestamps close to now only: see message.timestamp.before.max.ms and after.max.ms",
    ErrorCode.INVALID_REQUIRED_ACKS: "acks is 'all', 1 or 0",
    ErrorCode.NOT_CONTROLLER: "The cluster has no controller now: try again in a moment",
    ErrorCode.TOPIC_DELETION_DISABLED: "Set delete.topic.enable=true on the brokers",
    ErrorCode.UNSUPPORTED_VERSION: "Upgrade the older of client and broker",
    ErrorCode.KAFKA_STORAGE_ERROR: "The broker cannot use its disk: look at its log and its free space",
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
    """The exception for an error code that a broker answered; `what` is what was being tried."""
    try:
        known = ErrorCode(code)
    except ValueError:
        known = ErrorCode.UNKNOWN_SERVER_ERROR
        message = message or f"the broker answered error {code}, which this client does not know"
    kind = CLASSES.get(known, KafkaError)
    text = f"{what}: {message.rstrip('. ')}" if message else f"{what}: {known.name.lower().replace('_', ' ')}"
    return kind(text, code=known, broker=broker, topic=topic, partition=partition, advice=ADVICE.get(known))
