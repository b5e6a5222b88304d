import json

import pytest

from ottla.metadata import records as r

ID = bytes(range(16))
ALL: list[r.Record] = [
    r.Cluster("c"),
    r.Topic("orders", ID),
    r.Partition(ID, 3, (1, 2, 3), (1, 3), 1, 5, 7),
    r.Partition(ID, 3, (1, 2, 3), (1, 3), -1, 5, 7, (3,), (2,), (2, 3), 1),
    r.NewPartitions(ID, 2, ((1, 2), (2, 3))),
    r.BrokerRegistration(4, 9, "h", 1, None, fenced=True, stopping=True, directories=("a", "b")),
    r.BrokerRemoved(4),
    r.TopicRemoved(ID),
    r.Config(2, "orders", "retention.ms", "100"),
    r.Config(2, "orders", "retention.ms", None),
    r.BrokerRegistration(1, 4, "host", 9092, "rack"),
    r.BrokerRegistration(1, 4, "::1", 9092),
    r.ProducerIds(2000),
]


@pytest.mark.parametrize("record", ALL, ids=lambda record: str(type(record).__name__))
def test_a_record_comes_back_as_it_was(record: r.Record) -> None:
    data = r.encode(record)
    assert b"\n" not in data
    assert r.decode(data) == record
    assert type(r.decode(data)) is type(record)


def test_people_can_read_it() -> None:
    assert json.loads(r.encode(r.Topic("orders", ID))) == {
        "kind": "topic",
        "name": "orders",
        "topic_id": "000102030405060708090a0b0c0d0e0f",
    }


def test_what_a_newer_version_wrote_is_skipped() -> None:
    assert r.decode(b'{"kind":"from the future","x":1}') is None
    assert r.decode(b'{"kind":"producer-ids","next_id":5,"colour":"red"}') == r.ProducerIds(5)


def test_fields_that_came_later_have_a_default() -> None:
    data = (
        b'{"kind":"partition","topic_id":"%s","partition":0,"replicas":[1],"isr":[1],"leader":1}'
        % ID.hex().encode()
    )
    assert r.decode(data) == r.Partition(ID, 0, (1,), (1,), 1, 0, 0)
