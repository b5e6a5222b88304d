"""Every API has a bound on the rows of its requests, and a request beyond it costs nothing."""

from typing import Any

import pytest

from ottla.broker.api.shared.api_table import APIS, Entry
from ottla.model.limits import ROWS_PER_REASSIGNMENT_MAX, ROWS_PER_REQUEST_MAX, ROWS_WITH_UNKNOWN_TAGS_MAX
from ottla.wire.encode import uvarint
from ottla.wire.layout import EntityClass, body_fields, item_size_min
from ottla.wire.schema import request_class
from testkit.cpu_time import thread_time_s
from testkit.fuzz.valid_requests import frame_of

#: The time that refusing may take, in CPU seconds; decoding so many rows would take a multiple.
REFUSING_S = 0.3


def body_of(cls: EntityClass, count: int) -> bytes | None:
    """A request with `count` rows of zeros in its first array, or None if it has no array.

    Zeros are an empty or null string and an empty or null array, so every field takes its fewest bytes.
    """
    at = 0
    for field in body_fields(cls):
        if field.is_array:
            length = uvarint(count + 1) if field.is_flexible else count.to_bytes(4, "big")
            return bytes(at) + length + bytes(count * item_size_min(field) + 100)
        at += item_size_min(field)
    return None


def crowded_requests() -> list[Any]:
    return [
        pytest.param(api, version, body, id=f"{api.key}-{version}")
        for api in APIS.values()
        for version in sorted({api.oldest, api.newest})
        if (body := body_of(request_class(api.key, version), api.rows_max + 1)) is not None
    ]


def test_every_api_has_a_bound() -> None:
    for api in APIS.values():
        assert ROWS_WITH_UNKNOWN_TAGS_MAX <= api.rows_max <= ROWS_PER_REASSIGNMENT_MAX, api.key
        if api.key != 45:
            assert api.rows_max <= ROWS_PER_REQUEST_MAX


@pytest.mark.parametrize(("api", "version", "body"), crowded_requests())
def test_a_request_with_more_rows_is_refused_before_it_is_decoded(
    driver: Any, api: Any, version: int, body: bytes
) -> None:
    client = driver.connect()
    frame = frame_of(api.key, version, 1, body)
    assert len(frame) > Entry(api, version).bytes_unchecked, "or it would not be counted"
    started = thread_time_s()
    client.send_frame(frame)
    assert thread_time_s() - started < REFUSING_S
    assert f"at most {api.rows_max} are allowed" in client.closed_because
