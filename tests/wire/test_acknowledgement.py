"""The short way to answer a produce says, byte for byte, what the encoder says."""

import struct

import pytest

from ottla.wire.acknowledgement import acknowledgement
from ottla.wire.encode import response_encoder
from ottla.wire.schema import response_header_is_flexible, version_range

VERSIONS = range(version_range(0)[0], version_range(0)[1] + 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["t", "a" * 249])
def test_it_equals_the_encoder(version: int, name: str) -> None:
    topic = {"topic_id": bytes(range(16))} if version >= 13 else {"name": name}
    acknowledge = acknowledgement(version, topic)
    for index, base_offset, append_time, log_start in ((0, 0, -1, 0), (7, 2**40, 1_700_000_000_000, 2**33)):
        row = {
            "index": index,
            "error_code": 0,
            "base_offset": base_offset,
            "log_append_time": append_time,
            "log_start_offset": log_start,
        }
        body = response_encoder(0, version)({"responses": [topic | {"partition_responses": [row]}]})
        tags = b"\0" if response_header_is_flexible(0, version) else b""
        frame = struct.pack(">ii", len(body) + 4 + len(tags), 99) + tags + body
        assert acknowledge(99, index, base_offset, append_time, log_start) == frame
