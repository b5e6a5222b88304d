import time
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from ottla.config.broker import BrokerConfig
from ottla.controller.topics import create, place, widen
from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.model.errors import ErrorCode, Refusal

BROKER = BrokerConfig.from_properties({"log.dirs": "/nowhere", "node.id": "1", "num.partitions": "3"})
ONE = Image().apply([r.BrokerRegistration(1, 1, "h", 1)])
FOUR = Image().apply([r.BrokerRegistration(node, 1, "h", 1) for node in (4, 7, 1, 9)])


class Counted:
    """Entropy that is none."""

    def __init__(self, number: int = 0) -> None:
        self.ids = 0
        self.number = number

    def id_bytes(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16, "big")

    def below(self, limit: int) -> int:
        return self.number % limit


def made(
    image: Image = ONE,
    name: str = "t",
    partitions: int = -1,
    replication_factor: int = -1,
    assignments: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
    entropy: Counted | None = None,
) -> list[r.Record]:
    return create(
        image, BROKER, entropy or Counted(), name=name, partitions=partitions,
        replication_factor=replication_factor, assignments=assignments or {}, configs=configs or {},
    )  # fmt: skip


def replicas(records: list[r.Record]) -> list[tuple[int, ...]]:
    return [each for record in records if isinstance(record, r.NewPartitions) for each in record.replicas]


def code(**request: object) -> ErrorCode:
    with pytest.raises(Refusal) as caught:
        made(**request)  # type: ignore[arg-type]
    assert caught.value.message
    return caught.value.code


def test_a_topic_is_its_records() -> None:
    records = made(name="orders", configs={"retention.ms": "5"})
    topic_id = Counted().id_bytes()
    assert records == [
        r.Topic("orders", topic_id),
        r.Config(2, "orders", "retention.ms", "5"),
        r.NewPartitions(topic_id, 0, ((1,), (1,), (1,))),
    ]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": 10_001}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": {"no.such": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
        ({"assignments": {0: [1]}, "partitions": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignments": {0: [1]}, "replication_factor": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignments": {1: [1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: []}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [5]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [1, 1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [1, 4], 1: [1]}, "image": FOUR}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {number: [1] for number in range(10_001)}}, ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_what_cannot_be_made_is_refused(request_: dict[str, object], expected: ErrorCode) -> None:
    assert code(**request_) == expected


def test_a_name_is_taken_once_and_so_is_one_that_looks_like_it() -> None:
    image = ONE.apply([*made(name="a.b"), *made(name="x", entropy=Counted(5))])
    assert code(image=image, name="a.b") == ErrorCode.TOPIC_ALREADY_EXISTS
    assert code(image=image, name="a_b") == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert made(image=image, name="a-b")


def test_replicas_given_by_hand_are_kept() -> None:
    assert replicas(made(image=FOUR, assignments={1: [9, 1], 0: [4, 7]})) == [(4, 7), (9, 1)]


@pytest.mark.parametrize("start", range(4))
def test_leaders_and_followers_are_spread(start: int) -> None:
    """E9"""
    placed = place(FOUR, BROKER, Counted(start), 12, 3, first=0)
    assert all(len(set(nodes)) == 3 for nodes in placed)
    assert set(Counter(nodes[0] for nodes in placed).values()) == {3}
    assert set(Counter(node for nodes in placed for node in nodes).values()) == {9}
    # Followers are shifted: the partitions of one leader do not share both of theirs.
    by_leader: dict[int, set[tuple[int, ...]]] = {}
    for leader, *others in placed:
        by_leader.setdefault(leader, set()).add(tuple(others))
    assert all(len(others) == 3 for others in by_leader.values())


def test_more_partitions_go_on_where_the_topic_ends() -> None:
    image = FOUR.apply(made(image=FOUR, partitions=2, replication_factor=2))
    records = widen(image, BROKER, Counted(), name="t", count=5, assignments=None)
    (new,) = records
    assert isinstance(new, r.NewPartitions)
    assert [each.partition for each in new.partitions()] == [2, 3, 4]
    assert all(len(nodes) == 2 for nodes in replicas(records))
    records = widen(image, BROKER, Counted(), name="t", count=3, assignments=[[9, 4]])
    assert replicas(records) == [(9, 4)]


@pytest.mark.parametrize(
    ("name", "count", "assignments", "expected"),
    [
        ("absent", 5, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 20_000, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 4, [[9, 4]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[9, 5]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_what_cannot_be_widened_is_refused(
    name: str, count: int, assignments: Sequence[Sequence[int]] | None, expected: ErrorCode
) -> None:
    image = FOUR.apply(made(image=FOUR, partitions=2, replication_factor=2))
    with pytest.raises(Refusal) as caught:
        widen(image, BROKER, Counted(), name=name, count=count, assignments=assignments)
    assert caught.value.code == expected


def test_a_thousand_topics_beside_ten_thousand_take_no_time_to_speak_of() -> None:
    """One request may name them all; each is decided on the image that has those before it."""
    entropy = Counted()
    image = ONE.apply([r.Topic(f"old_{at}", entropy.id_bytes()) for at in range(10_000)])
    began = time.process_time()
    for at in range(1000):
        image = image.apply(made(image=image, name=f"new_{at}", partitions=10, entropy=entropy))
    assert len(image.topics) == 11_000
    assert time.process_time() - began < 5
