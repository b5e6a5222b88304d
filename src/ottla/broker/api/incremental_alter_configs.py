"""IncrementalAlterConfigs (44): set, delete, append to and subtract from single settings of topics and brokers.

A resource is changed as a whole or not at all; with validate_only nothing is. Changes take effect when they are in the
image. Errors by resource: UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, INVALID_CONFIG,
INVALID_REQUEST, POLICY_VIOLATION (too large for the metadata log), REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.config_changes import RESOURCE_COST, changed, difference
from ottla.broker.api.shared.proposals import Change, Proposals, refused
from ottla.metadata.image import NO_CONFIG
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.resources import resource_type_name

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work


@serves(44, by_controller=True)
def incremental_alter_configs(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _altered(broker, call, request))


def _altered(broker: Broker, call: Call, request: Any) -> Work:
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
            ops = [(config.name, config.config_operation, config.value) for config in resource.configs]
            after = changed(broker, kind, name, current, ops)
            if not request.validate_only:
                proposals.add(Change(difference(kind, name, current, after), row))
        except Refusal as refusal:
            row.update(refused(refusal))
        rows.append(row)
        if proposals.is_slice_full(RESOURCE_COST + len(resource.configs)):
            yield from proposals.end_slice()
    return proposals.answer({"responses": rows})
