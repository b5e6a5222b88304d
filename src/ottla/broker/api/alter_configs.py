"""AlterConfigs (33): the settings of topics and brokers replaced as a whole: what a request does not name is reset.

A resource is changed as a whole or not at all; with validate_only nothing is. IncrementalAlterConfigs is the API that
touches single settings. Errors by resource: UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, INVALID_CONFIG,
INVALID_REQUEST, POLICY_VIOLATION (too large for the metadata log), REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.config_changes import RESOURCE_COST, changed, difference
from ottla.broker.api.shared.proposals import Change, Proposals, refused
from ottla.config.alter import SET
from ottla.metadata.image import NO_CONFIG
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.resources import resource_type_name

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work


@serves(33, by_controller=True)
def alter_configs(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
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
            for config in resource.configs:
                if config.value is None:
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST, f"{config.name} has no value: leave it out to reset it"
                    )
            after = changed(
                broker, kind, name, NO_CONFIG, [(each.name, SET, each.value) for each in resource.configs]
            )
            if not request.validate_only:
                before = broker.proposed.configs.get((kind, name), NO_CONFIG)
                proposals.add(Change(difference(kind, name, before, after), row))
        except Refusal as refusal:
            row.update(refused(refusal))
        rows.append(row)
        if proposals.is_slice_full(RESOURCE_COST + len(resource.configs)):
            yield from proposals.end_slice()
    return proposals.answer({"responses": rows})
