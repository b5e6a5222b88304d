"""The API table: keys, versions, and the kio class of each message.

Ranges and names come from kio's index. The module of a version is imported at its first use, because all of
them take over a second and 56 MB. Handlers use the names of the newest version: fields that a version lacks
are set once, as class attributes with the field's default, on the classes of that version.
"""

import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from ottla.wire.layout import EntityClass, layout

# Versions that have the fields which the newest version has dropped, by (key, is it a request). With the
# newest version they have all fields of an API, so other versions need not be imported to find them.
_VERSIONS_WITH_DROPPED_FIELDS: Final[dict[tuple[int, EntityType], tuple[int, ...]]] = {
    (0, EntityType.request): (12,),
    (0, EntityType.response): (12,),
    (1, EntityType.request): (12,),
    (1, EntityType.response): (12,),
    (3, EntityType.request): (10,),
    (3, EntityType.response): (10,),
    (8, EntityType.request): (4,),
    (8, EntityType.response): (9,),
    (9, EntityType.request): (9, 7),
    (9, EntityType.response): (9, 7),
    (10, EntityType.request): (3,),
    (10, EntityType.response): (3,),
    (13, EntityType.request): (2,),
    (20, EntityType.request): (5,),
    (24, EntityType.request): (3,),
    (24, EntityType.response): (3,),
    (54, EntityType.request): (0,),
    (56, EntityType.request): (2,),
    (57, EntityType.request): (0,),
    (57, EntityType.response): (1,),
}


class UnknownApi(LookupError):
    """Unknown API key or version."""


@cache
def version_range(api_key: int) -> tuple[int, int] | None:
    """The oldest and newest version of the schema, or None for an unknown key."""
    name = api_key_map.get(api_key)
    if name is None:
        return None
    versions = schema_name_map[name]
    return min(versions), max(versions)


def api_name(api_key: int) -> str:
    """The name of the API in snake case, such as `list_offsets`, for metrics and messages. Never raises."""
    return api_key_map.get(api_key, f"api_{api_key}")


@cache
def request_class(api_key: int, version: int) -> EntityClass:
    return _class(api_key, version, EntityType.request)


@cache
def response_class(api_key: int, version: int) -> EntityClass:
    return _class(api_key, version, EntityType.response)


@cache
def request_is_flexible(api_key: int, version: int) -> bool:
    return bool(request_class(api_key, version).__flexible__)


@cache
def response_is_flexible(api_key: int, version: int) -> bool:
    return bool(response_class(api_key, version).__flexible__)


@cache
def request_header_is_flexible(api_key: int, version: int) -> bool:
    """Whether the request header ends with tagged fields (header v2)."""
    return bool(request_class(api_key, version).__header_schema__.__flexible__)


@cache
def response_header_is_flexible(api_key: int, version: int) -> bool:
    """Whether the response header ends with tagged fields (header v1).

    Never for ApiVersions: a client reads that response before it knows the versions of the broker (KIP-511).
    """
    return bool(response_class(api_key, version).__header_schema__.__flexible__)


def _class(api_key: int, version: int, entity_type: EntityType) -> EntityClass:
    cls = _load(api_key, version, entity_type)
    newest = version_range(api_key)
    assert newest is not None
    for other in (newest[1], *_VERSIONS_WITH_DROPPED_FIELDS.get((api_key, entity_type), ())):
        if other != version:
            _add_missing_fields(cls, _load(api_key, other, entity_type))
    return cls


def _load(api_key: int, version: int, entity_type: EntityType) -> EntityClass:
    name = api_key_map.get(api_key)
    if name is None or version not in schema_name_map[name]:
        raise UnknownApi(f"{api_name(api_key)} (key {api_key}) has no version {version}")
    versions: Any = schema_name_map[name]
    module, _, class_name = versions[version][entity_type].partition(":")
    cls: EntityClass = getattr(_import(module), class_name)
    return cls


def _import(module: str) -> ModuleType:
    """Import a message module without kio's test support.

    If Hypothesis is installed, kio registers its types there: 20 MB and a tenth of a second.
    """
    if "hypothesis" in sys.modules or "kio.static.primitive" in sys.modules:
        return import_module(module)
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        return import_module(module)
    finally:
        del sys.modules["hypothesis"]


def _add_missing_fields(cls: EntityClass, other: EntityClass) -> None:
    own = {field.name: field for field in layout(cls)}
    for field in layout(other):
        if field.name not in own:
            # A field of the newest version comes first and wins: handlers use its default.
            if field.name not in cls.__dict__:
                setattr(cls, field.name, field.default)
        elif field.struct is not None:
            own_struct = own[field.name].struct
            assert own_struct is not None, f"{cls.__name__}.{field.name} is a struct in one version only"
            _add_missing_fields(own_struct, field.struct)
