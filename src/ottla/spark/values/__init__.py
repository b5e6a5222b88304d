"""JSON, Avro and Protobuf values with a schema registry: as Spark columns, and in any Python program.

`from_registry`, `to_registry` and `from_json_value` are column functions. `ValueReader` and `ValueWriter`
convert between bytes and Python values without loading Spark. They support all registries with Confluent's
HTTP API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.spark.values.codecs import ValueReader, ValueWriter
from ottla.spark.values.columns import from_json_value, from_registry, to_registry
from ottla.spark.values.errors import BadValue, RegistryError, SchemaError
from ottla.spark.values.registry import Location

if TYPE_CHECKING:
    from ottla.spark.values.avro_types import avro_schema

__all__ = [
    "BadValue",
    "Location",
    "RegistryError",
    "SchemaError",
    "ValueReader",
    "ValueWriter",
    "avro_schema",
    "from_json_value",
    "from_registry",
    "to_registry",
]


def __getattr__(name: str) -> Any:
    # Loaded on demand, because it needs pyspark.
    if name == "avro_schema":
        from ottla.spark.values.avro_types import avro_schema

        return avro_schema
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
