"""E9: where replicas go."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.replica_placement import spread
from ottla.controller.topics import create
from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.model.errors import ErrorCode, Refusal
from tests.controller.making import CONFIG


class Chance:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def id_bytes(self) -> bytes:
        return self._random.randbytes(16)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)


def brokers(*racks: str | None, fenced: tuple[int, ...] = (), stopping: tuple[int, ...] = ()) -> Image:
    return Image().apply(
        r.BrokerRegistration(node, 1, "h", 1, rack, fenced=node in fenced, stopping=node in stopping)
        for node, rack in enumerate(racks)
    )


def placed(image: Image, partitions: int, factor: int, seed: int = 1, first: int = 0) -> list[list[int]]:
    return spread(image, Chance(seed), partitions=partitions, factor=factor, first=first)


@given(st.integers(1, 7), st.integers(1, 40), st.data())
def test_every_partition_has_its_replicas_and_leaders_take_turns(nodes: int, partitions: int, data: st.DataObject) -> None:  # fmt: skip
    factor = data.draw(st.integers(1, nodes))
    rows = placed(brokers(*[None] * nodes), partitions, factor, data.draw(st.integers(0, 99)))
    assert all(len(set(row)) == len(row) == factor for row in rows)
    leaders = Counter(row[0] for row in rows)
    assert max(leaders.values()) - min(leaders.get(node, 0) for node in range(nodes)) <= 1


@given(st.integers(0, 99), st.integers(1, 3))
def test_replicas_stand_in_as_many_racks_as_there_are(seed: int, factor: int) -> None:
    """Six brokers in three racks, numbered so that neighbours share one."""
    image = brokers("a", "a", "b", "b", "c", "c")
    rows = placed(image, 36, factor, seed)
    assert all(len({image.brokers[node].rack for node in row}) == factor for row in rows)
    assert set(Counter(row[0] for row in rows).values()) == {6}
    assert set(Counter(node for row in rows for node in row).values()) == {6 * factor}


def test_with_more_replicas_than_racks_each_rack_has_one_at_least() -> None:
    image = brokers("a", "a", "a", "b")
    for row in placed(image, 20, 3):
        assert {image.brokers[node].rack for node in row} == {"a", "b"} and len(set(row)) == 3


def test_racks_count_only_if_all_are_known() -> None:
    assert placed(brokers("a", None, "b"), 6, 2) == placed(brokers(None, None, None), 6, 2)


def test_more_partitions_go_on_with_another_shift() -> None:
    rows = placed(brokers(None, None, None, None), 24, 3, first=8)
    by_leader: dict[int, set[tuple[int, ...]]] = {}
    for leader, *others in rows:
        by_leader.setdefault(leader, set()).add(tuple(others))
    assert all(len(others) == 3 for others in by_leader.values())


def test_who_does_not_live_gets_replicas_only_if_there_are_too_few_others() -> None:
    image = brokers(None, None, None, None, None, fenced=(0,), stopping=(1,))
    assert {node for row in placed(image, 20, 3) for node in row} == {2, 3, 4}
    for seed in range(5):
        used = {node for row in placed(image, 20, 4, seed) for node in row}
        assert used in ({0, 2, 3, 4}, {1, 2, 3, 4})
        assert all(used == set(row) for row in placed(image, 20, 4, seed))
    assert {node for row in placed(image, 2, 5) for node in row} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("factor", [0, -2, 4])
def test_a_factor_that_cannot_be(factor: int) -> None:
    with pytest.raises(Refusal) as caught:
        placed(brokers(None, None, None), 1, factor)
    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_nobody_lives() -> None:
    with pytest.raises(Refusal) as caught:
        placed(brokers(None, fenced=(0,)), 1, 1)
    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_topic_made_while_a_broker_is_away_begins_without_it() -> None:
    image = brokers(None, None, None, fenced=(1,))
    made = create(
        image, CONFIG, Chance(1), name="t", partitions=6, replication_factor=3, assignments={}, configs={}
    )
    assert isinstance(made[-1], r.NewPartitions) and made[-1].away == (1,)
    rows = image.apply(made).topics["t"].partitions
    assert {row.replicas[0] for row in rows} == {0, 1, 2}
    assert all(1 in row.replicas and 1 not in row.isr and row.leader == row.isr[0] for row in rows)
    assert r.decode(r.encode(made[-1])) == made[-1]


def test_by_hand_somebody_must_live() -> None:
    image = brokers(None, None, fenced=(1,))
    with pytest.raises(Refusal) as caught:
        create(image, CONFIG, Chance(1), name="t", partitions=-1, replication_factor=-1, assignments={0: [1]}, configs={})  # fmt: skip
    assert caught.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
