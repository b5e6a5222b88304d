"""Settings of consumer groups (KIP-848): of the broker, and of a single group.

A group setting must be within the broker's limits when it is set. The default of a group setting is the
broker's.
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
        "Session timeout of the members of a consumer group (KIP-848): a member without a heartbeat for "
        "this long is removed.",
    ),
    _ms(
        "group.consumer.min.session.timeout.ms",
        45_000,
        "The shortest session timeout that can be set for a group.",
    ),
    _ms(
        "group.consumer.max.session.timeout.ms",
        60_000,
        "The longest session timeout that can be set for a group.",
    ),
    _ms(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        "Heartbeat interval of the members of a consumer group (KIP-848).",
    ),
    _ms(
        "group.consumer.min.heartbeat.interval.ms",
        5_000,
        "The shortest heartbeat interval that can be set for a group.",
    ),
    _ms(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        "The longest heartbeat interval that can be set for a group.",
    ),
    Definition(
        "group.consumer.max.size",
        "int",
        str(2**31 - 1),
        "Members of one consumer group (KIP-848).",
        minimum=1,
        section=GROUPS,
    ),
    Definition(
        "group.consumer.assignors",
        "list",
        ",".join(ASSIGNORS),
        "Assignors of consumer groups (KIP-848). The first is the default.",
        check=lambda value: isinstance(value, tuple) and bool(value) and set(value) <= set(ASSIGNORS),
        form="a comma-separated list of at least one of uniform, range",
        section=GROUPS,
    ),
    Definition(
        "group.consumer.migration.policy",
        "string",
        "bidirectional",
        "Whether a group with members changes its protocol: to KIP-848 when the first member of that "
        "protocol joins (upgrade), to classic when the last one leaves (downgrade). A group without members "
        "can change at any time.",
        # Kafka accepts capitals too.
        check=lambda value: str(value).lower() in MIGRATION_POLICIES,
        form=f"one of {', '.join(MIGRATION_POLICIES)}",
        section=GROUPS,
    ),
)

#: Pairs of broker settings: the first may not be greater than the second.
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
            "Session timeout of the members of this group.",
            broker_name="group.consumer.session.timeout.ms",
        ),
        _ms(
            HEARTBEAT,
            5_000,
            "Heartbeat interval of the members of this group.",
            broker_name="group.consumer.heartbeat.interval.ms",
        ),
    )
)


def check_group(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raise `InvalidConfig` if a group setting is outside the limits of this broker."""
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
