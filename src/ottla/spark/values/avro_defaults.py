"""Decodes the defaults of an Avro schema, which are JSON: bytes are strings, times are numbers.

Call `decode_defaults` once, on a private tree. fastavro returns a reader's default unchanged. A writer checks
a default like a given value. A default that does not fit its field is removed; only rows that need it fail.
"""

from __future__ import annotations

from typing import Any

from fastavro.read import LOGICAL_READERS

from ottla.spark.values.avro_tree import Avro, kind_of, logical_of, walk


def decode_defaults(avro: Avro, *, tells: bool = False) -> None:
    """Decode all defaults.

    `tells`: named branches of unions are (name, value), as fastavro returns them on request.
    """
    fields = [field for _path, node in walk(avro) if kind_of(node) == "record" for field in node["fields"]]
    # Decode all before changing one: the default of a record is completed with the defaults of its fields.
    decoded = [_DefaultDecoder(avro, tells).default_of(field) for field in fields]
    for field, default in zip(fields, decoded, strict=True):
        if default is _NONE:
            field.pop("default", None)
        else:
            field["default"] = default


_NONE = object()


class _DefaultDecoder:
    def __init__(self, avro: Avro, tells: bool) -> None:
        self._avro = avro
        self._tells = tells

    def default_of(self, field: Any) -> Any:
        if "default" not in field:
            return _NONE
        try:
            return self.value(field["type"], field["default"])
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
            return _NONE

    def value(self, node: Any, given: Any) -> Any:
        """Decode one default. Raises ValueError or similar if it does not fit the type."""
        node = self._avro.resolve(node)
        match kind_of(node):
            case "union":
                return self._branch(node, given)
            case "record":
                held = _of(dict, given)
                return {each["name"]: self._field(each, held) for each in node["fields"]}
            case "array":
                return [self.value(node["items"], each) for each in _of(list, given)]
            case "map":
                return {key: self.value(node["values"], each) for key, each in _of(dict, given).items()}
            case kind:
                plain = _plain(kind, node, given)
                read = LOGICAL_READERS.get(logical_of(node) or "")
                return plain if read is None else read(plain, node, node)

    def _field(self, field: Any, held: dict[str, Any]) -> Any:
        name = field["name"]
        return self.value(field["type"], held[name] if name in held else field["default"])

    def _branch(self, union: list[Any], given: Any) -> Any:
        """The default of a union belongs to its first branch.

        Newer Avro versions allow any branch that fits.
        """
        for branch in union:
            try:
                value = self.value(branch, given)
            except (ValueError, TypeError, KeyError, ArithmeticError):
                continue
            node = self._avro.resolve(branch)
            named = self._tells and isinstance(node, dict) and "name" in node
            return (node["name"], value) if named else value
        raise ValueError(f"{given!r} is in no branch")


def _plain(kind: str, node: Any, given: Any) -> Any:
    match kind:
        case "null" if given is None:
            return None
        case "boolean":
            return _of(bool, given)
        case "int" | "long":
            bits = 31 if kind == "int" else 63
            if isinstance(given, bool) or not -1 << bits <= _of(int, given) < 1 << bits:
                raise ValueError(given)
            return given
        case "float" | "double":
            if isinstance(given, (bool, str)) and given not in ("NaN", "Infinity", "-Infinity"):
                raise ValueError(given)
            return float(given)
        case "bytes" | "fixed":
            raw = _of(str, given).encode("latin-1")
            if kind == "fixed" and len(raw) != node["size"]:
                raise ValueError(given)
            return raw
        case "string":
            return _of(str, given)
        case "enum" if given in node["symbols"]:
            return given
        case _:
            raise ValueError(given)


def _of(type_: type[Any], given: Any) -> Any:
    if not isinstance(given, type_):
        raise TypeError(f"{given!r} is no {type_.__name__}")
    return given
