"""Settings of transaction coordinators and of `__transaction_state`."""

from __future__ import annotations

from ottla.config.consumer_table import GROUPS
from ottla.config.definition import Definition, number
from ottla.config.topic_table import DAY_MS, MIB

TRANSACTIONS = (
    number(
        GROUPS, "transaction.max.timeout.ms", "int", 900_000, 1,
        "The longest transaction timeout of a producer. A longer one fails with "
        "INVALID_TRANSACTION_TIMEOUT.",
        unit="ms",
    ),
    number(
        GROUPS, "transactional.id.expiration.ms", "int", 7 * DAY_MS, 1,
        "How long an unused transactional id is remembered.",
        unit="ms",
    ),
    number(
        GROUPS, "transaction.abort.timed.out.transaction.cleanup.interval.ms", "int", 10_000, 1,
        "Time between two checks for transactions that have timed out, which are aborted.",
        unit="ms",
    ),
    number(
        GROUPS, "transaction.remove.expired.transaction.cleanup.interval.ms", "int", 3_600_000, 1,
        "Time between two checks for expired transactional ids.",
        unit="ms",
    ),
    number(
        GROUPS, "transaction.state.log.num.partitions", "int", 50, 1,
        "Partitions of `__transaction_state`. The number cannot change once the topic exists.",
    ),
    number(
        GROUPS, "transaction.state.log.replication.factor", "short", 3, 1,
        "Replication factor of `__transaction_state`. The topic is created when this many brokers are "
        "alive. A single node uses one replica.",
    ),
    number(
        GROUPS, "transaction.state.log.min.isr", "int", 2, 1,
        "Replicas of `__transaction_state` that must be in the ISR for a transaction to continue. A single "
        "node needs one.",
    ),
    number(
        GROUPS, "transaction.state.log.segment.bytes", "int", 100 * MIB, 1 * MIB,
        "Segment size of `__transaction_state`. Smaller segments are compacted sooner.",
        unit="bytes",
    ),
    Definition(
        "transaction.partition.verification.enable",
        "boolean",
        "true",
        "A partition leader verifies a transaction with its coordinator before the first batch. It cannot "
        "be disabled: a delayed batch would begin a transaction that nobody ends (KIP-890).",
        check=lambda value: value is True,
        form="true: every transaction is verified",
        section=GROUPS,
    ),
    Definition(
        "transaction.two.phase.commit.enable",
        "boolean",
        "false",
        "External coordinators can prepare transactions (KIP-939). It cannot be enabled.",
        check=lambda value: value is False,
        form="false: two-phase commit is not served",
        section=GROUPS,
    ),
)  # fmt: skip
