"""What the two APIs that alter settings share: which resources have any, and the records that lead from old ones to new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ottla.config.alter import Op, apply_broker_ops, apply_group_ops, apply_ops
from ottla.metadata import records as r
from ottla.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, NO_CONFIG, TOPIC_RESOURCE
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import CONFIGURED_RESOURCES_MAX, NAME_LENGTH_MAX
from ottla.model.resources import no_settings
from ottla.model.strings import is_name

if TYPE_CHECKING:
    from ottla.broker.core import Broker

#: What deciding about a resource costs beside its settings (see `model/steps.py`).
RESOURCE_COST: Final = 5
#: A leader that counts with fewer than the controller thinks would acknowledge what those who may lead next do not have (KIP-966).
_FOR_ALL: Final = "min.insync.replicas"


def changed(
    broker: Broker, kind: int, name: str, current: Mapping[str, str], ops: list[Op]
) -> dict[str, str]:
    """The settings of a resource after the operations, or a Refusal if it would not have them."""
    if kind == TOPIC_RESOURCE:
        if name not in broker.proposed.topics:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
        return apply_ops(current, ops, broker.config)
    if kind == BROKER_RESOURCE:
        here = str(broker.config.node_id)
        if name and name not in map(str, broker.proposed.brokers):
            known = ", ".join(map(str, sorted(broker.proposed.brokers)))
            raise Refusal(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker '{name}': the brokers are {known}"
            )
        after = apply_broker_ops(current, ops)
        if name and broker.clustered and after.get(_FOR_ALL, current.get(_FOR_ALL)) != current.get(_FOR_ALL):
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{_FOR_ALL} cannot be a single broker's: leaders and controller must agree on it. Set it for a topic, or for all brokers",
            )
        if name in ("", here):
            # Together with the broker's other settings it must make sense too. What another broker has in its own
            # file is known there alone: it keeps its old settings if these do not go with them, and says so.
            other = broker.proposed.configs.get((BROKER_RESOURCE, "" if name else here), NO_CONFIG)
            own, everyone = (after, other) if name else (other, after)
            broker.config.with_dynamic(own, everyone)
        return after
    if kind == GROUP_RESOURCE:
        if not name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "a group's settings need the group's name")
        if not is_name(name):
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"the group id has {len(name)} characters, at most {NAME_LENGTH_MAX} are allowed",
            )
        configured = broker.proposed.configs
        if (kind, name) not in configured and len(configured) >= CONFIGURED_RESOURCES_MAX:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"{CONFIGURED_RESOURCES_MAX} resources have settings of their own, which is the limit: reset some first",
            )
        return apply_group_ops(current, ops, broker.config)
    raise Refusal(ErrorCode.INVALID_REQUEST, no_settings(kind))


def difference(kind: int, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[r.Record]:
    records: list[r.Record] = [
        r.Config(kind, name, key, value) for key, value in after.items() if before.get(key) != value
    ]
    records += [r.Config(kind, name, key, None) for key in before if key not in after]
    return records
