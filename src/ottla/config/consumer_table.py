"""The settings of consumer groups (KIP-848): a broker's, and those that a group may have of its own.

A group's own settings lie between the broker's limits when they are made; without one of its own it has the broker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ottla.config.definition import Definition, InvalidConfig, table

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig

GROUPS: Final = "Groups and transactions"
ASSIGNORS: Final = ("uniform", "range")
SESSION: Final = "consumer.session.timeout.ms"
HEARTBEAT: Final = "consumer.heartbeat.interval.ms"

MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")


def _ms(name: str, default: int, doc: str, **more: str) -> Definition:
    return Definition(
        name, "int", str(default), doc, unit="ms", minimum=1, section=GROUPS,
        broker_names=(more["broker_name"],) if more else (),
    )  # fmt: skip


CONSUMER_GROUPS: Final = (
    _ms(
        "group.consumer.session.timeout.ms",
        45_000,
        "How long a member of a consumer group (KIP-848) may be silent before it is out of the group.",
    ),
    _ms("group.consumer.min.session.timeout.ms", 45_000, "The least that a group may have instead of it."),
    _ms("group.consumer.max.session.timeout.ms", 60_000, "The most that a group may have instead of it."),
    _ms(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        "How often the members of a consumer group are told to heartbeat.",
    ),
    _ms("group.consumer.min.heartbeat.interval.ms", 5_000, "The least that a group may have instead of it."),
    _ms("group.consumer.max.heartbeat.interval.ms", 15_000, "The most that a group may have instead of it."),
    Definition(
        "group.consumer.max.size",
        "int",
        str(2**31 - 1),
        "Members that one consumer group may have.",
        minimum=1,
        section=GROUPS,
    ),
    Definition(
        "group.consumer.assignors",
        "list",
        ",".join(ASSIGNORS),
        "How the partitions of a consumer group may be assigned; the first is the default.",
        check=lambda value: isinstance(value, tuple) and bool(value) and set(value) <= set(ASSIGNORS),
        form="a comma-separated list of at least one of uniform, range",
        section=GROUPS,
    ),
    Definition(
        "group.consumer.migration.policy",
        "string",
        "bidirectional",
        "Whether a group with members becomes a consumer group when somebody comes who speaks that protocol (upgrade), "
        "and a classic one when the last such member goes (downgrade). Without members it becomes either at any time.",
        # In capitals too, as Kafka takes it.
        check=lambda value: str(value).lower() in MIGRATION_POLICIES,
        form=f"one of {', '.join(MIGRATION_POLICIES)}",
        section=GROUPS,
    ),
)

#: Pairs of broker settings of which the first may not be more than the second.
IN_ORDER: Final = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"),
)

GROUP: Final = table(
    (
        _ms(
            SESSION,
            45_000,
            "How long a member of this group may be silent before it is out of it.",
            broker_name="group.consumer.session.timeout.ms",
        ),
        _ms(
            HEARTBEAT,
            5_000,
            "How often the members of this group are told to heartbeat.",
            broker_name="group.consumer.heartbeat.interval.ms",
        ),
    )
)


def check_group(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raise `InvalidConfig` unless a group may have these settings on this broker."""
    limits = {
        SESSION: (
            broker.group_consumer_min_session_timeout_ms,
            broker.group_consumer_max_session_timeout_ms,
        ),
        HEARTBEAT: (
            broker.group_consumer_min_heartbeat_interval_ms,
            broker.group_consumer_max_heartbeat_interval_ms,
        ),
    }
    for name, text in overrides.items():
        least, most = limits[name]
        if not least <= int(text) <= most:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {name}: must be from {least} to {most}, this broker's limits"
            )
    session_ms = int(overrides.get(SESSION, broker.group_consumer_session_timeout_ms))
    heartbeat_ms = int(overrides.get(HEARTBEAT, broker.group_consumer_heartbeat_interval_ms))
    if heartbeat_ms >= session_ms:
        raise InvalidConfig(f"{HEARTBEAT} ({heartbeat_ms}) must be less than {SESSION} ({session_ms})")
