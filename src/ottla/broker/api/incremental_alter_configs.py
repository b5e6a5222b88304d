"""IncrementalAlterConfigs (44): set, delete, append to and subtract from single settings of topics and brokers.

A resource is changed as a whole or not at all; with validate_only nothing is. Changes take effect when they are in the
image. Errors by resource: UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG, INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.api.proposing import answer_after, refused
from ottla.broker.api.table import Response, serves
from ottla.config.alter import apply_broker_ops, apply_ops
from ottla.controller import records as r
from ottla.controller.image import BROKER_RESOURCE, NO_CONFIG, TOPIC_RESOURCE
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker


@serves(44)
def incremental_alter_configs(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    records: list[r.Record] = []
    rows = []
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        row: dict[str, Any] = {"error_code": 0, "resource_type": kind, "resource_name": name}
        try:
            if times[kind, name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, f"'{name}' is named {times[kind, name]} times")
            current = broker.proposed.configs.get((kind, name), NO_CONFIG)
            ops = [(config.name, config.config_operation, config.value) for config in resource.configs]
            changed = _changed(broker, kind, name, current, ops)
            if not request.validate_only:
                records += _difference(kind, name, current, changed)
        except Refusal as refusal:
            row.update(refused(refusal))
        rows.append(row)
    return answer_after(broker, call, records, {"responses": rows})


def _changed(
    broker: Broker, kind: int, name: str, current: Mapping[str, str], ops: list[tuple[str, int, str | None]]
) -> dict[str, str]:
    if kind == TOPIC_RESOURCE:
        if name not in broker.proposed.topics:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
        return apply_ops(current, ops, broker.config)
    if kind == BROKER_RESOURCE:
        if name not in ("", str(broker.config.node_id)):
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"this is broker {broker.config.node_id}: ask broker {name} itself"
            )
        changed = apply_broker_ops(current, ops)
        # Together with the broker's other settings it must make sense too.
        other = broker.proposed.configs.get(
            (BROKER_RESOURCE, "" if name else str(broker.config.node_id)), NO_CONFIG
        )
        own, everyone = (changed, other) if name else (other, changed)
        broker.config.with_dynamic(own, everyone)
        return changed
    raise Refusal(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here")


def _difference(kind: int, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[r.Record]:
    records: list[r.Record] = [
        r.Config(kind, name, key, value) for key, value in after.items() if before.get(key) != value
    ]
    records += [r.Config(kind, name, key, None) for key in before if key not in after]
    return records
