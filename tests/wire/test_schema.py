import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from ottla.wire.layout import layout
from ottla.wire.schema import (
    UnknownApi,
    api_name,
    request_class,
    request_header_is_flexible,
    request_is_flexible,
    response_class,
    response_header_is_flexible,
    response_is_flexible,
    version_range,
)

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, API_VERSIONS = 0, 1, 3, 8, 18


def test_ranges_and_names_come_from_the_index() -> None:
    assert version_range(PRODUCE) == (3, 13)
    assert version_range(API_VERSIONS) == (0, 4)
    assert version_range(4) is None and version_range(-1) is None and version_range(9999) is None
    assert api_name(2) == "list_offsets"
    assert api_name(9999) == "api_9999"


@pytest.mark.parametrize(("api_key", "version"), [(PRODUCE, 2), (PRODUCE, 14), (PRODUCE, -1), (4, 0)])
def test_unknown_versions_are_refused(api_key: int, version: int) -> None:
    with pytest.raises(UnknownApi, match=f"no version {version}"):
        request_class(api_key, version)
    with pytest.raises(UnknownApi):
        response_class(api_key, version)


def test_flexibility() -> None:
    assert [request_is_flexible(PRODUCE, version) for version in (8, 9)] == [False, True]
    assert [response_is_flexible(PRODUCE, version) for version in (8, 9)] == [False, True]
    assert [request_header_is_flexible(PRODUCE, version) for version in (8, 9)] == [False, True]
    assert [response_header_is_flexible(PRODUCE, version) for version in (8, 9)] == [False, True]


def test_the_response_header_of_api_versions_is_never_flexible() -> None:
    assert request_header_is_flexible(API_VERSIONS, 3) and response_is_flexible(API_VERSIONS, 3)
    assert not any(response_header_is_flexible(API_VERSIONS, version) for version in range(5))


def test_an_old_version_has_the_newest_names_as_defaults() -> None:
    old = request_class(FETCH, 4)
    instance = old(
        replica_id=-1, max_wait=timedelta(0), min_bytes=1, max_bytes=2, isolation_level=0, topics=()
    )
    assert (instance.session_id, instance.session_epoch, instance.rack_id) == (0, -1, "")
    assert instance.forgotten_topics_data == ()
    assert instance.replica_state.replica_id == -1


def struct_of(cls: Any, name: str) -> Any:
    return next(field.struct for field in layout(cls) if field.name == name)


def test_nested_classes_get_defaults_too() -> None:
    topics = struct_of(request_class(FETCH, 4), "topics")
    assert topics.topic_id is None
    partitions = struct_of(topics, "partitions")
    assert (partitions.current_leader_epoch, partitions.last_fetched_epoch, partitions.log_start_offset) == (
        -1,
        -1,
        -1,
    )


def test_a_new_version_has_dropped_names_as_defaults() -> None:
    topics = struct_of(request_class(FETCH, 13), "topics")
    assert topics.topic == ""
    assert request_class(FETCH, 17).replica_id == -1
    assert request_class(OFFSET_COMMIT, 9).retention_time == timedelta(milliseconds=-1)


def test_own_fields_are_not_overwritten(classes: list[Any]) -> None:
    for cls in classes:
        for field in layout(cls):
            assert type(cls.__dict__[field.name]).__name__ == "member_descriptor"


def test_every_name_of_any_version_can_be_read_on_every_version(classes: list[Any]) -> None:
    for others in (classes[::2], classes[1::2]):
        for cls in others:
            for other in others:
                assert_names_readable(cls, other)


def assert_names_readable(cls: Any, other: Any) -> None:
    own = {field.name: field for field in layout(cls)}
    for field in layout(other):
        assert hasattr(cls, field.name), (
            f"{cls} lacks {field.name} of {other}: see _VERSIONS_WITH_DROPPED_FIELDS"
        )
        if field.name in own and field.struct is not None:
            assert_names_readable(own[field.name].struct, field.struct)


def run_python(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


MESSAGE_MODULES = """
import sys
def message_modules():
    return sorted({name for name in sys.modules if name.startswith("kio.schema.") and name.count(".") >= 3})
"""


def test_importing_the_wire_imports_no_message() -> None:
    loaded = run_python(
        MESSAGE_MODULES
        + "import ottla.wire.schema, ottla.wire.encode, ottla.wire.decode, ottla.wire.frames\n"
        + "[ottla.wire.schema.version_range(key) for key in range(100)]\n"
        + "print(*message_modules())\n"
        + "print(*(name for name in sys.modules if name in ('asyncio', 'kio.serial')))"
    )
    assert loaded == []


def test_a_version_is_imported_on_first_use_and_the_others_are_not() -> None:
    loaded = run_python(
        MESSAGE_MODULES
        + "from ottla.wire.encode import response_encoder\n"
        + "response_encoder(12, 3)\n"
        + "print(*(name for name in message_modules() if 'heartbeat.' in name))"
    )
    assert "kio.schema.heartbeat.v3.response" in loaded
    # The newest version is imported for the names of its fields.
    assert {name.split(".")[3] for name in loaded} == {"v3", "v4"}
