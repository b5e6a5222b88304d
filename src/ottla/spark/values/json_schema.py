"""JSON Schema, as far as it defines columns; and JSON payloads ↔ Python values.

A schema is parsed into a tree of `Node`s. $ref (within the schema and to references in the registry), allOf,
and null in type, oneOf or anyOf are resolved. Everything that allows several types is `ANY`. Reading is
lenient: unknown fields are dropped, missing ones are null, and only column types are validated. A value of
the wrong type raises a `BadValue` that names the field. In columns, `ANY` is JSON text, times are strings and
integers are longs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.spark.values.errors import BadValue, SchemaError
from ottla.spark.values.json_fit import fitting, writing
from ottla.spark.values.json_leaves import Fit, read_as, text_of
from ottla.spark.values.registry import Schema
from ottla.spark.values.wire_format import HEADER_BYTES, header

OBJECT: Final = "object"
MAP: Final = "map"
ARRAY: Final = "array"
ANY: Final = "any"
_SIMPLE: Final = ("string", "integer", "number", "boolean")


@dataclass(slots=True)
class Node:
    """A place in the schema: `kind` is OBJECT, MAP, ARRAY, ANY, or a simple type of JSON Schema."""

    kind: str
    nullable: bool = False
    fields: dict[str, Node] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    inner: Node | None = None


class JsonReader:
    """Reads frames of any version: with `columns` as column values of its schema, else unchanged."""

    def __init__(self, schema: Schema, *, columns: bool = False) -> None:
        self.node = parse(schema)
        self._fit: Fit | None = fitting(self.node) if columns else None

    def read(self, frame: bytes, _writer: Schema) -> Any:
        payload = frame[HEADER_BYTES:]
        if self._fit is not None:
            return read_as(self._fit, payload)
        try:
            return json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise BadValue(f"not JSON: {error}") from None


class JsonWriter:
    """Writes values with one schema. With `columns`, a value of ANY is JSON text."""

    def __init__(self, schema: Schema, *, columns: bool = False) -> None:
        self._fit = writing(parse(schema), columns=columns)
        self._header = header(schema.id)

    def write(self, value: Any) -> bytes:
        try:
            return self._header + text_of(self._fit(value, ""), strict=True).encode()
        except BadValue:
            raise
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise BadValue(f"does not fit: {error}") from None


def parse(schema: Schema) -> Node:
    try:
        root = json.loads(schema.text)
        others = {name: json.loads(text) for name, text in schema.references}
    except ValueError as error:
        raise SchemaError(f"not a JSON Schema: {error}") from None
    return _SchemaParser(root, others).node(root, root, "", ())


class _SchemaParser:
    """Parses one schema. `root` is the document that references without an address point into."""

    def __init__(self, root: Any, others: dict[str, Any]) -> None:
        self._root = root
        self._others = others

    def node(self, schema: Any, root: Any, path: str, trail: tuple[str, ...]) -> Node:
        if isinstance(schema, bool):
            return Node(ANY, nullable=True)
        if not isinstance(schema, dict):
            raise SchemaError(f"{path or 'the schema'} is not a JSON Schema: {schema!r:.60}")
        if "$ref" in schema:
            reference = str(schema["$ref"])
            where = f"{id(root)} {reference}"
            if where in trail:
                raise SchemaError(
                    f"{path}: {reference} is recursive, which no column can hold: use a schema without that "
                    "field"
                )
            target, document = self._find(reference, root, path)
            return self.node(target, document, path, (*trail, where))
        if "allOf" in schema:
            return self._all_of(schema, root, path, trail)
        for word in ("oneOf", "anyOf"):
            if word in schema:
                return self._one_of(schema, schema[word], root, path, trail)
        return self._typed(schema, root, path, trail)

    def _typed(self, schema: dict[str, Any], root: Any, path: str, trail: tuple[str, ...]) -> Node:
        kinds = schema.get("type", self._guess(schema))
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        nullable = "null" in kinds
        kinds = [kind for kind in kinds if kind != "null"]
        if sorted(kinds) == ["integer", "number"]:
            kinds = ["number"]
        if len(kinds) != 1:
            return Node(ANY, nullable=True)
        kind = kinds[0]
        if kind in _SIMPLE:
            return Node(kind, nullable)
        if kind == "array":
            items = schema.get("items", schema.get("prefixItems", True))
            # Items with a type each are a tuple, which Spark lacks.
            inner = Node(ANY, True) if isinstance(items, list) else self.node(items, root, f"{path}[]", trail)
            return Node(ARRAY, nullable, inner=inner)
        if kind == "object":
            return self._object(schema, nullable, root, path, trail)
        raise SchemaError(f"{path or 'the schema'}: JSON Schema has no type {kind!r}")

    def _object(
        self, schema: dict[str, Any], nullable: bool, root: Any, path: str, trail: tuple[str, ...]
    ) -> Node:
        properties = schema.get("properties") or {}
        if properties:
            fields = {
                name: self.node(each, root, f"{path}.{name}" if path else name, trail)
                for name, each in properties.items()
            }
            return Node(OBJECT, nullable, fields, frozenset(schema.get("required", ())))
        more = schema.get("additionalProperties", True)
        if isinstance(more, dict):
            return Node(MAP, nullable, inner=self.node(more, root, f"{path}{{}}", trail))
        return Node(ANY, nullable=True)

    def _all_of(self, schema: dict[str, Any], root: Any, path: str, trail: tuple[str, ...]) -> Node:
        own = {key: value for key, value in schema.items() if key != "allOf"}
        parts = [self.node(each, root, path, trail) for each in schema["allOf"]]
        if "properties" in own or "type" in own:
            parts.append(self.node(own, root, path, trail))
        telling = [each for each in parts if each.kind != ANY]
        if not telling:
            return Node(ANY, nullable=True)
        if len(telling) == 1:
            return telling[0]
        if any(each.kind != OBJECT for each in telling):
            return Node(ANY, nullable=True)
        return Node(
            OBJECT,
            all(each.nullable for each in telling),
            {name: node for each in telling for name, node in each.fields.items()},
            frozenset().union(*(each.required for each in telling)),
        )

    def _one_of(
        self, schema: dict[str, Any], options: list[Any], root: Any, path: str, trail: tuple[str, ...]
    ) -> Node:
        some = [each for each in options if not (isinstance(each, dict) and each.get("type") == "null")]
        if len(some) == 1:
            node = self.node(some[0], root, path, trail)
            node.nullable = node.nullable or len(some) < len(options)
            return node
        if "properties" in schema:
            # The options only add conditions to the fields of the object.
            return self._typed(schema, root, path, trail)
        return Node(ANY, nullable=True)

    def _find(self, reference: str, root: Any, path: str) -> tuple[Any, Any]:
        address, _, pointer = reference.partition("#")
        document = root
        if address:
            if address not in self._others:
                raise SchemaError(
                    f"{path or 'the schema'}: {reference} is not among the schema's references in the "
                    "registry"
                )
            document = self._others[address]
        if pointer and not pointer.startswith("/"):
            found = _anchored(document, pointer)
            if found is None:
                raise SchemaError(f"{path or 'the schema'}: {reference} points at nothing")
            return found, document
        found = document
        for part in pointer.split("/")[1:]:
            step = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                raise SchemaError(f"{path or 'the schema'}: {reference} points at nothing")
            found = found[step]
        return found, document

    @staticmethod
    def _guess(schema: dict[str, Any]) -> Any:
        """The type of a schema without `type`."""
        if "properties" in schema or isinstance(schema.get("additionalProperties"), dict):
            return "object"
        if "items" in schema:
            return "array"
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        return "string" if values and all(isinstance(each, str) for each in values) else []


def _anchored(document: Any, name: str) -> Any:
    """The part of a document with this anchor; drafts before 2019 write it as an id."""
    waiting = [document]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            if name in (part.get("$anchor"), part.get("$dynamicAnchor")) or f"#{name}" in (
                part.get("$id"),
                part.get("id"),
            ):
                return part
            waiting += part.values()
    return None
