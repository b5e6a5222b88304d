"""Fast encoding of the most frequent responses: a produce or an offset commit of one topic and one partition
without an error.

One `struct.pack` replaces a call of the encoder. The layout is not repeated here: the compiled encoder
encodes a response with distinctive values once, and the bytes around them are kept as a template. A test
compares the results for every version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from ottla.model.api_key import ApiKey
from ottla.wire.encode import response_encoder
from ottla.wire.schema import response_header_is_flexible

_INDEX: Final = 0x51A7E0F1
_BASE_OFFSET: Final = 0x1122334455667788
_APPEND_TIME: Final = 0x2233445566778899
_LOG_START: Final = 0x33445566778899AA
#: The first version with a log start offset.
_LOG_START_SINCE: Final = 5
#: The first version of OffsetCommit with topic ids.
_COMMIT_BY_ID: Final = 10

#: (correlation id, index, base offset, append time, log start offset) → the whole frame.
Acknowledge: TypeAlias = Callable[[int, int, int, int, int], bytes]
#: (correlation id, index) → the whole frame.
AcknowledgeCommit: TypeAlias = Callable[[int, int], bytes]


def acknowledgement(version: int, topic: dict[str, Any]) -> Acknowledge:
    """The topic as the encoder takes it: its `name`, or from version 13 on its `topic_id`."""
    row = {
        "index": _INDEX, "error_code": 0, "base_offset": _BASE_OFFSET,
        "log_append_time": _APPEND_TIME, "log_start_offset": _LOG_START,
    }  # fmt: skip
    fields = "ihqqq" if version >= _LOG_START_SINCE else "ihqq"
    known = struct.pack(">ihqqq", _INDEX, 0, _BASE_OFFSET, _APPEND_TIME, _LOG_START)
    response = {"responses": [topic | {"partition_responses": [row]}]}
    size, prefix, suffix, pack = _around(ApiKey.PRODUCE, version, response, known, fields)
    if version >= _LOG_START_SINCE:
        return lambda correlation_id, index, base_offset, append_time, log_start: pack(
            size, correlation_id, prefix, index, 0, base_offset, append_time, log_start, suffix
        )
    return lambda correlation_id, index, base_offset, append_time, _log_start: pack(
        size, correlation_id, prefix, index, 0, base_offset, append_time, suffix
    )


@lru_cache(maxsize=1000)
def commit_acknowledgement(version: int, topic: str | bytes) -> AcknowledgeCommit:
    """The topic by name, or from version 10 on by id."""
    named = {"topic_id" if version >= _COMMIT_BY_ID else "name": topic}
    row = {"partition_index": _INDEX, "error_code": 0}
    known = struct.pack(">ih", _INDEX, 0)
    response = {"topics": [named | {"partitions": [row]}]}
    size, prefix, suffix, pack = _around(ApiKey.OFFSET_COMMIT, version, response, known, "ih")
    return lambda correlation_id, index: pack(size, correlation_id, prefix, index, 0, suffix)


def _around(
    key: int, version: int, response: dict[str, Any], known: bytes, fields: str
) -> tuple[int, bytes, bytes, Callable[..., bytes]]:
    """The size of a frame, the bytes before and after these fields, and the struct that packs all of it."""
    body = response_encoder(key, version)(response)
    prefix, found, suffix = body.partition(known[: struct.calcsize(">" + fields)])
    assert found, "the encoder's layout of an answer is not what it was"
    flexible = response_header_is_flexible(key, version)
    size = len(body) + (5 if flexible else 4)
    prefix = b"\0" + prefix if flexible else prefix
    return size, prefix, suffix, struct.Struct(f">ii{len(prefix)}s{fields}{len(suffix)}s").pack
