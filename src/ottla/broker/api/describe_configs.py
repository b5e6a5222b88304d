"""DescribeConfigs (32): settings of topics and brokers, with where each value comes from and what stands behind it.

Resource types: TOPIC (2), BROKER (4, by its id, or empty for the cluster-wide defaults), GROUP (32). Errors by resource:
UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST. A resource that is named more than once is described once, with
all the settings that were asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.proposals import refused
from ottla.config.describe import (
    Entry,
    describe_broker,
    describe_broker_default,
    describe_group,
    describe_topic,
)
from ottla.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, NO_CONFIG, TOPIC_RESOURCE
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import STRING_BYTES_MAX
from ottla.model.names import topic_name_problem
from ottla.model.resources import no_settings
from ottla.model.strings import is_longer

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work

_ENTRY_COST: Final = 2

#: The first version whose strings may have more than 32,767 bytes.
_FLEXIBLE: Final = 4


@serves(32)
def describe_configs(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    rows: list[dict[str, Any]] = []
    return broker.slices.answer(call, _described(broker, call.version, request, rows), "results", rows)


def _described(broker: Broker, version: int, request: Any, rows: list[dict[str, Any]]) -> Work:
    for (kind, name), keys in _asked(request.resources).items():
        row: dict[str, Any] = {"error_code": 0, "resource_type": kind, "resource_name": name}
        try:
            row["configs"] = [
                _config(
                    entry,
                    synonyms=request.include_synonyms,
                    documentation=request.include_documentation,
                    bytes_max=STRING_BYTES_MAX if version < _FLEXIBLE else None,
                )
                for entry in _entries(broker, kind, name, keys)
            ]
        except Refusal as refusal:
            row.update(refused(refusal))
        rows.append(row)
        # Describing a setting takes several times as long as other rows.
        yield 1 + _ENTRY_COST * len(row.get("configs", ()))
    return {}


def _asked(resources: Iterable[Any]) -> dict[tuple[int, str], set[str] | None]:
    """The settings asked for, by resource; None for all."""
    asked: dict[tuple[int, str], set[str] | None] = {}
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        keys = set(resource.configuration_keys or ())
        before = asked.get(key, keys)
        asked[key] = before | keys if before and keys else None
    return asked


def _entries(broker: Broker, resource_type: int, name: str, names: Collection[str] | None) -> list[Entry]:
    if resource_type == TOPIC_RESOURCE:
        problem = topic_name_problem(name)
        if problem is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in broker.image.topics:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
        return describe_topic(broker.image.topic_config(name), broker.config, names)
    if resource_type == BROKER_RESOURCE:
        if name == "":
            return describe_broker_default(broker.image.configs.get((BROKER_RESOURCE, ""), {}), names)
        if name != str(broker.config.node_id):
            # As on Kafka: most of its settings are in its own file, and half an answer would look like a whole one.
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {broker.config.node_id}: only broker {name} knows its own settings, ask it there",
            )
        return describe_broker(broker.config, names)
    if resource_type == GROUP_RESOURCE:
        if not name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "a group's settings need the group's name")
        own = broker.image.configs.get((GROUP_RESOURCE, name), NO_CONFIG)
        return describe_group(own, broker.config, names)
    raise Refusal(ErrorCode.INVALID_REQUEST, no_settings(resource_type))


def _config(entry: Entry, *, synonyms: bool, documentation: bool, bytes_max: int | None) -> dict[str, Any]:
    """One setting. A value that is longer than the version's strings may be is left out, as if it were sensitive."""

    def carried(value: str | None) -> str | None:
        return None if bytes_max is not None and is_longer(value, bytes_max) else value

    return {
        "name": entry.name,
        "value": carried(entry.value),
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_default": entry.is_default,
        "is_sensitive": entry.sensitive,
        "config_type": entry.type_code,
        "documentation": entry.documentation if documentation else None,
        "synonyms": [
            {"name": synonym.name, "value": carried(synonym.value), "source": synonym.source}
            for synonym in entry.synonyms
        ]
        if synonyms
        else (),
    }
