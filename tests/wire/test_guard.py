import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.wire.decode import (
    MalformedMessage,
    TooManyRows,
    decode_request,
    entity_reader,
    read_tolerant,
    request_reader,
)
from ottla.wire.encode import request_encoder
from ottla.wire.guard import NeedsTolerantReader, guarded, has_arrays, read_uvarint
from ottla.wire.layout import row_size_min
from ottla.wire.schema import request_class, response_class

PRODUCE, FETCH, METADATA, HEARTBEAT = 0, 1, 3, 12


def test_a_class_without_arrays_needs_no_guard() -> None:
    def native(buffer: bytes | memoryview, offset: int) -> tuple[Any, int]:
        return buffer, offset

    assert not has_arrays(request_class(HEARTBEAT, 4))
    assert guarded(request_class(HEARTBEAT, 4), native) is native
    assert has_arrays(request_class(PRODUCE, 9))
    assert guarded(request_class(PRODUCE, 9), native) is not native


def test_the_native_reader_is_not_called_when_a_count_is_refused() -> None:
    calls: list[int] = []

    def native(buffer: bytes | memoryview, offset: int) -> tuple[Any, int]:
        calls.append(offset)
        return None, 0

    read = guarded(request_class(METADATA, 9), native)
    with pytest.raises(MalformedMessage):
        read(b"xx" + b"\xff\xff\xff\xff\x0f" + bytes(9), 2)
    assert calls == []
    assert read(b"xx" + request_encoder(METADATA, 9)({"topics": [{"name": "t"}]}), 2) == (None, 0)
    assert calls == [2]


def test_a_tagged_section_before_a_count_is_not_followed() -> None:
    # The native reader reads replica_directory_id (tag 0) as 16 bytes whatever size is declared. If the guard
    # trusted the size of 34, it would miss the count after the 16 bytes.
    partition = bytes(32) + b"\x01\x00\x22" + bytes(16) + b"\0" + b"\xff\xff\xff\xff\x0f" + bytes(12)
    body = bytes(21) + b"\x02" + bytes(16) + b"\x02" + partition + b"\0\x01\x01\0"
    with pytest.raises(NeedsTolerantReader):
        request_reader(FETCH, 17)(body, 0)
    with pytest.raises(MalformedMessage):
        decode_request(FETCH, 17, body, 0)


def test_a_tagged_section_after_the_last_count_is_left_to_the_native_reader() -> None:
    body = request_encoder(FETCH, 17)({"cluster_id": "c", "replica_state": {"replica_id": 3}})
    assert request_reader(FETCH, 17)(body, 0)[0].replica_state.replica_id == 3


def test_counts_in_tagged_fields_are_left_to_the_tolerant_reader() -> None:
    cls = response_class(18, 3)
    with pytest.raises(NeedsTolerantReader):
        entity_reader(cls)(b"\0\0\x01" + bytes(4) + b"\x01\x00\x05\xff\xff\xff\xff\x0f", 0)


def test_read_uvarint() -> None:
    assert read_uvarint(b"x\x80\x01y", 1) == (128, 3)
    assert read_uvarint(b"\xff\xff\xff\xff\x0f", 0) == (2**32 - 1, 5)
    with pytest.raises(MalformedMessage):
        read_uvarint(b"\x80\x80\x80\x80\x80\x01", 0)
    with pytest.raises(IndexError):
        read_uvarint(b"\x80", 0)


# In its own process, because the process must survive.
BOMBARD = """
import resource
import sys

resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
sys.path.insert(0, sys.argv[1])
from conftest import API_KEYS, MessageMaker, message_classes
from ottla.wire.decode import MalformedMessage, decode_request, decode_response
from ottla.wire.encode import entity_encoder

refused = 0
for api_key in API_KEYS:
    maker = MessageMaker(api_key)
    for cls in message_classes(api_key):
        decode = decode_request if cls.__type__.name == "request" else decode_response
        body = entity_encoder(cls)(maker.message(cls)[1])
        bomb = b"\\xff\\xff\\xff\\xff\\x0f" if cls.__flexible__ else b"\\x7f\\xff\\xff\\xff"
        for at in range(min(len(body), 120)):
            try:
                decode(cls.__api_key__, cls.__version__, body[:at] + bomb + body[at + 1:], 0)
            except MalformedMessage:
                refused += 1
print(refused)
"""


def test_no_count_anywhere_in_any_message_brings_the_process_down() -> None:
    command = [sys.executable, "-c", BOMBARD, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10_000


def test_rows_of_all_arrays_count_together() -> None:
    rows = [{"topic": f"t{number}", "partitions": [{"partition": 0}]} for number in range(200)]
    body = request_encoder(FETCH, 12)({"topics": rows})
    assert len(request_reader(FETCH, 12, 400)(body, 0)[0].topics) == 200
    assert len(decode_request(FETCH, 12, body, 0, 400).topics) == 200
    with pytest.raises(TooManyRows, match="400 rows or more, at most 399"):
        request_reader(FETCH, 12, 399)(body, 0)
    with pytest.raises(TooManyRows):
        decode_request(FETCH, 12, body, 0, 399)


def test_rows_and_tags_count_in_the_tolerant_reader_too() -> None:
    cls = request_class(METADATA, 9)
    body = request_encoder(METADATA, 9)({"topics": [{"name": "t"}] * 50})
    # 100 unknown tagged fields without bytes, instead of the empty section at the end.
    tagged = body[:-1] + b"\x64" + b"\x63\x00" * 100
    assert len(read_tolerant(cls, tagged, 0, 150)[0].topics) == 50
    with pytest.raises(TooManyRows, match="150 rows or more, at most 149"):
        read_tolerant(cls, tagged, 0, 149)
    with pytest.raises(TooManyRows):
        read_tolerant(cls, body, 0, 49)
    # Whatever an API allows: this reader is slow.
    many = request_encoder(METADATA, 9)({"topics": [{"name": ""}] * 5000})
    assert len(decode_request(METADATA, 9, many, 0, 50_000).topics) == 5000
    with pytest.raises(TooManyRows):
        decode_request(METADATA, 9, many[:-1] + b"\x01\x63\x00", 0, 50_000)


def test_the_smallest_row_of_a_class() -> None:
    assert row_size_min(request_class(HEARTBEAT, 4)) is None
    # A topic's name, the count of its partitions, an empty tagged section.
    assert row_size_min(request_class(PRODUCE, 9)) == 3
    assert row_size_min(request_class(METADATA, 0)) == 2
