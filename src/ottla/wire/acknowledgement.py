"""The answer to almost every produce: one topic, one partition, no error. One `struct.pack` instead of an encoder's walk.

The layout is not written down a second time: the compiled encoder makes one answer with values that stand out, and what is
around them is kept. So this can only say what the encoder would say, and a test holds that it does, for every version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ottla.wire.encode import response_encoder
from ottla.wire.schema import response_header_is_flexible

PRODUCE: Final = 0
_INDEX: Final = 0x51A7E0F1
_BASE_OFFSET: Final = 0x1122334455667788
_APPEND_TIME: Final = 0x2233445566778899
_LOG_START: Final = 0x33445566778899AA
#: From this version on the log start offset is told.
_LOG_START_SINCE: Final = 5

#: (correlation id, index, base offset, append time, log start offset) → the whole frame.
Acknowledge: TypeAlias = Callable[[int, int, int, int, int], bytes]


def acknowledgement(version: int, topic: dict[str, Any]) -> Acknowledge:
    """For a topic given as the encoder takes it: its `name`, or from version 13 on its `topic_id`."""
    row = {
        "index": _INDEX, "error_code": 0, "base_offset": _BASE_OFFSET,
        "log_append_time": _APPEND_TIME, "log_start_offset": _LOG_START,
    }  # fmt: skip
    body = response_encoder(PRODUCE, version)({"responses": [topic | {"partition_responses": [row]}]})
    fields = ">ihqqq" if version >= _LOG_START_SINCE else ">ihqq"
    known = struct.pack(">ihqqq", _INDEX, 0, _BASE_OFFSET, _APPEND_TIME, _LOG_START)[
        : struct.calcsize(fields)
    ]
    prefix, found, suffix = body.partition(known)
    assert found, "the encoder's layout of a produce answer is not what it was"
    flexible = response_header_is_flexible(PRODUCE, version)
    size = len(body) + (5 if flexible else 4)
    prefix = b"\0" + prefix if flexible else prefix
    pack = struct.Struct(f">ii{len(prefix)}s{fields[1:]}{len(suffix)}s").pack
    if version >= _LOG_START_SINCE:
        return lambda correlation_id, index, base_offset, append_time, log_start: pack(
            size, correlation_id, prefix, index, 0, base_offset, append_time, log_start, suffix
        )
    return lambda correlation_id, index, base_offset, append_time, _log_start: pack(
        size, correlation_id, prefix, index, 0, base_offset, append_time, suffix
    )
