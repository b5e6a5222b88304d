"""IncrementalAlterConfigs (44): set, delete, append to and subtract from single settings of topics, brokers and groups.

Each resource is changed as a whole or not at all. With `validate_only` nothing is changed. Changes take effect when they are
in the metadata image. Errors by resource: UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, INVALID_CONFIG,
INVALID_REQUEST, POLICY_VIOLATION (too large for the metadata log), REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.config_changes import alter_resources, changed

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(44, by_controller=True)
def incremental_alter_configs(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, alter_resources(broker, call, request, _changed))


def _changed(broker: Broker, resource: Any, current: Mapping[str, str]) -> dict[str, str]:
    ops = [(config.name, config.config_operation, config.value) for config in resource.configs]
    return changed(broker, resource.resource_type, resource.resource_name, current, ops)
