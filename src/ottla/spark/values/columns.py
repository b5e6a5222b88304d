"""Column functions: record values ↔ structs, with a schema registry.

    order = from_registry(col("value"), "http://127.0.0.1:8081", subject="orders-value", error_column="error")
    orders = spark.readStream.format("ottla").….load().select("*", order.alias("order"))
    good, bad = orders.where("order.error is null"), orders.where("order.error is not null")

The functions ask the registry when they are called, because the type of a column must be known before the
query runs. The schema is sent to the workers with the query. Workers process Arrow batches (`arrow_udf` over
an iterator, so that a task is set up once). They keep registries and their schemas for later tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ottla.spark.values.codecs import (
    FrameReader,
    Plan,
    Reader,
    SchemaOptions,
    Writer,
    plan,
    reader_of,
    writer_of,
    writing_plan,
)
from ottla.spark.values.errors import BadValue
from ottla.spark.values.registry import Location, Registry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

FAILFAST = "FAILFAST"
PERMISSIVE = "PERMISSIVE"

_Arrays = Callable[[Iterator[Any]], Iterator[Any]]

_registries: dict[Location, Registry] = {}
_readers: dict[Plan, Reader] = {}
_writers: dict[Plan, Writer] = {}
#: A worker with more plans than this clears the cache. It serves one query at a time, with few kinds of
#: values.
_KEPT_MAX = 64


@dataclass(frozen=True, slots=True)
class BadValueOptions:
    """The treatment of bad values: fail, or (`permissive`) return null, with the reason in `error_column`."""

    permissive: bool = False
    error_column: str | None = None

    @classmethod
    def of(cls, mode: str | None, error_column: str | None) -> BadValueOptions:
        """Check the arguments of the column functions. Without `mode`, `error_column` selects PERMISSIVE."""
        if error_column == "value":
            raise ValueError(
                "error_column cannot be 'value', the field of the decoded value: use another name"
            )
        if mode is None:
            return cls(error_column is not None, error_column)
        if mode.upper() not in (FAILFAST, PERMISSIVE):
            raise ValueError(f"mode must be {FAILFAST} or {PERMISSIVE}, not {mode!r}")
        if mode.upper() == FAILFAST and error_column is not None:
            raise ValueError(
                f"error_column {error_column!r} would always be null in mode {FAILFAST}: use {PERMISSIVE}"
            )
        return cls(mode.upper() == PERMISSIVE, error_column)


FAIL_ON_BAD_VALUE = BadValueOptions()


def from_registry(
    column: Column | str,
    registry: str | Sequence[str],
    *,
    subject: str | None = None,
    version: int | str = "latest",
    schema_id: int | None = None,
    schema: str | None = None,
    schema_type: str | None = None,
    message: str | None = None,
    descriptor_set: bytes | None = None,
    mode: str | None = None,
    error_column: str | None = None,
    auth: str | tuple[str, str] | None = None,
    ca_file: str | None = None,
    timeout_s: float = 10.0,
    attempts: int = 6,
) -> Column:
    """Decode a column of bytes with a schema of the registry.

    The schema is named by exactly one of `subject`, `schema_id`, `schema` and `descriptor_set`. Values that
    were written with other versions are converted to it. Null bytes (tombstones) are decoded as null, without
    an error.

    Args:
        column: The column with the bytes.
        registry: The URL of the schema registry, or several.
        subject: Decode with the schema of this subject.
        version: The version of the subject.
        schema_id: Decode with the schema of this id.
        schema: Decode with this schema, given as text.
        schema_type: AVRO, JSON or PROTOBUF: the type of `schema` (default AVRO). A subject or id of another
            type is rejected.
        message: The full name of a Protobuf message; by default the first of the schema.
        descriptor_set: Decode with this compiled Protobuf schema, a FileDescriptorSet.
        mode: FAILFAST (default): a bad value fails the query. PERMISSIVE: it becomes null.
        error_column: Return a struct of `value` and a string column with this name, which holds the reason
            for a bad value. Selects PERMISSIVE.
        auth: User and password for the registry, as a pair or USER:PASSWORD.
        ca_file: The CA certificate of the registry.
        timeout_s: The timeout of one request.
        attempts: The number of requests, over all URLs, before the registry counts as unreachable.

    Returns:
        The decoded column; with `error_column`, a struct.

    Raises:
        ValueError: An argument is invalid.
        SchemaError: The schema cannot be used.
        RegistryError: The registry cannot be reached, or refuses the request.

    Example:
        >>> df.select(from_registry("value", "http://127.0.0.1:8081", subject="orders-value").alias("order"))
    """
    location = Location.of(registry, auth=auth, ca_file=ca_file, timeout_s=timeout_s, attempts=attempts)
    bad_values = BadValueOptions.of(mode, error_column)
    options = SchemaOptions(
        subject=subject,
        version=version,
        schema_id=schema_id,
        schema=schema,
        schema_type=schema_type,
        message=message,
        descriptor_set=descriptor_set,
    )
    planned = plan(location, options)
    return _column(column, decoding(planned, bad_values), _with_error(type_of(planned), error_column))


def to_registry(
    column: Column | str,
    registry: str | Sequence[str],
    subject: str,
    *,
    schema: str | None = None,
    schema_type: str | None = None,
    version: int | str = "latest",
    message: str | None = None,
    mode: str | None = None,
    error_column: str | None = None,
    auth: str | tuple[str, str] | None = None,
    ca_file: str | None = None,
    timeout_s: float = 10.0,
    attempts: int = 6,
) -> Column:
    """Encode a column of structs with a schema of the registry. Fields are matched by name.

    Args:
        column: The column with the structs.
        registry: The URL of the schema registry, or several.
        subject: The subject of the schema.
        schema: Register this schema, given as text, under the subject, if it is missing. The registry may
            reject it as incompatible.
        schema_type: AVRO (default), JSON or PROTOBUF: the type of `schema`.
        version: Without `schema`: the version of the subject.
        message: The full name of a Protobuf message; by default the first of the schema.
        mode: FAILFAST (default): a bad value fails the query. PERMISSIVE: it becomes null.
        error_column: Return a struct of `value` and a string column with this name, which holds the reason
            for a bad value. Selects PERMISSIVE.
        auth: User and password for the registry, as a pair or USER:PASSWORD.
        ca_file: The CA certificate of the registry.
        timeout_s: The timeout of one request.
        attempts: The number of requests, over all URLs, before the registry counts as unreachable.

    Returns:
        The encoded column; with `error_column`, a struct.

    Raises:
        ValueError: An argument is invalid.
        SchemaError: The schema cannot be used.
        RegistryError: The registry cannot be reached, or refuses the request.

    Example:
        >>> df.select(to_registry(struct("id", "price"), "http://127.0.0.1:8081", "paid-value"))
    """
    location = Location.of(registry, auth=auth, ca_file=ca_file, timeout_s=timeout_s, attempts=attempts)
    bad_values = BadValueOptions.of(mode, error_column)
    options = SchemaOptions(
        subject=subject, version=version, schema=schema, schema_type=schema_type, message=message
    )
    return written_by(writing_plan(location, options), column, bad_values)


def written_by(
    planned: Plan, column: Column | str, bad_values: BadValueOptions = FAIL_ON_BAD_VALUE
) -> Column:
    """Encode a column of structs with the schema of a plan."""
    from pyspark.sql.types import BinaryType

    # An unusable schema fails here, not in a worker.
    writer_of(planned, columns=True)
    of = _with_error(BinaryType(), bad_values.error_column)
    return _column(column, encoding(planned, bad_values), of)


def from_json_value(
    column: Column | str, schema: str | DataType, *, mode: str | None = None, error_column: str | None = None
) -> Column:
    """Decode a column of JSON strings or bytes, without a registry.

    In contrast to Spark's `from_json`, it reports why a value does not fit.

    Args:
        column: The column with the JSON.
        schema: A Spark type, or its DDL, as in "id bigint, at timestamp".
        mode: FAILFAST (default): a bad value fails the query. PERMISSIVE: it becomes null.
        error_column: Return a struct of `value` and a string column with this name, which holds the reason
            for a bad value. Selects PERMISSIVE.

    Returns:
        The decoded column; with `error_column`, a struct.

    Raises:
        ValueError: An argument is invalid.
        SchemaError: JSON cannot be decoded as this type.

    Example:
        >>> df.select(from_json_value("value", "id bigint, at timestamp", error_column="error"))
    """
    from pyspark.sql.types import DataType

    from ottla.spark.values.plain_json import json_reader

    bad_values = BadValueOptions.of(mode, error_column)
    of = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    # An unsupported type fails here, not in a worker.
    json_reader(of)

    def decode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        arrow, read = _arrow_type(of), json_reader(of)
        for batch in batches:
            values, errors = each_value(read, batch.to_pylist(), bad_values.permissive)
            yield _result(values, errors, arrow, bad_values)

    return _column(column, decode, _with_error(of, error_column))


def type_of(planned: Plan) -> DataType:
    """The column type of the values of this plan."""
    # Importing the codecs must not load pyspark.
    from ottla.spark.values.avro import AvroReader
    from ottla.spark.values.json_schema import JsonReader

    reader = reader_of(planned, columns=True)
    if isinstance(reader, AvroReader):
        from ottla.spark.values.avro_types import spark_type

        return spark_type(reader.avro)
    from ottla.spark.values.types import json_type, protobuf_type

    if isinstance(reader, JsonReader):
        return json_type(reader.node)
    from ottla.spark.values.protobuf_schema import Files

    return protobuf_type(Files(planned.files).message(planned.message))


def decoding(planned: Plan, bad_values: BadValueOptions) -> _Arrays:
    """The worker function that decodes the Arrow batches of a column."""
    of = type_of(planned)

    def decode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        arrow, read = _arrow_type(of), frames_of(planned).read
        for batch in batches:
            values, errors = each_value(read, batch.to_pylist(), bad_values.permissive)
            yield _result(values, errors, arrow, bad_values)

    return decode


def encoding(planned: Plan, bad_values: BadValueOptions) -> _Arrays:
    """The worker function that encodes the Arrow batches of a column."""

    def encode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        import pyarrow as pa

        write = kept_writer(planned).write
        for batch in batches:
            values, errors = each_value(write, _rows(batch), bad_values.permissive)
            yield _result(values, errors, pa.binary(), bad_values)

    return encode


def frames_of(planned: Plan) -> FrameReader:
    """Return the cached reader and registry of this process.

    Like `kept_writer` it is a module-level function, which workers import by name. Nested functions are
    pickled with everything they reference, so each task would get its own empty cache.
    """
    reader = _kept(_readers, planned, lambda: reader_of(planned, columns=True))
    return FrameReader(
        planned, _kept(_registries, planned.location, lambda: Registry(planned.location)), reader
    )


def kept_writer(planned: Plan) -> Writer:
    writer: Writer = _kept(_writers, planned, lambda: writer_of(planned, columns=True))
    return writer


def _rows(batch: Any) -> list[Any]:
    rows: list[Any]
    try:
        # Maps as dicts: otherwise an empty map looks like an empty array.
        rows = batch.to_pylist(maps_as_pydicts="lossy")
    except TypeError:
        # Keys that are not hashable: as pairs, which the writer checks row by row.
        rows = batch.to_pylist()
    return rows


def each_value(
    change: Callable[[Any], Any], given: list[Any], permissive: bool
) -> tuple[list[Any], dict[int, str]]:
    """Convert each value. Returns the values, and the errors of bad values by index. Null stays null."""
    errors: dict[int, str] = {}
    if not permissive:
        return [None if value is None else change(value) for value in given], errors
    values: list[Any] = []
    for place, value in enumerate(given):
        try:
            values.append(None if value is None else change(value))
        except BadValue as error:
            errors[place] = str(error)
            values.append(None)
    return values, errors


def _result(values: list[Any], errors: dict[int, str], arrow: Any, bad_values: BadValueOptions) -> Any:
    import pyarrow as pa

    try:
        array = pa.array(values, arrow)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        # Some value is too large for its column: find it by converting one value at a time.
        for place, value in enumerate(values):
            try:
                pa.array([value], arrow)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                bad = BadValue(f"does not fit its column: {error}")
                if not bad_values.permissive:
                    raise bad from None
                errors[place] = str(bad)
                values[place] = None
        array = pa.array(values, arrow)
    if bad_values.error_column is None:
        return array
    reasons = pa.array(
        [errors.get(place) for place in range(len(values))] if errors else [None] * len(values), pa.string()
    )
    return pa.StructArray.from_arrays([array, reasons], names=["value", bad_values.error_column])


def _kept(kept: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    found = kept.get(key)
    if found is None:
        if len(kept) >= _KEPT_MAX:
            kept.clear()
        found = kept[key] = make()
    return found


def _with_error(of: DataType, error_column: str | None) -> DataType:
    from pyspark.sql.types import StringType, StructField, StructType

    if error_column is None:
        return of
    return StructType([StructField("value", of), StructField(error_column, StringType())])


def _arrow_type(of: DataType) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(of, timezone="UTC")


def _column(column: Column | str, arrays: _Arrays, of: DataType) -> Column:
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    # From these annotations Spark sees that the function takes an iterator. In the source they would be
    # strings.
    arrays.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    function: Any = arrow_udf(cast("Any", arrays), returnType=cast("Any", of))
    called: Column = function(column)
    return called
