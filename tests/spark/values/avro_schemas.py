"""Avro schemas for tests: helpers to write them, and Hypothesis strategies for schemas with values."""

import json
from datetime import UTC
from typing import Any

from hypothesis import strategies as st

from ottla.spark.values.registry import Schema


def avro(schema: Any, schema_id: int = 1, references: tuple[tuple[str, Any], ...] = ()) -> Schema:
    return Schema(
        schema_id, "AVRO", json.dumps(schema), tuple((name, json.dumps(text)) for name, text in references)
    )


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    """Fields: (name, type) or (name, type, default)."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": each[0], "type": each[1], **({"default": each[2]} if len(each) > 2 else {})}
            for each in fields
        ],
    }


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


us_times = st.datetimes()
ms_times = us_times.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=9)),
    ("string", st.text(max_size=9)),
    (logical("int", "date"), st.dates()),
    (logical("long", "timestamp-millis"), ms_times.map(lambda at: at.replace(tzinfo=UTC))),
    (logical("long", "timestamp-micros"), us_times.map(lambda at: at.replace(tzinfo=UTC))),
    (logical("long", "local-timestamp-millis"), ms_times),
    (logical("long", "local-timestamp-micros"), us_times),
    (logical("long", "time-micros"), st.times()),
    (logical("string", "uuid"), st.uuids()),
    (
        logical("bytes", "decimal", precision=12, scale=3),
        st.decimals(-(10**9) + 1, 10**9 - 1, places=3, allow_nan=False),
    ),
]


@st.composite
def schemas_and_values(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any]:
    """A schema and one value of it. Names are made unique by a counter that the outermost draw hands around."""
    counter: list[None] = draw(st.shared(st.builds(list), key="names"))

    def fresh() -> str:
        counter.append(None)
        return f"N{len(counter)}"

    def leaf() -> tuple[Any, Any]:
        kind = draw(st.integers(0, len(LEAVES) + 1))
        if kind == len(LEAVES):
            symbols = ["A", "B", "C"]
            return {"type": "enum", "name": fresh(), "symbols": symbols}, draw(st.sampled_from(symbols))
        if kind == len(LEAVES) + 1:
            return {"type": "fixed", "name": fresh(), "size": 4}, draw(st.binary(min_size=4, max_size=4))
        schema, values = LEAVES[kind]
        return schema, draw(values)

    def node(depth: int) -> tuple[Any, Any]:
        shape = draw(st.sampled_from(["leaf", "optional", "record", "array", "map"] if depth else ["leaf"]))
        if shape == "leaf":
            return leaf()
        if shape == "optional":
            schema, value = node(depth - 1)
            if isinstance(schema, list):
                return schema, value
            return ["null", schema], draw(st.sampled_from([None, value]))
        if shape == "array":
            schema, value = node(depth - 1)
            return {"type": "array", "items": schema}, [value] * draw(st.integers(0, 3))
        if shape == "map":
            schema, value = node(depth - 1)
            return {"type": "map", "values": schema}, dict.fromkeys(
                draw(st.lists(st.text(max_size=3), max_size=3)), value
            )
        return fields(depth - 1)

    def fields(depth: int) -> tuple[Any, Any]:
        inner = [(f"f{place}", *node(depth)) for place in range(draw(st.integers(1, 4)))]
        return (
            record(*((name, schema) for name, schema, _ in inner), name=fresh()),
            {name: value for name, _, value in inner},
        )

    return fields(depth)
