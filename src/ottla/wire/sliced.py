"""Encoding of large responses in slices: a generator that yields after every few hundred rows.

A struct with few rows is encoded by its ordinary encoder. In a larger struct the rows of its arrays are
encoded in slices, and the struct is encoded around them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar

from ottla.wire.encode import EncodedRows, entity_encoder, parts_encoder
from ottla.wire.layout import EntityClass, layout

_Row = TypeVar("_Row")

#: Rows per slice.
CHUNK: Final = 200


def chunks(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """The rows, in slices."""
    left = iter(rows)
    while chunk := list(islice(left, CHUNK)):
        yield chunk


def encode_parts(cls: EntityClass, message: Mapping[str, Any]) -> Generator[int, None, list[bytes]]:
    """The parts of a message body. Yields the number of rows encoded since the last yield."""
    message = yield from _with_encoded_rows(cls, message)
    return parts_encoder(cls)(message)


def encode_row(cls: EntityClass, row: Mapping[str, Any]) -> Generator[int, None, bytes]:
    """One struct; yields as `encode_parts` does."""
    count = rows_below(cls, row)
    if count <= CHUNK:
        yield count + 1
        return entity_encoder(cls)(row)
    row = yield from _with_encoded_rows(cls, row)
    yield 1
    return entity_encoder(cls, takes_encoded=True)(row)


def _with_encoded_rows(cls: EntityClass, row: Mapping[str, Any]) -> Generator[int, None, Mapping[str, Any]]:
    replaced: dict[str, Any] = {}
    for name, struct in _structs(cls):
        if row.get(name) is not None:
            replaced[name] = yield from _with_encoded_rows(struct, row[name])
    for name, struct in _arrays(cls):
        rows: Sequence[Mapping[str, Any]] | EncodedRows | None = row.get(name)
        if not rows or isinstance(rows, EncodedRows):
            continue
        encoded = replaced[name] = EncodedRows()
        if _arrays(struct):
            for each in rows:
                encoded.add((yield from encode_row(struct, each)))
            continue
        encode = entity_encoder(struct)
        for chunk in chunks(rows):
            encoded.add(b"".join([encode(each) for each in chunk]), len(chunk))
            yield len(chunk)
    return {**row, **replaced}


def rows_below(cls: EntityClass, row: Mapping[str, Any]) -> int:
    """The number of structs in the arrays of a struct, nested ones included. Counting stops above CHUNK."""
    count = 0
    for name, struct in _arrays(cls):
        rows = row.get(name) or ()
        if isinstance(rows, EncodedRows):
            return CHUNK + 1
        count += len(rows)
        if count > CHUNK:
            break
        if _arrays(struct):
            for each in rows:
                count += rows_below(struct, each)
                if count > CHUNK:
                    return count
    for name, struct in _structs(cls):
        if row.get(name) is not None:
            count += rows_below(struct, row[name])
    return count


@cache
def _arrays(cls: EntityClass) -> tuple[tuple[str, EntityClass], ...]:
    """The arrays of structs among the fields: name and struct. Tagged ones are encoded with the rest."""
    return tuple(
        (field.name, field.struct)
        for field in layout(cls)
        if field.is_array and field.struct is not None and field.tag is None
    )


@cache
def _structs(cls: EntityClass) -> tuple[tuple[str, EntityClass], ...]:
    """The fields that are a single struct with arrays of structs: name and struct."""
    return tuple(
        (field.name, field.struct)
        for field in layout(cls)
        if not field.is_array and field.struct is not None and field.tag is None and _arrays(field.struct)
    )


@cache
def rows_class(cls: EntityClass, name: str) -> EntityClass:
    """The struct of the array with this name."""
    return dict(_arrays(cls))[name]
