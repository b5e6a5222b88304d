"""Readers without Spark: planning and reading are called as Spark's workers call them, on a real broker."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ottla
from ottla.spark.source.batch import FilteringReader, OttlaReader
from ottla.spark.source.schema import source_schema
from ottla.spark.source.stream import OttlaStreamReader


def spark_options(address: str, **options: object) -> dict[str, str]:
    """Two underscores stand for a dot."""
    given = {"kafka.bootstrap.servers": address}
    return given | {name.replace("__", "."): str(value) for name, value in options.items()}


def batch_reader(address: str, **options: object) -> FilteringReader:
    given = spark_options(address, **options)
    return FilteringReader(given, source_schema(given))


def stream_reader(address: str, **options: object) -> OttlaStreamReader:
    given = spark_options(address, **options)
    return OttlaStreamReader(given, source_schema(given))


def rows_of(reader: OttlaReader | OttlaStreamReader, slices: list[Any]) -> list[dict[str, Any]]:
    return [row for part in slices for batch in reader.read(part) for row in batch.to_pylist()]


def values_of(reader: OttlaReader | OttlaStreamReader, slices: list[Any]) -> list[bytes]:
    return [row["value"] for row in rows_of(reader, slices)]


@pytest.fixture
def admin(ottla_address: str) -> Iterator[ottla.Admin]:
    with ottla.Admin(ottla_address) as client:
        yield client


@pytest.fixture
def send(ottla_address: str) -> Callable[..., None]:
    """Send these values, in order, to partition 0 or another."""

    def sent(topic: str, *values: bytes | None, partition: int = 0, **settings: Any) -> None:
        with ottla.Producer(ottla_address, **settings) as producer:
            for number, value in enumerate(values):
                producer.send(topic, value, partition=partition, timestamp_ms=1_000 + number)

    return sent
