"""The fast encoding of a produce or commit response equals the encoder's, byte for byte."""

import struct

import pytest

from ottla.wire.acknowledgement import acknowledgement, commit_acknowledgement
from ottla.wire.encode import response_encoder
from ottla.wire.schema import response_header_is_flexible, version_range

VERSIONS = range(version_range(0)[0], version_range(0)[1] + 1)
COMMIT_VERSIONS = range(version_range(8)[0], version_range(8)[1] + 1)


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


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
@pytest.mark.parametrize("name", ["t", "ä" * 100])
def test_that_of_a_commit_equals_the_encoder(version: int, name: str) -> None:
    topic = bytes(range(16)) if version >= 10 else name
    for index in (0, 7, 2**31 - 1):
        row = {"partition_index": index, "error_code": 0}
        named = {"topic_id" if version >= 10 else "name": topic, "partitions": [row]}
        body = response_encoder(8, version)({"topics": [named]})
        tags = b"\0" if response_header_is_flexible(8, version) else b""
        frame = struct.pack(">ii", len(body) + 4 + len(tags), 99) + tags + body
        assert commit_acknowledgement(version, topic)(99, index) == frame
