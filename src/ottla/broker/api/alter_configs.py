"""AlterConfigs (33): replace all settings of topics, brokers and groups. Settings that a request does not name are reset.

Each resource is changed as a whole or not at all. With `validate_only` nothing is changed. IncrementalAlterConfigs changes
single settings. Errors by resource: UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, INVALID_CONFIG,
INVALID_REQUEST, POLICY_VIOLATION (too large for the metadata log), REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.config_changes import alter_resources, changed
from ottla.config.alter import SET
from ottla.metadata.image import NO_CONFIG
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(33, by_controller=True)
def alter_configs(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, alter_resources(broker, call, request, _replaced))


def _replaced(broker: Broker, resource: Any, current: Mapping[str, str]) -> dict[str, str]:
    for config in resource.configs:
        if config.value is None:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{config.name} has no value: leave it out to reset it")
    ops = [(config.name, SET, config.value) for config in resource.configs]
    return changed(broker, resource.resource_type, resource.resource_name, NO_CONFIG, ops)
