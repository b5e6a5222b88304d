"""The settings of the coordinators of transactions, under Kafka's names, and of the topic that they keep."""

from __future__ import annotations

from ottla.config.consumer_table import GROUPS
from ottla.config.definition import Definition, number
from ottla.config.topic_table import DAY_MS, MIB

TRANSACTIONS = (
    number(
        GROUPS, "transaction.max.timeout.ms", "int", 900_000, 1,
        "The longest transaction time-out that a producer may ask for; a longer one gets INVALID_TRANSACTION_TIMEOUT.",
        unit="ms",
    ),
    number(
        GROUPS, "transactional.id.expiration.ms", "int", 7 * DAY_MS, 1,
        "How long a transactional id without any transaction is remembered.",
        unit="ms",
    ),
    number(
        GROUPS, "transaction.abort.timed.out.transaction.cleanup.interval.ms", "int", 10_000, 1,
        "How often transactions are looked at to abort those whose time-out is over.",
        unit="ms",
    ),
    number(
        GROUPS, "transaction.remove.expired.transaction.cleanup.interval.ms", "int", 3_600_000, 1,
        "How often transactional ids are looked at to forget those that nobody uses any more.",
        unit="ms",
    ),
    number(
        GROUPS, "transaction.state.log.num.partitions", "int", 50, 1,
        "Partitions of the topic that holds transactions; never changed once the topic exists.",
    ),
    number(
        GROUPS, "transaction.state.log.replication.factor", "short", 3, 1,
        "Replicas of the topic that holds transactions: it is created once so many brokers live. One on a single "
        "node, whatever this says.",
    ),
    number(
        GROUPS, "transaction.state.log.min.isr", "int", 2, 1,
        "How many replicas of the topic that holds transactions must be in sync for a transaction to go on. One on a "
        "single node, whatever this says.",
    ),
    number(
        GROUPS, "transaction.state.log.segment.bytes", "int", 100 * MIB, 1 * MIB,
        "The size of a segment of the topic that holds transactions: the smaller, the sooner it is compacted.",
        unit="bytes",
    ),
    Definition(
        "transaction.partition.verification.enable",
        "boolean",
        "true",
        "Whether a partition asks the coordinator before it takes the first batch of a transaction. It cannot be disabled: a "
        "batch that comes late would begin a transaction that nobody ends.",
        check=lambda value: value is True,
        form="true: every transaction is verified",
        section=GROUPS,
    ),
    Definition(
        "transaction.two.phase.commit.enable",
        "boolean",
        "false",
        "Whether an outside coordinator may prepare transactions (KIP-939). It cannot be enabled.",
        check=lambda value: value is False,
        form="false: two-phase commit is not served",
        section=GROUPS,
    ),
)  # fmt: skip
