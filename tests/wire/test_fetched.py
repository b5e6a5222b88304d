import random
from typing import Any
from uuid import UUID

import pytest

from ottla.model.api_key import ApiKey
from ottla.wire.decode import MalformedMessage
from ottla.wire.encode import response_encoder
from ottla.wire.fetched import FetchAnswer, FetchedPartition, FetchedTopic, read_fetch_response
from ottla.wire.schema import version_range

RANGE = version_range(ApiKey.FETCH)
assert RANGE is not None
VERSIONS = range(RANGE[0], RANGE[1] + 1)
TOPIC_ID = bytes(range(16))


def partition(number: int = 3, **changes: Any) -> dict[str, Any]:
    return {
        "partition_index": number,
        "error_code": 0,
        "high_watermark": 100,
        "last_stable_offset": 90,
        "log_start_offset": 7,
        "aborted_transactions": [
            {"producer_id": 5, "first_offset": 50},
            {"producer_id": 6, "first_offset": 60},
        ],
        "preferred_read_replica": 2,
        "records": b"some bytes" * 30,
        **changes,
    }


def encoded(version: int, *partitions: dict[str, Any], **changes: Any) -> memoryview:
    topic = {"topic": "t", "topic_id": TOPIC_ID, "partitions": list(partitions)}
    body = {"throttle_time": 12, "error_code": 0, "session_id": 77, "responses": [topic], **changes}
    return memoryview(b"before" + response_encoder(ApiKey.FETCH, version)(body))


def read(version: int, body: memoryview) -> FetchAnswer:
    return read_fetch_response(ApiKey.FETCH, version, body, len(b"before"))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(version: int) -> None:
    answer = read(
        version, encoded(version, partition(), partition(4, records=None, aborted_transactions=None))
    )
    first, second = answer.topics[0].partitions
    assert first == FetchedPartition(
        3,
        0,
        100,
        90,
        7 if version >= 5 else -1,
        [(50, 5), (60, 6)],
        2 if version >= 11 else -1,
        b"some bytes" * 30,
    )
    assert (second.partition, second.records, second.aborted) == (4, None, [])
    expected = (
        FetchedTopic("", TOPIC_ID, [first, second])
        if version > 12
        else FetchedTopic("t", b"", [first, second])
    )
    assert answer == FetchAnswer(12, 0, 77 if version >= 7 else 0, [expected], {})


def test_records_are_a_view_of_what_came() -> None:
    body = encoded(VERSIONS[-1], partition())
    records = read(VERSIONS[-1], body).topics[0].partitions[0].records
    assert isinstance(records, memoryview) and records.obj is body.obj and records.readonly


def test_tagged_fields_are_understood() -> None:
    row = partition(
        error_code=6,
        diverging_epoch={"epoch": 4, "end_offset": 40},
        current_leader={"leader_id": 9, "leader_epoch": 8},
    )
    nodes = [{"node_id": 9, "host": "there", "port": 90, "rack": None}]
    answer = read(VERSIONS[-1], encoded(VERSIONS[-1], row, node_endpoints=nodes))
    (part,) = answer.topics[0].partitions
    assert (part.error_code, part.diverging_epoch, part.current_leader) == (6, (4, 40), (9, 8))
    assert answer.nodes == {9: ("there", 90, None)}
    assert part.records == b"some bytes" * 30


def test_no_topics_and_an_error() -> None:
    answer = read(VERSIONS[-1], encoded(VERSIONS[-1], responses=[], error_code=70))
    assert (answer.error_code, answer.topics) == (70, [])


@pytest.mark.parametrize("version", [VERSIONS[0], 12, 13, VERSIONS[-1]])
def test_damaged_bytes_give_an_answer_or_are_refused(version: int) -> None:
    whole = bytes(encoded(version, partition(), partition(4)))
    for cut in range(len(b"before"), len(whole)):
        with pytest.raises(MalformedMessage):
            read(version, memoryview(whole[:cut]))
    chosen = random.Random(version)
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(chosen.randint(1, 3)):
            damaged[chosen.randrange(6, len(damaged))] = chosen.choice(
                (0, 1, 0x7F, 0x80, 0xFF, chosen.randrange(256))
            )
        try:
            answer = read(version, memoryview(bytes(damaged)))
        except MalformedMessage:
            continue
        for topic in answer.topics:
            for part in topic.partitions:
                assert part.records is None or len(part.records) <= len(whole)


def test_an_id_of_nobody_is_no_id() -> None:
    assert UUID(bytes=read(13, encoded(13, partition())).topics[0].topic_id).bytes == TOPIC_ID
