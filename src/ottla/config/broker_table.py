"""Every broker setting that ottla honours, under Kafka's names, and ours.

The defaults of topic settings are derived from the topic table, so a type, range or default is written once.
"""

from __future__ import annotations

from ottla.config.cluster_table import MEMBERSHIP
from ottla.config.consumer_table import CONSUMER_GROUPS, GROUPS
from ottla.config.controller_table import CONTROLLER
from ottla.config.definition import CLUSTER_WIDE, Definition, Value, number, table
from ottla.config.listener import LISTENER_FORM, PROTOCOLS, are_listeners, is_protocol_map
from ottla.config.not_honoured import NOT_HONOURED
from ottla.config.replication_table import REPLICATION, REPLICATION_SECTION
from ottla.config.throttle_table import THROTTLES
from ottla.config.topic_table import DAY_MS, MIB, TOPIC
from ottla.config.transaction_table import TRANSACTIONS
from ottla.config.zookeeper_table import CLUSTER, ZOOKEEPER

NODE = "Node"
CONNECTIONS = "Listeners and connections"
TOPICS = "Topics"
LOG = "Log"
FLUSH = "Flushing and recovery"
CLIENTS = "Fetching and producing"
SECTIONS = (NODE, CLUSTER, REPLICATION_SECTION, CONNECTIONS, TOPICS, LOG, FLUSH, CLIENTS, GROUPS)

INT_MAX = 2**31 - 1
DEFAULT_PROTOCOL_MAP = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"


def are_host_limits(value: Value) -> bool:
    """HOST:COUNT items; the last colon splits, since an IPv6 address has its own."""
    if not isinstance(value, tuple):
        return False
    for item in value:
        host, colon, count = item.rpartition(":")
        if not (host and colon and count.isascii() and count.isdigit() and int(count[:10]) <= INT_MAX):
            return False
    return True


def _topic_defaults() -> list[Definition]:
    """The broker setting that first decides each topic setting's default.

    Where a topic setting has several (log.retention.ms, .minutes, .hours), only the last has a default of its
    own.
    """
    rows = []
    for topic in TOPIC.values():
        name = topic.broker_name
        if name is None or name in NOT_HONOURED:
            continue
        several = topic.broker_names[1:]
        doc = f"Default of the topic setting `{topic.name}`: {topic.doc[0].lower()}{topic.doc[1:]}"
        if several:
            doc += f" If not set, {', then '.join(f'`{other}`' for other in several)} decides."
        rows.append(
            Definition(
                name,
                topic.type,
                None if several else topic.default,
                doc,
                unit=topic.unit,
                minimum=topic.minimum,
                maximum=topic.maximum,
                allowed=topic.allowed,
                dynamic=CLUSTER_WIDE,
                section=FLUSH
                if name.startswith("log.flush.")
                else LOG
                if name.startswith("log.")
                else TOPICS,
            )
        )
    return rows


