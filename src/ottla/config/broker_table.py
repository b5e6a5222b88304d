"""Every broker setting that has an effect: Kafka's, and ottla's own.

Broker settings that are defaults of topic settings come from the topic table, so type, range and default are
written once.
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
    """HOST:COUNT items, split at the last colon, because an IPv6 address contains colons."""
    if not isinstance(value, tuple):
        return False
    for item in value:
        host, colon, count = item.rpartition(":")
        if not (host and colon and count.isascii() and count.isdigit() and int(count[:10]) <= INT_MAX):
            return False
    return True


def _topic_defaults() -> list[Definition]:
    """For each topic setting, the broker setting that is its default.

    If there are several (log.retention.ms, .minutes, .hours), only the last one has a default value.
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
            "Id of this broker, unique in its cluster.",
        ),
        number(NODE, "broker.id", "int", 1, 0, "Another name for `node.id`."),
        Definition(
            "broker.rack",
            "string",
            None,
            "Rack of this broker. Replicas of a partition are spread over racks, and a consumer with "
            "`client.rack` can read from a replica in its own rack.",
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
            "Addresses that the broker returns to clients. Not set: those in `listeners`.",
            check=are_listeners,
            form=LISTENER_FORM,
            section=CONNECTIONS,
        ),
        Definition(
            "listener.security.protocol.map",
            "list",
            DEFAULT_PROTOCOL_MAP,
            "Security protocol of each listener name. Only PLAINTEXT is implemented: a listener with "
            "another protocol stops the start.",
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
            "The largest request. A larger one closes its connection before memory is allocated for it.",
            unit="bytes",
        ),
        number(
            CONNECTIONS,
            "queued.max.request.bytes",
            "long",
            512 * MIB,
            -1,
            "Memory for requests that have not arrived completely, for all connections together. When it is "
            "used up, the broker pauses reading from the connections that hold most of it. Unsent responses "
            "may use half as much. A value below `socket.request.max.bytes` is raised to that; -1: no limit "
            "(Kafka's default).",
            unit="bytes",
        ),
        number(
            CONNECTIONS,
            "socket.request.timeout.ms",
            "int",
            30_000,
            1,
            "A request that arrives in pieces must reach 32 KiB/s in each such period, or its connection is "
            "closed. While request memory is short, a large request that has stopped arriving is closed "
            "after 3 to 6 s. ottla's own.",
            unit="ms",
        ),
        number(
            CONNECTIONS,
            "socket.send.buffer.bytes",
            "int",
            102_400,
            -1,
            "Size of the kernel send buffer of each connection; -1: the operating system adapts it. A "
            "buffer that fits into the CPU cache makes sendfile cheaper. Raise it for consumers with a high "
            "round-trip time.",
            unit="bytes",
        ),
        number(
            CONNECTIONS,
            "socket.receive.buffer.bytes",
            "int",
            -1,
            -1,
            "Size of the kernel receive buffer of each connection; -1: the operating system adapts it "
            "(Kafka's default is 102400).",
            unit="bytes",
        ),
        number(
            CONNECTIONS,
            "socket.listen.backlog.size",
            "int",
            1024,
            1,
            "Connections that can wait to be accepted. The operating system may set a lower limit (Kafka's "
            "default is 50).",
        ),
        number(
            CONNECTIONS,
            "connections.max.idle.ms",
            "long",
            600_000,
            -1,
            "Close a connection after this time without traffic; -1: never.",
            unit="ms",
        ),
        number(
            CONNECTIONS,
            "slow.turn.log.ms",
            "int",
            1000,
            -1,
            "Log a turn of the event loop that takes this long, with the requests that it served. All other "
            "clients wait during such a turn; -1: log none. ottla's own.",
            unit="ms",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            CONNECTIONS,
            "max.connections",
            "int",
            20_000,
            0,
            "Connections that the broker holds at the same time. Further connections are closed on arrival "
            "(Kafka has no limit by default).",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            CONNECTIONS,
            "max.connections.per.ip",
            "int",
            10_000,
            0,
            "Connections that one IP address can hold at the same time (Kafka has no limit by default).",
            dynamic=CLUSTER_WIDE,
        ),
        Definition(
            "max.connections.per.ip.overrides",
            "list",
            "",
            "Limits for single IP addresses, instead of `max.connections.per.ip`.",
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
            "New connections that are accepted per second. Further connections wait (Kafka has no limit by "
            "default).",
            unit="per second",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            CONNECTIONS,
            "max.connection.creation.rate.per.ip",
            "int",
            1_000,
            1,
            "New connections of one IP address per second, and the size of a burst. The broker delays "
            "reading from further connections, and closes those that would wait for more than 10 s. Other "
            "brokers are exempt (Kafka has this as the quota `connection_creation_rate` of an IP, without a "
            "limit by default).",
            unit="per second",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            TOPICS,
            "num.partitions",
            "int",
            1,
            1,
            "Partitions of a topic whose creation does not name a number, automatic creation included.",
        ),
        number(
            TOPICS,
            "default.replication.factor",
            "int",
            1,
            1,
            "Replication factor of a topic whose creation does not name one.",
            maximum=2**15 - 1,
        ),
        Definition(
            "auto.create.topics.enable",
            "boolean",
            "true",
            "Create a topic on the first request for it, if the client allows that.",
            section=TOPICS,
        ),
        Definition(
            "delete.topic.enable",
            "boolean",
            "true",
            "Allow the deletion of topics. Otherwise DeleteTopics fails with TOPIC_DELETION_DISABLED.",
            section=TOPICS,
        ),
        Definition(
            "log.dir",
            "list",
            "ottla-data",
            "Data directory if `log.dirs` is not set.",
            section=LOG,
        ),
        Definition(
            "log.dirs",
            "list",
            None,
            "Data directories. A new partition goes to the directory with the fewest partitions. A "
            "directory that fails goes offline; the others stay in use.",
            section=LOG,
        ),
        Definition(
            "metadata.log.dir",
            "string",
            None,
            "Directory of the metadata. Not set: the first of `log.dirs`.",
            section=LOG,
        ),
        number(
            LOG,
            "log.retention.hours",
            "int",
            168,
            -1,
            "Segments older than this are deleted, if neither `log.retention.ms` nor "
            "`log.retention.minutes` is set.",
            unit="hours",
        ),
        Definition(
            "log.retention.minutes",
            "int",
            None,
            "Segments older than this are deleted, if `log.retention.ms` is not set.",
            unit="minutes",
            minimum=-1,
            section=LOG,
        ),
        Definition(
            "log.cleaner.enable",
            "boolean",
            "true",
            "Compact topics with cleanup.policy=compact.",
            section=LOG,
        ),
        number(
            LOG,
            "log.cleaner.backoff.ms",
            "long",
            15_000,
            0,
            "Time until the log cleaner looks for logs again after it found none to compact.",
            unit="ms",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            LOG,
            "log.cleaner.dedupe.buffer.size",
            "long",
            128 * MIB,
            MIB,
            "Memory for the keys of one compaction pass: 24 bytes per slot. A log with more keys is "
            "compacted in several passes.",
            unit="bytes",
            dynamic=CLUSTER_WIDE,
        ),
        Definition(
            "log.cleaner.io.buffer.load.factor",
            "double",
            "0.9",
            "Maximum load of that memory. A higher value means more keys per pass and more time per key.",
            minimum=0.1,
            maximum=1,
            dynamic=CLUSTER_WIDE,
            section=LOG,
        ),
        Definition(
            "log.cleaner.io.max.bytes.per.second",
            "double",
            "1.7976931348623157e+308",
            "Limit on what the log cleaner reads and writes per second, both together.",
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
            "Time between two checks for segments to delete.",
            unit="ms",
        ),
        number(
            LOG,
            "log.roll.hours",
            "int",
            168,
            1,
            "Age at which a segment rolls, if `log.roll.ms` is not set.",
            unit="hours",
        ),
        number(
            LOG,
            "log.roll.jitter.hours",
            "int",
            0,
            0,
            "Maximum jitter that is subtracted from the roll age, if `log.roll.jitter.ms` is not set.",
            unit="hours",
        ),
        number(
            FLUSH,
            "log.flush.scheduler.interval.ms",
            "long",
            2**63 - 1,
            0,
            "Age of unsynced records at which a log is synced, if `log.flush.interval.ms` is not set.",
            unit="ms",
        ),
        number(
            FLUSH,
            "log.flush.offset.checkpoint.interval.ms",
            "int",
            5_000,
            0,
            "Time between two advances of the recovery point. The broker syncs the log in the background, "
            "and recovery after a crash starts at that offset (Kafka's default is 60000).",
            unit="ms",
        ),
        number(
            FLUSH,
            "log.recovery.point.interval.bytes",
            "long",
            64 * MIB,
            1,
            "Appended bytes after which the recovery point of a log advances before the interval is over. "
            "ottla's own.",
            unit="bytes",
        ),
        number(
            FLUSH,
            "num.sync.threads",
            "int",
            4,
            1,
            "Threads that sync files. More threads make a sync of many files faster. ottla's own.",
            maximum=64,
        ),
        number(
            CLIENTS,
            "fetch.max.bytes",
            "int",
            55 * MIB,
            1024,
            "Maximum size of one fetch response, whatever the client asks for. A larger first batch is "
            "still returned complete.",
            unit="bytes",
        ),
        number(
            CLIENTS,
            "max.incremental.fetch.session.cache.slots",
            "int",
            1000,
            0,
            "Incremental fetch sessions. A client without a session names all its partitions in every fetch.",
        ),
        number(
            CLIENTS,
            "producer.id.expiration.ms",
            "int",
            DAY_MS,
            1,
            "How long a partition remembers the sequence numbers of an idle idempotent producer. A producer "
            "with an open transaction does not expire.",
            unit="ms",
            dynamic=CLUSTER_WIDE,
        ),
        number(
            CLIENTS,
            "producer.id.expiration.check.interval.ms",
            "int",
            600_000,
            1,
            "Time between two checks for expired producers.",
            unit="ms",
        ),
        *TRANSACTIONS,
        number(
            GROUPS,
            "group.min.session.timeout.ms",
            "int",
            6_000,
            1,
            "The shortest session timeout of a group member.",
            unit="ms",
        ),
        number(
            GROUPS,
            "group.max.session.timeout.ms",
            "int",
            1_800_000,
            1,
            "The longest session timeout of a group member.",
            unit="ms",
        ),
        number(
            GROUPS,
            "group.initial.rebalance.delay.ms",
            "int",
            3_000,
            0,
            "How long the first rebalance of an empty group waits for further members.",
            unit="ms",
        ),
        number(GROUPS, "group.max.size", "int", INT_MAX, 1, "Members of one group."),
        *CONSUMER_GROUPS,
        number(
            GROUPS,
            "offset.metadata.max.bytes",
            "int",
            4096,
            0,
            "Maximum size of the metadata of a committed offset.",
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
            "Time between two checks for expired offsets.",
            unit="ms",
        ),
        number(
            GROUPS,
            "offsets.topic.num.partitions",
            "int",
            50,
            1,
            "Partitions of `__consumer_offsets`. The number cannot change once the topic exists.",
        ),
        number(
            GROUPS,
            "offsets.topic.replication.factor",
            "short",
            3,
            1,
            "Replication factor of `__consumer_offsets`. The topic is created when this many brokers are "
            "alive. A single node uses one replica.",
        ),
        number(
            GROUPS,
            "offsets.topic.segment.bytes",
            "int",
            100 * MIB,
            1 * MIB,
            "Segment size of `__consumer_offsets`. Smaller segments are compacted sooner.",
            unit="bytes",
        ),
    ]
)
