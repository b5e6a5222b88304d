"""Requests of a chosen shape: formally legal, and expensive or strange.

Mutated bytes seldom get past the decoder. These requests always do, unless a string in them is not UTF-8:

    repeated rows      one topic, partition, group or resource, up to thousands of times
    huge counts        arrays as long as the size allows, of the smallest items or of numbered ones
    produced counts    batches that claim more records than they have, many batches for a partition, many rows
    boundary strings   lengths around every limit; control characters, several bytes per character, not UTF-8
    admin calls        (`admin.py`) topics, partitions, configs, groups and transactions created, changed, deleted

Every API and version in the API table is covered. The same seed produces the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any, Final, NamedTuple

from ottla.broker.api.shared.api_table import APIS, Api
from ottla.model.api_key import ApiKey
from ottla.records.compression import GZIP, LZ4, NONE, ZSTD, compress
from ottla.wire.encode import request_encoder
from ottla.wire.layout import FieldLayout, layout
from ottla.wire.schema import request_class
from testkit.fuzz.admin import AdminCalls
from testkit.fuzz.batches import batch_around, crowd_payload, make_batch
from testkit.fuzz.valid_requests import HEAD, Maker, frame_of

#: Sizes of requests, and how often each is used.
_BYTES: Final = (2_000, 20_000, 200_000, 1_000_000, 3_900_000)
_BYTES_WEIGHTS: Final = (7500, 2000, 450, 45, 5)
BYTES_MAX: Final = _BYTES[-1]
#: How often a row is repeated, if the size allows it.
_TIMES: Final = (2, 3, 10, 100, 500, 1000, 5000, 50_000)
_LENGTHS: Final = (0, 1, 249, 250, 255, 256, 32_767, 32_768, 65_535)
#: Strings of non-flexible versions have a length of two bytes.
_SHORT_STRING_MAX: Final = 32_767
#: Characters to fill a string with. The third one is replaced by bytes that are not UTF-8 (a lone surrogate)
#: in the encoded request.
_NOT_UTF8: Final = "\ue000"
_FILLS: Final = ("x", "\x1b", _NOT_UTF8, "\0", "\n", "é", "\U0001f701", ".", "/", "\x9b", "\u202e")
_WHOLE: Final = (".", "..", "\0", "a/b", "../../etc", "__consumer_offsets", "a b", "-1")
_SURROGATE: Final = b"\xed\xa0\x80"
#: The range of item numbers.
_WIDE_NUMBER: Final = 99_999
_LIES: Final = (0, -1, 2, 1_000, 100_000, 1_000_000, 1_000_001, 0x7FFFFFFF, -0x7FFFFFFF)


class Shaped(NamedTuple):
    """A request without its size, and the name of its shape."""

    shape: str
    frame: bytes

    @property
    def label(self) -> str:
        key, version = int.from_bytes(self.frame[:2], "big"), int.from_bytes(self.frame[2:4], "big")
        name = APIS[key].handler.__name__ if key in APIS else "?"
        return f"{self.shape} of {name} (API {key}) version {version}, {len(self.frame):,} bytes"


class Place(NamedTuple):
    """A field of a message under construction."""

    holder: dict[str, Any]
    field: FieldLayout


class Shaper:
    def __init__(self, random: Random, maker: Maker, bytes_max: int = BYTES_MAX) -> None:
        self._random = random
        self._maker = maker
        self._bytes_max = bytes_max
        self._admin = AdminCalls(random, maker)
        self._shapes = (
            self._repeated_rows, self._repeated_rows, self._huge_counts, self._produced_counts, self._boundary_strings,
            self._boundary_strings, self._admin_call, self._admin_call, self._admin_call,
        )  # fmt: skip

    def request(self, correlation_id: int) -> Shaped:
        shape = self._random.choice(self._shapes)
        return Shaped(shape.__name__.strip("_"), shape(correlation_id))

    def fills(self, key: int, version: int) -> Iterator[Shaped]:
        """Each array of an API filled to the size limit: with copies of its first item, with the smallest,
        and with numbered ones.
        """
        sample = self._maker.valid_message(request_class(key, version), key)
        arrays = sum(place.field.is_array for place in _places(key, version, sample))
        for at in range(arrays):
            for what in ("repeated", "smallest", "numbered"):
                message = deepcopy(sample)
                place = [each for each in _places(key, version, message) if each.field.is_array][at]
                items = list(place.holder.get(place.field.name) or ())[:1] or [self._item(place.field, key)]
                if what != "repeated":
                    items = [
                        _smallest(place.field) if what == "smallest" else _numbered(place.field, _WIDE_NUMBER)
                    ]
                count = self._room(key, version, message, place, items, self._bytes_max)
                place.holder[place.field.name] = (
                    [_numbered(place.field, number) for number in range(count)]
                    if what == "numbered"
                    else items * count
                )
                yield Shaped(f"{what} {place.field.name}", self._encoded(key, version, 1, message))

    # --- shapes -------------------------------------------------------------------------------------------------

    def _repeated_rows(self, correlation_id: int) -> bytes:
        key, version, message = self._message()
        arrays = [place for place in _places(key, version, message) if place.field.is_array]
        if arrays:
            place = self._random.choice(arrays)
            items = list(place.holder.get(place.field.name) or ())[:3] or [self._item(place.field, key)]
            room = self._room(key, version, message, place, items)
            times = min(self._random.choice(_TIMES), max(1, room))
            place.holder[place.field.name] = items * times
        return self._encoded(key, version, correlation_id, message)

    def _huge_counts(self, correlation_id: int) -> bytes:
        key, version, message = self._message()
        arrays = [place for place in _places(key, version, message) if place.field.is_array]
        if arrays:
            place = self._random.choice(arrays)
            if self._random.random() < 0.5:
                smallest = [_smallest(place.field)]
                made = smallest * self._room(key, version, message, place, smallest)
            else:
                count = self._room(key, version, message, place, [_numbered(place.field, _WIDE_NUMBER)])
                made = [_numbered(place.field, number) for number in range(count)]
            place.holder[place.field.name] = made
        return self._encoded(key, version, correlation_id, message)

    def _produced_counts(self, correlation_id: int) -> bytes:
        random, maker = self._random, self._maker
        api = APIS[ApiKey.PRODUCE]
        version = random.randint(api.oldest, api.newest)
        # The topic repeated, within the size limit.
        times = random.choice((2, 10, 50)) if random.random() < 0.2 else 1
        limit = self._limit() // times
        topic = maker.topic()
        what = random.randrange(4)
        if what == 0:
            # Rows without records, for an existing partition.
            rows: list[dict[str, Any]] = [{"index": 0, "records": None}] * (limit // 8)
        elif what == 1:
            # Valid batches for one partition.
            batch = make_batch(random, maker.known.now_ms)
            rows = [{"index": 0, "records": batch * max(1, min(limit // len(batch), 50_000))}]
        elif what == 2:
            # Batches that claim more records than they have.
            batch = batch_around(NONE, b"", random.choice(_LIES), maker.known.now_ms)
            count = max(1, min(limit // (len(batch) + 10), 3_000))
            rows = (
                [{"index": 0, "records": batch * count}]
                if random.random() < 0.5
                else [{"index": 0, "records": batch}] * count
            )
        else:
            # Batches with really that many records of the smallest size.
            count = min(random.choice((1, 1_000, 20_000, 100_000)), max(1, limit // 8))
            codec = random.choice((NONE, GZIP, LZ4, ZSTD))
            rows = [
                {
                    "index": 0,
                    "records": batch_around(
                        codec, compress(codec, crowd_payload(count)), count, maker.known.now_ms
                    ),
                }
            ]
        topics = [{"name": topic, "topic_id": maker.known.topics[topic], "partition_data": rows}]
        topics *= times
        message = {
            "acks": random.choice((-1, -1, 1, 0)),
            "timeout": 1000,
            "transactional_id": None,
            "topic_data": topics,
        }
        return self._encoded(ApiKey.PRODUCE, version, correlation_id, message)

    def _boundary_strings(self, correlation_id: int) -> bytes:
        key, version, message = self._message()
        strings = [place for place in _places(key, version, message) if place.field.kind == "string"]
        self._random.shuffle(strings)
        for place in strings[: self._random.choice((1, 1, 2, len(strings)))]:
            text = self._boundary_string()
            place.holder[place.field.name] = [text] if place.field.is_array else text
        frame = self._encoded(key, version, correlation_id, message, _SHORT_STRING_MAX)
        return frame if self._random.random() < 0.8 else self._with_client_id(frame, key, version)

    def _admin_call(self, correlation_id: int) -> bytes:
        key, version, message = self._admin.next()
        return self._encoded(key, version, correlation_id, message)

    # --- parts --------------------------------------------------------------------------------------------------

    def _message(self) -> tuple[int, int, dict[str, Any]]:
        """A valid message of a random API in a random version."""
        api = self._random.choice(_apis())
        version = self._random.choice((api.newest, self._random.randint(api.oldest, api.newest)))
        return api.key, version, self._maker.valid_message(request_class(api.key, version), api.key)

    def _limit(self) -> int:
        [limit] = self._random.choices(_BYTES, _BYTES_WEIGHTS)
        return min(limit, self._bytes_max)

    def _room(
        self, key: int, version: int, message: dict[str, Any], place: Place, items: list[Any], limit: int = 0
    ) -> int:
        """How many of these items fit into the size."""
        encode = request_encoder(key, version)
        try:
            place.holder[place.field.name] = items
            once = len(encode(message))
            place.holder[place.field.name] = items * 2
            each = max(1, len(encode(message)) - once)
        except (struct.error, OverflowError, ValueError):
            return 1
        return max(1, ((limit or self._limit()) - once) // each)

    def _item(self, field: FieldLayout, key: int) -> Any:
        return self._maker.valid_message(field.struct, key) if field.struct else _smallest(field)

    def _boundary_string(self) -> str:
        random = self._random
        if random.random() < 0.15:
            return random.choice(_WHOLE)
        # Long strings are truncated to the limit of the version when they are encoded.
        length = random.choice(_LENGTHS)
        fill = random.choice(_FILLS)
        text = fill * (length // len(fill.encode()))
        return text + "x" * (length - len(text.encode()))

    def _encoded(
        self, key: int, version: int, correlation_id: int, message: dict[str, Any], string_max: int = 0
    ) -> bytes:
        try:
            body = request_encoder(key, version)(message)
        except (struct.error, OverflowError, ValueError):
            # A string that is too long for this version.
            _shorten(message, string_max or 100)
            body = request_encoder(key, version)(message)
        return frame_of(key, version, correlation_id, body.replace(_NOT_UTF8.encode(), _SURROGATE))

    def _with_client_id(self, frame: bytes, key: int, version: int) -> bytes:
        """The same request with a client id of boundary length."""
        client_id = (
            self._boundary_string().encode()[:_SHORT_STRING_MAX].replace(_NOT_UTF8.encode(), _SURROGATE)
        )
        old = HEAD.unpack_from(frame)
        rest = frame[HEAD.size + old[3] :]
        return HEAD.pack(*old[:3], len(client_id)) + client_id + rest


def _apis() -> list[Api]:
    """The current API table: a test may have replaced an entry."""
    return [APIS[key] for key in sorted(APIS)]


def _places(key: int, version: int, message: dict[str, Any]) -> list[Place]:
    """Every field of a message, recursively. Of an array only the first items."""
    found: list[Place] = []

    def walk(cls: Any, made: dict[str, Any]) -> None:
        for field in layout(cls):
            if field.tag is not None and field.name not in made:
                continue
            found.append(Place(made, field))
            if field.struct is not None:
                value = made.get(field.name)
                for item in (value or ())[:3] if field.is_array else (value,) if value else ():
                    walk(field.struct, item)

    walk(request_class(key, version), message)
    return found


_ZEROES: Final[dict[str, Any]] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": None,
    "bool": False,
    "float64": 0.0,
}


def _smallest(field: FieldLayout) -> Any:
    """An item of minimum size: empty or null."""
    if field.struct is not None:
        return {
            each.name: []
            if each.is_array
            else _smallest(each)
            if each.struct is None or not each.is_nullable
            else None
            for each in layout(field.struct)
            if each.tag is None
        }
    return _ZEROES.get(field.kind, 0)


def _numbered(field: FieldLayout, number: int) -> Any:
    """A unique item: its strings and wide numbers are this number."""
    if field.struct is not None:
        return {
            each.name: []
            if each.is_array
            else _numbered(each, number)
            if each.struct is None or not each.is_nullable
            else None
            for each in layout(field.struct)
            if each.tag is None
        }
    if field.kind == "string":
        return str(number)
    if field.kind == "uuid":
        return number.to_bytes(16, "big") if number else None
    return number if field.kind in ("int32", "int64") else _ZEROES.get(field.kind, 0)


def _shorten(value: Any, length: int) -> Any:
    """Truncate every string of a message to this many bytes, in place."""
    if isinstance(value, dict):
        for name, each in value.items():
            value[name] = _shorten(each, length)
    elif isinstance(value, list | tuple):
        return [_shorten(each, length) for each in value]
    elif isinstance(value, str) and len(value.encode()) > length:
        return value.encode()[:length].decode("utf-8", "ignore")
    return value
