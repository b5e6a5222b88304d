"""JSON, Avro and Protobuf values with a schema registry: as columns of Spark, and for any Python program.

`from_registry`, `to_registry` and `from_json_value` are column functions; `ValueReader` and `ValueWriter` turn bytes into Python values and back without Spark, which
is not loaded by them. All speak to registries that are compatible with Confluent's, over HTTP.
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
    # It needs pyspark's types.
    if name == "avro_schema":
        from ottla.spark.values.avro_types import avro_schema

        return avro_schema
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