BROKER: dict[str, Definition] = table(
    [
        *_topic_defaults(),
        *ZOOKEEPER,
        *REPLICATION,
        *THROTTLES,
        *MEMBERSHIP,
        *CONTROLLER,
        number(
            NODE,
            "node.id",
            "int",
            1,
            0,
            "The number of this broker, unique in its cluster.",
        ),
        number(NODE, "broker.id", "int", 1, 0, "Another name of `node.id`."),
        Definition(
            "broker.rack",
            "string",
            None,
            "Where this broker stands. Replicas of a partition are spread over racks, and consumers that "
            "name their rack read from a replica near by.",
            section=NODE,
        ),
        Definition(
            "listeners",
            "list",
            "PLAINTEXT://127.0.0.1:9092",
            "Addresses to listen on. An empty host or 0.0.0.0 is every interface; port 0 takes a free port.",
            check=are_listeners,
            form=LISTENER_FORM,
            section=CONNECTIONS,
        ),
        Definition(
            "advertised.listeners",
            "list",
            None,
            "Addresses that clients are told to connect to; by default those in `listeners`.",
            check=are_listeners,
            form=LISTENER_FORM,
            section=CONNECTIONS,
        ),
        Definition(
            "listener.security.protocol.map",
            "list",
            DEFAULT_PROTOCOL_MAP,
            "Which security protocol each listener name stands for. Only PLAINTEXT is served so far; a "
            "listener of another protocol is refused at start.",
            check=is_protocol_map,
            form=f"NAME:PROTOCOL pairs separated by commas, PROTOCOL one of {', '.join(PROTOCOLS)}",
            section=CONNECTIONS,
        ),
        number(
            CONNECTIONS,
            "socket.request.max.bytes",
            "int",
            100 * MIB,
            1,
            "The largest request accepted; a larger one closes its connection before anything is allocated "
            "for it.",
            unit="bytes",
        ),
        number(
            CONNECTIONS,
            "queued.max.request.bytes",
            "long",
            512 * MIB,
            -1,
            "Memory for requests that have not arrived completely, of all connections together. When it is "
            "used up, reading pauses for those that hold most. Answers that clients do not read may hold half "
            "as much. Less than `socket.request.max.bytes` counts as that much; -1: no limit (Kafka's default).",
            unit="bytes",
        ),
        number(
            CONNECTIONS,
            "socket.request.timeout.ms",
            "int",
            30_000,
            1,
            "A request that arrives in pieces must have at least 32 KiB/s in each such period, else its "
            "connection is closed. While memory for requests is short, a large one that has stopped arriving is "
            "closed after 3 to 6 s (Kafka has no such limit).",
            unit="ms",
        ),
        number(
            CONNECTIONS,
            "socket.send.buffer.bytes",
            "int",
            102_400,
            -1,
            "Size of each connection's kernel send buffer; -1 leaves it to the operating system, which "
            "adapts it. A buffer that fits the processor's cache makes sending files cheaper; raise it for "
            "consumers far away.",
            unit="bytes",
        ),
        number(
            CONNECTIONS,
            "socket.receive.buffer.bytes",
            "int",
            -1,
            -1,
            "Size of each connection's kernel receive buffer; -1 leaves it to the operating system, which "
            "adapts it (Kafka's default is 102400).",
            unit="bytes",
        ),
        number(
            CONNECTIONS,
            "socket.listen.backlog.size",
            "int",
            1024,
            1,
            "Connections that may wait to be accepted; the operating system may hold it lower (Kafka's "
            "default is 50).",
        ),
        number(
            CONNECTIONS,
            "connections.max.idle.ms",
            "long",
            600_000,
            -1,
            "A connection without traffic for this long is closed; -1 never closes one.",
            unit="ms",
        ),
        number(
            CONNECTIONS,
            "slow.turn.log.ms",
            "int",
            1000,
            -1,
            "A turn of the event loop that takes this long is logged, with the requests it served: all other clients waited "
            "meanwhile; -1 logs none (a setting of ottla, not of Kafka).",
            unit="ms",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            CONNECTIONS,
            "max.connections",
            "int",
            20_000,
            0,
            "Connections that the broker holds at once; further ones are closed on arrival (Kafka has no "
            "limit by default).",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            CONNECTIONS,
            "max.connections.per.ip",
            "int",
            10_000,
            0,
            "Connections that one address may hold at once (Kafka has no limit by default).",
            dynamic=CLUSTER_WIDE,
        ),
        Definition(
            "max.connections.per.ip.overrides",
            "list",
            "",
            "Limits for single addresses, instead of `max.connections.per.ip`.",
            check=are_host_limits,
            form="HOST:COUNT items separated by commas",
            dynamic=CLUSTER_WIDE,
            section=CONNECTIONS,
        ),
        number(
            CONNECTIONS,
            "max.connection.creation.rate",
            "int",
            5_000,
            1,
            "New connections accepted in a second; further ones wait (Kafka has no limit by default).",
            unit="per second",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            CONNECTIONS,
            "max.connection.creation.rate.per.ip",
            "int",
            1_000,
            1,
            "New connections of one address in a second, and at once; further ones are not read until their "
            "turn comes, and are closed if that takes longer than 10 s. Other brokers are exempt (Kafka has "
            "this as the quota `connection_creation_rate` of an IP, without a limit by default).",
            unit="per second",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            TOPICS,
            "num.partitions",
            "int",
            1,
            1,
            "Partitions of a topic that is created without saying how many, by a request or by first use.",
        ),
        number(
            TOPICS,
            "default.replication.factor",
            "int",
            1,
            1,
            "Replicas of a topic that is created without saying how many.",
            maximum=2**15 - 1,
        ),
        Definition(
            "auto.create.topics.enable",
            "boolean",
            "true",
            "Create a topic when a client that allows it first asks for it.",
            section=TOPICS,
        ),
        Definition(
            "delete.topic.enable",
            "boolean",
            "true",
            "Allow topics to be deleted; otherwise the request gets TOPIC_DELETION_DISABLED.",
            section=TOPICS,
        ),
        Definition(
            "log.dir",
            "list",
            "ottla-data",
            "Directory of the data, when `log.dirs` is not set.",
            section=LOG,
        ),
        Definition(
            "log.dirs",
            "list",
            None,
            "Directories of the data. A new partition goes to the one with the fewest; one that fails goes offline "
            "and the others go on.",
            section=LOG,
        ),
        Definition(
            "metadata.log.dir",
            "string",
            None,
            "Directory of the metadata; the first of `log.dirs` if it is not set.",
            section=LOG,
        ),
        number(
            LOG,
            "log.retention.hours",
            "int",
            168,
            -1,
            "Age beyond which segments are deleted, when neither `log.retention.ms` nor "
            "`log.retention.minutes` is set.",
            unit="hours",
        ),
        Definition(
            "log.retention.minutes",
            "int",
            None,
            "Age beyond which segments are deleted, when `log.retention.ms` is not set.",
            unit="minutes",
            minimum=-1,
            section=LOG,
        ),
        Definition(
            "log.cleaner.enable",
            "boolean",
            "true",
            "Whether topics with cleanup.policy=compact are compacted.",
            section=LOG,
        ),
        number(
            LOG,
            "log.cleaner.backoff.ms",
            "long",
            15_000,
            0,
            "Time between two searches for logs to compact, when there was none.",
            unit="ms",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            LOG,
            "log.cleaner.dedupe.buffer.size",
            "long",
            128 * MIB,
            MIB,
            "Memory for the keys of one pass of compaction, 24 bytes a key and its share of free room. A log with more keys "
            "is compacted in several passes.",
            unit="bytes",
            dynamic=CLUSTER_WIDE,
        ),
        Definition(
            "log.cleaner.io.buffer.load.factor",
            "double",
            "0.9",
            "How full that memory may be: more keys a pass, and more time a key.",
            minimum=0.1,
            maximum=1,
            dynamic=CLUSTER_WIDE,
            section=LOG,
        ),
        Definition(
            "log.cleaner.io.max.bytes.per.second",
            "double",
            "1.7976931348623157e+308",
            "What compaction may read and write in a second, both together.",
            minimum=1,
            dynamic=CLUSTER_WIDE,
            section=LOG,
        ),
        number(
            LOG,
            "log.retention.check.interval.ms",
            "long",
            300_000,
            1,
            "Time between two searches for segments to delete.",
            unit="ms",
        ),
        number(
            LOG,
            "log.roll.hours",
            "int",
            168,
            1,
            "Age at which a segment is closed, when `log.roll.ms` is not set.",
            unit="hours",
        ),
        number(
            LOG,
            "log.roll.jitter.hours",
            "int",
            0,
            0,
            "Taken off the age at which a segment is closed, when `log.roll.jitter.ms` is not set.",
            unit="hours",
        ),
        number(
            FLUSH,
            "log.flush.scheduler.interval.ms",
            "long",
            2**63 - 1,
            0,
            "Age of unsynced records at which a log is synced, when `log.flush.interval.ms` is not set.",
            unit="ms",
        ),
        number(
            FLUSH,
            "log.flush.offset.checkpoint.interval.ms",
            "int",
            5_000,
            0,
            "Time between two advances of the recovery point: the log is synced in the background and "
            "recovery after a crash begins there (Kafka's default is 60000).",
            unit="ms",
        ),
        number(
            FLUSH,
            "log.recovery.point.interval.bytes",
            "long",
            64 * MIB,
            1,
            "Bytes appended to a log after which its recovery point is advanced without waiting for the "
            "interval. ottla's own.",
            unit="bytes",
        ),
        number(
            FLUSH,
            "num.sync.threads",
            "int",
            4,
            1,
            "Threads that sync files, so that one round of many files takes less time. ottla's own.",
            maximum=64,
        ),
        number(
            CLIENTS,
            "fetch.max.bytes",
            "int",
            55 * MIB,
            1024,
            "The most that one fetch returns, whatever the client asks for; a first batch larger than this "
            "is still returned whole.",
            unit="bytes",
        ),
        number(
            CLIENTS,
            "max.incremental.fetch.session.cache.slots",
            "int",
            1000,
            0,
            "Fetch sessions held at once; a client without one names all its partitions in every fetch.",
        ),
        number(
            CLIENTS,
            "producer.id.expiration.ms",
            "int",
            DAY_MS,
            1,
            "How long a partition remembers the sequence numbers of an idempotent producer that went silent. One whose "
            "transaction is open is remembered until that has ended.",
            unit="ms",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            CLIENTS,
            "producer.id.expiration.check.interval.ms",
            "int",
            600_000,
            1,
            "How often partitions are looked at to forget producers that went silent.",
            unit="ms",
        ),
        *TRANSACTIONS,
        number(
            GROUPS,
            "group.min.session.timeout.ms",
            "int",
            6_000,
            1,
            "The shortest session time-out that a group member may ask for.",
            unit="ms",
        ),
        number(
            GROUPS,
            "group.max.session.timeout.ms",
            "int",
            1_800_000,
            1,
            "The longest session time-out that a group member may ask for.",
            unit="ms",
        ),
        number(
            GROUPS,
            "group.initial.rebalance.delay.ms",
            "int",
            3_000,
            0,
            "How long the first rebalance of an empty group waits for more members.",
            unit="ms",
        ),
        number(GROUPS, "group.max.size", "int", INT_MAX, 1, "Members that one group may have."),
        *CONSUMER_GROUPS,
        number(
            GROUPS,
            "offset.metadata.max.bytes",
            "int",
            4096,
            0,
            "The longest text that a client may store with a committed offset.",
            unit="bytes",
        ),
        number(
            GROUPS,
            "offsets.retention.minutes",
            "int",
            10_080,
            1,
            "How long the committed offsets of an empty group are kept.",
            unit="minutes",
        ),
        number(
            GROUPS,
            "offsets.retention.check.interval.ms",
            "long",
            600_000,
            1,
            "How often committed offsets are looked at to find those that nobody wants any more.",
            unit="ms",
        ),
        number(
            GROUPS,
            "offsets.topic.num.partitions",
            "int",
            50,
            1,
            "Partitions of the topic that holds committed offsets; never changed once the topic exists.",
        ),
        number(
            GROUPS,
            "offsets.topic.replication.factor",
            "short",
            3,
            1,
            "Replicas of the topic that holds committed offsets: it is created once so many brokers live. One on a "
            "single node, whatever this says.",
        ),
        number(
            GROUPS,
            "offsets.topic.segment.bytes",
            "int",
            100 * MIB,
            1 * MIB,
            "The size of a segment of the topic that holds committed offsets: the smaller, the sooner it is compacted.",
            unit="bytes",
        ),
    ]
)
