"""Changes of settings, for AlterConfigs and IncrementalAlterConfigs: validated, and turned into metadata records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.broker.api.shared.proposals import Change, Proposals, refused
from ottla.config.alter import Op, apply_broker_ops, apply_group_ops, apply_ops
from ottla.metadata import records as r
from ottla.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, NO_CONFIG, TOPIC_RESOURCE
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import CONFIGURED_RESOURCES_MAX, NAME_LENGTH_MAX
from ottla.model.resources import no_settings, resource_type_name
from ottla.model.strings import is_name

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work

#: The cost of a resource in addition to its settings (see `model/steps.py`).
_RESOURCE_COST: Final = 5
#: Leader and controller must agree on it. A leader with a lower value would acknowledge records that the replicas which can
#: be elected do not have (KIP-966).
_FOR_ALL: Final = "min.insync.replicas"

#: The settings of a resource after a request: (broker, resource of the request, current settings). Raises Refusal.
SettingsAfter: TypeAlias = "Callable[[Broker, Any, Mapping[str, str]], dict[str, str]]"


def alter_resources(broker: Broker, call: Call, request: Any, settings_after: SettingsAfter) -> Work:
    """Change the resources of a request, in slices; the response follows when the changes are committed."""
    proposals = Proposals(broker, call, request)
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    rows = []
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        row: dict[str, Any] = {"error_code": 0, "resource_type": kind, "resource_name": name}
        try:
            if times[kind, name] > 1:
                raise Refusal(
                    ErrorCode.INVALID_REQUEST,
                    f"{resource_type_name(kind)} '{name}' is named {times[kind, name]} times",
                )
            current = broker.proposed.configs.get((kind, name), NO_CONFIG)
            after = settings_after(broker, resource, current)
            if not request.validate_only:
                proposals.add(Change(_difference(kind, name, current, after), row))
        except Refusal as refusal:
            row.update(refused(refusal))
        rows.append(row)
        if proposals.is_slice_full(_RESOURCE_COST + len(resource.configs)):
            yield from proposals.end_slice()
    return proposals.answer({"responses": rows})


def changed(
    broker: Broker, kind: int, name: str, current: Mapping[str, str], ops: list[Op]
) -> dict[str, str]:
    """The settings of a resource after these operations. Raises Refusal if they are not valid."""
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
            # They must also be valid together with this broker's other settings. The file of another broker is known there
            # alone: if its settings conflict with these, that broker logs it and keeps its old ones.
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


def _difference(kind: int, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[r.Record]:
    records: list[r.Record] = [
        r.Config(kind, name, key, value) for key, value in after.items() if before.get(key) != value
    ]
    records += [r.Config(kind, name, key, None) for key in before if key not in after]
    return records
