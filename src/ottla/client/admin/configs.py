"""Config requests for topics, brokers, groups and other resources.

The functions implement the methods of the same names in `client/admin/core.py`. Requests about a broker's own
configs go to that broker, all others to the controller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ottla.client.connection import Body, BrokerConnection
from ottla.client.errors import BrokerNotFound, refused
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster


ResourceType = Literal["topic", "broker", "broker-logger", "client-metrics", "group"]

RESOURCE_TYPES: Final[dict[ResourceType, int]] = {
    "topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32,
}  # fmt: skip
_NAMES: Final = {number: name for name, number in RESOURCE_TYPES.items()}
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

#: The protocol's numbers for the source of a config value.
SOURCES: Final = {
    1: "topic", 2: "dynamic broker", 3: "dynamic default broker", 4: "static broker", 5: "default",
    6: "dynamic broker logger", 7: "client metrics", 8: "group",
}  # fmt: skip
TYPES: Final = {
    1: "boolean", 2: "string", 3: "int", 4: "short", 5: "long", 6: "double", 7: "list", 8: "class", 9: "password",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resource:
    """The owner of configs. The broker named "" stands for the default of all brokers."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type} {self.name!r}"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    type: str
    documentation: str | None
    synonyms: tuple[tuple[str, str | None, str], ...] = ()

    @property
    def is_default(self) -> bool:
        return self.source == "default"

    def __str__(self) -> str:
        value = "(hidden)" if self.sensitive else "(none)" if self.value is None else self.value
        return f"{self.name}={value} ({self.source})"


async def describe_configs(
    cluster: Cluster, resource: Resource, names: Iterable[str] | None, *, documentation: bool, synonyms: bool
) -> dict[str, ConfigEntry]:
    connection = await _connection_for(cluster, resource)
    row: Body = {
        "resource_type": RESOURCE_TYPES[resource.type],
        "resource_name": resource.name,
        "configuration_keys": None if names is None else list(names),
    }
    body: Body = {"resources": [row], "include_synonyms": synonyms, "include_documentation": documentation}
    response = await connection.request(ApiKey.DESCRIBE_CONFIGS, body)
    found: dict[str, ConfigEntry] = {}
    for result in response.results:
        _check(result, resource, connection.address)
        found.update((str(entry.name), _entry(entry)) for entry in result.configs)
    return dict(sorted(found.items()))


def _entry(row: Any) -> ConfigEntry:
    synonyms = (
        (str(each.name), each.value, SOURCES.get(int(each.source), "unknown")) for each in row.synonyms
    )
    return ConfigEntry(
        str(row.name), row.value, SOURCES.get(int(row.config_source), "unknown"), bool(row.read_only),
        bool(row.is_sensitive), TYPES.get(int(row.config_type), "unknown"), row.documentation, tuple(synonyms),
    )  # fmt: skip


async def alter_configs(
    cluster: Cluster,
    resource: Resource,
    changes: Mapping[str, str | None],
    *,
    append: Mapping[str, str],
    subtract: Mapping[str, str],
    validate_only: bool,
) -> None:
    changed = [(name, DELETE if value is None else SET, value) for name, value in changes.items()]
    changed += [(name, APPEND, value) for name, value in append.items()]
    changed += [(name, SUBTRACT, value) for name, value in subtract.items()]
    body: Body = {
        "resources": [
            {
                "resource_type": RESOURCE_TYPES[resource.type],
                "resource_name": resource.name,
                "configs": [
                    {"name": name, "config_operation": operation, "value": value}
                    for name, operation, value in changed
                ],
            }
        ],
        "validate_only": validate_only,
    }
    try:
        connection = await _connection_for(cluster, resource)
    except BrokerNotFound:
        if not resource.name.isdigit():
            raise
        # The broker may be down for a while: the controller knows it.
        connection = await cluster.controller()
    response = await connection.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, body)
    for row in response.responses:
        _check(row, resource, connection.address)


async def list_config_resources(cluster: Cluster, types: Collection[ResourceType]) -> list[Resource]:
    connection = await cluster.any_connection()
    what = "listing what has configs"
    if set(types) != {"client-metrics"} and connection.version_for(ApiKey.LIST_CONFIG_RESOURCES) < 1:
        raise refused(
            ErrorCode.UNSUPPORTED_VERSION, what, message="the broker lists client metrics only",
            broker=connection.address,
        )  # fmt: skip
    body: Body = {"resource_types": [RESOURCE_TYPES[each] for each in types]}
    answer = await connection.request(ApiKey.LIST_CONFIG_RESOURCES, body)
    if answer.error_code:
        raise refused(int(answer.error_code), what, broker=connection.address)
    found = (
        Resource(_NAMES[int(row.resource_type)], str(row.resource_name))
        for row in answer.config_resources
        if int(row.resource_type) in _NAMES
    )
    return sorted(found, key=lambda resource: (resource.type, resource.name))


def _check(row: Any, resource: Resource, broker: str) -> None:
    if row.error_code:
        raise refused(
            int(row.error_code), f"configs of {resource}", message=row.error_message, broker=broker,
            topic=resource.name if resource.type == "topic" else None,
        )  # fmt: skip


async def _connection_for(cluster: Cluster, resource: Resource) -> BrokerConnection:
    if resource.type not in ("broker", "broker-logger") or not resource.name:
        return await cluster.controller()
    nodes = cluster.metadata.nodes
    if resource.name.isdigit() and int(resource.name) in nodes:
        return await cluster.connection(nodes[int(resource.name)])
    raise BrokerNotFound(
        f"there is no broker {resource.name!r} in the cluster",
        code=ErrorCode.BROKER_NOT_AVAILABLE,
        advice=f"The brokers are {', '.join(map(str, sorted(nodes)))}",
    )
