"""The wire layout of a kio message class: fields in order, with type, nullability, tag and default.

Encoders, guards and readers are all built from it, so they agree about a schema. A field without a default in
the schema gets the protocol's implicit one (zero, empty). A nullable string, byte string or struct without a
default is null. An array is empty even if it can be null (in requests null means "all").
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_origin

# A kio dataclass. (mypy does not accept `type[Any]` as hashable, and these are keys of caches.)
EntityClass: TypeAlias = Any

EPOCH: Final = datetime.fromtimestamp(0, UTC)

# struct format characters; widths as in the protocol (big endian, no padding).
FIXED_FORMATS: Final = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "uuid": "16s",
}
FIXED_SIZES: Final = {
    "b": 1,
    "B": 1,
    "?": 1,
    "h": 2,
    "H": 2,
    "i": 4,
    "I": 4,
    "q": 8,
    "Q": 8,
    "d": 8,
    "16s": 16,
}


class FieldLayout(NamedTuple):
    """One field. `kind` is kio's name of the type (of the items, for an array), or "struct"."""

    name: str
    kind: str
    is_array: bool
    is_nullable: bool
    is_flexible: bool
    tag: int | None
    struct: EntityClass | None
    default: Any

    @property
    def fixed_format(self) -> str | None:
        """The struct format of a field of constant size, else None."""
        return None if self.is_array else FIXED_FORMATS.get(self.kind)


@cache
def layout(cls: EntityClass) -> tuple[FieldLayout, ...]:
    """The fields of a kio class in the order of the schema, tagged ones included."""
    return tuple(_field_layouts(cls))


def body_fields(cls: EntityClass) -> list[FieldLayout]:
    """The fields that are always written, in order."""
    return [field for field in layout(cls) if field.tag is None]


def tagged_fields(cls: EntityClass) -> list[FieldLayout]:
    """The optional fields at the end of a flexible struct, in the order of their tags (KIP-482)."""
    return sorted((field for field in layout(cls) if field.tag is not None), key=lambda field: field.tag or 0)


@cache
def size_min(cls: EntityClass) -> int:
    """The minimum size of an instance. It limits how many items fit into a number of bytes."""
    tags = 1 if cls.__flexible__ else 0
    return tags + sum(_field_size_min(field) for field in body_fields(cls))


def item_size_min(field: FieldLayout) -> int:
    """The minimum size of one item of an array field, at least 1, so that counts are always limited."""
    return max(1, _field_size_min(field._replace(is_array=False, is_nullable=False)))


@cache
def row_size_min(cls: EntityClass) -> int | None:
    """The minimum size of one item of any array of this class, nested ones included; None without arrays."""
    sizes = [item_size_min(field) for field in layout(cls) if field.is_array]
    nested = [row_size_min(field.struct) for field in layout(cls) if field.struct is not None]
    return min([*sizes, *(size for size in nested if size is not None)], default=None)


def _field_size_min(field: FieldLayout) -> int:
    if field.is_array:
        return 1 if field.is_flexible else 4
    if field.kind in FIXED_FORMATS:
        return FIXED_SIZES[FIXED_FORMATS[field.kind]]
    if field.struct is not None:
        return 1 if field.is_nullable else size_min(field.struct)
    if field.is_flexible:
        return 1
    return 2 if field.kind == "string" else 4


def _field_layouts(cls: EntityClass) -> Iterator[FieldLayout]:
    for field in fields(cls):
        item_type, is_array, is_nullable = _unwrap(field.type)
        struct: EntityClass | None = item_type if is_dataclass(item_type) else None
        kind = "struct" if struct is not None else field.metadata["kafka_type"]
        # The one legacy string in flexible messages: a broker reads the header before it knows the version.
        is_client_id = cls.__name__ == "RequestHeader" and field.name == "client_id"
        default = field.default
        if default is MISSING:
            default = _implicit_default(kind, is_array, is_nullable, struct)
        yield FieldLayout(
            name=field.name,
            kind=kind,
            is_array=is_array,
            is_nullable=is_nullable,
            is_flexible=cls.__flexible__ and not is_client_id,
            tag=field.metadata.get("tag"),
            struct=struct,
            default=default,
        )


def _unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """(type of the value or item, whether it is an array, whether the whole can be null)"""
    inner, is_nullable = _without_none(annotation)
    if get_origin(inner) is tuple:
        # An array of uuids has items of type `UUID | None`, because kio reads the zero id as None.
        return _without_none(get_args(inner)[0])[0], True, is_nullable
    return inner, False, is_nullable


def _without_none(annotation: Any) -> tuple[Any, bool]:
    arguments = get_args(annotation)
    if NoneType not in arguments:
        return annotation, False
    return next(argument for argument in arguments if argument is not NoneType), True


def _implicit_default(kind: str, is_array: bool, is_nullable: bool, struct: EntityClass | None) -> Any:
    if is_array:
        return ()
    if is_nullable:
        return None
    if struct is not None:
        return default_instance(struct)
    if kind == "error_code":
        # Imported here: a thousand lines that a process without messages does not need.
        from kio.schema.errors import ErrorCode

        return ErrorCode(0)
    return _IMPLICIT_DEFAULTS.get(kind, 0)


def default_instance(cls: EntityClass) -> Any:
    """An instance with the default of every field."""
    return cls(**{field.name: field.default for field in layout(cls)})


_IMPLICIT_DEFAULTS: Final[dict[str, Any]] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "float64": 0.0,
    "uuid": None,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": EPOCH,
}
