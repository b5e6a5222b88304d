"""Avro schemas as trees, for readers, writers and Spark types.

`parse` takes a schema of the registry with its references. Names in the tree are full names; `Avro.named`
resolves them. `align` and `simplify` change the logical types of a tree in place, so call them on a private
copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from ottla.spark.values.errors import SchemaError, at
from ottla.spark.values.registry import Schema

#: Logical types whose Spark type differs from the Avro base type.
SPARKS_LOGICAL: Final = frozenset(
    (
        "bytes-decimal",
        "fixed-decimal",
        "int-date",
        "long-timestamp-millis",
        "long-timestamp-micros",
        "long-local-timestamp-millis",
        "long-local-timestamp-micros",
    )
)
_NUMBERS: Final = frozenset(("int", "long", "float", "double"))


@dataclass(frozen=True, slots=True)
class Avro:
    """The root of a schema, and its named types."""

    root: Any
    named: dict[str, Any]

    def resolve(self, node: Any) -> Any:
        return self.named.get(node, node) if isinstance(node, str) else node

    def for_fastavro(self, carried: bool) -> dict[str, Any]:
        """The schema in fastavro's parsed form.

        With `carried`, it is the only field, "value", of a record, which has the same bytes. Then a root of
        any type is not parsed again for each value.
        """
        root = self.resolve(self.root)
        if carried:
            root = {
                "type": "record",
                "name": "ottla.Carrier",
                "fields": [{"name": "value", "type": self.root}],
            }
        return {**root, "__fastavro_parsed": True, "__named_schemas": self.named}

    @property
    def is_record(self) -> bool:
        return kind_of(self.resolve(self.root)) == "record"


def parse(schema: Schema) -> Avro:
    named: dict[str, Any] = {}
    try:
        for _name, text in schema.references:
            parse_schema(json.loads(text), named)
        root: Any = parse_schema(json.loads(schema.text), named)
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SchemaError(f"not an Avro schema: {type(error).__name__}: {error}") from None
    if isinstance(root, dict) and root.get("name") in named:
        root = root["name"]
    elif isinstance(root, dict):
        root = {key: value for key, value in root.items() if not key.startswith("__")}
    avro = Avro(root, named)
    for path, node in walk(avro):
        if kind_of(node) == "array" and _takes_no_bytes(avro, node["items"]):
            # A few bytes could claim a trillion items.
            raise SchemaError(
                f"{path or 'the schema'}: an array of items without bytes cannot be read safely"
            )
    return avro


def kind_of(node: Any) -> str:
    """Avro's name for a resolved node: record, union, long, …"""
    if isinstance(node, list):
        return "union"
    if isinstance(node, dict):
        inner = node["type"]
        return inner if isinstance(inner, str) else kind_of(inner)
    return str(node)


def logical_of(node: Any) -> str | None:
    """The logical type with its base type, as in long-timestamp-millis."""
    if isinstance(node, dict) and isinstance(node.get("logicalType"), str):
        return f"{kind_of(node)}-{node['logicalType']}"
    return None


def walk(avro: Avro) -> Iterator[tuple[str, Any]]:
    """Every node once, resolved, with its path. Recursive types are not entered again."""
    entered: set[str] = set()
    waiting: list[tuple[str, Any]] = [("", avro.root)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, str) and node in avro.named:
            if node in entered:
                continue
            entered.add(node)
        node = avro.resolve(node)
        if isinstance(node, dict) and "name" in node:
            entered.add(node["name"])
        yield path, node
        match kind_of(node):
            case "union":
                waiting += [(path, branch) for branch in node]
            case "record":
                waiting += [(at(path, field["name"]), field["type"]) for field in node["fields"]]
            case "array":
                waiting.append((f"{path}[]", node["items"]))
            case "map":
                waiting.append((f"{path}{{}}", node["values"]))
            case _:
                pass


def holds_itself(avro: Avro) -> bool:
    """Whether some record is recursive, so that values may be nested to any depth."""
    done: set[str] = set()

    def enter(node: Any, within: tuple[str, ...]) -> bool:
        node = avro.resolve(node)
        match kind_of(node):
            case "union":
                return any(enter(each, within) for each in node)
            case "array":
                return enter(node["items"], within)
            case "map":
                return enter(node["values"], within)
            case "record":
                name = node["name"]
                if name in within:
                    return True
                if name in done:
                    return False
                done.add(name)
                return any(enter(each["type"], (*within, name)) for each in node["fields"])
            case _:
                return False

    return enter(avro.root, ())


def is_choice(node: Any) -> bool:
    """Whether this is a union of several types besides null that are not all numbers of one sort."""
    return kind_of(node) == "union" and widened(node) is None and len(branches(node)) > 1


def branches(union: list[Any]) -> list[Any]:
    return [branch for branch in union if branch != "null"]


def widened(union: list[Any]) -> str | None:
    """[int, long] is a long and [float, double] a double, as in Spark's Avro."""
    kinds = {branch if isinstance(branch, str) else None for branch in branches(union)}
    if kinds == {"int", "long"}:
        return "long"
    return "double" if kinds == {"float", "double"} else None


def simplify(avro: Avro) -> None:
    """Drop logical types without a Spark type: their values are read as the base type."""
    for _path, node in walk(avro):
        if isinstance(node, dict) and "logicalType" in node and logical_of(node) not in SPARKS_LOGICAL:
            del node["logicalType"]


def align(writer: Avro, reader: Avro) -> None:
    """Adapt the writer's logical types to the reader's: Avro's schema resolution ignores them.

    A long that became a timestamp is read as a timestamp; a timestamp that became a plain long is read as a
    number. If both have a logical type, the writer's is kept: it defines the meaning of the bytes.
    """
    done: set[tuple[str, str]] = set()

    def suit(written: Any, wanted: Any) -> Any:
        if isinstance(written, str) and isinstance(wanted, str):
            if (written, wanted) in done:
                return written
            done.add((written, wanted))
        mine, theirs = writer.resolve(written), reader.resolve(wanted)
        kind = kind_of(mine)
        if kind == "union":
            for place, branch in enumerate(mine):
                mine[place] = suit(branch, _counterpart(reader, branch, writer, theirs))
            return written
        if kind_of(theirs) == "union":
            theirs = reader.resolve(_counterpart(reader, written, writer, theirs))
        if kind_of(theirs) != kind and not {kind, kind_of(theirs)} <= _NUMBERS:
            return written
        match kind:
            case "record":
                _suit_fields(mine, theirs)
            case "array":
                mine["items"] = suit(mine["items"], theirs["items"])
            case "map":
                mine["values"] = suit(mine["values"], theirs["values"])
            case "fixed":
                if logical_of(theirs) is None:
                    mine.pop("logicalType", None)
            case "enum":
                pass
            case _:
                if logical_of(theirs) is None:
                    return kind
                if logical_of(mine) is None and kind != kind_of(theirs):
                    raise SchemaError(f"its {kind} cannot be read as {logical_of(theirs)}")
                if logical_of(mine) is None:
                    return {**theirs}
        return written

    def _suit_fields(mine: Any, theirs: Any) -> None:
        wanted = {
            name: each for each in theirs["fields"] for name in (each["name"], *each.get("aliases", ()))
        }
        for each in mine["fields"]:
            if each["name"] in wanted:
                each["type"] = suit(each["type"], wanted[each["name"]]["type"])

    suit(writer.root, reader.root)


def _counterpart(reader: Avro, branch: Any, writer: Avro, theirs: Any) -> Any:
    """The branch of the reader's union that this branch of the writer's union is read as."""
    if kind_of(theirs) != "union":
        return theirs
    mine = writer.resolve(branch)
    same = [each for each in theirs if kind_of(reader.resolve(each)) == kind_of(mine)]
    named = [each for each in same if _name(reader.resolve(each)) == _name(mine)]
    return (named or same or ["null"])[0]


def _name(node: Any) -> str | None:
    return node.get("name") if isinstance(node, dict) else None


def _takes_no_bytes(avro: Avro, node: Any, seen: tuple[str, ...] = ()) -> bool:
    node = avro.resolve(node)
    kind = kind_of(node)
    if kind == "record":
        if node["name"] in seen:
            return False
        inner = (*seen, node["name"])
        return all(_takes_no_bytes(avro, each["type"], inner) for each in node["fields"])
    return kind == "null" or (kind == "fixed" and node["size"] == 0)
